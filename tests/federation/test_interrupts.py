"""Signals that end a run: which ones it handles, and what it does on a second one."""

import faulthandler
import signal
from contextlib import suppress

import pytest

from fedlit.core.system.processes import GENTLE
from fedlit.federation.interrupts import Interrupts, remember_ctrl_c, unwinding_on_signals

NAMES = {"ids": lambda signum: signal.Signals(signum).name}


@pytest.fixture(autouse=True)
def handlers():
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, *GENTLE)}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_a_ctrl_c_that_a_library_swallowed_is_known_to_the_run():
    remember_ctrl_c()
    with suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with Interrupts() as interrupts:
        assert interrupts.signum == signal.SIGINT
    with Interrupts() as later:
        assert later.signum == 0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, *GENTLE], **NAMES)
class TestOneSignal:
    def test_asks_the_run_to_end(self, signum: int):
        before = signal.getsignal(signum)
        with unwinding_on_signals(), Interrupts() as interrupts:
            signal.raise_signal(signum)
        assert interrupts.signum == signum
        assert signal.getsignal(signum) is before

    def test_is_the_users_if_a_script_handles_it(self, signum: int):
        heard = []
        signal.signal(signum, lambda *_: heard.append(signum))
        with unwinding_on_signals(), Interrupts() as interrupts:
            signal.raise_signal(signum)
        assert (heard, interrupts.signum) == ([signum], 0)


@pytest.mark.parametrize("signum", [signal.SIGTERM, *GENTLE], **NAMES)
def test_what_a_process_ignores_from_the_start_is_ignored(signum: int):
    """As under ``nohup``. Ctrl-C is an exception: a shell ignores it for every command in the background."""
    signal.signal(signum, signal.SIG_IGN)
    with unwinding_on_signals(), Interrupts() as interrupts:
        signal.raise_signal(signum)
    assert interrupts.signum == 0


@pytest.mark.skipif(not hasattr(faulthandler, "register"), reason="not on Windows")
def test_a_handler_that_python_does_not_know_is_kept(tmp_path):
    with (tmp_path / "stack.txt").open("w") as file:
        faulthandler.register(signal.SIGUSR1, file)
        try:
            with Interrupts() as interrupts:
                signal.raise_signal(signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
    assert interrupts.signum == 0
    assert "test_interrupts.py" in (tmp_path / "stack.txt").read_text()


def test_a_closed_terminal_may_say_so_twice_and_a_scheduler_may_insist():
    with unwinding_on_signals(), Interrupts() as interrupts:
        for signum in (*GENTLE, *GENTLE, signal.SIGTERM, *GENTLE):
            signal.raise_signal(signum)
        assert interrupts.signum == signal.SIGTERM


def test_what_is_open_is_closed_in_peace():
    with unwinding_on_signals():
        with pytest.raises(SystemExit) as first:
            signal.raise_signal(GENTLE[0])
        signal.raise_signal(GENTLE[0])
        with pytest.raises(SystemExit) as second:
            signal.raise_signal(signal.SIGTERM)
    assert [raised.value.code for raised in (first, second)] == [128 + GENTLE[0], 128 + signal.SIGTERM]
    with unwinding_on_signals():
        with Interrupts():
            signal.raise_signal(GENTLE[0])
        signal.raise_signal(GENTLE[0])  # while the run sets its status
