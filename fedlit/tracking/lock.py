"""A run's directory belongs to one process at a time."""

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fedlit.core.errors import ConfigError

LOCK, HOLDER = ".running.lock", ".running.json"
"""Files of a run's directory while a process is at work there: the system's lock, and who holds it."""


@dataclass(frozen=True)
class LockHolder:
    """Who is at work on a run.

    Attributes:
        pid: Number of the process.
        host: Name of its machine.
        started: Date and time at which it began.
        boot: What the system of its machine calls the time since its start; "" where it has no such name.
    """

    pid: int
    host: str
    started: str
    boot: str = ""

    @classmethod
    def here(cls) -> "LockHolder":
        """Describe this process, which begins now."""
        started, boot = time.strftime("%Y-%m-%d %H:%M:%S"), Path("/proc/sys/kernel/random/boot_id")
        return cls(os.getpid(), socket.gethostname(), started, boot.read_text().strip() if boot.exists() else "")

    @classmethod
    def read(cls, directory: Path) -> "LockHolder | None":
        """Read who holds a run's directory, or held it when it was killed; None where nobody has left a name."""
        try:
            return cls(**json.loads((directory / HOLDER).read_text()))
        except (OSError, ValueError, TypeError):  # none, or a process was killed while it wrote
            return None

    def is_near(self, other: "LockHolder") -> bool:
        """Tell whether one system runs both, which then sees either's lock; each container has a host name of its own."""
        return self.host == other.host or bool(self.boot and self.boot == other.boot)

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}, at work since {self.started}"


class RunLock:
    """Keep other processes from a run's directory.

    The system forgets the lock of a process that dies, however it dies: the next one takes over what it has left. A
    process of another machine cannot be seen, so that whatever it has left holds until somebody removes it.

    Args:
        directory: The directory of the run, which is there.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = FileLock(directory / LOCK)

    def acquire(self) -> None:
        """Take the directory.

        Raises:
            ConfigError: Another process has it, or nothing can be written there.
        """
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            holder = LockHolder.read(self.directory)
            raise ConfigError(
                f"{self.directory}: another process is at work on this run: {holder or 'it has just begun'}. Wait for its "
                "end or stop it, then give the command again"
            ) from None
        except OSError as error:
            raise ConfigError(f"{self.directory}: cannot write there: {error.strerror or error}") from error
        here, holder = LockHolder.here(), LockHolder.read(self.directory)
        if holder is not None and not holder.is_near(here):
            self._lock.release()
            raise ConfigError(
                f"{self.directory}: this run is held by {holder}; this host, {here.host}, cannot see whether it "
                f"still is. Wait for its end or stop it. If that process or that host is dead, remove "
                f"{self.directory / HOLDER} and give the command again"
            )
        (self.directory / HOLDER).write_text(json.dumps(asdict(here)) + "\n")

    def release(self) -> None:
        """Leave the directory; one in which nothing else is goes as well."""
        if not self._lock.is_locked:
            return
        with suppress(OSError):
            (self.directory / HOLDER).unlink()
        with suppress(OSError):  # Windows removes no open file
            (self.directory / LOCK).unlink()
        self._lock.release()
        with suppress(OSError):
            (self.directory / LOCK).unlink()
        with suppress(OSError):  # holds files, unless the run was refused before its first round
            self.directory.rmdir()


def is_held(directory: Path) -> bool:
    """Tell whether another process is at work on a run, or may be."""
    try:
        refuse_held(directory)
    except ConfigError:
        return True
    return False


def refuse_held(directory: Path) -> None:
    """Refuse a run's directory in which another process is at work.

    Raises:
        ConfigError: One is; names it.
    """
    if (directory / LOCK).exists() or (directory / HOLDER).exists():
        lock = RunLock(directory)
        lock.acquire()
        lock.release()
