"""Tensors that processes of one machine share: named tensors in one memory-mapped file."""

import os
import secrets
import shutil
import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from multiprocessing.util import Finalize
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from fedlit.core.messages import State

ALIGNMENT = 64

NAME, OWNER = "fedlit", "owner.lock"
"""Folders are called fedlit-PID-...; the file in each is held by the process that made it, until it is dead."""

_HELD: dict[Path, FileLock] = {}


@dataclass(frozen=True)
class Handle:
    """Where named tensors lie; small enough to send with every message."""

    path: str
    entries: tuple[tuple[str, torch.dtype, tuple[int, ...], int], ...]
    nbytes: int


class SharedFolder:
    """Files of named tensors in a folder of its own, in memory where there is room for them.

    Each process maps a file once and keeps it mapped, so a file that is written again costs one copy.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or _place() / f"{NAME}-{os.getpid()}-{secrets.token_hex(8)}"
        self._remove = None
        if path is None:
            # Before there is a folder: a signal may end the process at any moment.
            self._remove = Finalize(self, _remove, (self.path,), exitpriority=0)
            _make(self.path)
        self._mapped: dict[str, Tensor] = {}

    def write(self, name: str, state: State) -> Handle:
        """Copy tensors into the file ``name``, creating or growing it as needed."""
        entries, offset = [], 0
        for key, tensor in state.items():
            entries.append((key, tensor.dtype, tuple(tensor.shape), offset))
            offset += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        handle = Handle(str(self.path / name), tuple(entries), max(offset, ALIGNMENT))
        _reserve(handle.path, handle.nbytes)
        for key, tensor in self.open(handle).items():
            if tensor.data_ptr() != state[key].data_ptr():  # it was not made there
                tensor.copy_(state[key])
        return handle

    def memory(self, name: str, like: Tensor) -> Tensor:
        """Memory for the first tensor that will be written into the file ``name``, of this size and dtype."""
        first = ("", like.dtype, tuple(like.shape), 0)
        handle = Handle(str(self.path / name), (first,), max(like.nbytes, ALIGNMENT))
        _reserve(handle.path, handle.nbytes)
        return self.open(handle)[""]

    def empty(self, name: str) -> None:
        """Give back the memory of a file that nobody reads any more, until it is written again."""
        with suppress(FileNotFoundError):  # nobody has needed it
            os.truncate(self.path / name, 0)

    def open(self, handle: Handle) -> State:
        """The tensors behind a handle, as views of the mapped file."""
        buffer = self._mapped.get(handle.path)
        if buffer is None or buffer.numel() < handle.nbytes:
            buffer = torch.from_file(handle.path, shared=True, size=handle.nbytes, dtype=torch.uint8)
            self._mapped[handle.path] = buffer
        return {
            key: buffer[offset : offset + prod(shape) * dtype.itemsize].view(dtype).view(shape)
            for key, dtype, shape, offset in handle.entries
        }

    def close(self) -> None:
        """Unmap; the folder goes with the process that made it."""
        self._mapped.clear()
        if self._remove is not None:
            self._remove()


def _reserve(path: str, nbytes: int) -> None:
    """Take the room now: writing to a full memory file system kills a process without a word."""
    with open(path, "ab") as file:
        if os.fstat(file.fileno()).st_size >= nbytes:
            return
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, nbytes)
            else:
                file.truncate(nbytes)
        except OSError as error:
            raise no_room(error, f"{nbytes / 2**20:.0f} MiB of shared memory", path) from None


def no_room(error: OSError, what: str, path: str) -> OSError:
    """Say of a memory file system that is full what to do."""
    return OSError(
        error.errno,
        f"no room for {what}: give it more (docker: --shm-size), set TMPDIR to a larger disk, or use federation.workers: 1",
        path,
    )


def _place() -> Path:
    """Where a new folder goes; what dead processes have left there is removed."""
    memory = Path("/dev/shm")
    if memory.is_dir():
        _sweep(memory)
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30
    if memory.is_dir() and not roomy:
        warnings.warn(
            f"{memory} has less than 1 GiB free; clients' states go to {tempfile.gettempdir()} instead, which "
            "is slower (docker: --shm-size)",
            stacklevel=2,
        )
    place = memory if roomy else Path(tempfile.gettempdir())
    if not roomy:
        _sweep(place)
    return place


def _make(folder: Path) -> None:
    """Make a folder that this process holds until it is dead."""
    folder.mkdir(mode=0o700)
    _HELD[folder] = lock = FileLock(folder / f".{OWNER}")
    lock.acquire(timeout=0)
    # Under its name only when it is held: whoever sweeps would take it for a dead process's.
    (folder / f".{OWNER}").rename(folder / OWNER)


def _sweep(place: Path) -> None:
    """Remove what dead processes of this user have left: a folder whose owner is alive is held by it.

    The system holds the lock for the process, so that neither a number that is used again nor a container with numbers of
    its own takes a living one for dead.
    """
    for folder in place.glob(f"{NAME}-*"):
        with suppress(OSError, Timeout):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid() or not (folder / OWNER).is_file():
                continue
            lock = FileLock(folder / OWNER)
            lock.acquire(timeout=0)
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if lock := _HELD.pop(folder, None):
        lock.release()
