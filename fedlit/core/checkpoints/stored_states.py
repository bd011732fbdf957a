"""Client states on disk: small ones are rows of one file, large ones a file each if all do not fit into memory.

A file is written once, under a unique name, and never changed. So a checkpoint that links it is unchanged while the
next round writes, and a process that is killed at any moment damages nothing.
"""

import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import torch

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.messages import ClientState, State, stripped
from fedlit.core.system.files import link

SHARE = 0.25
"""Share of the free memory up to which client states are kept in memory by default."""

UNITS = {"": 1} | {f"{k}{i}b": (1024 if i else 1000) ** n for n, k in enumerate("kmgt", 1) for i in ("", "i")}

SMALL = 2**15
"""Largest number of bytes of a client state that shares a file, and travels between processes inside the message."""

NUMBERS = "clients"
"""Name of the tensor with the clients' numbers."""


@dataclass(frozen=True)
class StoredState:
    """A client state in a file, which another process may have written.

    Attributes:
        file: Never written again.
        aggregators: Number of the federation's aggregators.
    """

    file: Path
    aggregators: int

    def load(self) -> ClientState:
        """Map the file into memory; its pages are read when they are used."""
        tensors = torch.load(self.file, map_location="cpu", mmap=True, weights_only=True)
        return ClientState.from_tensors(tensors, self.aggregators)


@dataclass(frozen=True)
class StateFolder:
    """The folder of a run's client states, next to its checkpoints because links need the same file system."""

    path: Path
    aggregators: int

    def keep(self, state: ClientState) -> ClientState | StoredState:
        """Write a new state to a file; a small one stays in memory.

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
                f"{self.path}: a client's state cannot be written: {getattr(reason, 'strerror', None) or reason}. "
                "Free disk space, or raise federation.state_memory, and resume from the last checkpoint"
            ) from error
        return StoredState(file, self.aggregators)

    def adopt(self, state: ClientState | StoredState) -> ClientState | StoredState:
        """Take over a checkpoint's state: its file is linked, so that it survives the checkpoint."""
        if state.file is None:
            return self.keep(state)
        if state.file.parent == self.path:
            return state
        file = self._fresh()
        link(state.file, file)
        return StoredState(file, self.aggregators)

    def drop(self, states: Iterable[ClientState | StoredState], kept: Iterable[ClientState | StoredState] = ()) -> None:
        """Remove the files of states, except those to keep."""
        for file in {s.file for s in states} - {s.file for s in kept} - {None}:
            if file.parent == self.path:  # other files belong to checkpoints
                file.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder, and its parent unless other ranks still use it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            self.path.parent.rmdir()

    def _fresh(self) -> Path:
        return self.path / f"{uuid4().hex}.pt"


def write_tensors(tensors: State, path: Path) -> None:
    """Write tensors to a new file; a view is copied, because its whole storage would be written."""
    whole = {name: t if t.untyped_storage().nbytes() == t.nbytes else t.clone() for name, t in tensors.items()}
    with path.open("wb") as file:
        torch.save(whole, file)


def in_bytes(value: int | str) -> int | None:
    """Read a number of bytes such as ``4000000000`` or ``4GB``; None for ``auto``.

    Raises:
        ConfigError: It is neither.
    """
    size = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt]i?b)?", str(value).lower())
    if str(value) == "auto":
        return None
    if size is None:
        raise ConfigError(
            f"federation.state_memory: expected bytes such as 4000000000, 4GB or 512MiB, or auto; found {value!r}"
        )
    return int(float(size[1]) * UNITS[size[2] or ""])


def free_memory() -> int:
    """Return the number of bytes of memory that new data may use on this machine."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
        with suppress(OSError, ValueError):  # a container's limit, if it has one
            limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
            free = min(free, limit - used)
        return max(free, 0)
    return 4 * 2**30  # typical of a laptop


def check_room(folder: Path, each: int, clients: int, cohort: int) -> None:
    """Refuse a disk that is too small for the states: every client's, and the new and replaced ones of a round."""
    needed, free = each * (clients + 2 * cohort), shutil.disk_usage(folder).free
    if needed > free:
        raise ConfigError(
            f"{folder}: no room for the clients' states: {clients} clients of {each / 1e6:,.1f} MB, and twice the "
            f"{cohort} of a round, take at least {needed / 1e9:,.1f} GB, but {free / 1e9:,.1f} GB are free; choose "
            "another --run_dir, or raise federation.state_memory if there is enough memory"
        )


def is_small(state: ClientState) -> bool:
    """Return whether a state shares a file with others."""
    return sum(t.nbytes for t in state.tensors().values()) <= SMALL


def stacked(states: Mapping[int, ClientState]) -> State:
    """Stack states by their clients' numbers: ``<kind>/clients`` [K], and ``<kind>/<name>`` [K, ...] per tensor."""
    kinds: dict[tuple, dict[int, State]] = {}
    for number, state in states.items():
        tensors = state.tensors()
        kind = tuple((name, tensor.dtype, tensor.shape) for name, tensor in tensors.items())
        kinds.setdefault(kind, {})[number] = tensors
    stacks = {}
    for place, (kind, rows) in enumerate(kinds.items()):
        stacks[f"{place}/{NUMBERS}"] = torch.tensor(list(rows))
        stacks |= {f"{place}/{name}": torch.stack([row[name] for row in rows.values()]) for name, _, _ in kind}
    return stacks


def unstacked(stacks: State, clients: int, names: tuple[str, ...]) -> dict[int, State]:
    """Invert :func:`stacked`: return the tensors of each state, with all of ``names``, by its client's number.

    Raises:
        ValueError: It is something else; names the fault.
    """
    states: dict[int, State] = {}
    for place in dict.fromkeys(key.partition("/")[0] for key in stacks):
        rows = stripped(stacks, f"{place}/")
        if lacking := [name for name in (NUMBERS, *names) if name not in rows]:
            raise ValueError(f"lacks the tensor {lacking[0]!r}")
        numbers = rows.pop(NUMBERS).tolist()
        for name, tensor in rows.items():
            if tensor.shape[:1] != (len(numbers),):
                raise ValueError(f"expected {len(numbers)} rows of {name!r}, found shape {tuple(tensor.shape)}")
        for row, number in enumerate(numbers):
            if number in states or number not in range(clients):
                raise ValueError(f"holds a client number {number} {'twice' if number in states else f'of {clients}'}")
            states[number] = {name: tensor[row].clone() for name, tensor in rows.items()}
    return states
