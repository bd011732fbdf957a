"""Invalid names of runs, experiments, phases and cases, and folders that cannot hold a run."""

import pytest
from jsonargparse import Namespace
from refusals import refused
from support.hostile import Refused, check_refused, each

from fedlit.core.errors import ConfigError
from fedlit.experiment.naming import check_names

FIT = "fit --config tiny.yaml"
LETTERS = "expected a name of letters"


def named(what: str, options: str, *words: str, **files: str) -> Refused:
    """Make a mistake in a name; ``files`` are YAML files by their stem."""
    there = {f"{stem}.yaml": text for stem, text in files.items()}
    configs = " ".join(f"--config {name}" for name in there)
    return Refused(what, f"{FIT} {configs} {options}", words, there)


SWEEP = "experiment: {}\nconfig: [tiny.yaml]\n"

INPUTS = [
    named("a name that leaves the folder", "--name ../../out", "name", LETTERS, "'../../out'"),
    named("an experiment that is null", "", "experiment", LETTERS, "found None", n="experiment: null\n"),
    named("a phase that leaves the folder", "", "phases", LETTERS, p="phases: [{name: ../x, rounds: 1}]\n"),
    Refused("a sweep whose experiment leaves the folder", "sweep --config s.yaml", ("s.yaml", "experiment", LETTERS),
            {"s.yaml": SWEEP.format("../out")}, code=2),
    Refused("a case that leaves the folder", "sweep --config s.yaml", ("cases", LETTERS),
            {"s.yaml": SWEEP.format("x") + "cases: {../out: {}}\n"}, code=2),
    Refused("a grid whose names grow too long", "sweep --config s.yaml", ("run", "at most 200 bytes"),
            {"s.yaml": SWEEP.format("x") + f"cases: {{{'x' * 190}: {{}}}}\ngrid: {{federation.rounds: [1, 2]}}\n"},
            code=2),
    Refused("a run folder that is a file", f"{FIT} --run_dir taken", ("--run_dir taken", "expected a folder"),
        {"taken": ""}),
    Refused("a run folder below a file", f"{FIT} --run_dir taken/x", ("--run_dir taken/x", "found"), {"taken": ""}),
    Refused("a run folder that nobody can make", f"{FIT} --run_dir /proc/runs", ("--run_dir /proc/runs",
        "cannot create")),
]  # fmt: skip


@each(INPUTS)
def test_it_is_refused_by_name(given, fedlit_cli, folder):
    check_refused(given, fedlit_cli)
    assert {path.name for path in folder.iterdir()} == {"tiny.yaml", *given.files}


MISTAKES = {
    **{name: (repr(name),) for name in
       ("../out", "a/b", "/tmp/out", ".", "..", "", " ", "a ", "-a", ".hidden", r"a\b", "a\0b", "a\nb")},
    "x" * 300: ("at most 200 bytes", "found 300"),
    "ü" * 150: ("at most 200 bytes", "found 300"),
    "last": ("--ckpt_path last",),
    "best": ("--ckpt_path best",),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["experiment", "name"])
def test_names_that_no_folder_may_have_are_refused(kind):
    for name, words in MISTAKES.items():
        with refused(ConfigError, f"{kind}: ", *words):
            check_names(Namespace(**{"experiment": "one", "name": "one", kind: name}))


def test_names_that_a_folder_may_have_are_taken(tmp_path):
    for name in ("20260101-120000", "FedAvg+Scaffold-1f2e,lr=0.1~1,seed=3", "Größe (2)", "_a.b-c@d"):
        (tmp_path / f"{name}-999").mkdir()
        check_names(Namespace(experiment=name, name=name))
