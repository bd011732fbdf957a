"""Tensors in memory-mapped files, which processes of one machine share."""

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
"""Folders are named fedlit-PID-...; the owner locks the file in its folder until it exits."""

_HELD: dict[Path, FileLock] = {}


@dataclass(frozen=True)
class Handle:
    """Location of named tensors in a file; small enough to send with every message."""

    path: str
    entries: tuple[tuple[str, torch.dtype, tuple[int, ...], int], ...]
    nbytes: int


class SharedFolder:
    """A folder with files of named tensors, in shared memory if it has enough space.

    Each process maps a file once and keeps it mapped, so writing a file again costs one copy.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or _place() / f"{NAME}-{os.getpid()}-{secrets.token_hex(8)}"
        self._remove = None
        if path is None:
            # Registered before the folder exists, because a signal may end the process at any moment.
            self._remove = Finalize(self, _remove, (self.path,), exitpriority=0)
            _make(self.path)
        self._mapped: dict[str, Tensor] = {}

    def write(self, name: str, state: State) -> Handle:
        """Copy tensors into the file ``name``, which is created or enlarged as needed."""
        entries, offset = [], 0
        for key, tensor in state.items():
            entries.append((key, tensor.dtype, tuple(tensor.shape), offset))
            offset += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        handle = Handle(str(self.path / name), tuple(entries), max(offset, ALIGNMENT))
        _reserve(handle.path, handle.nbytes)
        for key, tensor in self.open(handle).items():
            if tensor.data_ptr() != state[key].data_ptr():  # not computed in place
                tensor.copy_(state[key])
        return handle

    def memory(self, name: str, like: Tensor) -> Tensor:
        """Return memory for the first tensor of the file ``name``, with the size and dtype of ``like``."""
        first = ("", like.dtype, tuple(like.shape), 0)
        handle = Handle(str(self.path / name), (first,), max(like.nbytes, ALIGNMENT))
        _reserve(handle.path, handle.nbytes)
        return self.open(handle)[""]

    def empty(self, name: str) -> None:
        """Free the memory of a file that is no longer read; it may be written again."""
        with suppress(FileNotFoundError):  # never written
            os.truncate(self.path / name, 0)

    def open(self, handle: Handle) -> State:
        """Return the tensors of a handle, as views of the mapped file."""
        buffer = self._mapped.get(handle.path)
        if buffer is None or buffer.numel() < handle.nbytes:
            buffer = torch.from_file(handle.path, shared=True, size=handle.nbytes, dtype=torch.uint8)
            self._mapped[handle.path] = buffer
        return {
            key: buffer[offset : offset + prod(shape) * dtype.itemsize].view(dtype).view(shape)
            for key, dtype, shape, offset in handle.entries
        }

    def close(self) -> None:
        """Unmap the files; the process that created the folder deletes it."""
        self._mapped.clear()
        if self._remove is not None:
            self._remove()


def _reserve(path: str, nbytes: int) -> None:
    """Reserve the space now, because writing to a full memory file system kills a process without a message."""
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
    """Return an error about full shared memory, with the fix."""
    return OSError(
        error.errno,
        f"no room for {what}: enlarge it (docker: --shm-size), set TMPDIR to a larger disk, or set "
        "federation.workers: 1",
        path,
    )


def _place() -> Path:
    """Return the parent of new folders, after removing folders of dead processes."""
    memory = Path("/dev/shm")
    if memory.is_dir():
        _sweep(memory)
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30
    if memory.is_dir() and not roomy:
        warnings.warn(
            f"{memory}: expected at least 1 GiB of free space, found less; clients' states are stored in "
            f"{tempfile.gettempdir()} instead, which is slower (docker: --shm-size)",
            stacklevel=2,
        )
    place = memory if roomy else Path(tempfile.gettempdir())
    if not roomy:
        _sweep(place)
    return place


def _make(folder: Path) -> None:
    """Create a folder that this process locks until it exits."""
    folder.mkdir(mode=0o700)
    _HELD[folder] = lock = FileLock(folder / f".{OWNER}")
    lock.acquire(timeout=0)
    # Renamed only once it is locked, because a sweep would remove an unlocked folder.
    (folder / f".{OWNER}").rename(folder / OWNER)


def _sweep(place: Path) -> None:
    """Remove folders of this user whose owner no longer holds the lock.

    The operating system ties locks to processes, so reused process ids and containers with their own ids do no harm.
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
