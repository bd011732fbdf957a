"""The sites of a federation, as the server knows them: how they are reached, and what each has told of itself."""

import json
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from fedlit import __version__
from fedlit.core.errors import CheckpointError, ConfigError
from fedlit.core.messages import State
from fedlit.core.system.files import whole
from fedlit.sites.carrier import Carrier, Lost
from fedlit.sites.envelope import Damaged, Envelope
from fedlit.sites.messages import FAILED, SOON, Failure, Hello, Presence, Told, check_run, new_run, printable

FILE = "sites.json"
"""Of a run's directory: the run's id, by which sites know what they have kept, and which sites it began with."""

TRIES, WAIT = 10, 60.0
"""How often a site is asked who it is, and for how many seconds its answer is awaited: it may have images to decode."""

PARTS = ("train", "val", "test")

CLOCK = 300
"""Seconds by which a clock may be off without a word."""


@dataclass
class Roster:
    """Who takes part.

    Attributes:
        carrier: How they are reached.
        presences: What each site has told, in the order of their names.
        plans: What is trained in each phase, as JSON; the main part's is "".
        fresh: Sites whose clients go on without a state that is missing.
        run: The run's id.
        ledgers: Heads of the sites' ledgers that the server has seen last, by site.
        models: Whether sites get the best model when the run ends.
    """

    carrier: Carrier
    presences: Sequence[Presence]
    plans: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    fresh: Sequence[str] = ()
    run: str = field(default_factory=new_run)
    ledgers: "Ledgers" = field(default_factory=lambda: Ledgers(None))
    models: bool = True

    def __post_init__(self) -> None:
        names = [presence.name for presence in self.presences]
        if unknown := [name for name in self.fresh if name not in names]:
            raise ConfigError(f"--fresh_state {unknown[0]}: there is no such site; sites are {', '.join(names)}")

    @property
    def site_of(self) -> dict[str, str]:
        """Which site has which client."""
        return {told.name: presence.name for presence in self.presences for told in presence.clients}

    @property
    def whole(self) -> bool:
        """Whether a site evaluates whole views only."""
        return any(presence.whole for presence in self.presences)

    @property
    def examples(self) -> int:
        """Examples that a client's round has at least."""
        return max((presence.examples for presence in self.presences), default=1)

    def heard(self, site: str, answer: Envelope) -> None:
        """Keep the head of a site's ledger."""
        if answer.ledger:
            self.ledgers.heads[site] = printable(answer.ledger, 100)

    def remember(self) -> None:
        """Write down the heads of the sites' ledgers."""
        self.ledgers.write()

    def open(self, directory: Path) -> None:
        """Learn the id of the run in a directory, or give a new run one.

        Raises:
            CheckpointError: The run there is one without sites, or its file is damaged.
        """
        file, begun = directory / FILE, (directory / "config.yaml").exists()
        if not file.exists():
            if begun:
                raise CheckpointError(
                    f"{directory} is a run without sites: its clients' states are there, and no site has them; go on without "
                    "--sites, or start a new run"
                )
            self._write(file, {})
        try:
            told = json.loads(file.read_text())
            self.run, before = str(told["run"]), dict(told.get("clients", {}))
            check_run(self.run)
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{file} cannot be read ({error}): restore it from a copy, sites know the run by it"
            ) from error
        for client, site in self.site_of.items():
            if before.get(client, site) != site:
                raise CheckpointError(
                    f"client {client!r} was at site {before[client]!r} when the run began, and is at {site!r} now: what it keeps is "
                    f"there; go on with the same clients at each site (sites may leave and join), or start a new run"
                )
        if self.site_of.keys() - before.keys():
            self._write(file, before)

    def _write(self, file: Path, before: Mapping[str, str]) -> None:
        """Write down the run's id, the sites, and where each client is or was."""
        told = {"run": self.run, "sites": [presence.name for presence in self.presences]}
        with whole(file, durable=True) as draft:
            draft.write_text(json.dumps(told | {"clients": {**before, **self.site_of}}) + "\n")


