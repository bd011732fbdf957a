"""What the process imports from which workers are forked: torch, Lightning, timm, and what a client's round needs.

A copy of the process that trains has what that one has imported, and does without this.
"""

import gc
import os
import threading

from fedlit.core.processes import ASKED_BY

_parent, _done = int(os.environ.pop(ASKED_BY, os.getppid())), threading.Event()


def _end_with_parent() -> None:
    while not _done.wait(0.1):
        if os.getppid() != _parent:
            os._exit(0)  # a command that ended meanwhile, after a mistake: nobody will ask for a worker


_watch = threading.Thread(target=_end_with_parent, daemon=True)
_watch.start()
gc.disable()  # collecting while thousands of modules load takes a fifth of the time and finds nothing

import timm  # noqa: E402, F401

import fedlit.federation.engines.pool  # noqa: E402, F401

gc.enable()
_done.set()
_watch.join()  # a process with one thread can be forked
