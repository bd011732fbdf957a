"""Command lines of fedlit in processes of their own, quick to start and safe to kill."""

import multiprocessing
import os
import shlex
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from fedlit.core.checkpoints.manifest import Manifest
from fedlit.core.checkpoints.stored_states import unstacked
from fedlit.core.system import processes
from fedlit.core.system.processes import ENDING
from fedlit.experiment import jobs
from fedlit.tracking import figures
from fedlit.tracking.base import MetricsFile

TESTS = Path(__file__).parent

PRELOADED = (*jobs.PRELOADED, *processes.PRELOADED, "fedlit.federation.engines.ranks")
"""Imports of the fork server of tests, see ``conftest.py``."""


def context() -> multiprocessing.context.BaseContext:
    """Return the context of a fork server that has imported fedlit, so that its processes start immediately."""
    ctx = multiprocessing.get_context("forkserver")
    ctx.set_forkserver_preload(list(PRELOADED))
    return ctx


def preload(*names: str) -> None:
    """Start the fork server, if none runs, with more imports than it has for all tests."""
    context().set_forkserver_preload([*PRELOADED, *names])
    forkserver.ensure_running()


@dataclass
class Command:
    """A ``fedlit`` command in its own process."""

    process: BaseProcess
    log: Path

    def wait(self, seconds: float = 60) -> int:
        """Return the exit code, negative after a signal; raise an error if the command does not end."""
        self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
            raise TimeoutError(f"did not end within {seconds} s:\n{self.output}")
        return self.process.exitcode

    def succeeded(self, seconds: float = 60) -> str:
        """Check that the command ends without an error; return its output."""
        assert self.wait(seconds) == 0, self.output
        return self.output

    @property
    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


@dataclass
class Place:
    """The folder of the runs of a test, and their common options on the command line."""

    path: Path
    options: str = ""
    commands: int = field(default=0)

    def start(self, words: str, env: dict[str, str] | None = None) -> Command:
        """Start ``fedlit`` with these words."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.commands += 1
        log = self.path / f"log-{self.commands}.txt"
        process = context().Process(target=_main, args=(shlex.split(words), str(log), {**os.environ, **(env or {})}))
        process.start()
        return Command(process, log)

    def fit(self, options: str = "", command: str = "fit", env: dict[str, str] | None = None) -> Command:
        """Start ``fedlit fit`` (or another command) with the place's options and these."""
        where = f"--run_dir {self.path} --logger false --federation.workers 1"
        return self.start(f"{command} {where} {self.options} {options}", env)

    def ended(self, options: str = "", command: str = "fit", code: int = 0) -> str:
        """Run ``fedlit fit`` (or another command) until it ends with this exit code; returns what it printed."""
        started = self.fit(options, command)
        assert (started.wait(), "Traceback" in started.output) == (code, False), started.output
        return started.output

    def ranks(self, options: str = "", size: int = 2) -> list[Command]:
        """``fedlit fit`` on several ranks, as ``torchrun`` starts them."""
        return [self.fit(f"--fabric.accelerator cpu {options}", env=env) for env in rank_environments(size)]

    def run(self, name: str, experiment: str = "default") -> "Kept":
        return Kept(self.path / experiment / name)


@dataclass
class Kept:
    """The files in the directory of a run."""

    path: Path

    @property
    def rounds(self) -> list[int]:
        return sorted(int(p.name.removeprefix("round-")) for p in self.path.glob("checkpoints/round-*"))

    @property
    def last(self) -> Path:
        return max(self.path.glob("checkpoints/round-*"))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor of the last checkpoint."""
        parts = {"server": torch.load(self.last / "server.pt", weights_only=True)} | client_tensors(self.last)
        return {f"{part}/{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def metrics(self) -> list[tuple[int, str, str]]:
        """Rows of ``metrics.csv`` without times; values as text, so that NaN equals NaN."""
        return [
            (step, key, repr(value))
            for step, key, value in MetricsFile(self.path / "metrics.csv").rows()
            if not key.startswith("time/") and not key.endswith("/seconds")
        ]


def assert_same_run(one: Kept, other: Kept) -> None:
    """Compare weights, statistics, states of server and clients, and metrics bit for bit."""
    assert_same_tensors(one.tensors(), other.tensors())
    assert one.metrics() == other.metrics()


def assert_same_tensors(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different


def wait_until(
    condition: Callable[[], object], command: Command | None = None, pause: float = 0.0005, seconds: float = 60
) -> bool:
    """Wait for a condition; return False if the command, if there is one, ends first."""
    deadline = time.monotonic() + seconds
    while not condition():
        if command is not None and not command.process.is_alive():
            return False
        assert time.monotonic() < deadline, command.output if command else "it did not happen in time"
        time.sleep(pause)
    return True


def rank_environments(size: int = 2) -> list[dict[str, str]]:
    """Return the environment variables of each process of ``torchrun``."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size),
               "LOCAL_WORLD_SIZE": str(size), "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test"}  # fmt: skip
    return [address | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def execute(code: str, folder: Path, *words: object) -> Command:
    """Start code in a process that has imported fedlit, in a folder; ``words`` are its ``sys.argv[1:]``."""
    log = folder.with_name(f"{folder.name}.log")
    process = context().Process(target=_execute, args=(code, list(map(str, words)), str(log), folder))
    process.start()
    return Command(process, log)


def own_fork_server() -> None:
    """Let this process start its own fork server and resource tracker, as if it were not from a fork server itself."""
    resource_tracker._resource_tracker._fd = None
    fresh = forkserver.ForkServer()
    for name in ("connect_to_new_process", "ensure_running", "set_forkserver_preload"):
        setattr(forkserver, name, getattr(fresh, name))


def _execute(code: str, words: list[str], log: str, folder: Path) -> None:
    _begin(log, folder)
    sys.argv[1:] = words
    exec(code, {"__name__": "__main__"})


def _begin(log: str, folder: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(folder)
    # The run's workers come from the same fork server; a second one would import everything again.
    forkserver._forkserver.ensure_running = forkserver.ensure_running = lambda: None
    # A sweep that a test ran in this process has started the fork server deaf to signals.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def leave_figures_blank(put: Callable[[object, str, object], None] = setattr) -> None:
    """Draw nothing in the figures of runs, which takes a quarter of a small run."""
    for name in ("roc_figure", "partition_figure"):
        put(figures, name, lambda *_: figures.blank_figure(1, 1))


def _main(argv: list[str], log: str, env: dict[str, str]) -> None:
    _begin(log, TESTS)
    leave_figures_blank()
    os.environ.clear()  # that of the fork server, which may have started in another test
    os.environ |= env
    from fedlit.cli.main import main

    try:
        main(argv)
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def client_tensors(path: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Return the tensors of each client in a checkpoint by its name, from all of its files."""
    names = Manifest.read(path).clients
    held = {}
    for file in sorted(path.glob("clients-*.pt")):
        held |= unstacked(torch.load(file, weights_only=True), len(names), ())
    for file in sorted(path.glob("client-*.pt")):
        held[int(file.stem.removeprefix("client-"))] = torch.load(file, weights_only=True)
    return {names[number]: held[number] for number in sorted(held)}
