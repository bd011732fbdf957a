"""The start of ``fedlit fit`` without a run: the fork server of a sweep imports it, and its runs start with the result.

Parsing imports the built-in classes and reads their signatures and docstrings, which a process does once.
"""

import atexit
import os
import sys

from fedlit.core.system.imports import loaded, uncollected

with uncollected():
    from fedlit.cli.main import parse

    parse(["fit"])
    for name in ("fedlit.predictions.serving", "fedlit.tracking.figures", "pyarrow.csv"):  # what a run imports later
        loaded(name)

if any("multiprocessing.forkserver" in word for word in sys.orig_argv):
    # Its end would otherwise search and free all that it has imported, which takes as long as several short runs.
    atexit.register(lambda server: os.getpid() == server and os._exit(0), os.getpid())
