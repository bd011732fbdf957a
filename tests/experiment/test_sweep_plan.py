"""Plans of sweeps: names and settings of the runs, and mistakes, which are reported before the first run starts."""

import re
from pathlib import Path

import pytest
import yaml
from sweeps import BASE, GRID, write

from fedlit.core.errors import ConfigError
from fedlit.experiment.grid import combinations_of
from fedlit.experiment.sweep import load_sweep, plan
from fedlit.models import ImageClassifier
from fedlit.predictions.export import save_model

pytestmark = pytest.mark.usefixtures("folder")


def test_names_are_as_short_as_tells_them_apart(folder: Path):
    values = {"federation.aggregators": [["FedAvg"], [{"class_path": "FedProx", "init_args": {"mu": 0.5}}]]}
    sweep = {"experiment": "names", "config": ["base.yaml"], "grid": {"model.lr": [0.1, 1e-5], **values}}
    assert [each.group for each in combinations_of(load_sweep(write(folder, sweep)))] == [
        "lr=0.1,aggregators=FedAvg",
        "lr=0.1,aggregators=FedProx-mu-0.5",
        "lr=1e-05,aggregators=FedAvg",
        "lr=1e-05,aggregators=FedProx-mu-0.5",
    ]
    sweep |= {"set": {"model.class_path": "awkward.Stumbling"}, "grid": {"data.size": [12], "model.size": [2]}}
    assert [run.name for run in plan(load_sweep(write(folder, sweep)))] == ["data.size=12,model.size=2,seed=0"]


def test_a_configuration_of_fedlit_is_found_from_any_folder(folder: Path):
    here = load_sweep(write(folder, {"experiment": "shipped", "config": ["quickstart.yaml"]}))
    (folder / "sub").mkdir()
    above = folder / "sub" / "sweep.yaml"
    above.write_text("base: ../sweep.yaml\nexperiment: above\n")
    for found in (here, load_sweep(above)):
        assert "PhantomCXR" in Path(*found.config).read_text()


def test_sections_win_over_each_other_in_order(folder: Path):
    sweep = {
        "experiment": "order",
        "config": ["base.yaml"],
        "set": {"federation.rounds": 3, "data.size": 20, "model.lr": 0.5},
        "cases": {"a": {"data": {"init_args": {"size": 30}}, "model.lr": 0.4}},
        "grid": {"model.lr": [0.3]},
    }
    (run,) = plan(load_sweep(write(folder, sweep)))
    config = yaml.safe_load(run.config)
    assert config["federation"]["rounds"] == run.rounds == 3
    assert config["data"]["init_args"]["size"] == 30
    assert config["model"]["init_args"]["lr"] == 0.3
    assert config["tags"] == {"fedlit.method": "a", "model.lr": "0.3"}