def run_with(folder: Path, run: str) -> Path | None:
    """Find the directory of the run with an id, in the folder of an experiment; None where it has not begun."""
    files = (file for file in folder.glob(f"*/{FILE}") if f'"{run}"' in file.read_text())
    return next((file.parent for file in files), None)


class Ledgers:
    """Heads of the sites' ledgers, kept at the server from run to run.

    Args:
        file: Where; None for nowhere.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.heads: dict[str, str] = self._read()

    def lines(self, site: str) -> int:
        """Return how many lines of a site's ledger were heard of."""
        number = self.heads.get(site, "").partition(":")[0]
        return int(number) if number.isdecimal() else 0

    def compare(self, site: str, presence: Presence) -> None:
        """Warn where the ledger of a site is not the one that was seen before."""
        known = self.heads.get(site, "")
        if known and presence.ledger != known:
            warnings.warn(
                f"site {site!r}: its ledger is not the one that this server has seen, whose line {self.lines(site)} is missing or another "
                "one: it was put back from an older copy, or the site has begun a new one; ask the site",
                stacklevel=4,
            )

    def write(self) -> None:
        """Write them down; what another process has written of a longer ledger stays."""
        if self.file is None:
            return
        mine, theirs = self.heads, self._read()
        for site, head in theirs.items():
            if int(head.partition(":")[0]) > self.lines(site) and site not in mine:
                mine[site] = head
        with whole(self.file) as draft:
            draft.write_text(json.dumps(mine, indent=1) + "\n")

    def _read(self) -> dict[str, str]:
        try:
            return (
                {str(site): str(head) for site, head in json.loads(self.file.read_text()).items()} if self.file else {}
            )
        except (OSError, ValueError, AttributeError):
            return {}


@dataclass
class Gathered:
    """What sites have told of themselves.

    Attributes:
        presences: In the order of the sites' names.
        arrays: Of each site, by name: numbers of the organisations of its images.
    """

    presences: list[Presence]
    arrays: dict[str, State]


def gather(
    carrier: Carrier,
    classes: Sequence[str],
    needs: Sequence[str] = (),
    ledgers: Ledgers | None = None,
    wait: float = WAIT,
) -> Gathered:
    """Ask all sites who they are.

    Args:
        carrier: How they are reached.
        classes: Of the model that is to be trained, in their order.
        needs: Classes that the run's configuration names.
        ledgers: Heads of the sites' ledgers that were seen before.
        wait: Seconds for an answer, of :data:`TRIES`.

    Raises:
        ConfigError: A site is not there, refuses, has other classes or another version, or the name of another one.
    """
    ledgers, answers = ledgers or Ledgers(None), {}
    for attempt in range(TRIES):
        missing = [site for site in carrier.sites() if isinstance(answers.get(site, Lost("")), Lost)]
        if attempt and missing:
            reasons = "; ".join(f"site {site!r}: {answers[site].reason}" for site in missing)
            warnings.warn(f"{reasons}; asking again who it is (try {attempt + 1} of {TRIES})", stacklevel=2)
        asked = [
            Envelope.of("hello", Hello(__version__, time.time(), list(needs), ledgers.lines(site))) for site in missing
        ]
        tickets = [carrier.send(site, envelope, wait) for site, envelope in zip(missing, asked, strict=True)]
        answers |= {ticket.site: answer for ticket, answer in carrier.collect(tickets)}
    problems, found, arrays = [], {}, {}
    for site, answer in answers.items():
        try:
            found[site] = _presence(site, answer)
            arrays[found[site].name] = answer.tensors()
        except Damaged as error:
            problems.append(f"site {site!r}: {printable(str(error))}")
    for site, presence in found.items():
        _warn(presence)
        ledgers.compare(site, presence)
        if classes and list(presence.classes) != list(classes):
            problems.append(
                f"site {presence.name!r}: its classes are {printable(', '.join(presence.classes))}, and the model's "
                f"{', '.join(classes)}; give its data the model's, in their order (classes), and those that it does not label also as unlabelled"
            )
    problems += _misnamed(found)
    if problems:
        raise ConfigError("--sites: " + "; ".join(problems))
    ledgers.heads |= {site: answer.ledger for site, answer in answers.items() if answer.ledger}
    return Gathered([found[site] for site in sorted(found)], arrays)


