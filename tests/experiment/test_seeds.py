"""``fedlit fit --seed 0,1``: each run equals that of a single seed, and all share a group."""

import json
import re
from pathlib import Path
from statistics import mean, stdev

import pytest
import yaml
from refusals import refused
from runs import Kept, assert_same_run
from sweeps import BASE, recorded

from fedlit.core.errors import ConfigError
from fedlit.experiment.grid import plan
from fedlit.experiment.plan import Plan, load_plan
from fedlit.experiment.planned_run import PlannedRun


@pytest.fixture(autouse=True)
def base(folder: Path) -> None:
    (folder / "base.yaml").write_text(yaml.safe_dump(BASE | {"logger": "sweeps.Recorder"}))


def runs(experiment: str = "default") -> dict[str, Path]:
    return {path.name: path for path in sorted(Path("runs", experiment).glob("*/"))}


@pytest.mark.slow
def test_each_seed_is_the_run_that_it_is_alone(fedlit_cli, folder: Path):
    out = fedlit_cli("fit -c base.yaml --seed 0,1 --jobs 2").succeeded()
    first, second = runs().values()
    assert re.fullmatch(r"FedAvg-[0-9a-f]{8},seed=0", first.name)
    assert second.name == first.name.replace("seed=0", "seed=1")
    results = [json.loads((path / "result.json").read_text()) for path in (first, second)]
    scores = [result["metrics"]["test/federation/auroc_macro"] for result in results]
    assert re.search(rf"auroc_macro +│ {mean(scores):.4f} │ +{stdev(scores):.4f}", out), out
    assert "over 2 seeds" in out
    assert out.endswith(
        f"table of the runs: runs/default/{first.name.partition(',')[0]}.csv\nto compare: fedlit compare runs/default\n"
    )

    assert fedlit_cli("fit -c base.yaml --seed 1 --name alone")[0] == 0
    assert_same_run(Kept(folder / "runs/default/alone"), Kept(second))
    tags = [recorded(path)["tags"] for path in (first, second, folder / "runs/default/alone")]
    assert {tag["fedlit.group"] for tag in tags} == {first.name.partition(",")[0]}
    assert [tag["fedlit.seed"] for tag in tags] == ["0", "1", "1"]

    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/default/*/*")}
    code, out, _ = fedlit_cli("fit -c base.yaml --seed '[0, 1]'")
    assert (code, "2 runs, 2 finished before" in out, "over 2 seeds" in out) == (0, True, True)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("runs/default/*/*")} == before


@pytest.mark.slow
def test_a_sweep_has_the_same_groups(fedlit_cli, folder: Path):
    sweep = {"experiment": "rates", "config": ["base.yaml"], "grid": {"model.lr": [0.1, 0.2]}, "seeds": [3]}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    assert fedlit_cli("sweep --config sweep.yaml --jobs 2")[0] == 0
    assert fedlit_cli("fit -c base.yaml --seed 4 --name a --model.lr 0.2 --federation.workers 2")[0] == 0
    assert fedlit_cli("fit -c base.yaml --seed 4 --name b --model.lr 0.2 --federation.rounds 3")[0] == 0
    one, two = (recorded(path)["tags"]["fedlit.group"] for path in runs("rates").values())
    a, b = (recorded(path)["tags"]["fedlit.group"] for path in runs().values())
    assert (one != two, two == a, a != b) == (True, True, True)


@pytest.mark.slow
def test_seeds_of_a_yaml_have_the_name_that_is_given(fedlit_cli, folder: Path):
    (folder / "base.yaml").write_text(yaml.safe_dump(BASE | {"seed": [5, 6], "logger": False, "name": "mine"}))
    assert fedlit_cli("fit -c base.yaml")[0] == 0
    assert list(runs()) == ["mine,seed=5", "mine,seed=6"]
    assert yaml.safe_load((runs()["mine,seed=6"] / "config.yaml").read_text())["seed"] == 6
    ended = fedlit_cli("fit -c base.yaml --model.lr 0.7")
    ended.refused("run mine,seed=5", "runs/default/mine,seed=5")


def test_a_trial_takes_the_first_seed_alone(fedlit_cli, folder: Path):
    code, out, err = fedlit_cli("fit -c base.yaml --seed 3,4 --fast_dev_run true")
    assert (code, "a trial run: only seed 3" in out) == (0, True), err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("fit -c base.yaml --seed 0,1,0", 1, "seed (command line): expected different seeds, found 0 twice"),
        (
            "fit -c base.yaml --seed 0,1 --ckpt_path last",
            1,
            "ckpt_path (command line): expected nothing with 2 seeds, found last",
        ),
        ("fit -c base.yaml --seed 0,1 --jobs 0", 2, "--jobs: expected at least 1, found 0"),
        (
            "fit -c base.yaml --seed 0,1 --federation.rounds 0",
            1,
            "federation.rounds (command line): expected at least 1",
        ),
        ("fit -c base.yaml --seed 0,x", 2, "seed (command line): Expected a int. Got value: 0,x"),
        ("test -c base.yaml --seed 0,1 --ckpt_path last", 1, "seed (command line"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(line: str, code: int, said: str, fedlit_cli, folder: Path):
    fedlit_cli(line).refused(said, code=code)
    assert not list(folder.glob("runs/default/*/"))


def test_ranks_that_a_launcher_started_have_one_seed(fedlit_cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    fedlit_cli("fit -c base.yaml --seed 0,1").refused("seed (command line")


def data_seeds(runs: list[PlannedRun]) -> list[int | None]:
    return [run.data_seed for run in runs]


def test_the_data_follow_the_seed_unless_one_draw_is_asked_for(folder: Path):
    """Each seed has its own split, partition and PhantomCXR."""
    nested = {"class_path": "Organisations", "init_args": {"image_size": 32, "sources": {
        "a": {"class_path": "PhantomCXR", "init_args": {"seed": 7}}, "b": {"class_path": "PhantomCXR"}}}}  # fmt: skip
    small = {"model": {"class_path": "toys.ToyNet"}}
    base, phantom = {"experiment": "draws", "seeds": [0, 2]}, {"class_path": "PhantomCXR"}
    runs = plan(Plan(**base, set=small | {"data": {"class_path": "PhantomCXR"}}))
    assert data_seeds(runs) == [0, 2]
    assert runs[1].point == runs[0].point
    for given in ("data.seed", "data.init_args.seed"):
        assert data_seeds(plan(Plan(**base, set=small | {given: 5}))) == [5, 5]
    sweep = {**base, "set": small | {"data": phantom | {"init_args": {"seed": 5}}}}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    assert data_seeds(plan(load_plan(folder / "sweep.yaml", "sweep"))) == [5, 5]
    (folder / "base.yaml").write_text(yaml.safe_dump({"data": {"class_path": "PhantomCXR", "init_args": {"seed": 0}}}))
    assert data_seeds(plan(Plan(**base, set=small, config=["base.yaml"]))) == [0, 0]
    (folder / "nested.yaml").write_text(yaml.safe_dump({"data": nested}))
    sources = [
        yaml.safe_load(run.config)["data"]["init_args"]["sources"]
        for run in plan(Plan(**base, set=small, config=["nested.yaml"]))
    ]
    assert [[each[name]["init_args"]["seed"] for name in "ab"] for each in sources] == [[7, 0], [9, 2]]
    with refused(ConfigError, "found -1"):
        plan(Plan("draws", seeds=[-1], set=small))
