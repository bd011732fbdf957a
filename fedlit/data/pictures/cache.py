"""Arrays in the cache folder: sealed by a sum when they are written, checked when they are opened, swept after a kill."""

import hashlib
import os
import re
import socket
import time
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np

SEAL = b"\0fedlit-sum\0"
"""Stands between the array and its sum, at the end of the file, where numpy does not look."""

DIGEST = hashlib.sha256().digest_size
WHOLE = 64 * 2**20
"""Bytes up to which all of a file is summed; of a larger one as much is, in blocks all over it: that takes no second."""

BLOCKS = 256
STALE_SECONDS = 24 * 3600
DRAFT = re.compile(r"\..+\.(?P<host>[^/]+)\.(?P<pid>\d+)\.tmp")


def seal(file: Path) -> None:
    """Append its sum to a ``.npy`` file that is complete."""
    with file.open("r+b") as opened:
        size = opened.seek(0, os.SEEK_END)
        total = _sum(opened, size)
        opened.seek(size)
        opened.write(SEAL + total)


def damage(file: Path, shape: tuple[int | None, ...], dtype: type) -> str:
    """Say what is wrong with a file of the cache, "" where nothing is found.

    Head and size are checked, and the sum: of all bytes up to 64 MiB, of blocks of a larger file. A file of an earlier version
    has no sum.

    Args:
        file: ``.npy`` file.
        shape: Shape that it must have; None for a length that may be any.
        dtype: Type that its elements must have.
    """
    try:
        with file.open("rb") as opened:
            version = np.lib.format.read_magic(opened)
            reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            found, fortran, kind = reader(opened)
            end = opened.tell() + int(np.prod(found, dtype=np.int64)) * kind.itemsize
            size = opened.seek(0, os.SEEK_END)
            fits = len(found) == len(shape) and all(n in (None, m) for n, m in zip(shape, found, strict=True))
            if kind != np.dtype(dtype) or not fits or fortran:
                return f"expected {np.dtype(dtype)} {_lengths(shape)}, found {kind} {_lengths(found)}"
            if size not in (end, end + len(SEAL) + DIGEST):
                return f"expected {end:,} bytes, found {size:,}"
            opened.seek(end)
            tail = opened.read()
            if tail and (not tail.startswith(SEAL) or tail[len(SEAL) :] != _sum(opened, end)):
                return "its bytes are not those that were written"
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        return f"it cannot be read: {error}"
    return ""


def intact(file: Path, shape: tuple[int | None, ...], dtype: type) -> bool:
    """Return whether a file of the cache is there and sound; warn of one that is damaged, which is made again."""
    if not file.exists():
        return False
    if reason := damage(file, shape, dtype):
        warnings.warn(f"{file}: this file of the cache is damaged ({reason}); it is made again", stacklevel=3)
    return not reason


def sweep(folder: Path) -> None:
    """Remove the drafts of processes of this machine that are dead, and of other machines those that are a day old."""
    for draft in folder.glob(".*.tmp"):
        named = DRAFT.fullmatch(draft.name)
        ours = named is not None and named["host"] == socket.gethostname()
        with suppress(OSError):  # somebody else removes it too
            if not _alive(int(named["pid"])) if ours else time.time() - draft.stat().st_mtime > STALE_SECONDS:
                draft.unlink()


def _sum(opened, size: int) -> bytes:
    """Return the sum of the first ``size`` bytes of an open file."""
    digest = hashlib.sha256(str(size).encode())
    block = size if size <= WHOLE else WHOLE // BLOCKS
    starts = [0] if size <= WHOLE else np.linspace(0, size - block, BLOCKS).astype(np.int64).tolist()
    for start in starts:
        opened.seek(start)
        digest.update(opened.read(block))
    return digest.digest()


def _lengths(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('any' if n is None else f'{n:,}' for n in shape)}]"


def _alive(pid: int) -> bool:
    if os.name == "nt":  # a signal 0 would end the process there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