def test_a_class_of_another_library_is_one_of_the_values(folder: Path):
    optimizers = [{"class_path": f"torch.optim.{name}", "init_args": {"lr": 0.1}} for name in ("SGD", "Adam")]
    base = BASE | {"model": {"class_path": "LogisticRegression", "init_args": {"features": 4}}}
    values = ({"grid": {"model.optimizer": optimizers[:1]}}, {"cases": {"a": {"model.optimizer": optimizers[1]}}})
    for section, optimizer in zip(values, optimizers, strict=True):
        sweep = {"experiment": "classes", "config": ["base.yaml"], **section}
        (run,) = plan(load_sweep(write(folder, sweep, base)))
        chosen = yaml.safe_load(run.config)["model"]["init_args"]["optimizer"]
        assert (chosen["class_path"], chosen["init_args"]["lr"]) == (optimizer["class_path"], 0.1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"grid": {"model.lr": [0.1, "high"]}},
            r"run fedavg,lr=high: model.* \(\S+sweep.yaml, line \d+\).*Expected a float. Got value: high",
        ),
        ({"grid": {"federation.rounds": [2, 0]}}, r"run fedavg,rounds=0: federation.rounds .*expected at least 1"),
        ({"grid": {"federation.round": [2]}}, r"--federation.round=2; did you mean federation.rounds"),
        ({"grid": {"model.lr": []}}, r"grid.model.lr: expected at least one value"),
        ({"grid": {"seed": [1]}}, r"seed: a sweep sets it for each run; use seeds"),
        ({"seeds": []}, "seeds: expected at least one value"),
        ({"seeds": [1, 1]}, "run fedavg,lr=0.1,seed=1: expected different values and seeds"),
        ({"seeds": "many"}, r"seeds \(\S+sweep.yaml, line \d+\): Expected a list. Got value: many"),
        ({"cases": {"a/b": {}}}, "cases: expected a name of letters.*found 'a/b'"),
        (
            {"cases": {"one": {"model.lr": 0.2}, "two": {"model": {"init_args": {"lr": 0.2}}}}, "grid": {}},
            "runs one,seed=0 and two,seed=0 have the same configuration",
        ),
        (
            {"cases": {"good": {}, "bad": {"federation.aggregators": ["FedAvg", "Scafold"]}}},
            r"run bad,lr=0.1: federation.aggregators \(\S+sweep.yaml, line 9\): Expected .*: Scafold; did you",
        ),
        ({"config": ["base.yaml", "absent.yaml"]}, "there is no file .*absent.yaml; write paths relative to"),
        ({"sedes": [1]}, "'sedes' is not accepted; did you mean seeds"),
        ({"cases": {"pooled": {}}, "baselines": ["pooled"]}, "'pooled'"),
        ({"baselines": ["alone"]}, "baselines .*alone"),
    ],
    ids=str,
)
def test_a_mistake_is_told(change: dict, said: str, folder: Path):
    assert re.search(said, refusal(write(folder, GRID | change)))


def refusal(file: Path) -> str:
    """What is said of a sweep with a mistake."""
    with pytest.raises(ConfigError) as caught:
        plan(load_sweep(file))
    return " ".join(str(caught.value).split())


def test_the_command_ends_with_a_mistake_before_anything_starts(fedlit_cli, folder: Path):
    file = write(folder, GRID | {"grid": {"model.lr": ["high"]}})
    fedlit_cli(f"sweep --config {file}").refused("run fedavg,lr=high: model", "sweep.yaml, line", code=2)
    assert not (folder / "runs").exists()


def test_a_key_without_a_value_counts_as_left_out(folder: Path):
    keys = ("config", "set", "cases", "grid", "baselines", "seeds", "metric", "run_dir")
    without = load_sweep(write(folder, {"experiment": "trial"}))
    assert load_sweep(write(folder, GRID | dict.fromkeys(keys))) == without


def test_baselines_add_a_model_for_each_client_and_one_of_all_data(folder: Path):
    base = BASE | {"data": {"class_path": "PhantomCXR", "init_args": {"hospitals": 2, "images": 60, "image_size": 16}}}
    sweep = {"experiment": "joining", "config": ["base.yaml"], "baselines": ["individual", "pooled"], "seeds": [1]}
    runs = plan(load_sweep(write(folder, sweep, base)))
    configs = {run.case: yaml.safe_load(run.config) for run in runs}
    assert [run.name for run in runs] == [
        "federated,seed=1", "individual-hospital-01,seed=1", "individual-hospital-02,seed=1", "pooled,seed=1"
    ]  # fmt: skip
    assert {case: config["federation"]["clients"] for case, config in configs.items()} == {
        "federated": None,
        "individual-hospital-01": ["hospital-01"],
        "individual-hospital-02": ["hospital-02"],
        "pooled": None,
    }
    assert [config["data"]["init_args"]["pooled"] for config in configs.values()] == [False, False, False, True]


def test_an_own_case_may_have_the_name_of_a_baseline(folder: Path):
    (own,) = combinations_of(load_sweep(write(folder, GRID | {"cases": {"individual": {}}})))
    assert own.case == "individual"


