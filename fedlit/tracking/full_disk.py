"""Errors of a full disk."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlit.core.errors import TrainingError, causes
from fedlit.tracking.run import last_checkpoint

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Error numbers of a file system that accepts no more data."""


@contextmanager
def full_disk_explained(run: Path) -> Iterator[None]:
    """Context manager that turns errors of a full disk into a message and deletes incomplete checkpoints.

    Raises:
        TrainingError: A file could not be written; names it and the command to resume.
    """
    try:
        yield
    except Exception as error:
        # The system's error is among the causes, because torch.save reports only its incomplete file.
        reason = next((each for each in causes(error) if isinstance(each, OSError) and each.errno in FULL), None)
        if reason is None:
            raise
        for draft in run.glob("checkpoints/.writing-*"):
            shutil.rmtree(draft, ignore_errors=True)
        last, place = last_checkpoint(run), reason.filename or run
        onward = f"resume with --ckpt_path {run}; {last} is kept" if last else "start again; no checkpoint exists yet"
        folder = next(path for path in (run, *run.absolute().parents) if path.exists())
        usage = shutil.disk_usage(folder)
        free = f"{usage.free / 2**20:,.0f} of {usage.total / 2**20:,.0f} MiB are free in {folder}"
        raise TrainingError(
            f"{place}: cannot be written: {reason.strerror} ({free}). Free disk space or raise the quota, then {onward}"
        ) from error
