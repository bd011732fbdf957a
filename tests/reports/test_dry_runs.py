"""`fedlit reproduce` with custom settings and folders, and its `--dry_run`: steps and hours without data or network."""

import re
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import timm
import torch
import yaml
from refusals import refused
from reproduced import derived, derived_plan, load_plan, one_run, printed, shipped_plans
from traits import representatives, traits

from fedlit.core.errors import ConfigError
from fedlit.core.flat import FlatModel
from fedlit.core.system import documents
from fedlit.data import folders
from fedlit.experiment import grid
from fedlit.experiment.plan import Plan
from fedlit.models import ImageClassifier, backbones
from fedlit.models.networks import SmallCNN
from fedlit.objectives import AUCSaddle
from fedlit.reports.reproductions import NAMES, costs
from fedlit.reports.reproductions.costs import Estimate
from fedlit.reports.reproductions.document import find, read_document
from fedlit.reports.reproductions.reproduction import Reproduction

SMALLER = {"model.backbone": "resnet10t"}
WINDOW = "federation.schedule.window"
TINY = {"data.image_size": 16, "data.batch_size": 8, "model.backbone": "small_cnn"}


@pytest.fixture
def figure(tmp_path):
    """Make Figure 1 of FDAM with one federation of PhantomCXR and one window, or another document."""

    def made(base="fdam-fig1", keys=None, **options) -> Reproduction:
        body = derived_plan(tmp_path, "fdam/laptop/phantom-body", set=TINY)
        own = {"grid": {WINDOW: [512]}, "leave_out": None, "set": TINY, "starts": body}
        plan = derived_plan(tmp_path, "fdam/laptop/phantom", **own)
        keys = {"scales": {"laptop": {"root": None, "plans": [plan]}}} if keys is None else keys
        return Reproduction(derived(tmp_path, base, **keys), run_dir=tmp_path / "runs", **options)

    return made


def configurations(made: Reproduction) -> dict[str, list[dict]]:
    return {part: [yaml.safe_load(run.config) for run in runs] for part, runs in made.plan().items()}


def test_a_plan_fetches_nothing_and_reads_nothing(figure, monkeypatch):
    create = timm.create_model
    asked = []

    def created(name, pretrained=False, **options):
        assert not pretrained, "a plan fetches weights"
        asked.append(name)
        return create("resnet10t", **options)

    monkeypatch.setattr(timm, "create_model", created)
    made = figure("surgical-table1", {}, scale="paper", dry_run=True)
    made.plans = {"table-1": with_cases(made.plans["table-1"], "individual-NIH")}
    (keys,) = configurations(made)["surgical-table-1"]
    assert keys["model"]["init_args"]["pretrained"]
    assert keys["data"]["init_args"]["external"]["MIMIC-LT"]["init_args"]["labels_file"] == "ROOT/CXR-LT/cxr-lt-2023"
    assert asked == ["densenet121.tv_in1k"]
    monkeypatch.setattr(backbones, "_silence", lambda ask: "")
    with pytest.raises(AssertionError, match="a plan fetches weights"):
        ImageClassifier(("Edema",), pretrained=True)


def test_weights_of_a_file_take_the_place_of_those_of_the_hub(figure, tmp_path):
    file = tmp_path / "imagenet.pth"
    file.touch()
    made = figure("surgical-table1", {}, scale="paper", dry_run=True, weights=file, set=SMALLER)
    assert made.plans["table-1"].given == {"model.pretrained": False, "model.weights": str(file), **SMALLER}
    with refused(ConfigError, "fdam-fig1.yaml at laptop"):
        figure(weights=file)
    with refused(ConfigError, "no such file"):
        figure(weights=tmp_path / "none.pth")


