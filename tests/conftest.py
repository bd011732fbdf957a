"""Fixtures of all tests. Torch has one thread, because tests compare results bit for bit and run in parallel.

What they import takes seconds, so the process that only hands the tests out imports none of it.
"""

import atexit
import gc
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import pytest

from fedlit.core.system.imports import uncollected

if TYPE_CHECKING:
    from refusals import Printed

FIRST = ("test_site_security", "test_sweep_mlflow", "test_over_nvflare", "test_mlflow_outages")


def pytest_configure(config: pytest.Config) -> None:
    """End the processes that run tests after all else at once: Python would free millions of objects one by one."""
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exclude imported objects from garbage collections, which took 5% of the processor time of the tests."""
    with uncollected():
        collected = yield
    gc.freeze()
    gc.set_threshold(20_000)
    return collected


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with files that share servers, which no other worker takes from the front of a list, or take longest."""
    items.sort(key=lambda item: item.path.stem not in FIRST)


@pytest.fixture(scope="session", autouse=True)
def _frozen_objects_counted_once() -> Iterator[None]:
    """Count frozen objects once, not in each command: counting visits a million of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", cache(gc.get_freeze_count))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _cached_entry_points() -> Iterator[None]:
    """Search the installed packages for callbacks once, not for each Fabric, which took a tenth of a short run."""
    from lightning.fabric.utilities import registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "entry_points", cache(registry.entry_points))
        yield


@pytest.fixture(scope="session", autouse=True)
def _sorted_options() -> Iterator[None]:
    """Sort out the options of a parser once, not at each of a thousand look-ups of a parse, a tenth of its time."""
    from jsonargparse import _subcommands

    sort_out, known = _subcommands.filter_non_parsing_actions, {}

    def sorted_once(actions: list | dict) -> list | dict:
        if not isinstance(actions, list) or not actions:
            return sort_out(actions)
        held, count, last, found = known.get(id(actions), (None, 0, None, []))
        if held is not actions or count != len(actions) or last is not actions[-1]:
            found = sort_out(actions)
            known[id(actions)] = actions, len(actions), actions[-1], found
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_subcommands, "filter_non_parsing_actions", sorted_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _cached_revision() -> Iterator[None]:
    """Ask Git once per folder for its revision, not in each run: it reads the state of all files."""
    from fedlit.experiment import experiment

    of_folder = cache(lambda folder, ask=experiment.git_revision: ask())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "git_revision", lambda: of_folder(os.getcwd()))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_fork_server() -> Iterator[None]:
    """Preload the imports of all tests into the fork server, whichever test starts it."""
    from runs import PRELOADED

    preload = forkserver.set_forkserver_preload
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forkserver, "set_forkserver_preload", lambda names: preload([*PRELOADED, *names]))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_worker_by_default() -> Iterator[None]:
    """Train small runs in this process: two workers cost a third of one. Tests of workers give their number."""
    from fedlit.federation.engines import pool

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "cores", lambda: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def _blank_figures() -> Iterator[None]:
    """Leave the figures of runs blank. Tests of figures have imported the real ones, and runs of sweeps draw them."""
    from runs import leave_figures_blank

    with pytest.MonkeyPatch.context() as patch:
        leave_figures_blank(patch.setattr)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_empty_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Create MLflow's tables once, which takes seconds, and copy them for each new database of a test.

    MLflow asks of each whether its tables are those after the last of sixty migrations, which it reads for this.
    """
    from fedlit.core.system.files import whole
    from fedlit.tracking import store

    create, empty, making = store.create_database, tmp_path_factory.mktemp("mlflow") / "empty.db", Lock()

    def copied(file: Path, client: Callable) -> None:
        if client is not store.import_mlflow().MlflowClient:
            create(file, client)
            return
        with making:
            if not empty.exists():
                create(empty, client)
                utils = import_module("mlflow.store.db.utils")
                patch.setattr(utils, "_get_latest_schema_revision", cache(utils._get_latest_schema_revision))
        with whole(file, replace=False) as draft:
            shutil.copy(empty, draft)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "create_database", copied)
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")  # as a tracker does it
        for name in ("TRACKING_URI", "EXPERIMENT_NAME", "EXPERIMENT_ID"):
            patch.delenv(f"MLFLOW_{name}", raising=False)
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and a wide terminal; what ``main`` does to the process is undone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("FEDLIT_DEBUG", raising=False)
    return tmp_path


@pytest.fixture
def fedlit_cli(capsys: pytest.CaptureFixture):
    """A function that runs a command line in this process; returns the exit code, stdout and stderr."""
    from refusals import Printed

    from fedlit.cli.main import main

    def run(line: str) -> "Printed":
        with pytest.raises(SystemExit) as stopped:
            main(shlex.split(line))
        printed = capsys.readouterr()
        return Printed(stopped.value.code or 0, printed.out, printed.err)

    return run
