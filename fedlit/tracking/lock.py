"""Exclusive locks on run directories."""

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fedlit.core.errors import ConfigError
from fedlit.core.system import slurm

LOCK, HOLDER = ".running.lock", ".running.json"
"""Files in a run directory that a process is using: the lock, and the description of its holder."""


@dataclass(frozen=True)
class LockHolder:
    """The process that is using a run directory."""

    pid: int
    host: str
    started: str  # Date and time at which the process took the lock.
    boot: str = ""  # Boot id of the machine; "" if it has none.
    job: str = ""  # Number of its job of SLURM; "" if it has none.

    @classmethod
    def here(cls) -> "LockHolder":
        """Return the description of this process, starting now."""
        started, boot = time.strftime("%Y-%m-%d %H:%M:%S"), Path("/proc/sys/kernel/random/boot_id")
        identity = boot.read_text().strip() if boot.exists() else ""
        return cls(os.getpid(), socket.gethostname(), started, identity, os.environ.get("SLURM_JOB_ID", ""))

    @classmethod
    def read(cls, directory: Path) -> "LockHolder | None":
        """Read the process that holds a run directory, or held it when it was killed; None if there is none."""
        try:
            return cls(**json.loads((directory / HOLDER).read_text()))
        except (OSError, ValueError, TypeError):  # no file, or an incomplete one of a killed process
            return None

    def is_near(self, other: "LockHolder") -> bool:
        """Check if both processes are on the same machine, in any container, and see each other's locks."""
        return self.host == other.host or bool(self.boot and self.boot == other.boot)

    def has_ended(self, here: "LockHolder") -> bool:
        """Return whether the process has ended on another machine: its job is this one, or SLURM lists it no longer."""
        return bool(self.job) and (self.job == here.job or slurm.ended(self.job))

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}, since {self.started}"


class RunLock:
    """Exclusive lock on a run directory.

    The operating system releases the lock of a process that exits for any reason, and the next process takes over its
    files. Processes on other machines are not visible, so their files count as a lock until they are deleted.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = FileLock(directory / LOCK)

    def acquire(self) -> None:
        """Lock the directory.

        Raises:
            ConfigError: Another process holds the lock, or the directory is not writable.
        """
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            holder = LockHolder.read(self.directory)
            raise ConfigError(
                f"{self.directory}: another process is using this run: {holder or 'it has just started'}. Wait for it "
                "to end or stop it, then repeat the command"
            ) from None
        except OSError as error:
            raise ConfigError(f"{self.directory}: cannot write there: {error.strerror or error}") from error
        here, holder = LockHolder.here(), LockHolder.read(self.directory)
        if holder is not None and not holder.is_near(here) and not holder.has_ended(here):
            self._lock.release()
            raise ConfigError(
                f"{self.directory}: this run is held by {holder}; this host, {here.host}, cannot check if it is still "
                "running. Wait for it to end or stop it. If that process or host is dead, remove "
                f"{self.directory / HOLDER} and repeat the command"
            )
        (self.directory / HOLDER).write_text(json.dumps(asdict(here)) + "\n")

    def release(self) -> None:
        """Release the lock; an otherwise empty directory is deleted."""
        if not self._lock.is_locked:
            return
        with suppress(OSError):
            (self.directory / HOLDER).unlink()
        with suppress(OSError):  # Windows does not delete open files
            (self.directory / LOCK).unlink()
        self._lock.release()
        with suppress(OSError):
            (self.directory / LOCK).unlink()
        with suppress(OSError):  # not empty, unless an error occurred before the first round
            self.directory.rmdir()


def is_held(directory: Path) -> bool:
    """Check if another process is using a run, or may be."""
    try:
        refuse_held(directory)
    except ConfigError:
        return True
    return False


def refuse_held(directory: Path) -> None:
    """Refuse a run directory that another process is using."""
    if (directory / LOCK).exists() or (directory / HOLDER).exists():
        lock = RunLock(directory)
        lock.acquire()
        lock.release()
