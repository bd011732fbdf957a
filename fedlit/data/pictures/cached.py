"""Entries of the image cache: their size, their last use and the runs that used them; and their removal."""

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from fedlit.core.errors import DataError
from fedlit.data.pictures.store import is_earlier

USED = ".used"
"""Suffix of the file that lists the runs that used an entry, with one line per run."""

KINDS = {
    "images": "decoded image files", "vision": "decoded data sets", "medmnist": "decoded data sets",
    "phantom": "synthetic images", "array": "images of an array", "features": "features of a frozen body",
    "pairs": "near-duplicates",
}  # fmt: skip
"""Descriptions of entries by the first word of their names."""


@dataclass(frozen=True)
class CacheEntry:
    """Files of the cache folder that belong together.

    Attributes:
        name: Name, with which the names of its files begin.
        files: Its files.
        size: Bytes on the disk.
        used: Time of its creation or last use, in seconds since 1970.
        runs: Directories of the runs that used it, the last one first.
        state: ``finished``, ``unfinished``, or ``earlier`` if an earlier version wrote it, which is not used.
    """

    name: str
    files: tuple[Path, ...]
    size: int
    used: float
    runs: tuple[str, ...]
    state: Literal["finished", "unfinished", "earlier"]

    @property
    def what(self) -> str:
        """Description of the content."""
        kind = KINDS.get(self.name.partition("-")[0], "images of a custom source")
        return kind + {"finished": "", "unfinished": ", unfinished", "earlier": ", of an earlier version"}[self.state]


def entries(folder: Path) -> list[CacheEntry]:
    """Return the entries of a cache folder, the largest first; files of other programs are left out."""
    together: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*")) if folder.is_dir() else []:
        if (
            file.is_file()
            and not file.name.startswith(".")
            and file.suffix in (".npy", ".rows", ".damaged", ".partial", ".png", ".lock", USED)
        ):
            together.setdefault(file.stem, []).append(file)
    return sorted((_entry(name, files) for name, files in together.items()), key=lambda entry: -entry.size)


def _entry(name: str, files: Sequence[Path]) -> CacheEntry:
    stats = [file.stat() for file in files]
    lines = [line for file in files if file.suffix == USED for line in file.read_text(encoding="utf-8").splitlines()]
    uses = []
    for line in lines:
        with suppress(ValueError):  # a full disk may have cut it off
            uses.append(json.loads(line))
    runs = dict.fromkeys(use["run"] for use in reversed(uses))
    # Blocks instead of lengths, because an unfinished store has holes.
    size = sum(getattr(each, "st_blocks", -(-each.st_size // 512)) * 512 for each in stats)
    last = max([each.st_mtime for each in stats] + [datetime.fromisoformat(use["when"]).timestamp() for use in uses])
    held = [file for file in files if file.suffix in (".npy", ".partial")]
    state = "unfinished" if any(file.suffix == ".partial" for file in held) else "finished"
    state = "earlier" if any(map(is_earlier, held)) else state
    return CacheEntry(name, tuple(files), size, last, tuple(runs), state)


def note_use(stores: Iterable[Path], run: Path) -> None:
    """Record that a run uses stores; a cache that is not writable is skipped."""
    line = json.dumps({"when": datetime.now().isoformat(timespec="seconds"), "run": str(run.absolute())})
    for store in dict.fromkeys(stores):
        try:
            with store.with_suffix(USED).open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError:  # a cache of another user
            continue


def select(candidates: Sequence[CacheEntry], names: Sequence[str], older: float = 0) -> list[CacheEntry]:
    """Return the entries that match names and have not been used for some days.

    Args:
        candidates: All entries.
        names: ``all``, ``unfinished``, ``earlier``, or beginnings of names.
        older: Number of days for which an entry must not have been used.

    Raises:
        DataError: A name matches no entry.
    """
    starts = tuple(name for name in names if name not in ("all", "unfinished", "earlier"))
    for name in starts:
        if not any(entry.name.startswith(name) for entry in candidates):
            raise DataError(f"--remove {name}: no entry of the cache begins with {name!r}")
    return [
        entry
        for entry in candidates
        if ("all" in names or entry.state in names or entry.name.startswith(starts))
        and time.time() - entry.used >= older * 86400
    ]


def remove(entry: CacheEntry) -> bool:
    """Remove an entry and return True, or return False if a process is filling it."""
    lock = entry.files[0].with_name(f".{entry.name}.lock")
    try:
        with FileLock(lock, timeout=0):
            for file in entry.files:
                file.unlink(missing_ok=True)
    except Timeout:
        return False
    lock.unlink(missing_ok=True)
    return True