def test_weights_in_torchvisions_names_are_taken(tmp_path, monkeypatch):
    create = timm.create_model
    short = lambda name, **options: create(name, growth_rate=8, block_config=(2, 1), **options)  # noqa: E731
    monkeypatch.setattr(timm, "create_model", short)
    state = timm.create_model("densenet121").state_dict()
    published = {re.sub(r"(denselayer\d+\.(?:norm|relu|conv))(\d)", r"\1.\2", key): v for key, v in state.items()}
    torch.save(published, tmp_path / "densenet121-a639ec97.pth")
    body = ImageClassifier(("Edema",), in_chans=3, weights=tmp_path / "densenet121-a639ec97.pth").body
    own = body.state_dict()
    taken = [torch.equal(own[key], value) for key, value in state.items() if key in own]
    assert all(taken)
    assert len(taken) > 20


@pytest.mark.slow
def test_steps_hours_and_bytes_are_those_counted_by_hand(figure, tmp_path):
    made = figure(seeds=[0, 1], dry_run=True, seconds_per_step=0.5)
    text = printed(made)
    steps = 2 * 2 * 5 * 4096  # two methods, two seeds, five clients, 4,096 iterations
    assert f"| fdam-fig1-phantom | 4 | 0 | 5 | {steps:,} | {steps * 0.5 / 3600:,.2f} |" in text
    assert "Seconds of a local step, as given:" in text
    assert "no data: they are built in" in text
    assert not (tmp_path / "runs").exists()
    alone = [replace(with_cases(made.plans["phantom"], case), starts=None) for case in ("codaplus", "codasca")]
    coda, codasca = (Estimate({}, 0.5).cost(one_run(each)) for each in alone)
    assert coda.steps == codasca.steps == 5 * 4096
    # Both send what they train, and keep two checkpoints of the server; CODASCA's clients keep a control variate each.
    options = {"backbone": "small_cnn", "hidden": 64, "trainable": "head", "objective": AUCSaddle()}
    flat = FlatModel(ImageClassifier(tuple("abcdefghij"), **options))
    vector, statistics = 4 * flat.w.numel(), 4 * flat.stats.numel()
    # Weights, statistics, centre of the stage and its first round; and a number that says whether a variate is empty.
    assert coda.disk == 2 * (vector + statistics + vector + 8)
    assert codasca.disk - coda.disk == (2 + 5) * (vector + 8)


