"""Client states on disk: where all of them together would not fit into memory, each lies in a file of its own.

A file is written once, under a name that no other has had, and never changed. So a checkpoint that links it stays as it is
while the next round writes, and a process that is killed at any moment damages nothing.
"""

import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import torch

from fedlit.core.checkpoints.small_states import is_small
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.messages import ClientState, State

SHARE = 0.25
"""Share of the memory that is free, up to which client states are kept in memory by default."""

UNITS = {
    "": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


@dataclass(frozen=True)
class StoredState:
    """A client state that lies in a file, where another process may have put it.

    Attributes:
        file: Never written again.
        aggregators: How many the federation has.
    """

    file: Path
    aggregators: int

    def load(self) -> ClientState:
        """Map the file: its pages are read when they are used."""
        tensors = torch.load(self.file, map_location="cpu", mmap=True, weights_only=True)
        return ClientState.from_tensors(tensors, self.aggregators)


@dataclass(frozen=True)
class StateFolder:
    """The folder of a run's client states, beside its checkpoints: links need the same file system.

    Attributes:
        path: The folder.
        aggregators: How many the federation has.
    """

    path: Path
    aggregators: int

    def keep(self, state: ClientState) -> ClientState | StoredState:
        """Write a state that is new to a file; a small one stays in memory.

        Raises:
            TrainingError: It cannot be written.
        """
        if is_small(state):
            return state
        file = self._fresh()
        try:
            write_tensors(state.tensors(), file)
        except (OSError, RuntimeError) as error:
            file.unlink(missing_ok=True)
            reason = error if isinstance(error, OSError) else error.__context__ or error
            raise TrainingError(
                f"{self.path}: a client's state cannot be written: {getattr(reason, 'strerror', None) or reason}. Make room, "
                "or raise federation.state_memory, and go on with the last checkpoint"
            ) from error
        return StoredState(file, self.aggregators)

    def adopt(self, state: ClientState | StoredState) -> ClientState | StoredState:
        """Take over a state of a checkpoint: a file is linked, so that it stays when the checkpoint goes."""
        if state.file is None:
            return self.keep(state)
        if state.file.parent == self.path:
            return state
        file = self._fresh()
        link(state.file, file)
        return StoredState(file, self.aggregators)

    def drop(self, states: Iterable[ClientState | StoredState], kept: Iterable[ClientState | StoredState] = ()) -> None:
        """Remove the files of states, but not of those that are kept."""
        for file in {s.file for s in states} - {s.file for s in kept} - {None}:
            if file.parent == self.path:  # not a checkpoint's
                file.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder, and the one around it unless other ranks still have theirs there."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            self.path.parent.rmdir()

    def _fresh(self) -> Path:
        return self.path / f"{uuid4().hex}.pt"


def write_tensors(tensors: State, path: Path) -> None:
    """Write tensors to a new file; a view is copied, since it would take its whole storage to disk."""
    whole = {name: t if t.untyped_storage().nbytes() == t.nbytes else t.clone() for name, t in tensors.items()}
    with path.open("wb") as file:
        torch.save(whole, file)


def link(source: Path, target: Path) -> None:
    """Give a file a second name; where the file system has no links, a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def in_bytes(value: int | str) -> int | None:
    """Read a number of bytes such as ``4000000000`` or ``4GB``; None for ``auto``.

    Raises:
        ConfigError: It is neither.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt]i?b)?", str(value).lower())
    if str(value) == "auto":
        return None
    if found is None:
        raise ConfigError(
            f"federation.state_memory: expected bytes such as 4000000000, 4GB or 512MiB, or auto; found {value!r}"
        )
    return int(float(found[1]) * UNITS[found[2] or ""])


def free_memory() -> int:
    """Bytes of memory that new data may take on this machine."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
        with suppress(OSError, ValueError):  # a container's limit, where it has one
            limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
            free = min(free, limit - used)
        return max(free, 0)
    return 4 * 2**30  # what a laptop has left


def check_room(folder: Path, each: int, clients: int, cohort: int) -> None:
    """Refuse a disk that cannot hold the states: every client's, and the new and replaced ones of a round.

    Raises:
        ConfigError: Says how much is needed.
    """
    needed, free = each * (clients + 2 * cohort), shutil.disk_usage(folder).free
    if needed > free:
        raise ConfigError(
            f"{folder}: no room for the clients' states: {clients} clients of {each / 1e6:,.1f} MB, and twice the {cohort} of "
            f"a round, take at least {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free; choose another --run_dir, or "
            "raise federation.state_memory where there is more memory"
        )