def _misnamed(found: Mapping[str, Presence]) -> list[str]:
    """What is wrong with the names that sites give themselves."""
    by_name: dict[str, list[str]] = {}
    for address, presence in found.items():
        by_name.setdefault(presence.name, []).append(address)
    twice = [
        f"sites {' and '.join(map(repr, addresses))} both call themselves {name!r}: give each a name of its own"
        for name, addresses in by_name.items()
        if len(addresses) > 1
    ]
    return twice or [
        f"site {addresses[0]!r} calls itself {name!r}: name it in its own file as it is known to the others"
        for name, addresses in by_name.items()
        if addresses != [name]
    ]


def _presence(site: str, answer: Envelope | Lost) -> Presence:
    """What a site has told.

    Raises:
        Damaged: It has not, and why.
    """
    if isinstance(answer, Lost):
        raise Damaged(answer.reason)
    if answer.verb == FAILED:
        raise Damaged(answer.message(Failure).reason)
    presence = answer.message(Presence)
    odd = [name for name in (presence.name, *presence.classes) if not name or printable(name, 200) != name]
    if odd or (not presence.classes and any(told.classes for told in presence.clients)):
        raise Damaged(f"a name of it, or of a class, is {printable(odd[0], 60) if odd else 'missing'!r}")
    for told in presence.clients:
        _check_told(told, presence.classes)
    if presence.fedlit != __version__:
        raise Damaged(f"it has fedlit {presence.fedlit}, and the server {__version__}; install the same")
    return presence


def _check_told(told: Told, classes: Sequence[str]) -> None:
    """Refuse what a site tells of a client where it cannot be.

    Raises:
        Damaged: Says what.
    """
    if not told.name or printable(told.name, 200) != told.name or told.name != told.name.strip():
        raise Damaged(
            f"a client's name {printable(told.name, 60)!r}: expected letters that a terminal shows, at most 200"
        )
    if unknown := [name for name in told.classes if name not in classes]:
        raise Damaged(f"client {told.name!r} labels {printable(unknown[0], 60)!r}, which is none of its classes")
    for part in PARTS:
        size = getattr(told, part)
        if size is not None and not 0 <= size < 2**40:
            raise Damaged(f"client {told.name!r} has {size} images in {part}")
    for part, counts in told.counts.items():
        size = getattr(told, part) if part in PARTS else None
        if size is None or len(counts) != 2 or any(len(each) != len(classes) for each in counts):
            raise Damaged(f"client {told.name!r}: counts of {printable(part, 20)!r} that are not of its classes")
        for positives, negatives in zip(*counts, strict=True):
            if (positives is None) != (negatives is None) or not 0 <= (positives or 0) + (negatives or 0) <= size:
                raise Damaged(f"client {told.name!r}: {positives} positives and {negatives} negatives of {size} images")


def _warn(presence: Presence) -> None:
    off = presence.time - time.time()
    if abs(off) > CLOCK:
        warnings.warn(
            f"site {presence.name!r}: its clock is {abs(off) / 60:.0f} minutes {'ahead of' if off > 0 else 'behind'} the server's: "
            "certificates and logs need the right time, set it",
            stacklevel=3,
        )
    if presence.until is not None and presence.until - time.time() < SOON.total_seconds():
        warnings.warn(
            f"site {presence.name!r}: its certificate ends on {datetime.fromtimestamp(presence.until, timezone.utc):%Y-%m-%d %H:%M} "
            "UTC: it does not connect any more then; ask for a new one now",
            stacklevel=3,
        )
    if presence.torch != torch.__version__:
        warnings.warn(
            f"site {presence.name!r} has torch {presence.torch}, and the server {torch.__version__}: numbers agree with those of "
            "one version to rounding, and not bit for bit",
            stacklevel=3,
        )
