"""What all tests share: one thread (tests compare bits, and several workers run side by side), and the command line."""

import gc
import shlex
from collections.abc import Iterator
from functools import cache
from multiprocessing import forkserver

import pytest
import torch
from lightning.fabric.utilities import registry
from runs import PRELOADED

from fedlit.cli.main import main

torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """What imports have made stays: looking through it again and again took 5% of the processor time of the tests."""
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _packages_looked_through_once() -> Iterator[None]:
    """Each Fabric asks all installed packages for callbacks, which was a tenth of a short run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "entry_points", cache(registry.entry_points))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_fork_server() -> Iterator[None]:
    """Whoever starts it, a pool or a command of a test: it has imported what all of them need, and each starts at once."""
    preload = forkserver.set_forkserver_preload
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forkserver, "set_forkserver_preload", lambda names: preload([*PRELOADED, *names]))
        yield


@pytest.fixture
def fedlit_cli(capsys: pytest.CaptureFixture):
    """Runs a command line in this process: its exit code, and what it printed on stdout and stderr."""

    def run(line: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main(shlex.split(line))
        printed = capsys.readouterr()
        return stopped.value.code or 0, printed.out, printed.err

    return run
