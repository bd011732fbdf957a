"""Callbacks: the state that they see and may change, and the effect of their errors on a run."""

import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from refusals import refused
from runs import assert_same_tensors
from toys import ToyData, ToyNet

from fedlit.aggregators import Scaffold
from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import ConfigError
from fedlit.core.fabric import make_fabric
from fedlit.federation.assembly import assemble
from fedlit.federation.callbacks import Callback, Record
from fedlit.federation.federation import Federation
from fedlit.schedules import ConstantSchedule
from fedlit.tracking.base import MetricsFile, Tracker
from fedlit.tracking.run import Run


class Diary(Callback):
    """Records the calls of hooks and the state of the federation."""

    def __init__(self) -> None:
        self.lines = []

    def on_fit_start(self, state):
        self.lines.append(("fit start", state.done, state.run.main))

    def on_round_start(self, state):
        self.lines.append(("round start", state.done, state.rnd.cohort))

    def on_client_end(self, state, report):
        self.lines.append(("client end", state.done, report.client))

    def on_evaluation_end(self, state, scores):
        self.lines.append(("evaluation end", state.done, len(scores)))

    def on_round_end(self, state):
        self.lines.append(("round end", state.done, "train/loss" in state.metrics))

    def on_fit_end(self, state):
        self.lines.append(("fit end", state.done, state.best.round))

    def on_exception(self, state, error):
        self.lines.append(("exception", state.done, str(error)))


class Adds(Callback):
    """Adds two custom metrics: one after each evaluation, one after each round."""

    def on_evaluation_end(self, state, scores):
        state.metrics["own/score"] = -abs(state.done - 2.0)  # best after round 2

    def on_round_end(self, state):
        state.metrics["own/weight_norm"] = float(state.server.w.norm())


class StopsAfter(Callback):
    """Ends the rounds early, or fails."""

    def __init__(self, rounds: int, error: Exception | None = None) -> None:
        self.rounds, self.error = rounds, error

    def on_round_end(self, state):
        if state.done == self.rounds:
            if self.error:
                raise self.error
            state.stop = "enough"


class Patient(Callback):
    """Stops after three rounds, which it counts in an attribute."""

    def __init__(self) -> None:
        self.waited = 0

    def on_round_end(self, state):
        self.waited += 1
        if self.waited == 3:
            state.stop = "patience is at its end"

    def state_dict(self):
        return {"waited": self.waited}

    def load_state_dict(self, state):
        self.waited = state["waited"]


def fit(path: Path, *callbacks: Callback, resume: Path | None = None, **settings) -> Federation:
    """Train the toys with some callbacks; everything is kept in ``path``."""
    torch.manual_seed(0)
    settings = {"rounds": 4, "checkpoint_every": 1000, **settings}
    federation = Federation(schedule=ConstantSchedule(1, "steps"), workers=1, **settings)
    session = assemble(federation, ToyNet(), ToyData(2), make_fabric("cpu"))
    run = Run(path, Tracker(), resume is not None)
    assert federation.fit(session, run, resume, callbacks) == 0
    run.finish("FINISHED")
    return federation


def rows(path: Path, key: str) -> dict[int, float]:
    return {step: value for step, name, value in MetricsFile(path / "metrics.csv").rows() if name == key}


def last(path: Path) -> Path:
    return checkpoint.find(path / "checkpoints", "last")


