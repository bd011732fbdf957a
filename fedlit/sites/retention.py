"""Removal of what old runs and old jobs have left, after the time that a site's or a server's own file sets.

Only folders with the content that fedlit or NVFlare writes are removed. A folder that merely has such a name is kept.
"""

import json
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

from fedlit.sites.ledger import DAY
from fedlit.sites.messages import RUN
from fedlit.sites.states import FILE

JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Names of the folders in which NVFlare keeps its jobs."""


def forget(folder: Path, days: float, now: float, belongs: Callable[[Path], bool]) -> list[str]:
    """Remove old folders of runs or jobs, and return their names; warn about one that cannot be removed.

    Args:
        folder: The folder that has them.
        days: Days since the newest file in a folder was written.
        now: Seconds since 1970.
        belongs: One of the functions below, which recognise what fedlit or NVFlare has written.
    """
    forgotten = []
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            if entry.is_symlink() or not entry.is_dir() or not belongs(entry):
                continue
            newest = max(file.lstat().st_mtime for file in (entry, *entry.rglob("*")))
        except OSError:  # another process is using it
            continue
        if now - newest <= days * DAY:
            continue
        try:
            shutil.rmtree(entry)
        except OSError as error:
            warnings.warn(
                f"{entry}: is older than {days:g} days and cannot be removed ({error.strerror or error}); remove it, "
                "or change its owner",
                stacklevel=2,
            )
        else:
            forgotten.append(entry.name)
    return forgotten


def holds_states(entry: Path) -> bool:
    """Return whether a folder has the name of a run and only files of states, CLIENT/FILE, or drafts of them.

    Without its states, a run can only be resumed with ``fresh``.
    """
    if not RUN.fullmatch(entry.name):
        return False
    files = [path for path in entry.rglob("*") if path.is_symlink() or not path.is_dir()]
    return all(
        len(path.relative_to(entry).parts) == 2 and (FILE.fullmatch(path.name) or path.name.startswith("."))
        for path in files
    )


def is_of_job(entry: Path) -> bool:
    """Return whether a folder is that of a job that NVFlare has started at a site: it then has this file."""
    return bool(JOB.fullmatch(entry.name)) and (entry / "fl_app.txt").is_file()


def has_ended(entry: Path) -> bool:
    """Return whether a folder is NVFlare's copy of a job that has ended, in its store at the server."""
    if not JOB.fullmatch(entry.name):
        return False
    try:
        meta = json.loads((entry / "meta").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(meta, dict) and str(meta.get("status")).startswith("FINISHED")
