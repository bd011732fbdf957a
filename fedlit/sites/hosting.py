"""A run at a server whose lead is elsewhere: what the job of a carrier does, whatever the carrier is."""

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

from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import CheckpointError, ConfigError
from fedlit.core.system.typed import made
from fedlit.experiment.experiment import Experiment
from fedlit.experiment.parser import is_mistake
from fedlit.experiment.run import fit
from fedlit.federation.interrupts import ask_to_end
from fedlit.sites.carrier import Carrier, CutOff
from fedlit.sites.joining import with_sites
from fedlit.sites.messages import check_run
from fedlit.sites.roster import Roster, run_with
from fedlit.sites.states import JOB, forget
from fedlit.sites.submission import Resumed
from fedlit.sites.submitted import ServerSettings, experiment_of
from fedlit.tracking.addresses import without_credentials
from fedlit.tracking.lock import is_held
from fedlit.tracking.run import last_checkpoint

HELD = 60
"""Seconds for which a run waits until the process that has had it before has ended."""


EVICTED, RECENT = 3, 120.0
"""So many connections of a site that others of its name push out within so many seconds are the work of a copy."""

_EVICTION = re.compile(r"is evicted for .* from endpoint (\S+) for")


@dataclass(frozen=True)
class Order:
    """What a lead has asked for.

    Attributes:
        config: File of the configuration, see :mod:`fedlit.sites.submitted`.
        run: The run's id; "" for the one that the configuration's ``ckpt_path`` names.
        name: Name of a new run.
        fresh: Sites whose clients go on without a state that is missing.
        server: The server's own file, which need not be there.
        lead: Name in the lead's certificate.
    """

    config: Path
    run: str
    name: str
    fresh: Sequence[str] = ()
    server: Path | None = None
    lead: str = ""


@dataclass(frozen=True)
class Ending:
    """How a run ended, as far as the server's job knows.

    Attributes:
        kind: ``finished``, ``stopped`` (asked to), ``failed``, or ``away``: a site was not there, or the job was cut off.
        reason: Of a failure, in words.
        directory: The run's directory at the server.
        rounds: Completed rounds of the model that was tested.
        metrics: Values of ``test/...``.
        summary: Where the metrics are, as the tracker tells it.
    """

    kind: str
    reason: str = ""
    directory: str = ""
    rounds: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    summary: str = ""


class Lines(io.TextIOBase):
    """What a run prints, line by line, for somebody who asks now and then; it goes on to the job's own output too."""

    def __init__(self) -> None:
        self._lines, self._open, self._lock, self._own = [], "", threading.Lock(), sys.stdout

    def writable(self) -> bool:
        """Say that it takes text."""
        return True

    def write(self, text: str) -> int:
        """Take a part of a line, or several lines."""
        with self._lock:
            *whole, self._open = (self._open + text).split("\n")
            self._lines += whole
        return self._own.write(text)

    def flush(self) -> None:
        """Pass on what was written."""
        self._own.flush()

    def since(self, number: int) -> list[str]:
        """Give the lines from a number on."""
        with self._lock:
            return self._lines[number:]


class Evictions:
    """Connections that were pushed out at the server by others of the same name, which NVFlare writes only to its log.

    Args:
        log: The server's log; what is there already is of earlier jobs.
        sites: Names of the sites.
    """

    def __init__(self, log: Path, sites: Collection[str]) -> None:
        self._log, self._sites = log, sites
        self._read = log.stat().st_size if log.exists() else 0

    def new(self) -> Counter[str]:
        """Count them by site since the last look."""
        with suppress(OSError), self._log.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            opened.seek(self._read if self._read <= size else 0)
            text = opened.read().decode(errors="replace")
            self._read = opened.tell()
            return Counter(name for name in _EVICTION.findall(text) if name in self._sites)
        return Counter()


