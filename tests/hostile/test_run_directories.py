"""Run directories that move, names that are taken, and checkpoints that are not named."""

import shutil
from pathlib import Path

import pytest
from refusals import refused
from scripted import fit

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.federation.callbacks import Callback

pytestmark = pytest.mark.usefixtures("folder")


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
    with refused(TrainingError, "runs/default/mine"):
        fit(rounds=4, name="mine", callbacks=[Gone(ACTS[what])])
    left = [path for path in RUNS.rglob("*") if path.is_file() and "moved" not in path.parts]
    assert left == []


def test_a_run_that_was_renamed_goes_on_under_its_new_name():
    with pytest.raises(TrainingError):
        fit(rounds=4, name="mine", callbacks=[Gone(ACTS["renamed"])])
    resumed = fit(rounds=4, ckpt_path="runs/default/moved", callbacks=None)
    assert resumed.directory.name == "moved"
    assert list(resumed.metrics.index) == [1, 2, 3, 4]


def test_a_name_that_is_taken_is_said(capsys: pytest.CaptureFixture[str]):
    fit(rounds=1, name="mine")
    assert "already exists" not in capsys.readouterr().out
    assert fit(rounds=1, name="mine").directory.name == "mine-2"
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "runs/default/mine already exists: this run is mine-2; --ckpt_path runs/default/mine would resume that one"
        in said
    )


@pytest.mark.parametrize(("name", "goes_on"), [("mine", "mine"), ("other", "other"), (None, "other")])
def test_last_means_the_runs_of_the_name_that_is_given(name, goes_on):
    fit(rounds=1, name="mine")
    fit(rounds=1, name="other")
    assert fit(rounds=2, ckpt_path="last", name=name).directory.name == goes_on


def test_no_run_of_the_name_is_a_new_one(capsys: pytest.CaptureFixture[str]):
    fit(rounds=1, name="mine-like")
    assert fit(rounds=1, ckpt_path="last", name="mine").directory.name == "mine"
    assert "no run of the name mine in runs/default yet" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_checkpoint_starts_no_new_run(empty):
    fit(rounds=1, name="mine")
    with refused(ConfigError, "ckpt_path"):
        fit(rounds=2, ckpt_path=empty)
    assert [run.name for run in RUNS.iterdir()] == ["mine"]


def test_a_run_is_not_called_as_the_folder_of_the_sites():
    with refused(ConfigError, "name"):
        fit(name="sites")
