"""A disk that takes no more, in the words of whoever has to make room."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlit.core.errors import TrainingError
from fedlit.tracking.run import last_checkpoint

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What the system says where nothing more can be written."""


@contextmanager
def full_disk_explained(run: Path) -> Iterator[None]:
    """Within, a disk that is full ends a run in words; its last checkpoint stays, and half a new one goes.

    Raises:
        TrainingError: Something could not be written; names it, and says how to go on.
    """
    try:
        yield
    except Exception as error:
        reason = _reason(error)
        if reason is None:
            raise
        for draft in [*run.glob("checkpoints/.writing-*"), *run.glob("phases/*/checkpoints/.writing-*")]:
            shutil.rmtree(draft, ignore_errors=True)
        last, place = last_checkpoint(run), reason.filename or run
        onward = f"go on with --ckpt_path {run}; {last} is kept" if last else "start again; there is no checkpoint yet"
        raise TrainingError(
            f"{place}: cannot be written: {reason.strerror} ({_free(run)}). Make room or a larger quota, then {onward}"
        ) from error


def _reason(error: BaseException | None) -> OSError | None:
    """The error of the system behind another one: torch.save tells of its own half-written file alone."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return error
        error = error.__cause__ or error.__context__
    return None


def _free(run: Path) -> str:
    there = next(path for path in (run, *run.absolute().parents) if path.exists())
    usage = shutil.disk_usage(there)
    return f"{usage.free / 2**20:,.0f} of {usage.total / 2**20:,.0f} MiB are free in {there}"
