"""Ctrl-C that comes before a run has begun."""

import signal
from contextlib import suppress

from fedlit.federation.interrupts import Interrupts, remember_ctrl_c


def test_a_ctrl_c_that_a_library_swallowed_is_known_to_the_run():
    before = signal.getsignal(signal.SIGINT)
    try:
        remember_ctrl_c()
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with Interrupts() as interrupts:
            assert interrupts.signum == signal.SIGINT
        with Interrupts() as later:
            assert later.signum == 0
    finally:
        signal.signal(signal.SIGINT, before)