@pytest.mark.slow
def test_epochs_are_counted_from_the_published_numbers_of_images(figure):
    made = figure("surgical-table1", {}, scale="paper", dry_run=True, seconds_per_step=0.1, set=SMALLER)
    made.plans = {"table-1": with_cases(made.plans["table-1"], "individual-NIH", "central")}
    nih, central = made.plan()["surgical-table-1"]
    estimate = Estimate(made.chosen.images, 0.1)
    batches = -(-78484 // 64)  # 70% of 112,120 images in batches of 64; 15 rounds of warm-up, 150 more
    assert estimate.cost(nih).steps == batches * 165
    assert estimate.cost(central).clients == 1
    assert estimate.cost(central).steps == -(-int(303147 * 0.7 + 1) // 64) * 165
    assert Estimate({}, 0.1).cost(nih).steps is None


def test_a_step_is_timed_with_its_algorithm(figure, monkeypatch):
    """And on features where they are computed once for all steps: a fixed body then costs nothing."""
    made, seen, whole = figure(seeds=[0], dry_run=True, set={"data.augment": False}), [], SmallCNN.forward_features
    monkeypatch.setattr(SmallCNN, "forward_features", lambda self, images: seen.append(1) or whole(self, images))
    fixed = one_run(replace(with_cases(made.plans["phantom"], "codaplus"), starts=None))
    augmented = replace(fixed, config=fixed.config.replace("augment: false", "augment: true"))
    for run, said, passes in ((fixed, "features of images", 1), (augmented, "images", 3)):
        seen.clear()
        estimate = Estimate({})
        cost = estimate.cost(run)
        assert list(estimate.measured) == [cost.step] == [f"small_cnn, CODAPlus, 8 {said} of 16x16, 1 channels"]
        assert 0 < estimate.seconds(cost) == cost.steps * estimate.measured[cost.step]
        assert len(seen) == passes


def test_cases_that_cost_the_same_are_planned_once_and_counted_as_if_each_had_been(tmp_path, monkeypatch):
    """Two of three cases are planned: only the algorithm changes the step, not the window, the rate or evaluations."""
    made = Reproduction("flamby-heart", run_dir=tmp_path, dry_run=True, seconds_per_step=0.1)
    window, cases = "federation.schedule.init_args.window", {}
    for name, steps, rate in (("FedAvg", 10, 0.1), ("FedAvg", 20, 0.3), ("Scaffold", 10, 0.1)):
        keys = {"federation.aggregators": [name], window: steps, "federation.eval_every": steps}
        cases[f"{name}-{steps}"] = keys | {"model.optimizer.lr": rate}
    sweep = replace(made.plans["heart"], cases=cases, grid={}, names="", seeds=[0, 1])
    asked, whole = [], grid.plan
    monkeypatch.setattr(costs, "plan", lambda some, parser: asked.append(some) or whole(some, parser))
    estimate = Estimate(made.chosen.images, 0.1)
    counted = estimate.costs(sweep)
    assert len(asked) == 2
    runs = whole(sweep)
    assert [(cost, False) for cost in map(estimate.cost, runs)] == [*counted.values()]
    assert [cost.steps for cost, _ in counted.values()] == [4 * 15 * steps for steps in (10, 10, 20, 20, 10, 10)]
    sweep.directory.mkdir(parents=True)  # what is there may be finished
    monkeypatch.setattr(costs, "plan", lambda some, parser: runs)
    monkeypatch.setattr(grid.PlannedRun, "standing", lambda run: "finished" if run.group == "FedAvg-20" else "new")
    finished = [finished for _, finished in estimate.costs(sweep).values()]
    assert finished == [False] * 2 + [True] * 2 + [False] * 2


def test_seconds_that_are_none_are_refused(figure):
    with refused(ConfigError, "found 0"):
        figure(seconds_per_step=0.0)


HOME = {"class_path": "PhantomCXR", "init_args": {"hospitals": [{"name": "home", "images": 100}]}}
BOTH = [{"name": "large", "images": 100}, {"name": "small", "images": 40}]
HOSPITALS = {"class_path": "PhantomCXR", "init_args": {"hospitals": BOTH}}
SOURCES = {"class_path": "Organisations", "init_args": {"sources": {"a": HOME, "b": HOME}}}
IID = {"class_path": "IID", "init_args": {"clients": 5}}
PARTS = {"class_path": "Organisations", "init_args": {"sources": {"home": HOME}, "partition": IID}}


@pytest.mark.parametrize(
    ("data", "steps"),
    [
        pytest.param(HOSPITALS, 8 + 3, id="hospitals"),
        pytest.param(PARTS, 5 * 2, id="parts"),
        pytest.param(SOURCES, 2 * 8, id="two"),
    ],
)
def test_epochs_of_built_in_data_are_counted_from_their_settings(data, steps, tmp_path):
    """Six tenths of the images train, in batches of 8."""
    sizes = {"split": [0.6, 0.2, 0.2], "image_size": 16, "batch_size": 8}
    schedule = {"class_path": "ConstantSchedule", "init_args": {"window": 1, "unit": "epochs"}}
    keys = {
        "data": data | {"init_args": data["init_args"] | sizes},
        "model": {"class_path": "ImageClassifier", "init_args": {"backbone": "small_cnn"}},
        "federation": {"rounds": 1, "schedule": schedule},
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(keys))
    planned = Plan(experiment="epochs", config=[str(tmp_path / "small.yaml")], run_dir=str(tmp_path))
    assert Estimate({}, 0.1).cost(one_run(planned)).steps == steps


@pytest.mark.slow
def test_documents_whose_plans_others_have_can_be_read():
    every = {(name, scale) for name in NAMES for scale in read_document(find(name)).scales}
    for name, scale in every - {*shipped_plans().values()}:
        assert Reproduction(name, scale=scale).chosen.data


@pytest.mark.slow
@pytest.mark.parametrize("paper", sorted({file.parents[1].name for file in shipped_plans()}))
def test_every_plan_says_what_it_would_run(paper, tmp_path, no_pretrained):
    """Without data or network; one case and one value of the grid."""
    for (name, scale), files in distinct_plans(paper).items():
        made = Reproduction(name, scale=scale, run_dir=tmp_path, seeds=[0], dry_run=True, seconds_per_step=0.1)
        made.plans = {file: with_one_case(made.plans[file]) for file in files}
        text = made.announcement()
        assert text.startswith(f"# {name} at {scale} scale: ")
        assert [each.experiment for each in made.plans.values() if each.experiment not in text] == []


def distinct_plans(paper: str) -> dict[tuple[str, str], list[str]]:
    """Plans by name and scale that have every trait of the paper's others among them."""
    of_each = {file: traits_of(load_plan(file)) for file in shipped_plans() if file.parents[1].name == paper}
    names = defaultdict(list)
    for file in representatives(of_each):
        names[shipped_plans()[file]].append(file.stem)
    return names


def traits_of(planned: Plan) -> set[str]:
    """Traits of a plan with one case, on its data and algorithms, and of the plan that it starts from."""
    alone, found = with_one_case(planned), set()
    on = [kind_of(file) for file in planned.config]
    for keys in (alone.set, *alone.cases.values(), alone.grid, alone.ranges):
        own = {key: value for key, value in keys.items() if key not in ("data.classes", "model.backbone", "labels")}
        found |= {f"{on}: {trait}" for trait in traits(own)}
    return found | {f"starts: {trait}" for trait in (traits_of(planned.bodies) if planned.bodies else ())}


@cache
def kind_of(config: str) -> list[str]:
    settings = documents.load(Path(config))
    return [trait for trait in traits(settings) if trait.startswith(".data=") or ".aggregators=" in trait]


def with_cases(planned: Plan, *names: str) -> Plan:
    return replace(planned, cases={name: planned.cases[name] for name in names})


def with_one_case(planned: Plan) -> Plan:
    values = {key: dict(list(v.items())[:1]) if isinstance(v, dict) else v[:1] for key, v in planned.grid.items()}
    return replace(planned, cases=dict(list(planned.cases.items())[-1:]), grid=values, leave_out=[])


CIFAR = {"data": {"class_path": "CIFAR10"}}
XRAYS = {"data": {"class_path": "Organisations", "init_args": {"sources": {"NIH": {"class_path": "NIHChestXray14"}}}}}


def holder(folder: Path, file: str) -> Path:
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_text("x")
    return folder


def test_the_named_folder_is_used_if_it_holds_the_data(tmp_path: Path):
    holder(tmp_path, "cifar-10-batches-py/data_batch_1")
    holder(tmp_path / "copy", "train-00000.parquet")
    assert folders.found_below(tmp_path, ".", CIFAR, "root") == tmp_path


def test_the_only_folder_below_that_holds_them_is_used(tmp_path: Path):
    expected = holder(tmp_path / "pictures", "train-00000-of-00001.parquet")
    nih = holder(tmp_path / "nih-mini", "Data_Entry_2017_v2020.csv")
    assert folders.found_below(tmp_path, ".", CIFAR, "root") == expected
    assert folders.found_below(tmp_path, "NIH", XRAYS, "sources.NIH.root") == nih
    assert folders.found_below(nih, "NIH", XRAYS, "sources.NIH.root") == nih


def test_several_folders_or_none_are_not_guessed_at(tmp_path: Path):
    assert folders.found_below(tmp_path, "NIH", XRAYS, "sources.NIH.root") == tmp_path / "NIH"
    assert folders.found_below(Path("ROOT"), ".", CIFAR, "root") == Path("ROOT")
    for name in ("a", "b"):
        holder(tmp_path / name, "cifar-10-batches-py/data_batch_1")
    with refused(ConfigError, f"--root {tmp_path}", "CIFAR10", tmp_path / "a", tmp_path / "b"):
        folders.found_below(tmp_path, ".", CIFAR, "root")


def test_every_class_of_the_list_exists():
    assert [name for name in folders.HOLDS if not hasattr(folders.data, name)] == []
