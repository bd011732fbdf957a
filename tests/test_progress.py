"""The live line and the plain lines."""

import io
import re

import pytest
from rich.console import Console

from fedlit import progress
from fedlit.messages import ClientReport
from fedlit.progress import RoundProgress, auroc_table


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


def report(loss: float) -> ClientReport:
    return ClientReport("site", 3, 10, loss, 0.1, 100)


def metrics(loss: float, **others: float) -> dict[str, float]:
    return {"train/loss": loss, "time/round_s": 2.0} | {key.replace("__", "/"): v for key, v in others.items()}


def plain(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=False)


def terminal(width: int = 110) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, legacy_windows=False)


def shown(bar: RoundProgress, width: int = 110) -> str:
    """The live line as it stands."""
    console = Console(file=io.StringIO(), width=width)
    console.print(bar._bar.get_renderable())
    return console.file.getvalue().rstrip("\n")


def printed(console: Console) -> list[str]:
    return console.file.getvalue().splitlines()


def test_without_a_terminal_evaluations_and_the_last_round_have_a_line_each(clock: Clock):
    console = plain()
    with RoundProgress(5, console=console) as bar:
        for index in range(5):
            bar.round_started(2)
            bar.client_done(report(0.5))
            clock.now += 0.3
            bar.round_done(index, metrics(0.5 - index / 10, **({"val__auroc_macro": 0.8} if index == 2 else {})))
    assert printed(console) == [
        "round 1/5  loss 0.5000  2.0 s  0:00:01 left",
        "round 3/5  loss 0.3000  val AUROC 0.8000  2.0 s  0:00:01 left",
        "round 5/5  loss 0.1000  2.0 s",
    ]


def test_without_a_terminal_fast_rounds_share_lines(clock: Clock):
    console = plain()
    with RoundProgress(1000, console=console) as bar:
        for index in range(1000):
            bar.round_started(1)
            clock.now += 0.01
            bar.round_done(index, metrics(0.5))
    assert 8 <= len(printed(console)) <= 12


def test_long_sentences_are_one_line_in_a_pipe():
    console = plain(width=20)
    RoundProgress(1, console=console).say("a sentence that is longer than the line of the pipe")
    assert len(printed(console)) == 1


def test_nothing_to_say_is_no_line():
    console = plain()
    RoundProgress(1, console=console).say("")
    assert printed(console) == []


def test_the_live_line_shows_round_clients_loss_auroc_and_time_left(clock: Clock):
    bar = RoundProgress(10, console=terminal())
    bar.round_started(4)
    assert "round 1/10" in shown(bar)
    assert "clients 0/4" in shown(bar)
    assert "left" not in shown(bar)
    clock.now += 30
    bar.client_done(report(0.7))
    bar.client_done(report(0.6))
    assert "clients 2/4  loss 0.6000" in shown(bar)
    assert "0:09:30 left" in shown(bar)  # half a round took 30 s, 9.5 remain
    clock.now += 30
    bar.round_done(0, metrics(0.65, val__auroc_macro=0.81234))
    assert "round 1/10" in shown(bar)
    assert "loss 0.6500  val AUROC 0.8123" in shown(bar)
    bar.round_started(4)
    assert "round 2/10" in shown(bar)
    assert "clients 0/4  loss 0.6500  val AUROC 0.8123" in shown(bar)
    assert "0:09:00 left" in shown(bar)
    assert printed(bar.console) == []


def test_the_time_left_of_a_resumed_run_counts_its_own_rounds(clock: Clock):
    bar = RoundProgress(10, done=8, console=terminal())
    bar.round_started(1)
    assert "round 9/10" in shown(bar)
    assert "left" not in shown(bar)
    clock.now += 7
    bar.round_done(8, metrics(0.5))
    assert "0:00:07 left" in shown(bar)
    clock.now += 7
    bar.round_done(9, metrics(0.5))
    assert "round 10/10" in shown(bar)
    assert "left" not in shown(bar)


def test_without_auroc_the_validation_loss_is_shown(clock: Clock):
    bar = RoundProgress(10, console=terminal())
    bar.round_done(0, metrics(0.5, val__loss=0.625))
    assert "val loss 0.6250" in shown(bar)


def test_the_live_line_fits_a_narrow_terminal(clock: Clock):
    bar = RoundProgress(1000, console=terminal())
    bar.round_started(100)
    clock.now += 9
    bar.round_done(0, metrics(0.5, val__auroc_macro=0.8))
    bar.round_started(100)
    assert all(len(line) <= 80 for line in shown(bar, width=80).splitlines())
    assert "val AUROC 0.8000" in re.sub(r"\s+", " ", shown(bar, width=80))


def test_only_the_first_rank_prints(capsys: pytest.CaptureFixture):
    with RoundProgress(1, enabled=False) as bar:
        bar.say("nobody hears this")
        bar.round_started(1)
        bar.round_done(0, metrics(0.5))
    assert capsys.readouterr().out == ""


def test_the_table_tells_an_undefined_auroc_and_its_support():
    values = {
        "test/all/auroc/Mass": 0.75,
        "test/all/n_pos/Mass": 12.0,
        "test/all/n_neg/Mass": 88.0,
        "test/all/auroc/Hernia": float("nan"),
        "test/all/n_pos/Hernia": 0.0,
        "test/all/n_neg/Hernia": 100.0,
        "test/all/auroc_macro": 0.75,
    }
    console = plain()
    console.print(auroc_table(values, "test/all", "AUROC"))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed(console) if "│" in line]
    assert rows == [
        ["Mass", "0.7500", "12", "88"],
        ["Hernia", "undefined", "0", "100"],
        ["mean over defined classes", "0.7500", "", ""],
    ]
