"""Files that appear whole or not at all, even if the process dies meanwhile, and CSV files for spreadsheets."""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that a spreadsheet runs as a formula."""


@contextmanager
def whole(path: Path, durable: bool = False, replace: bool = True) -> Iterator[Path]:
    """Context manager that yields the path of a draft, which replaces ``path`` when the block ends.

    The block writes the draft as a file, or makes it a folder. If the block raises, the draft is removed and ``path``
    is unchanged. A process that is killed leaves the old or the new content, and perhaps a hidden draft.

    Args:
        path: The file or folder; its parent folder is created if it is missing.
        durable: Wait until the content of a file is on the disk, so that it also survives a power cut.
        replace: Whether to replace a file that another process has put there meanwhile; otherwise that one is kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    _discard(draft)  # left by a killed process with the same process id
    try:
        yield draft
        if durable:
            sync(draft)
        if replace:
            put(draft, path)
        else:
            _put_unless_there(draft, path)
    finally:
        _discard(draft)


def put(draft: Path, path: Path) -> None:
    """Move a complete draft to its final name, replacing what had it."""
    if path.is_dir():
        remove(path)  # no system replaces a folder that is not empty
    os.replace(draft, path)


def remove(folder: Path) -> None:
    """Remove a folder so that it never exists half-deleted under its name."""
    hidden = folder.with_name(f".removing-{folder.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    os.replace(folder, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private(folder: Path) -> None:
    """Make a folder, if it is missing, and deny all other users of the machine access to it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


def _discard(draft: Path) -> None:
    if draft.is_dir():
        shutil.rmtree(draft, ignore_errors=True)
    else:
        draft.unlink(missing_ok=True)


def _put_unless_there(draft: Path, path: Path) -> None:
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        os.replace(draft, path)


def link(source: Path, target: Path) -> None:
    """Add a second name to a file, or copy it if the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def unwritable(folder: Path) -> str:
    """Return why a folder cannot be created or is not writable, or ""."""
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not existing.is_dir():
        return f"expected a folder, found the file {existing}; choose another folder"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{existing} is not writable; choose another folder, or change its permissions"
    return ""


def inert(cell: Any) -> Any:
    """Return a cell that a spreadsheet shows as it is: names of classes, clients, runs and leads come from outside."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) and len(cell) > 1 else cell


def write_csv(table: "DataFrame", file: Path) -> None:
    """Write a table without its index."""
    shown = table.copy()
    for name in table.select_dtypes(exclude=["number", "bool"]):
        shown[name] = table[name].map(inert)
    shown.rename(columns=inert).to_csv(file, index=False)