IMAGES = BASE | {
    "data": {"class_path": "PhantomCXR", "init_args": {"hospitals": 2, "images": 60, "image_size": 16}},
    "model": {"class_path": "ImageClassifier", "init_args": {"backbone": "small_cnn"}},
}


def starting(folder: Path, of_bodies: list[int], base: dict = IMAGES, **changes: object) -> Path:
    """Write a sweep whose runs start from those of another one."""
    body = {"experiment": "body", "config": ["base.yaml"], "seeds": of_bodies, "set": {"federation.rounds": 1}}
    write(folder, body, base).rename(folder / "body.yaml")
    sweep = {"experiment": "later", "config": ["base.yaml"], "starts": "body.yaml", "seeds": [0, 1]}
    return write(folder, sweep | changes, base)


def test_a_dry_run_lists_the_runs_with_those_that_they_start_from_and_trains_none(folder: Path, fedlit_cli):
    listed = fedlit_cli(f"sweep --config {starting(folder, [0, 1])} --dry_run true").succeeded().splitlines()
    assert listed == [f"runs/{experiment}/seed={seed}  new" for experiment in ("body", "later") for seed in (0, 1)]
    assert not (folder / "runs").exists()


def test_a_run_starts_from_the_run_of_its_seed_or_from_the_first_one(folder: Path):
    runs = plan(load_sweep(starting(folder, [1, 0], run_dir="elsewhere", seeds=[0, 1, 7])))
    starts = [yaml.safe_load(run.config)["model"]["init_args"]["weights"] for run in runs]
    assert starts == [str(folder / f"elsewhere/body/seed={seed}") for seed in (0, 1, 1)]


def test_all_runs_start_from_the_model_of_a_file(folder: Path):
    save_model(ImageClassifier(("Mass",), "small_cnn"), "{}", None, {}, folder / "model.safetensors")
    sweep = load_sweep(starting(folder, [0, 1], starts="model.safetensors"))
    starts = [yaml.safe_load(run.config)["model"]["init_args"]["weights"] for run in plan(sweep)]
    assert starts == [str(folder / "model.safetensors")] * 2
    assert sweep.bodies is None


@pytest.mark.parametrize(
    ("changes", "base", "said"),
    [
        (
            {"set": {"model.norm": "group"}},
            IMAGES,
            r"starts: expected the body of runs/body/seed=0, whose body\.\S+ is ",
        ),
        (
            {"starts": "nobody.yaml"},
            IMAGES,
            r"starts: expected the YAML of a sweep or a model \(\.safetensors\), found no file \S*nobody.yaml",
        ),
        (
            {"starts": "model.safetensors", "set": {"model.norm": "group"}},
            IMAGES,
            r"model.weights: the body of the model in \S*model.safetensors is not a small_cnn with this norm",
        ),
        ({"starts": "model.safetensors"}, BASE, "ToyNet: Option 'weights' is not accepted; it has classes, lr"),
        ({"starts": "sweep.yaml"}, IMAGES, "starts: expected the YAML of another sweep, found this file"),
        ({"experiment": "body"}, IMAGES, r"experiment: expected another name than that of \S*body.yaml, found body"),
        ({}, BASE, "starts: expected a model with the argument weights, such as ImageClassifier, found ToyNet"),
        ({"starts": None, "set": {"model.weights": "runs/none"}}, IMAGES, "no file or directory runs/none"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(folder: Path, changes: dict, base: dict, said: str):
    save_model(ImageClassifier(("Mass",), "small_cnn"), "{}", None, {}, folder / "model.safetensors")
    assert re.search(said, refusal(starting(folder, [0], base, **changes)))


def test_ranges_are_for_tune_and_a_grid_for_sweep(folder: Path, fedlit_cli):
    ranges = {"ranges": {"model.lr": [0.1, 0.2]}, "grid": {}}
    fedlit_cli(f"sweep --config {write(folder, GRID | ranges | {'tries': 2})}").refused("fedlit tune", code=2)
    fedlit_cli(f"tune --config {write(folder, GRID)}").refused("cases.fedavg", "range", code=2)