def server_of(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(last(path) / "server.pt", weights_only=True)


def weights(path: Path) -> torch.Tensor:
    return server_of(path)["w"]


def test_hooks_are_called_in_the_order_of_the_loop(tmp_path):
    diary = Diary()
    fit(tmp_path, diary, rounds=2, eval_every=2)
    sites = ("site-0", "site-1")
    assert diary.lines == [
        ("fit start", 0, True),
        ("round start", 0, sites),
        ("client end", 0, "site-0"),
        ("client end", 0, "site-1"),
        ("round end", 1, True),
        ("round start", 1, sites),
        ("client end", 1, "site-0"),
        ("client end", 1, "site-1"),
        ("evaluation end", 2, 2),
        ("round end", 2, True),
        ("fit end", 2, 2),
    ]


def test_what_a_callback_adds_is_logged_can_be_monitored_and_changes_no_number(tmp_path):
    fit(tmp_path / "with", Diary(), Adds(), monitor="own/score", monitor_mode="max")
    fit(tmp_path / "without")
    found = weights(tmp_path / "with")
    assert torch.equal(found, weights(tmp_path / "without"))
    assert rows(tmp_path / "with", "own/weight_norm").keys() == {1, 2, 3, 4}
    assert rows(tmp_path / "with", "own/weight_norm")[4] == pytest.approx(float(found.norm()), rel=1e-5)
    assert rows(tmp_path / "with", "own/score") == {1: -1.0, 2: 0.0, 3: -1.0, 4: -2.0}
    assert checkpoint.best(last(tmp_path / "with")).round == 2


def test_a_callback_can_end_the_rounds_early(tmp_path, capsys):
    fit(tmp_path, StopsAfter(2))
    assert set(rows(tmp_path, "train/loss")) == {1, 2}
    assert checkpoint.rounds(last(tmp_path)) == 2
    assert "stopped after round 2: enough" in capsys.readouterr().out


def test_after_a_failure_the_run_goes_on_from_its_last_recorded_round(tmp_path):
    """The round in which a callback failed is not logged, so it is repeated; nothing is missing or logged twice."""
    diary, fails = Diary(), StopsAfter(3, RuntimeError("a callback of one's own fails"))
    with pytest.raises(RuntimeError, match="a callback of one's own fails"):
        fit(tmp_path / "failed", diary, fails, checkpoint_every=1)
    assert diary.lines[-1] == ("exception", 3, "a callback of one's own fails")
    resume = last(tmp_path / "failed")
    assert checkpoint.rounds(resume) == 2
    fit(tmp_path / "failed", resume=resume, checkpoint_every=1)
    fit(tmp_path / "whole", checkpoint_every=1)
    assert torch.equal(weights(tmp_path / "failed"), weights(tmp_path / "whole"))
    assert rows(tmp_path / "failed", "train/loss") == rows(tmp_path / "whole", "train/loss")


def test_a_callback_of_every_run_is_rejected(tmp_path):
    with refused(ConfigError, "Record"):
        fit(tmp_path, Record())


def test_a_callback_remembers_over_a_resume(tmp_path):
    """It ends after three rounds, even if two of them were before a resume."""
    fit(tmp_path / "whole", Patient(), rounds=6, checkpoint_every=1)
    fit(tmp_path / "parts", Diary(), Patient(), StopsAfter(2), rounds=6, checkpoint_every=1)
    resume = last(tmp_path / "parts")
    assert checkpoint.manifest_of(resume).callbacks == {"test_callbacks.Patient": {"waited": 2}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(tmp_path / "parts", Patient(), Adds(), Diary(), resume=resume, rounds=6, checkpoint_every=1)
    rounds = [checkpoint.rounds(last(tmp_path / p)) for p in ("whole", "parts")]
    assert rounds == [3, 3]
    assert torch.equal(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


class Counts(Patient):
    """Counts rounds, from a number."""

    def __init__(self, waited: int = 0) -> None:
        self.waited = waited

    def on_round_end(self, state):
        self.waited += 1


def test_two_of_a_class_are_told_apart_by_their_order(tmp_path):
    fit(tmp_path, Counts(10), Counts(20), rounds=1, checkpoint_every=1)
    first, second = Counts(), Counts()
    fit(tmp_path, first, Diary(), second, resume=last(tmp_path), rounds=2, checkpoint_every=1)
    assert (first.waited, second.waited) == (12, 22)


def test_a_state_without_its_callback_and_a_callback_without_its_state_are_named(tmp_path):
    fit(tmp_path, Counts(), StopsAfter(2), rounds=6, checkpoint_every=1)
    with pytest.warns(UserWarning, match="^callbacks: ") as warned:
        fit(tmp_path, Patient(), Diary(), resume=last(tmp_path), rounds=6, checkpoint_every=1)
    assert [str(each.message) for each in warned if each.category is UserWarning] == [
        "callbacks: the checkpoint has a state of test_callbacks.Counts, which this run does not have: it is dropped",
        "callbacks: the checkpoint has no state of test_callbacks.Patient: it starts afresh",
    ]
    assert checkpoint.rounds(last(tmp_path)) == 5


CHANGES = {
    "in place": (lambda state: state.server.w.mul_(2), "server.w"),
    "assigned": (lambda state: setattr(state.server, "w", 2 * state.server.w), "server.w"),
    "as NumPy": (lambda state: state.server.w.numpy().fill(1), "server.w"),
    "statistics": (lambda state: state.server.stats.zero_(), "server.stats"),
    "state of an algorithm": (lambda state: state.server.aggregators[0]["c"].add_(1), "server.0/c"),
    "another server": (lambda state: setattr(state, "server", replace(state.server)), "server"),
    "rounds": (lambda state: setattr(state, "done", 1000), "done"),
}
HOOKS = ("on_fit_start", "on_round_start", "on_client_end", "on_evaluation_end", "on_round_end", "on_fit_end")
WATCHED = {"aggregators": [Scaffold()], "eval_every": 4}
"""Settings with which rounds before the last are not saved."""


class Copies(Callback):
    """Copies the server's tensors after each round, by their names in a checkpoint."""

    def __init__(self) -> None:
        self.after = {}

    def on_round_end(self, state):
        server = state.server
        tensors = {"w": server.w, "stats": server.stats, **{f"0/{n}": v for n, v in server.aggregators[0].items()}}
        self.after[state.done] = {name: tensor.clone() for name, tensor in tensors.items()}


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> tuple[Path, dict[int, dict[str, torch.Tensor]]]:
    """A run after two of four rounds, and the server's tensors after each of all four."""
    folder, copies = tmp_path_factory.mktemp("begun"), Copies()
    fit(folder / "whole", copies, **WATCHED)
    fit(folder / "half", **WATCHED | {"rounds": 2})
    return folder / "half", copies.after


def refused_change(hook: str, change: str, run: Path) -> None:
    """Resume a run with a callback whose hook changes the state after a round of this part, if there is one."""
    write, found = CHANGES[change]
    late = 2 + (hook != "on_fit_start")
    changing = type("Changing", (Callback,), {hook: lambda self, state, *args: state.done >= late and write(state)})
    with refused(ConfigError, f"Changing.{hook}: ", f"state.{found};"):
        fit(run, Diary(), changing(), resume=last(run), **WATCHED)


@pytest.mark.parametrize(
    ("hook", "change"), [(hook, "in place") for hook in HOOKS] + [("on_round_end", change) for change in [*CHANGES][1:]]
)
def test_a_callback_that_changes_what_training_depends_on_is_refused(hook, change, begun, tmp_path):
    """No checkpoint has the change."""
    half, after = begun
    run = Path(shutil.copytree(half, tmp_path / "run"))
    refused_change(hook, change, run)
    assert_same_tensors(server_of(run), after[checkpoint.rounds(last(run))])


def test_after_such_a_change_the_run_goes_on_like_one_that_was_not_interrupted(begun, tmp_path):
    half, after = begun
    run = Path(shutil.copytree(half, tmp_path / "run"))
    refused_change("on_round_end", "in place", run)
    fit(run, resume=last(run), **WATCHED)
    assert torch.equal(weights(run), after[4]["w"])


@pytest.mark.parametrize("kept", [{"w": torch.zeros(2)}, {1: "one"}, {"loss": float("nan")}, {"pair": (1, 2)}])
def test_what_json_cannot_hold_is_refused_before_the_first_round(kept, tmp_path):
    diary, odd = Diary(), Patient()
    odd.state_dict = lambda: kept
    with refused(ConfigError, "Patient"):
        fit(tmp_path, odd, diary)
    assert [line[0] for line in diary.lines] == ["fit start", "exception"]
