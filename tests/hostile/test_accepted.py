"""Every accepted option has an effect: an option without one would be a silent mistake."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import Kept
from support.hostile import spread

from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.checkpoint import Checkpoints
from fedlit.core.fabric import make_fabric
from fedlit.data import ClassFolders, FedHeartDisease, FedISIC2019, ImageTable, MedMNIST, PhantomCXR
from fedlit.data.federated import FederatedDataModule
from fedlit.data.xrays.base import ChestXrays
from fedlit.federation.settings import Settings
from fedlit.models import ImageClassifier, LogisticRegression
from fedlit.objectives import AUCSaddle

BASE = (
    "fit --data toys.ToyData --model toys.ToyNet --model.momentum 0.9 --federation.rounds 4 --federation.workers 1 "
    "--federation.schedule.window 2 --federation.schedule.unit steps --federation.checkpoint_every 1 --logger false "
    "--name one "
    "--federation.monitor train/loss --federation.monitor_mode max"
)

RUNS = [
    ("seed", "--seed 1", "weights"),
    ("name", "--name two", "directory"),
    ("experiment", "--experiment other", "directory"),
    ("run_dir", "--run_dir elsewhere", "directory"),
    ("fast_dev_run", "--fast_dev_run true", "directory"),
    ("fabric.precision", "--fabric.precision 64-true", "dtype"),
    ("federation.aggregators", "--federation.aggregators+=FedProx --federation.aggregators.mu 1", "weights"),
    ("federation.rounds", "--federation.rounds 5", "rounds"),
    ("federation.schedule", "--federation.schedule.window 3", "steps"),
    ("federation.clients", "--federation.clients '[site-0, site-1]'", "names"),
    ("federation.participation", "--federation.participation 0.7", "cohorts"),
    ("federation.weights", "--federation.weights uniform", "weights"),
    ("federation.optimizer_state", "--federation.optimizer_state keep", "kept"),
    ("federation.lr_factors", "--federation.lr_factors '{site-0: 0.1}'", "weights"),
    ("federation.gradient_clamp", "--federation.gradient_clamp 0.001", "weights"),
    ("federation.gradient_clip", "--federation.gradient_clip 0.01", "weights"),
    ("federation.eval_every", "--federation.eval_every 2", "evaluated"),
    ("federation.test_curves", "--federation.test_curves true", "test curves"),
    ("federation.monitor", "--federation.monitor val/loss", "best value"),
    ("federation.monitor_mode", "--federation.monitor_mode min", "best value"),
    (
        "federation.patience",
        "--federation.patience 1 --federation.monitor train/loss --federation.monitor_mode max",
        "rounds",
    ),
    ("federation.checkpoint_every", "--federation.checkpoint_every 1000", "saved"),
]
"""Option, its words on the command line, and what of a run it must change."""


ELSEWHERE = {
    "measure_batches": "the measuring round below",
    "workers": "changes no number, by design: tests/federation/engines",
    "state_memory": "changes no number, by design: tests/federation/test_stored_states.py",
    "device": "changes no number, by design: tests/federation/test_placement.py, tests/data/test_resident.py",
    "patience_margin": "tests/federation/test_patience.py",
    "groups": "tests/data/test_groups.py",
    "bands": "tests/data/test_groups.py",
    "quorum": "of sites: tests/sites/test_site_faults.py",
    "deadline": "of sites: tests/sites/test_site_faults.py",
    "on_site_error": "of sites: tests/sites/test_site_faults.py",
    "benchmark": "of cuDNN, so it needs a GPU: configs/README.md",
    "threads": "of worker processes: tests/federation/engines",
    "memory_format": "tests/core/test_memory_format.py",
    "compile": "tests/federation/test_compile.py",
    **dict.fromkeys(
        ("table", "root", "image", "patient", "site", "labels", "findings", "separator", "splits", "test", "duplicates",
         "sheet", "encoding", "rows", "sites", "values", "uncertain", "blank",
         "views", "names", "missing", "official_split", "colour"),
        "tests/data/own/test_image_table.py",
    ),
    "sampler": "tests/data/test_sampler.py",
    "unlabelled": "tests/data/own/test_unlabelled.py",
    "file": "tests/data/own/test_medmnist.py",
    "split_file": "tests/data/flamby/test_isic.py",
    **dict.fromkeys(("damaged", "depth"), "tests/data/test_decoding.py"),
    "resize": "tests/data/test_padding.py",
    "same_person": "tests/data/test_patients.py",
    "accelerator": "needs another device",
    "devices": "ranks: tests/federation/engines",
    "num_nodes": "machines: tests/federation/engines",
}  # fmt: skip


class Seen:
    """The observable results of a run."""

    def __init__(self, directory: Path, saved: list[int]) -> None:
        self.kept, self.saved = Kept(directory), saved
        self.values: dict[str, Any] = {"directory": str(directory), "saved": tuple(saved)}
        if not directory.exists():
            return
        rows, tensors = self.kept.metrics(), self.kept.tensors()

        def of(key: str) -> list[tuple[int, str]]:
            return [(step, value) for step, name, value in rows if name == key]

        best = checkpoint.best(self.kept.last)
        self.values |= {
            "weights": tensors["server/w"].numpy().tobytes(),
            "dtype": tensors["server/w"].dtype,
            "kept": sorted(name for name in tensors if "optimizer" in name),
            "rounds": len(of("train/loss")),
            "steps": of("round/steps"),
            "cohorts": of("round/clients"),
            "evaluated": [step for step, _ in of("val/loss")],
            "best value": best.value,
            "test curves": len(of("test_curve/federation/auroc_macro")),
            "names": sorted({name.split("/")[1] for _, name, _ in rows if name.startswith("client/")}),
        }


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """The results of the base run."""
    return {}


def ran(place: Path, words: str, fedlit_cli: Callable, patch: pytest.MonkeyPatch) -> Seen:
    saved: list[int] = []
    save = Checkpoints.save
    patch.chdir(place)
    patch.setattr(Checkpoints, "save", lambda self, held, *rest: (saved.append(held.round), save(self, held, *rest))[1])
    fedlit_cli(f"{BASE} {words}").succeeded()
    found = sorted(path.parent.relative_to(place) for path in place.rglob("config.yaml"))
    return Seen(found[0] if found else Path("none"), saved)


@pytest.mark.parametrize("row", spread({row[0]: row for row in RUNS}))
def test_an_option_of_a_run_changes_what_it_says(row, base, fedlit_cli, tmp_path, monkeypatch):
    _, words, what = row
    for name, given in (("base", ""), ("changed", words)):
        if name in base:
            continue
        (tmp_path / name).mkdir()
        with monkeypatch.context() as patch:
            seen = ran(tmp_path / name, given, fedlit_cli, patch).values
        if name == "base":
            base[name] = seen
    assert seen.get(what) != base["base"][what]


def test_every_option_of_a_federation_and_of_fabric_is_in_the_table():
    names = {f"federation.{field.name}" for field in fields(Settings)}
    names |= {f"fabric.{name}" for name in inspect.signature(make_fabric).parameters}
    there = {row[0] for row in RUNS}
    assert sorted(name for name in names - there if name.partition(".")[2] not in ELSEWHERE) == []


PHANTOM = {"hospitals": 3, "images": 60, "image_size": 16, "batch_size": 8}

DATA = [
    ("hospitals", 2, "clients"),
    ("images", 90, "sizes"),
    ("heterogeneity", 0.0, "pixels"),
    ("prevalence", 0.9, "labels"),
    ("label_scheme", "split", "labelled"),
    ("shared_classes", {"label_scheme": "split", "shared_classes": 2}, "labelled"),
    ("classes", ["Edema", "Mass"], "classes"),
    ("partition", "IID", "clients"),
    ("image_size", 24, "shape"),
    ("seed", 1, "pixels"),
    ("scheme", "HideClasses", "labelled"),
    ("missing_classes", {"label_scheme": "split", "missing_classes": "negative"}, "labels"),
    ("pooled", True, "clients"),
    ("batch_size", 4, "batch"),
    ("eval_batch_size", 4, "eval batch"),
    ("in_chans", 3, "shape"),
    ("augment", False, "pixels"),
    ("split", (0.5, 0.3, 0.2), "sizes"),
    ("cache_dir", "other", "cache"),
    ("mean", 0.2, "pixels"),
    ("std", 0.5, "pixels"),
]


def classes_named(name: str) -> Any:
    from fedlit import data

    made = {"IID": lambda: data.IID(4), "HideClasses": lambda: data.HideClasses(2)}
    return made[name]()


def data_seen(place: Path, **options: Any) -> dict[str, Any]:
    named = {key: classes_named(value) if key in ("partition", "scheme") else value for key, value in options.items()}
    cache = place / named.pop("cache_dir", "cache")
    data = PhantomCXR(**{**PHANTOM, **named}, cache_dir=str(cache))
    data.setup()
    first = next(iter(data.clients.values()))
    torch.manual_seed(0)
    images, labels = first.train.batch(torch.arange(4))
    return {
        "clients": list(data.clients),
        "sizes": [[len(part) for part in (c.train, c.val, c.test) if part is not None] for c in data.clients.values()],
        "labelled": [c.classes for c in data.clients.values()],
        "classes": data.classes,
        "shape": tuple(images.shape),
        "pixels": images.numpy().tobytes(),
        "labels": labels.numpy().tobytes(),
        "batch": data.batch_size,
        "eval batch": data.eval_batch_size,
        "cache": sorted(path.name for path in place.iterdir()),
    }


@pytest.mark.parametrize(("option", "value", "what"), DATA, ids=[row[0] for row in DATA])
@pytest.mark.filterwarnings("ignore:classes without")
def test_an_option_of_the_data_changes_what_it_says(option, value, what, tmp_path):
    changed = value if isinstance(value, dict) else {option: value}
    before = {key: given for key, given in changed.items() if key != option}
    seen = [data_seen(tmp_path / name, **given) for name, given in (("one", before), ("two", changed))]
    assert seen[0][what] != seen[1][what]


def test_every_option_of_the_data_is_in_the_table():
    kinds = (
        PhantomCXR,
        FederatedDataModule,
        ChestXrays,
        ImageTable,
        ClassFolders,
        MedMNIST,
        FedHeartDisease,
        FedISIC2019,
    )
    names = {name for kind in kinds for name in inspect.signature(kind).parameters}
    assert sorted(names - {row[0] for row in DATA} - {*ELSEWHERE, "kwargs"}) == []


MODEL = [
    ("classes", ("a", "b", "c"), "shapes"),
    ("backbone", "resnet20_cifar", "shapes"),
    ("in_chans", 3, "shapes"),
    ("norm", "group", "layers"),
    ("stem", {"backbone": "resnet10t", "stem": "small"}, "layers"),
    ("hidden", 8, "shapes"),
    ("trainable", "head", "trained"),
    ("drop_rate", 0.9, "loss"),
    ("projection", 8, "shapes"),
    ("objective", AUCSaddle(prior=0.5), "loss"),
    ("optimizer", lambda p: torch.optim.SGD(p, lr=0.5), "rate"),
]


def model_seen(**options: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = ImageClassifier(
        **{"classes": ("a", "b"), "backbone": "resnet20_cifar" if options.get("norm") else "small_cnn"} | options
    )
    torch.manual_seed(0)
    images = torch.randn(4, options.get("in_chans", 1), 28, 28)
    labels = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]] * 2)[:, : len(model.classes)]
    return {
        "shapes": {name: tuple(p.shape) for name, p in model.named_parameters()},
        "layers": [(name, type(layer).__name__, str(layer)) for name, layer in model.named_modules()],
        "trained": [name for name, p in model.named_parameters() if p.requires_grad],
        "loss": float(model.training_step((images, labels), 0).detach()),
        "rate": model.configure_optimizers().param_groups[0]["lr"],
    }


@pytest.mark.parametrize(("option", "value", "what"), MODEL, ids=[row[0] for row in MODEL])
def test_an_option_of_the_model_changes_what_it_says(option, value, what):
    changed = value if isinstance(value, dict) else {option: value}
    before = {key: given for key, given in changed.items() if key != option}
    if option == "norm":
        before, changed = {"norm": "batch"}, {"norm": "group"}
    assert model_seen(**before)[what] != model_seen(**changed)[what]


def test_weights_of_a_file_are_loaded(tmp_path):
    body = ImageClassifier(("a",), "resnet10t").body
    torch.save({name: torch.zeros_like(value) for name, value in body.state_dict().items()}, tmp_path / "zero.pth")
    loaded = ImageClassifier(("a",), "resnet10t", weights=tmp_path / "zero.pth").body
    assert all(not value.any() for value in loaded.state_dict().values())


def test_options_of_logistic_regression_are_those_of_an_image_classifier_and_two_more():
    """tests/models/test_linear.py has both."""
    names = set(inspect.signature(LogisticRegression).parameters) - {row[0] for row in MODEL}
    assert names == {"features", "start"}


def test_every_option_of_the_model_is_in_the_table():
    names = set(inspect.signature(ImageClassifier).parameters) - {row[0] for row in MODEL}
    # a file above; a download, which no test makes; features, which need weights of a run
    assert names == {"weights", "pretrained", "features"}
