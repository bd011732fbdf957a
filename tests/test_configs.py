"""Every YAML in configs/ parses, makes its objects, prints itself, and runs."""

import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_catvsdog
import small_chexpert
import small_heart
import small_isic
import small_melanoma
import small_mimic
import small_padchest
import small_vindr
import small_vision
import timm
import yaml
from jsonargparse import ArgumentParser, Namespace
from PIL import Image
from reproduced import evaluated, one_parser, planning_with_one_parser
from traits import representatives, traits

from fedlit.cli.main import main, parse
from fedlit.experiment.grid import combinations_of
from fedlit.experiment.sweep import load_sweep, plan
from fedlit.experiment.tuning import first_points_of, load_tuning, runs_of
from fedlit.federation.federation import Federation
from fedlit.reports.reproductions import NAMES
from fedlit.reports.reproductions.document import find

CONFIGS = Path(__file__).parent.parent / "configs"
SWEEPS = sorted(CONFIGS.glob("sweeps/*.yaml"))
TUNINGS = sorted(CONFIGS.rglob("tune*.yaml"))
DOCUMENTS = {*map(find, NAMES)}
PLANS = {file for scale in ("laptop", "paper", "linked") for file in CONFIGS.glob(f"*/{scale}/*.yaml")}
FILES = sorted({*CONFIGS.rglob("*.yaml")} - {*SWEEPS, *TUNINGS, *DOCUMENTS, *PLANS})
FINDINGS = ("Atelectasis", "Effusion|Mass", "No Finding", "Pneumonia")

pytestmark = [
    pytest.mark.filterwarnings("ignore:classes without"),
    pytest.mark.filterwarnings("ignore:FedBNPlus freezes normalisation layers that were never trained"),
]


@pytest.fixture(scope="module", autouse=True)
def _one_parser() -> Iterator[None]:
    with planning_with_one_parser():
        yield


