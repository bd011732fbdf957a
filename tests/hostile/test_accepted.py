"""Every accepted option has an effect: an option without one would be a silent mistake."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import Kept
from toys import ToyData, ToyNet

import fedlit
from fedlit.core.checkpoints import checkpoint
from fedlit.data import IID, HideClasses, PhantomCXR
from fedlit.models import ImageClassifier
from fedlit.objectives import AUCSaddle
from fedlit.schedules import ConstantSchedule

RUNS = [
    ({"seed": 1}, "weights"),
    ({"precision": "64-true"}, "dtype"),
    ({"weights": "uniform"}, "weights"),
    ({"monitor": "val/loss"}, "best value"),
    ({"monitor_mode": "min"}, "best value"),
]
"""Options of a run that no test compares with a loop by hand, and what of the run each must change."""


def ran(folder: Path, **options: Any) -> dict[str, Any]:
    """Train into a folder; return what can be seen of the run."""
    given = {"rounds": 2, "workers": 1, "schedule": ConstantSchedule(2, "steps"), "name": "one", "figures": False}
    given |= {"monitor": "train/loss", "monitor_mode": "max", "run_dir": folder}
    torch.manual_seed(0)
    kept = Kept(fedlit.fit(ToyNet(momentum=0.9), ToyData(), **given | options).directory)
    w = kept.tensors()["server/w"]
    return {"weights": w.numpy().tobytes(), "dtype": w.dtype, "best value": checkpoint.best(kept.last).value}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What can be seen of a run without other options."""
    return ran(tmp_path_factory.mktemp("before"))


@pytest.mark.parametrize(("option", "what"), RUNS, ids=[next(iter(option)) for option, _ in RUNS])
def test_an_option_of_a_run_changes_what_it_says(option, what, before, tmp_path):
    assert ran(tmp_path, **option)[what] != before[what]


PHANTOM = {"hospitals": 3, "images": 30, "image_size": 16, "batch_size": 8}

DATA = [
    ("hospitals", 2, "clients"),
    ("images", 90, "sizes"),
    ("heterogeneity", 0.0, "pixels"),
    ("prevalence", 0.9, "labels"),
    ("label_scheme", "split", "labelled"),
    ("shared_classes", {"label_scheme": "split", "shared_classes": 2}, "labelled"),
    ("classes", ("Edema", "Mass"), "classes"),
    ("partition", IID(4), "clients"),
    ("image_size", 24, "shape"),
    ("seed", 1, "pixels"),
    ("scheme", HideClasses(2), "labelled"),
    ("missing_classes", {"label_scheme": "split", "missing_classes": "negative"}, "labels"),
    ("pooled", True, "clients"),
    ("batch_size", 4, "batch"),
    ("eval_batch_size", 4, "eval batch"),
    ("in_chans", 3, "shape"),
    ("augment", False, "pixels"),
    ("split", (0.5, 0.3, 0.2), "sizes"),
    ("mean", 0.2, "pixels"),
    ("std", 0.5, "pixels"),
]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """A function that makes a data set, once for each choice of options, and returns what can be seen of it."""

    @cache
    def of(**options: Any) -> dict[str, Any]:
        data = PhantomCXR(**{**PHANTOM, **options}, cache_dir=str(tmp_path_factory.mktemp("data")))
        data.setup()
        first = next(iter(data.clients.values()))
        torch.manual_seed(0)
        images, labels = first.train.batch(torch.arange(4))
        parts = [[c.train, c.val, c.test] for c in data.clients.values()]
        return {
            "clients": list(data.clients),
            "sizes": [[len(part) for part in each if part is not None] for each in parts],
            "labelled": [c.classes for c in data.clients.values()],
            "classes": data.classes,
            "shape": tuple(images.shape),
            "pixels": images.numpy().tobytes(),
            "labels": labels.numpy().tobytes(),
            "batch": data.batch_size,
            "eval batch": data.eval_batch_size,
        }

    return of


@pytest.mark.parametrize(("option", "value", "what"), DATA, ids=[row[0] for row in DATA])
@pytest.mark.filterwarnings("ignore:classes without")
def test_an_option_of_the_data_changes_what_it_says(option, value, what, seen):
    changed = value if isinstance(value, dict) else {option: value}
    assert seen(**{key: value for key, value in changed.items() if key != option})[what] != seen(**changed)[what]


MODEL = [
    ("classes", ("a", "b", "c"), "shapes"),
    ("backbone", "resnet20_cifar", "shapes"),
    ("in_chans", 3, "shapes"),
    ("norm", {"backbone": "resnet20_cifar", "norm": "group"}, "layers"),
    ("hidden", 8, "shapes"),
    ("trainable", "head", "trained"),
    ("drop_rate", 0.9, "loss"),
    ("projection", 8, "shapes"),
    ("objective", AUCSaddle(prior=0.5), "loss"),
    ("optimizer", lambda p: torch.optim.SGD(p, lr=0.5), "rate"),
]


def model_seen(**options: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = ImageClassifier(**{"classes": ("a", "b"), "backbone": "small_cnn"} | options)
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
    assert model_seen(**before)[what] != model_seen(**changed)[what]