class Hosted:
    """A run that a lead has asked for, in the process of the server's job.

    Args:
        order: What was asked for.
        carrier: How the sites are reached; it may be made before they are there.
    """

    def __init__(self, order: Order, carrier: Carrier) -> None:
        self.order, self.carrier, self.lines = order, carrier, Lines()
        self.ending: Ending | None = None
        self._roster: Roster | None = None
        self._folder: Path | None = None
        self._heard = threading.Event()
        folder = order.server.parent.parent if order.server else Path()  # of NVFlare's server
        self._evictions = Evictions(folder / "log.txt", carrier.sites().keys() if order.server else ())
        self._evicted: dict[str, list[float]] = {}

    def told(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Tell the lead how it goes.

        Args:
            asked: ``since``, a number of lines; ``stop`` ends the run after its round, ``lost`` names sites that
                cannot answer any more, ``heard`` lets an ended one go, and ``means`` asks whether it is a run that a
                lead wants to go on with.
        """
        if asked.get("stop"):
            ask_to_end(signal.SIGINT)
        if asked.get("lost"):
            self.carrier.lose(asked["lost"])
        if asked.get("heard"):
            self._heard.set()
        self._look_for_copies()
        return {
            "lines": self.lines.since(int(asked.get("since", 0))),
            "run": self._run,
            "kept": self._kept(),
            "means": self._is_meant(made(Resumed, asked["means"], "means")) if asked.get("means") else None,
            "away": sorted(name for name, there in self.carrier.sites().items() if not there),
            "ended": asdict(self.ending) if self.ending else None,
        }

    def _look_for_copies(self) -> None:
        """Warn of sites for which two processes answer, again while they do."""
        now = time.monotonic()
        for name, times in self._evictions.new().items():
            recent = [when for when in self._evicted.get(name, ()) if now - when < RECENT] + [now] * times
            self._evicted[name] = recent
            if len(recent) >= EVICTED:
                self._evicted[name] = []
                self.lines.write(
                    f"warning: site {name!r}: another process connects under its name, and each pushes the other out; "
                    "end the copy of its folder\n"
                )

    def wait(self, seconds: float) -> None:
        """Wait until the lead has heard of the end."""
        self._heard.wait(seconds)

    def train(self) -> None:
        """Run it to its end, whatever that is; what it prints is kept for the lead."""
        shown = warnings.showwarning
        warnings.showwarning = lambda message, *place: print(f"warning: {without_credentials(str(message))}")
        try:
            with redirect_stdout(self.lines), redirect_stderr(self.lines):
                self.ending = self._train()
        finally:
            warnings.showwarning = shown

    def _train(self) -> Ending:
        os.umask(0o077)
        try:
            own = ServerSettings.read(self.order.server)
            if refused := [name for name in (self.order.lead, *self.carrier.sites()) if name in own.refused]:
                raise ConfigError(
                    f"the server refuses the certificate of {', '.join(refused)} (refused in its own file): ask its people, and take a "
                    "site out of local/fedlit-lead.yaml"
                )
            if self.order.run:
                check_run(self.order.run)
            if self.order.server is not None and own.job_days is not None:
                forget(self.order.server.parent.parent / "store" / "jobs", own.job_days, time.time(), JOB)
            os.chdir(own.home)
            with experiment_of(self.order.config.read_text(), own, self.order.name) as experiment:
                self._folder = experiment.run_dir / experiment.experiment
                begun = self._begun()
                if begun is not None and last_checkpoint(begun):
                    experiment.ckpt_path = str(begun)
                elif begun is not None and not experiment.ckpt_path:
                    experiment.begun = begun
                ledgers = experiment.run_dir / "ledgers.json"
                run = self.order.run
                return self._fit(with_sites(experiment, self.carrier, self.order.fresh, ledgers, run, own.models))
        except CutOff as error:
            return Ending("away", str(error))
        except Exception as error:
            where = "away" if not all(self.carrier.sites().values()) else "failed"
            if is_mistake(error):
                return Ending(where, str(error))
            traceback.print_exception(error, file=self.lines._own)
            return Ending(where, f"{type(error).__name__}: {(str(error) or '-').splitlines()[0]}")

    def _begun(self) -> Path | None:
        """The directory of the run, where it has begun; whoever has had it before is given time to leave it.

        Raises:
            ConfigError: It does not.
        """
        begun, until = run_with(self._folder, self.order.run) if self.order.run else None, time.monotonic() + HELD
        while begun is not None and is_held(begun):
            if time.monotonic() > until:
                raise ConfigError(f"{begun}: another process has been at work on this run for {HELD} s; end it")
            time.sleep(0.2)
        return begun

    def _fit(self, experiment: Experiment) -> Ending:
        self._roster = experiment.away
        outcome = fit(experiment, print)
        heads = (f"{site} {head}" for site, head in sorted(self._roster.ledgers.heads.items()))
        print(f"heads of the sites' ledgers (lines, hash of the last): {', '.join(heads)}")
        told = {"directory": str(outcome.directory.absolute()), "summary": experiment.tracker.summary() or ""}
        if outcome.signum:
            return Ending("stopped", **told)
        return Ending("finished", "", rounds=outcome.rounds, metrics=outcome.metrics, **told)

    @property
    def _run(self) -> str:
        return self._roster.run if self._roster else self.order.run

    def _is_meant(self, named: Resumed) -> bool | None:
        """Whether it is this run that somebody names; None as long as it is not known where it is."""
        if self._folder is None:
            return None
        return named.experiment == self._folder.name

    def _kept(self) -> int:
        """Rounds of the run that a server which dies now does not lose, over all phases."""
        begun = run_with(self._folder, self._run) if self._folder and self._run else None
        if begun is None:
            return 0
        folders = [begun / "checkpoints", *begun.glob("phases/*/checkpoints")]
        with suppress(CheckpointError, OSError):  # a newer one has just taken its place
            return sum(checkpoint.rounds(last) for folder in folders if (last := checkpoint.find(folder, "last")))
        return 0