class Roots(dict[str, Path]):
    """A folder of each data set, written when a test first asks for it."""

    def __init__(self, make_folder: Callable[[str], Path]) -> None:
        self.make_folder = make_folder

    def __missing__(self, name: str) -> Path:
        self[name] = folder = self.make_folder(name)
        WRITERS[name](folder)
        return folder


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roots]:
    with pytest.MonkeyPatch.context() as patch:
        # torchvision takes a small copy for a damaged one.
        patch.setattr("torchvision.datasets.stl10.check_integrity", lambda path, md5=None: Path(path).is_file())
        yield Roots(tmp_path_factory.mktemp)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures are decoded once for all configs."""
    return tmp_path_factory.mktemp("cache")


def picture(seed: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def write_cifar(root: Path, column: str, categories: int) -> None:
    for part, images in (("train", 14), ("test", 2)):
        rows = [(category, picture(100 * category + i)) for category in range(40) for i in range(images)]
        pictures = [{"bytes": image, "path": "x"} for _, image in rows]
        table = pa.table({"img": pictures, column: [category % categories for category, _ in rows]})
        pq.write_table(table, root / f"{part}-00000-of-00001.parquet")


def write_imagenet(root: Path) -> None:
    for part, images in (("train", 14), ("val", 2)):
        for category in range(40):
            folder = root / part / f"n{category:08d}"
            folder.mkdir(parents=True)
            for i in range(images):
                (folder / f"{part}_{i}.JPEG").write_bytes(picture(100 * category + i))


def write_mimic(root: Path) -> None:
    small_mimic.write_folder(root)
    for file in root.glob("files/**/*.jpg"):  # the same pictures at two organisations are refused
        Image.open(file).rotate(40).save(file, quality=95)
    small_mimic.write_long_tail(root / "labels.csv")


def write_nih(root: Path) -> None:
    """120 tiny pictures of 60 patients in the official layout."""
    (root / "images").mkdir()
    rng = np.random.default_rng(0)
    lines = [
        "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
        "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y]"
    ]
    for row in range(120):
        name, patient = f"{row // 2:08d}_{row % 2:03d}.png", row // 2
        lines.append(f"{name},{FINDINGS[patient % 4]},{row % 2},{patient},50,F,PA,16,16,0.1,0.1")
        Image.fromarray(rng.integers(0, 256, (16, 16), dtype=np.uint8)).save(root / "images" / name)
    (root / "Data_Entry_2017_v2020.csv").write_text("\n".join(lines) + "\n")


WRITERS: dict[str, Callable[[Path], object]] = {
    "CATvsDOG": small_catvsdog.write_kaggle,
    "CheXpert": small_chexpert.write_folder,
    "CIFAR10": partial(write_cifar, column="label", categories=10),
    "CIFAR100": partial(write_cifar, column="fine_label", categories=40),
    "FashionMNIST": small_vision.write_fashion_mnist,
    "FedHeartDisease": small_heart.write_folder,
    "FedISIC2019": small_isic.write_folder,
    "ImageNet": write_imagenet,
    "Melanoma": small_melanoma.write_folder,
    "MIMICCXR": write_mimic,
    "MIMICCXRLT": write_mimic,
    "NIHChestXray14": write_nih,
    "PadChest": small_padchest.write_folder,
    "STL10": small_vision.write_stl,
    "VinDrCXR": small_vindr.write_folder,
}
"""Functions that write a small copy of a data set."""


def options_of(file: Path, roots: Roots) -> dict[str, str]:
    """Return the options of a user: a root per data set, and no pretrained weights, which need a network."""
    config = yaml.safe_load(file.read_text())
    data = {"data": config["data"]}
    for group in ("sources", "external"):
        data |= {f"data.{group}.{name}": one for name, one in config["data"]["init_args"].get(group, {}).items()}
    options = {}
    for key, one in data.items():
        if one["class_path"] in WRITERS:
            options[f"{key}.root"] = str(roots[one["class_path"]])
        if one["class_path"] == "MIMICCXRLT":
            options[f"{key}.labels_file"] = str(roots["MIMICCXRLT"] / "labels.csv")
    return options | ({"model.pretrained": "false"} if config["model"]["init_args"].get("pretrained") else {})


def command_line(file: Path, roots: Roots, cache: Path) -> list[str]:
    """Return the command of a user, with the folder of the cache if the data are images."""
    words = [f"--{key}={value}" for key, value in options_of(file, roots).items()]
    return ["fit", "--config", str(file), *words, *(["--data.cache_dir", str(cache)] if of_images(file) else [])]


def of_images(file: Path) -> bool:
    """Return True if the data are images, not a table."""
    return yaml.safe_load(file.read_text())["data"]["class_path"] != "FedHeartDisease"


NAMED = {
    ".": "quickstart",
    "nih": "fedavg fedbn scaffold",
    "fdam": "chestxray-five chestxray-ih cifar10-ih cifar100-ih cifar100-ih-linked imagenet-ih nih phantom-ih "
    "target-five two-stage two-stage-1 two-stage-2",
    "surgical": "nih-chexpert nih-chexpert-linked nih-chexpert-shared nih-iid nih-mini nih-mini-frozen nih-mini-iid "
    "phantom phantom-iid",
    "scgdam": "catvsdog cifar10 cifar10-laptop cifar100 fashionmnist melanoma nih-pneumonia phantom stl10",
    "flamby": "heart isic2019",
    "privacy": "quickstart",
    "sweeps": "nih-mini-classes nih-mini-clients phantom-classes phantom-clients scgdam-cifar10 scgdam-figure-4 "
    "scgdam-figure-5 scgdam-table-1 surgical-classes surgical-clients surgical-table-1 surgical-table-2",
}


def test_the_configs_of_the_papers_are_there():
    named = {CONFIGS / folder / f"{name}.yaml" for folder, names in NAMED.items() for name in names.split()}
    assert {*FILES, *SWEEPS} >= named


FAST = (
    "fdam/two-stage.yaml",
    "surgical/nih-chexpert-shared.yaml",
    "phantom/codasca_surgical_fedbnplus.yaml",
    "scgdam/cifar10-laptop.yaml",
)
"""One of each paper, and one of each thing that a config may have: phases, organisations, a composition."""

OWN_BODY = ("scgdam/cifar10-laptop.yaml", "surgical/phantom-iid.yaml", "flamby/isic2019.yaml")
"""One configuration of each kind of body that is not a DenseNet; the others train a small one."""

RECIPES = ("quickstart.yaml", "privacy/quickstart.yaml")
"""Configurations that the recipes train."""

FAST_SWEEPS = ("quickstart", "surgical-clients", "scgdam-figure-4")
"""One without a grid, one with a grid of clients, one whose cases are of another paper."""


def traits_of(file: Path) -> set[str]:
    settings = yaml.load(file.read_text(), yaml.CSafeLoader)  # of all files, at each collection
    data = settings["data"]
    divided = data["init_args"].get("partition", {}).get("class_path")
    return {*traits(settings), f"{data['class_path']} by {divided}"}


OF_EACH = {file: traits_of(file) for file in FILES}
TRAINED = [CONFIGS / name for name in dict.fromkeys((*FAST, *OWN_BODY))]
SEEN = set().union(*(OF_EACH[file] for file in (*TRAINED, *(CONFIGS / name for name in RECIPES))))
REPRESENTATIVES = [*TRAINED, *representatives(OF_EACH, SEEN)]
OTHERS = sorted({*FILES} - {*REPRESENTATIVES, *(CONFIGS / name for name in RECIPES)})


def parameters(files: Iterable[Path], fast: Collection[str]) -> Iterator[object]:
    """Files as parameters, of which a few are in the fast tests."""
    for file in files:
        name = str(file.relative_to(CONFIGS))
        marks = [] if name in fast else [pytest.mark.slow]
        if file.parent.name == "privacy":
            without = find_spec("opacus") is None
            marks.append(pytest.mark.skipif(without, reason="Opacus is not installed: pip install 'fedlit[privacy]'"))
        yield pytest.param(file, id=name, marks=marks)


@pytest.mark.parametrize("file", parameters([CONFIGS / name for name in FAST[:2]], FAST[:1]))
def test_prints_what_makes_the_same(
    file: Path, roots: Roots, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    words = command_line(file, roots, cache)
    args, parser = parse(words)
    with pytest.raises(SystemExit) as stopped:
        parse([*words, "--print_config"])
    assert stopped.value.code in (0, None)
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out)
    assert dumped(args, parser) == dumped(*parse(["fit", "--config", str(printed)]))


@pytest.mark.parametrize("file", parameters([CONFIGS / FAST[0], *OTHERS], FAST[:1]))
def test_makes_its_objects(file: Path, roots: Roots, cache: Path):
    settings = yaml.safe_load(file.read_text())
    backbone = settings["model"]["init_args"].get("backbone")
    assert backbone is None or timm.is_model(backbone)
    small = ["--model.backbone", "small_cnn"] if backbone else []
    args, parser = parse([*command_line(file, roots, cache), *small])
    objects = parser.instantiate(args)
    assert type(objects.data).__name__ == settings["data"]["class_path"]
    assert tuple(objects.model.classes) == tuple(objects.data.classes)
    federation: Federation = objects.federation
    assert [type(a).__name__ for a in federation.aggregators] == [
        a if isinstance(a, str) else a["class_path"] for a in settings["federation"].get("aggregators", ())
    ]
    if "rounds" in settings["federation"]:
        assert federation.rounds == settings["federation"]["rounds"]
    else:
        schedule = settings["federation"]["schedule"]["init_args"]
        assert federation.rounds == -(-schedule["iterations"] // schedule["window"])


@pytest.mark.parametrize("file", parameters(REPRESENTATIVES, FAST))
def test_trains_a_step(
    file: Path,
    roots: Roots,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # a table that is not folded
    sizes = ["--data.image_size", "32"] if of_images(file) else []
    sizes += ["--data.batch_size", "4", "--federation.workers", "1"]
    sizes += ["--federation.measure_batches", "1"]
    settings = yaml.safe_load(file.read_text())
    if settings["data"]["class_path"] == "PhantomCXR" and file.parent.name != "privacy":  # which needs patients
        sizes += ["--data.images", "120"]
    for group in ("sources", "external"):
        for name, one in settings["data"]["init_args"].get(group, {}).items():
            if one["class_path"] == "PhantomCXR":
                few = [hospital | {"images": 100} for hospital in one["init_args"]["hospitals"]]
                sizes.append(f"--data.{group}.{name}.hospitals={json.dumps(few)}")
    if file.parent.name == "scgdam" and "partition" in settings["data"]["init_args"]:
        sizes += ["--data.partition.clients", "2"]
    model = settings["model"]["init_args"]
    if "stem" in model:
        sizes += ["--model.backbone", "resnet10t", "--data.partition.clients", "4"]
    elif of_images(file) and str(file.relative_to(CONFIGS)) not in OWN_BODY:
        sizes += ["--model.backbone", "small_cnn"]
        if file.parent.name == "scgdam":  # the Hessian of statistics over four images of one pixel knows no bounds
            sizes += ["--federation.gradient_clip", "1"]
    with pytest.raises(SystemExit) as stopped:
        main([*command_line(file, roots, cache), *sizes, "--fast_dev_run", "true"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    tested = file.stem != "target-five"  # the paper measures only on CheXpert's validation images
    assert ("mean over defined classes" in printed) == tested
    assert re.search(r" over (1 client|([2-9]|\d\d+) clients) ", printed)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "file", [pytest.param(f, id=f.stem, marks=[] if f.stem in FAST_SWEEPS else [pytest.mark.slow]) for f in SWEEPS]
)
def test_every_sweep_is_a_list_of_runs(file: Path, roots: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    sweep = load_sweep(file)
    every = [repr(each.settings) for each in combinations_of(sweep)]
    assert len({*every}) == len(every)
    of_each = {name: {*traits({k: v for k, v in keys.items() if k != "labels"})} for name, keys in sweep.cases.items()}
    sweep = replace(sweep, cases={name: sweep.cases[name] for name in representatives(of_each)})
    small = options_of(Path(sweep.config[0]), roots) | {"model.backbone": "small_cnn"}  # planning builds every model
    sweep = replace(sweep, set={**sweep.set, **small}, seeds=sweep.seeds[:1])
    places = (0, -1) if sweep.grid and not sweep.cases else (-1,)
    ends = [{key: [values[place]] for key, values in sweep.grid.items()} for place in places]
    runs = [run for end in ends for run in plan(replace(sweep, grid=end))]
    cases = max(1, len(sweep.cases)) + sum({"individual": sweep.set.get("data.hospitals"), "pooled": 1}[name]
                                           for name in sweep.baselines)  # fmt: skip
    assert len(runs) == len(places) * cases
    assert {run.standing() for run in runs} == {"new"}


@pytest.mark.parametrize("name", ["fdam-table-4", "scgdam-table-1", "scgdam-cifar10", "fdam-growing-windows"])
def test_all_windows_of_a_sweep_are_evaluated_equally_often(name: str):
    """A window that ends later than a multiple is evaluated there."""
    sweep = load_sweep(CONFIGS / f"sweeps/{name}.yaml")
    (key, values) = next((key, values) for key, values in sweep.grid.items() if "window" in key)
    of_each = [evaluated(Path(sweep.config[0]), {**sweep.set, key: value}) for value in values]
    assert len({len(each) for each in of_each}) == 1
    assert all(max(at) - min(at) < 128 for at in zip(*of_each, strict=True))


@pytest.mark.parametrize("file", TUNINGS, ids=lambda file: str(file.relative_to(CONFIGS)))
def test_every_tuning_is_planned(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    tuning = load_tuning(file)
    small = tuning.set | {"model.backbone": "small_cnn"}
    ends = {case: points[:1] for case, points in first_points_of(tuning).items()}
    runs = runs_of(replace(tuning, set=small, seeds=tuning.seeds[:1]), "final", ends, one_parser())
    assert {case: len(of_case) for case, of_case in runs.items()} == dict.fromkeys(tuning.cases, 1)


def dumped(args: Namespace, parser: ArgumentParser) -> dict:
    """Return the whole configuration of a command line, without the name of its file."""
    whole = yaml.safe_load(parser.dump(args, skip_none=False))
    whole.pop("config", None)
    return whole


def test_nih_without_a_root_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["fit", "--config", str(CONFIGS / "nih" / "fedavg.yaml"), "--fast_dev_run", "true"])
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert "data.root" in said
    assert "Data_Entry_2017_v2020.csv" in said
