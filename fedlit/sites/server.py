"""A lead's run at the server, in the job of any transport."""

import io
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedlit.experiment.experiment import Experiment
from fedlit.experiment.mistakes import named_errors
from fedlit.experiment.parser import is_mistake
from fedlit.experiment.resumption import named_run
from fedlit.experiment.run import fit
from fedlit.federation.interrupts import ask_to_end
from fedlit.sites.configuration import ServerSettings, experiment_of
from fedlit.sites.experiment import with_sites
from fedlit.sites.roster import Roster
from fedlit.sites.transport import Transport, TransportClosedError
from fedlit.tracking.addresses import showable
from fedlit.tracking.lock import is_held

HELD = 60
"""Seconds for which a run waits for the process that ran it before to end."""

EVICTED, RECENT = 3, 120.0
"""A site that is disconnected this many times in this many seconds by another one with its name has a copy."""

_EVICTION = re.compile(r"is evicted for .{1,200}? from endpoint (\S+) for")

READ = 2**20
"""Most bytes of the server's log that are read at a time, from its end."""


@dataclass(frozen=True)
class Ending:
    """Outcome of a run, as far as the server's job knows it."""

    kind: str  # `finished`, `stopped` (on request), `failed`, or `away` (a site was disconnected, or the job aborted).
    reason: str = ""  # Readable reason of a failure.
    directory: str = ""  # The run's directory at the server.
    rounds: int = 0  # Completed rounds of the model that was tested.
    metrics: dict[str, float] = field(default_factory=dict)  # Values of `test/...`.
    summary: str = ""  # Where the metrics are, from the tracker.


class Lines(io.TextIOBase):
    """Stream that keeps the lines of a run for the lead, and passes them on to the job's own output."""

    def __init__(self) -> None:
        self._lines, self._open, self._lock, self._own = [], "", threading.Lock(), sys.stdout

    def writable(self) -> bool:
        """Return True: the stream accepts text."""
        return True

    def write(self, text: str) -> int:
        """Write a part of a line, or several lines."""
        with self._lock:
            *whole, self._open = (self._open + text).split("\n")
            self._lines += whole
        return self._own.write(text)

    def flush(self) -> None:
        """Flush the job's own output."""
        self._own.flush()

    def since(self, number: int) -> list[str]:
        """Return the lines from a number on."""
        with self._lock:
            return self._lines[number:]


