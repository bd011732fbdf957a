"""Run directories that move, names that are taken, and checkpoints that are not named."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from engine_rounds import unprobed
from refusals import refused
from scripted import fit, net, part

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.experiment.result import Fitted
from fedlit.federation.callbacks import Callback

pytestmark = pytest.mark.usefixtures("folder")


def trained(**options: Any) -> Fitted:
    """Two clients without evaluation."""
    with unprobed():
        return fit(net(), {"north": part(4, 1), "south": part(4, 2)}, figures=False, **options)


class Gone(Callback):
    """Changes the run's directory before the second round."""

    def __init__(self, act) -> None:
        self.act = act

    def on_round_start(self, state) -> None:
        if state.done == 1:
            self.act(state.run.directory)


def replaced(directory: Path) -> None:
    directory.rename(directory.with_name("moved"))
    directory.mkdir()


def deleted(directory: Path) -> None:
    """Rename the directory before deleting it: a checkpoint is being written there, and rmtree fails on new files."""
    directory.rename(directory.with_name("moved"))
    shutil.rmtree(directory.with_name("moved"))


RUNS = Path("runs/default")
ACTS = {
    "renamed": lambda directory: directory.rename(directory.with_name("moved")),
    "deleted": deleted,
    "replaced": replaced,
}


@pytest.mark.parametrize("what", ACTS)
def test_a_run_whose_directory_is_gone_is_stopped_in_words(what):
    """One that was renamed goes on under its new name."""
    with refused(TrainingError, "runs/default/mine"):
        trained(rounds=3, name="mine", callbacks=[Gone(ACTS[what])])
    left = [path for path in RUNS.rglob("*") if path.is_file() and "moved" not in path.parts]
    assert left == []
    if what == "renamed":
        resumed = trained(rounds=3, ckpt_path="runs/default/moved", callbacks=None)
        assert resumed.directory.name == "moved"
        assert list(resumed.metrics.index) == [1, 2, 3]


def test_a_name_that_is_taken_is_said(capsys: pytest.CaptureFixture[str]):
    trained(rounds=1, name="mine")
    assert "already exists" not in capsys.readouterr().out
    assert trained(rounds=1, name="mine").directory.name == "mine-2"
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "runs/default/mine already exists: this run is mine-2; --ckpt_path runs/default/mine would resume that one"
        in said
    )


def test_last_means_the_runs_of_the_name_that_is_given(capsys: pytest.CaptureFixture[str]):
    """Without such a run it is a new one, and an empty checkpoint starts none."""
    trained(rounds=1, name="mine")
    trained(rounds=1, name="other")
    for name, goes_on, rounds in ((None, "other", 2), ("mine", "mine", 2), ("other", "other", 3)):
        assert trained(rounds=rounds, ckpt_path="last", name=name).directory.name == goes_on
    for empty in ("", " "):
        with refused(ConfigError, "ckpt_path"):
            trained(rounds=4, ckpt_path=empty)
    assert {run.name for run in RUNS.iterdir()} == {"mine", "other"}
    capsys.readouterr()
    assert trained(rounds=1, ckpt_path="last", name="oth").directory.name == "oth"
    assert "no run of the name oth in runs/default yet" in " ".join(capsys.readouterr().out.split())


def test_a_run_is_not_called_as_the_folder_of_the_sites():
    with refused(ConfigError, "name"):
        fit(name="sites")
