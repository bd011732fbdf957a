"""Plans whose cases are combined and named, with labels, a base, and roots of data; and the seeds of their bodies."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from refusals import refused
from sweeps import write

from fedlit.core.errors import ConfigError
from fedlit.experiment.grid import combinations_of
from fedlit.experiment.naming import group_name
from fedlit.experiment.plan import Plan, load_plan
from fedlit.experiment.sweep import load_sweep, plan

pytestmark = pytest.mark.usefixtures("folder")

LONG = {"long": {"federation.rounds": 8, "model.lr": 0.1}, "short": {"federation.rounds": 2}}
COMBINED = {
    "experiment": "combined",
    "config": ["base.yaml"],
    "cases": {
        "one": {"labels": {"method": "One+"}},
        "two": {"labels": {"method": "Two"}, "model.lr": 0.4, "federation.participation": 0.5},
    },
    "grid": {"data.size": [12, 24], "length": LONG},
    "names": "{case}-{size}-{length}",
    "leave_out": ["one-12-long"],
    "labels": {"title": "Toys"},
}


def test_a_combination_is_a_case_with_its_name_its_labels_and_the_keys_of_its_values(folder: Path):
    sweep = load_sweep(write(folder, COMBINED))
    names = [each.case for each in combinations_of(sweep)]
    assert len(names) == 2 * 2 * 2 - 1
    first, last = plan(replace(sweep, leave_out=[*sweep.leave_out, *names[1:-1]]))
    assert (first.name, last.name) == ("one-12-short,seed=0", "two-24-short,seed=0")
    assert last.case == "two-24-short"
    assert last.labels == {"title": "Toys", "method": "Two", "size": 24, "length": "short"}
    config = yaml.safe_load(last.config)
    assert config["tags"] == {"fedlit.method": "two-24-short"}
    assert (config["federation"]["rounds"], config["data"]["init_args"]["size"]) == (2, 24)
    assert config["model"]["init_args"]["lr"] == 0.4
    assert load_sweep(write(folder, COMBINED)).metric.startswith("test/")  # no point is chosen


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"names": "{case}-{lenght}"}, ("sweep.yaml, line", "names", "case, size, length", "lenght")),
        ({"names": "{case"}, ("names", "{case")),
        ({"names": "{case}"}, ("sweep.yaml, line", "run one,seed=0", "twice")),
        ({"leave_out": ["three"]}, ("sweep.yaml, line", "leave_out", "one-12-long", "found three")),
    ],
)
def test_names_that_do_not_fit_are_refused(change: dict, said: tuple, folder: Path):
    sweep = load_sweep(write(folder, COMBINED | {"grid": {"data.size": [12], "length": LONG}} | change))
    with refused(ConfigError, *said):
        plan(sweep)


def test_a_plan_states_only_what_differs_from_its_base_in_another_folder(folder: Path):
    write(folder, COMBINED | {"starts": "body.yaml", "grid": {"data.size": [12]}, "names": None, "leave_out": None})
    Path("linked").mkdir()
    patch = {"base": "../sweep.yaml", "experiment": "linked", "cases": {"one": {"model.lr": 0.2}, "two": None}}
    Path("linked/sweep.yaml").write_text(yaml.safe_dump(patch))
    linked = load_plan("linked/sweep.yaml", "sweep")
    assert Path(linked.config[0]).resolve() == folder / "base.yaml"
    assert (Path("linked") / linked.starts).resolve() == folder / "body.yaml"
    assert linked.cases == {"one": {"labels": {"method": "One+"}, "model.lr": 0.2}}
    (run,) = plan(replace(linked, starts=None))
    assert (run.name, yaml.safe_load(run.config)["model"]["init_args"]["lr"]) == ("one,size=12,seed=0", 0.2)


def test_a_mistake_in_a_base_is_told_with_its_line(folder: Path):
    write(folder, COMBINED | {"cases": {"one": {"model.lr": "high"}}})
    Path("derived.yaml").write_text("base: sweep.yaml\nleave_out: null\n")
    with refused(ConfigError, "sweep.yaml, line", "high"):
        plan(load_sweep("derived.yaml"))


@pytest.mark.parametrize("base", ["sweep.yaml", 3, "none.yaml"])
def test_a_base_is_another_plan(base: object, folder: Path):
    with refused(ConfigError, "none.yaml" if base == "none.yaml" else "base"):
        load_sweep(write(folder, COMBINED | {"base": base}))


def test_folders_below_the_root_are_those_of_the_command(folder: Path, fedlit_cli):
    file = write(folder, {"experiment": "rooted", "config": ["base.yaml"], "roots": {"tags.root": "CIFAR"}})
    listed = fedlit_cli(f"sweep --config {file} --dry_run true --root data").succeeded()
    assert "runs/rooted/seed=0" in listed
    (run,) = plan(replace(load_sweep(file), root=Path("data")))
    assert yaml.safe_load(run.config)["tags"] == {"root": "data/CIFAR"}
    fedlit_cli(f"sweep --config {file} --dry_run true").refused("--root", "tags.root", code=2)


class TestBodies:
    @pytest.fixture
    def later(self, folder: Path) -> Plan:
        write(folder, {"experiment": "body", "config": ["base.yaml"]}).rename(folder / "body.yaml")
        return load_sweep(write(folder, COMBINED | {"starts": "body.yaml", "seeds": [3, 4]}))

    def test_they_have_the_seeds_of_the_runs_unless_their_file_names_its_own(self, later: Plan):
        assert later.bodies.seeds == [3, 4]
        assert replace(later, set={"data.seed": 0}).bodies.seeds == [3]  # the seeds share a draw
        tuned = replace(later, grid={}, names="", leave_out=[], ranges={"model.lr": [0.1, 0.2]}, sampler="grid")
        assert tuned.bodies.seeds == [3, 4, 100]
        Path("body.yaml").write_text(yaml.safe_dump({"experiment": "body", "config": ["base.yaml"], "seeds": [7]}))
        assert replace(later).bodies.seeds == [7]

    def test_keys_of_the_command_reach_them(self, folder: Path, later: Plan, fedlit_cli):
        given = replace(later, given={"model.lr": 0.7}, given_bodies={"model.lr": 0.7})
        keys = [[each.settings["model.lr"] for each in combinations_of(one)] for one in (given, given.bodies)]
        assert [{*each} for each in keys] == [{0.7}, {0.7}]
        fedlit_cli("sweep --config sweep.yaml --dry_run true --set '{run_dir: x}'").refused("run_dir", code=2)

    def test_several_cases_are_not_one_body(self, later: Plan):
        Path("body.yaml").write_text(yaml.safe_dump(COMBINED | {"experiment": "body"}))
        with refused(ConfigError, "starts", "body.yaml"):
            _ = replace(later).bodies


def test_runs_that_start_from_the_body_of_their_seed_are_one_group():
    def group(weights: str) -> str:
        return group_name({"model": {"init_args": {"weights": weights}}}, "FedAvg")

    assert group("runs/body/seed=0") == group("runs/body/seed=1") != group("runs/other/seed=1")
    assert group("runs/body/a,seed=0") == group("runs/body/a,seed=1") != group("runs/body/b,seed=1")
    assert group("runs/body/lr=0.1") != group("runs/body/lr=0.2")
