"""The live line and the plain lines."""

import io
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedlit.core.messages import ClientReport
from fedlit.federation import progress
from fedlit.federation.callbacks import FitState
from fedlit.federation.federation import Federation
from fedlit.federation.monitor import Monitor
from fedlit.federation.progress import RoundProgress


class Clock:
    """A time that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def metrics(loss: float, **others: float) -> dict[str, float]:
    return {"train/loss": loss, "time/round_s": 2.0} | {key.replace("__", "/"): v for key, v in others.items()}


def plain(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=False)


def terminal() -> Console:
    return Console(file=io.StringIO(), width=110, force_terminal=True, color_system=None, legacy_windows=False)


class Rounds:
    """A federation's rounds as a progress bar sees them."""

    def __init__(self, console: Console | None, rounds: int, done: int = 0, announced: Sequence[str] = ()) -> None:
        session = SimpleNamespace(federation=Federation(rounds=rounds), announced=announced, account=None)
        self.console, self.bar = console, RoundProgress(console is not None, console)
        self.state = FitState(session, None, None, Monitor(None, "max"), done)
        self.bar.on_fit_start(self.state)

    def shown(self, width: int = 110) -> str:
        """The live line as it stands."""
        console = Console(file=io.StringIO(), width=width)
        console.print(self.bar._bar.get_renderable())
        return console.file.getvalue().rstrip("\n")

    def printed(self) -> list[str]:
        return self.console.file.getvalue().rstrip().splitlines()  # rich before 15 ends with a blank line

    def start(self, cohort: int) -> None:
        self.state.rnd = SimpleNamespace(cohort=range(cohort))
        self.bar.on_round_start(self.state)

    def reply(self, loss: float) -> None:
        self.bar.on_client_end(self.state, ClientReport("site", 3, 10, loss, 0.1, 100))

    def end(self, metrics: dict[str, float]) -> None:
        self.state.done += 1
        self.state.metrics = metrics
        self.bar.on_round_end(self.state)


@pytest.fixture(autouse=True)
def announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "announcement", lambda session, monitor, done: session.announced)


def test_without_a_terminal_evaluations_and_the_last_round_have_a_line_each(clock: Clock):
    rounds = Rounds(plain(), 5)
    for index in range(5):
        rounds.start(2)
        rounds.reply(0.5)
        clock.now += 0.3
        rounds.end(metrics(0.5 - index / 10, **({"val__auroc_macro": 0.8} if index == 2 else {})))
    rounds.bar.on_fit_end(rounds.state)
    assert rounds.printed() == [
        "round 1/5  loss 0.5000  2.0 s  0:00:01 left",
        "round 3/5  loss 0.3000  val AUROC 0.8000  2.0 s  0:00:01 left",
        "round 5/5  loss 0.1000  2.0 s",
    ]


def test_without_a_terminal_fast_rounds_share_lines(clock: Clock):
    rounds = Rounds(plain(), 1000)
    for _ in range(1000):
        rounds.start(1)
        clock.now += 0.01
        rounds.end(metrics(0.5))
    assert 8 <= len(rounds.printed()) <= 12


def test_the_live_line_shows_round_clients_loss_auroc_and_time_left(clock: Clock):
    rounds = Rounds(terminal(), 10)
    rounds.start(4)
    assert "round 1/10" in rounds.shown()
    assert "clients 0/4" in rounds.shown()
    assert "left" not in rounds.shown()
    clock.now += 30
    rounds.reply(0.7)
    rounds.reply(0.6)
    assert "clients 2/4  loss 0.6000" in rounds.shown()
    assert "0:09:30 left" in rounds.shown()  # half a round took 30 s, 9.5 remain
    clock.now += 30
    rounds.end(metrics(0.65, val__auroc_macro=0.81234))
    assert "round 1/10" in rounds.shown()
    assert "loss 0.6500  val AUROC 0.8123" in rounds.shown()
    rounds.start(4)
    assert "round 2/10" in rounds.shown()
    assert "clients 0/4  loss 0.6500  val AUROC 0.8123" in rounds.shown()
    assert "0:09:00 left" in rounds.shown()


def test_the_time_left_of_a_resumed_run_counts_its_own_rounds(clock: Clock):
    rounds = Rounds(terminal(), 10, done=8)
    rounds.start(1)
    assert "round 9/10" in rounds.shown()
    assert "left" not in rounds.shown()
    clock.now += 7
    rounds.end(metrics(0.5))
    assert "0:00:07 left" in rounds.shown()
    clock.now += 7
    rounds.end(metrics(0.5))
    assert "round 10/10" in rounds.shown()
    assert "left" not in rounds.shown()


def test_only_the_first_rank_prints(capsys: pytest.CaptureFixture):
    rounds = Rounds(None, 1, announced=["nobody hears this"])
    rounds.start(1)
    rounds.end(metrics(0.5))
    rounds.bar.on_fit_end(rounds.state)
    assert capsys.readouterr().out == ""
