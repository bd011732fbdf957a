"""Arrays in the cache folder: checksums, checks of damaged files, and removal of drafts of stopped processes."""

import hashlib
import math
import os
import re
import socket
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

SEAL = b"\0fedlit-sum\0"
"""Separator of the array and its checksum at the end of the file, which numpy does not read."""

DIGEST = hashlib.sha256().digest_size
WHOLE = 64 * 2**20
"""Number of bytes in a checksum. Of a larger file, blocks spread over the file are used, in less than a second."""

BLOCKS = 256
STALE_SECONDS = 24 * 3600
DRAFT = re.compile(r"\..+\.(?P<host>[^/]+)\.(?P<pid>\d+)\.tmp")


def append_checksum(file: Path) -> None:
    """Append a checksum to a complete ``.npy`` file."""
    with file.open("r+b") as opened:
        size = opened.seek(0, os.SEEK_END)
        total = _sum(opened, size)
        opened.seek(size)
        opened.write(SEAL + total)


def damage(file: Path, shape: tuple[int | None, ...], dtype: type) -> str:
    """Return the damage of a ``.npy`` cache file as text, or "" if the file is intact.

    Header, size and checksum are checked. An unfinished file has no checksum yet. None in ``shape`` is any length.
    """
    try:
        with file.open("rb") as opened:
            stored, fortran, kind = read_header(opened)
            end = opened.tell() + math.prod(stored) * kind.itemsize
            size = opened.seek(0, os.SEEK_END)
            fits = len(stored) == len(shape) and all(n in (None, m) for n, m in zip(shape, stored, strict=True))
            if kind != np.dtype(dtype) or not fits or fortran:
                return f"expected {np.dtype(dtype)} {_lengths(shape)}, found {kind} {_lengths(stored)}"
            if size not in (end, end + len(SEAL) + DIGEST):
                return f"expected {end:,} bytes, found {size:,}"
            opened.seek(end)
            tail = opened.read()
            if tail and (not tail.startswith(SEAL) or tail[len(SEAL) :] != _sum(opened, end)):
                return "its checksum does not match"
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        return f"it cannot be read: {error}"
    return ""


def read_header(opened: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header of an open ``.npy`` file: the shape, True for Fortran order, and the type of the elements."""
    version = np.lib.format.read_magic(opened)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return reader(opened)


def intact(file: Path, shape: tuple[int | None, ...], dtype: type) -> bool:
    """Return True if a cache file exists and is intact; warn about a damaged one, which is then recreated."""
    if not file.exists():
        return False
    if reason := damage(file, shape, dtype):
        warnings.warn(f"{file}: this cache file is damaged ({reason}); it is recreated", stacklevel=3)
    return not reason


def sweep(folder: Path) -> None:
    """Remove drafts of dead processes of this machine, and drafts of other machines that are older than a day."""
    for draft in folder.glob(".*.tmp"):
        named = DRAFT.fullmatch(draft.name)
        ours = named is not None and named["host"] == socket.gethostname()
        with suppress(OSError):  # another process may remove it too
            if not _alive(int(named["pid"])) if ours else time.time() - draft.stat().st_mtime > STALE_SECONDS:
                draft.unlink()


def _sum(opened, size: int) -> bytes:
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
    if os.name == "nt":  # signal 0 would end the process on Windows
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
