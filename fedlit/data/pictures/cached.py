"""What lies in the cache folder: its size, when it was used last and by which runs; and how it goes."""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

USED = ".used"
"""Suffix of the file that lists when a run began to use an entry, a line each."""

KINDS = {
    "images": "decoded image files", "vision": "decoded data sets", "features": "features of a frozen body",
    "pairs": "pairs of alike pictures", "array": "pictures given as an array",
}  # fmt: skip
"""What the first word of an entry's name says."""


@dataclass(frozen=True)
class Entry:
    """What belongs together in the cache folder.

    Attributes:
        name: Its name, which its files begin with.
        files: Its files.
        size: Bytes on the disk.
        used: When it was made or used last, in seconds since 1970.
        runs: Directories of the runs that used it, the last one first.
        finished: Whether all of it was written.
    """

    name: str
    files: tuple[Path, ...]
    size: int
    used: float
    runs: tuple[str, ...]
    finished: bool

    @property
    def what(self) -> str:
        """What it is, in words."""
        kind = KINDS.get(self.name.partition("-")[0], "pictures that were drawn")
        return kind if self.finished else f"{kind}, unfinished"


def entries(folder: Path) -> list[Entry]:
    """Return what is in a cache folder, the largest first; files of others are left out."""
    together: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*")) if folder.is_dir() else []:
        if (
            file.is_file()
            and not file.name.startswith(".")
            and file.suffix in (".npy", ".rows", ".damaged", ".partial", ".png", ".lock", USED)
        ):
            together.setdefault(file.stem, []).append(file)
    found = [_entry(name, files) for name, files in together.items()]
    return sorted(found, key=lambda entry: -entry.size)


def _entry(name: str, files: Sequence[Path]) -> Entry:
    stats = [file.stat() for file in files]
    lines = [line for file in files if file.suffix == USED for line in file.read_text(encoding="utf-8").splitlines()]
    uses = [json.loads(line) for line in lines]
    runs = dict.fromkeys(use["run"] for use in reversed(uses))
    # Blocks rather than lengths: a store that is being filled has holes.
    size = sum(getattr(each, "st_blocks", -(-each.st_size // 512)) * 512 for each in stats)
    last = max([each.st_mtime for each in stats] + [datetime.fromisoformat(use["when"]).timestamp() for use in uses])
    return Entry(name, tuple(files), size, last, tuple(runs), not any(file.suffix == ".partial" for file in files))


def note_use(stores: Iterable[Path], run: Path) -> None:
    """Write down that a run uses stores; where nothing can be written, nothing is."""
    line = json.dumps({"when": datetime.now().isoformat(timespec="seconds"), "run": str(run.absolute())})
    for store in dict.fromkeys(stores):
        try:
            with store.with_suffix(USED).open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError:  # a cache that others own
            continue


def chosen(found: Sequence[Entry], names: Sequence[str], older: float = 0) -> list[Entry]:
    """Return the entries that names stand for: ``all``, ``unfinished``, or how a name begins; of those the older ones.

    Args:
        found: All entries.
        names: What is asked for.
        older: Days for which an entry must not have been used.

    Raises:
        ValueError: Nothing has such a name.
    """

    def stands_for(name: str, entry: Entry) -> bool:
        return name == "all" or (name == "unfinished" and not entry.finished) or entry.name.startswith(name)

    for name in names:
        if name not in ("all", "unfinished") and not any(stands_for(name, entry) for entry in found):
            raise ValueError(f"--remove {name}: nothing in the cache has a name that begins so")
    asked = [entry for entry in found if any(stands_for(name, entry) for name in names)]
    return [entry for entry in asked if time.time() - entry.used >= older * 86400]


def remove(entry: Entry) -> bool:
    """Remove an entry, and return whether it is gone: one that a process is filling stays."""
    lock = entry.files[0].with_name(f".{entry.name}.lock")
    try:
        with FileLock(lock, timeout=0):
            for file in entry.files:
                file.unlink(missing_ok=True)
    except Timeout:
        return False
    lock.unlink(missing_ok=True)
    return True
