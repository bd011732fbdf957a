"""Several ``fedlit.fit`` in one process: in threads, inside another, and in copies of the process."""

import multiprocessing
import sys
import threading

import pytest
import torch
from scripted import Net, fit, part, two

from fedlit.federation.callbacks import Callback

pytestmark = pytest.mark.usefixtures("folder")


ORDER: dict[str, tuple[threading.Event, threading.Event]] = {}
"""For each kind of model, an event that its first step sets, and another that it waits for, for a moment at most."""


class Dropping(Net):
    """A layer with dropout."""

    def __init__(self, kind: str = ""):
        super().__init__()
        self.kind = kind

    def training_step(self, batch, batch_idx):
        mine, others = ORDER.get(self.kind, (None, None))
        if mine and not mine.is_set():
            mine.set()
            others.wait(0.3)
        return super().training_step((torch.nn.functional.dropout(batch[0]), batch[1]), batch_idx)


def dropping(kind: str = "") -> Dropping:
    torch.manual_seed(0)
    return Dropping(kind)


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[threading.Event]:
    events = [threading.Event(), threading.Event()]
    monkeypatch.setattr(sys.modules[__name__], "ORDER", {"first": events, "second": events[::-1]})
    return events


class Inside(Callback):
    """Trains another federation after the first round."""

    def on_round_end(self, state):
        if state.done == 1:
            self.fitted = fit(dropping(), two(), seed=5, name="inside")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run that nothing is beside."""
    return losses(fit(dropping(), two(), figures=False, run_dir=tmp_path_factory.mktemp("alone")))


def losses(fitted) -> list[float]:
    return fitted.metrics["train/loss"].tolist()


def in_a_copy() -> list[float]:
    return losses(fit(dropping(), two(), name="copy", workers=2))


def test_threads_take_turns_and_the_second_says_that_it_waits(order, alone, capsys: pytest.CaptureFixture):
    done = {}

    def train(model: Dropping) -> None:
        done[model.kind] = losses(fit(model, two(), name=model.kind))

    first, second = (threading.Thread(target=train, args=(dropping(kind),)) for kind in ("first", "second"))
    first.start()
    assert order[0].wait(60)
    second.start()
    for thread in (first, second):
        thread.join(60)
    assert done == {"first": alone, "second": alone}
    assert capsys.readouterr().out.count("waits until the fedlit.fit of another thread has ended") == 1


def test_a_callback_may_train_another_federation(alone, capsys: pytest.CaptureFixture):
    inside = Inside()
    assert losses(fit(dropping(), two(), name="around", callbacks=[inside])) == alone
    assert losses(inside.fitted) == losses(fit(dropping(), two(), seed=5, name="apart"))
    assert "waits" not in capsys.readouterr().out


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="processes are copied")
def test_in_a_pool_there_is_one_worker_even_while_a_thread_trains(order, alone, capfd: pytest.CaptureFixture):
    """The copy has neither the thread that trains, nor the right to start processes."""
    thread = threading.Thread(target=fit, args=(dropping("first"), {"north": part()}), kwargs={"name": "first"})
    thread.start()
    assert order[0].wait(60)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        copy = pool.apply_async(in_a_copy).get(60)
    thread.join(60)
    assert copy == alone
    assert capfd.readouterr().out.count("one worker on cpu (this process belongs to a multiprocessing pool") == 1
