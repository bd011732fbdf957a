"""Tensors that processes of one machine share: named tensors in one memory-mapped file."""

import os
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedlit.messages import State

ALIGNMENT = 64


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
        self._owned = path is None
        self.path = path or _new_folder()
        self._mapped: dict[str, Tensor] = {}

    def write(self, name: str, state: State) -> Handle:
        """Copy tensors into the file ``name``, creating or growing it as needed."""
        entries, offset = [], 0
        for key, tensor in state.items():
            entries.append((key, tensor.dtype, tuple(tensor.shape), offset))
            offset += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        handle = Handle(str(self.path / name), tuple(entries), max(offset, ALIGNMENT))
        for key, tensor in self.open(handle).items():
            tensor.copy_(state[key])
        return handle

    def open(self, handle: Handle) -> State:
        """The tensors behind a handle, as views of the mapped file."""
        buffer = self._mapped.get(handle.path)
        if buffer is None or buffer.numel() < handle.nbytes:
            _reserve(handle.path, handle.nbytes)
            buffer = torch.from_file(handle.path, shared=True, size=handle.nbytes, dtype=torch.uint8)
            self._mapped[handle.path] = buffer
        return {key: _view(buffer, dtype, shape, offset) for key, dtype, shape, offset in handle.entries}

    def close(self) -> None:
        """Unmap; the folder goes with the process that made it."""
        self._mapped.clear()
        if self._owned:
            shutil.rmtree(self.path, ignore_errors=True)


def _view(buffer: Tensor, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> Tensor:
    size = torch.Size(shape).numel() * dtype.itemsize
    return buffer[offset : offset + size].view(dtype).view(shape)


def _reserve(path: str, nbytes: int) -> None:
    """Take the room now: writing to a full memory file system kills a process without a word."""
    with open(path, "ab") as file:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, nbytes)
        except OSError as error:
            raise OSError(
                error.errno,
                f"no room for {nbytes / 2**20:.0f} MiB of shared memory: give it more (docker: "
                "--shm-size), set TMPDIR to a larger disk, or use federation.workers: 1",
                path,
            ) from None


def _new_folder() -> Path:
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30
    if memory.is_dir() and not roomy:
        warnings.warn(
            f"{memory} has less than 1 GiB free; clients' states go to {tempfile.gettempdir()} instead, which "
            "is slower (docker: --shm-size)",
            stacklevel=2,
        )
    return Path(tempfile.mkdtemp(prefix="fedlit-", dir=memory if roomy else None))