class Evictions:
    """Sites that the server disconnected because another one with the same name connected; NVFlare only logs this.

    Args:
        log: The server's log; what it already contains is from earlier jobs.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read = log.stat().st_size if log.exists() else 0

    def new(self, sites: Collection[str]) -> Counter[str]:
        """Count the disconnections of these sites since the last call."""
        with suppress(OSError), self._log.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            begun = self._read if self._read <= size else 0  # NVFlare has begun a new file
            opened.seek(max(begun, size - READ))
            text = opened.read(READ).decode(errors="replace")
            self._read = size
            return Counter(name for name in _EVICTION.findall(text) if name in sites)
        return Counter()


@dataclass(eq=False)
class Hosted:
    """A lead's run in the process of the server's job. It may be made before the sites are connected."""

    config: Path  # File of the configuration, see :mod:`fedlit.sites.configuration`.
    name: str  # Name of a new run.
    transport: Transport  # The transport to the sites.
    fresh: Sequence[str] = ()  # Sites whose clients start afresh if their state is missing.
    server: Path | None = None  # The server's own file, which need not exist.
    lead: str = ""  # Name in the lead's certificate.

    def __post_init__(self) -> None:
        self.lines = Lines()
        self.ending: Ending | None = None
        self.heard = threading.Event()  # set when the lead knows that the run has ended
        self._roster: Roster | None = None
        self._home = self.server.parent.parent if self.server else Path()  # the folder of NVFlare's server
        self._evictions = Evictions(self._home / "log.txt")
        self._evicted: dict[str, list[float]] = {}

    def progress(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the progress of the run for the lead, and follow the lead's requests.

        Args:
            asked: ``since`` is a number of lines that the lead has; ``stop`` ends the run after its round; ``lost``
                names sites that cannot answer any more; ``heard`` releases a run that has ended; ``means`` asks
                whether this is the run that a lead wants to resume.
        """
        if asked.get("stop"):
            ask_to_end(signal.SIGINT)
        if asked.get("lost"):
            self.transport.lose(asked["lost"])
        if asked.get("heard"):
            self.heard.set()
        self._look_for_copies()
        return {
            "lines": self.lines.since(int(asked.get("since", 0))),
            "name": self._directory.name if self._directory else None,
            "means": self._is_meant(asked.get("means")),
            "ended": asdict(self.ending) if self.ending else None,
        }

    def _look_for_copies(self) -> None:
        """Warn about sites for which two processes answer; repeat the warning while they do."""
        now = time.monotonic()
        for name, times in self._evictions.new(self.transport.sites()).items():
            recent = [when for when in self._evicted.get(name, ()) if now - when < RECENT] + [now] * times
            self._evicted[name] = recent
            if len(recent) >= EVICTED:
                self._evicted[name] = []
                self.lines.write(
                    f"warning: site {name!r}: another process connects under its name, and they keep disconnecting "
                    "each other; stop the copy of its folder\n"
                )

    def train(self) -> None:
        """Train to the end of the run or to its failure; keep what it prints for the lead."""
        shown = warnings.showwarning
        warnings.showwarning = lambda message, *place: print(f"warning: {showable(str(message))}")
        try:
            with redirect_stdout(self.lines), redirect_stderr(self.lines):
                self.ending = self._train()
        finally:
            warnings.showwarning = shown

    def _train(self) -> Ending:
        os.umask(0o077)
        try:
            settings = ServerSettings.read(self.server)
            os.chdir(settings.home)
            config = self.config.read_text()
            with named_errors(), experiment_of(config, settings, self.name) as experiment:
                _wait_for_other(experiment)
                ledgers = experiment.run_dir / "ledgers.json"
                at = with_sites(experiment, self.transport, self.fresh, ledgers, settings.models)
                at.away.lead = self.lead
                return self._fit(at)
        except TransportClosedError as error:
            return Ending("away", str(error))
        except Exception as error:
            where = "away" if not all(self.transport.sites().values()) else "failed"
            if is_mistake(error):
                return Ending(where, str(error))
            traceback.print_exception(error, file=self.lines._own)
            return Ending(where, f"{type(error).__name__}: {(str(error) or '-').splitlines()[0]}")

    def _fit(self, experiment: Experiment) -> Ending:
        self._roster = experiment.away
        outcome = fit(experiment)
        heads = (f"{site} {head}" for site, head in sorted(self._roster.ledgers.heads.items()))
        print(f"heads of the sites' ledgers (lines, hash of the last): {', '.join(heads)}")
        ending = {"directory": str(outcome.directory.absolute()), "summary": experiment.tracker.summary() or ""}
        if outcome.signum:
            return Ending("stopped", **ending)
        return Ending("finished", "", rounds=outcome.rounds, metrics=outcome.metrics, **ending)

    @property
    def _directory(self) -> Path | None:
        return self._roster.directory if self._roster else None

    def _is_meant(self, named: Any) -> bool | None:
        """Return whether a lead means this run; None if it does not ask, or the directory is not known yet."""
        if not named or self._directory is None:
            return None
        asked = named if isinstance(named, dict) else {}
        experiment, name = self._directory.parent.name, self._directory.name
        return asked.get("experiment") == experiment and asked.get("name") in (None, name)


def _wait_for_other(experiment: Experiment) -> None:
    """Wait until the process has ended that ran the run to resume in the job before; if it does not, fit refuses."""
    until = time.monotonic() + HELD
    while time.monotonic() < until:
        named = named_run(experiment)
        if named is None or not is_held(named[0]):
            return
        time.sleep(0.2)
