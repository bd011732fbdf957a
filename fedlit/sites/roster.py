"""The sites of a federation at the server: their transport, and what each has reported."""

import json
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from fedlit import __version__
from fedlit.core.errors import CheckpointError, ConfigError
from fedlit.core.messages import State
from fedlit.core.system import documents
from fedlit.core.system.files import whole
from fedlit.sites.envelope import Envelope, InvalidMessageError
from fedlit.sites.messages import (
    FAILED,
    HEAD,
    SOON,
    ClientInfo,
    Failure,
    Hello,
    SiteInfo,
    check_run,
    new_run,
    printable,
)
from fedlit.sites.transport import NoReply, Transport

FILE = "sites.json"
"""File of a run's directory: the run's id, by which sites identify it, and the sites of its clients."""

TRIES, WAIT = 10, 60.0
"""Number of times that a site is asked `Hello`, and the seconds to wait for an answer: it may have to decode images."""

CLOCK = 300
"""Seconds by which a site's clock may be off without a warning."""


@dataclass
class Roster:
    """Sites of a federation."""

    transport: Transport  # The transport to the sites.
    site_infos: Sequence[SiteInfo]  # What each site has reported, in the order of their names.
    config: Mapping[str, Any]  # The resolved configuration of the run.
    fresh: Sequence[str] = ()  # Sites whose clients start afresh if their state is missing.
    run: str = field(default_factory=new_run)  # The run's id.
    ledgers: "Ledgers" = field(default_factory=lambda: Ledgers(None))  # Last heads of the sites' ledgers, by site.
    models: bool = True  # Whether sites get the best model when the run ends.
    lead: str = ""  # Name of the lead, if the server knows it: no other lead resumes the run.
    directory: Path | None = None  # The run's directory, once it is open.
    trial: bool = False  # Whether the run is a trial, with the schedule of its federation and not the configuration's.

    def __post_init__(self) -> None:
        names = [site.name for site in self.site_infos]
        if unknown := [name for name in self.fresh if name not in names]:
            raise ConfigError(f"--fresh_state: expected names among {', '.join(names)}, found {unknown[0]}")

    @property
    def site_of(self) -> dict[str, str]:
        """The site of each client, by the client's name."""
        return {info.name: site.name for site in self.site_infos for info in site.clients}

    @property
    def patients(self) -> dict[str, int]:
        """The number of patients of each client whose site trains only with differential privacy."""
        ruled = [site for site in self.site_infos if site.privacy is not None]
        return {info.name: site.privacy.patients for site in ruled for info in site.clients}

    @property
    def whole(self) -> bool:
        """True if a site evaluates only whole views."""
        return any(site.whole for site in self.site_infos)

    @property
    def examples(self) -> int:
        """Least number of examples of a client's round."""
        return max((site.examples for site in self.site_infos), default=1)

    def heard(self, site: str, answer: Envelope) -> None:
        """Record the head of a site's ledger."""
        if answer.ledger:
            self.ledgers.heads[site] = answer.ledger

    def open(self, directory: Path) -> None:
        """Read the id of the run in a directory, or write one for a new run.

        Raises:
            CheckpointError: If the run there has no sites, or its file is damaged.
        """
        self.directory = directory
        file, begun = directory / FILE, (directory / "config.yaml").exists()
        if not file.exists():
            if begun:
                raise CheckpointError(
                    f"{directory} is a run without sites: its clients' states are in its checkpoints, and no site has "
                    "them; resume without --sites, or start a new run"
                )
            self._write(file, {})
        try:
            content = documents.parse_json(file.read_text())
            self.run, before = str(content["run"]), dict(content.get("clients", {}))
            check_run(self.run)
            owner = str(content.get("lead", ""))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{file} cannot be read ({error}): restore it from a copy, because sites identify the run by it"
            ) from error
        if owner != self.lead:
            raise CheckpointError(f"{directory} is the run of another lead; start a new run under another name")
        for client, site in self.site_of.items():
            if before.get(client, site) != site:
                raise CheckpointError(
                    f"client {client!r} was at site {before[client]!r} when the run began, and is at {site!r} now: "
                    "its state is at the former; resume with the same clients at each site (sites may leave and "
                    "join), or start a new run"
                )
        if self.site_of.keys() - before.keys():
            self._write(file, before)

    def _write(self, file: Path, before: Mapping[str, str]) -> None:
        """Write the run's id, the sites, and where each client is or was."""
        content = {"run": self.run, "sites": [site.name for site in self.site_infos], "lead": self.lead}
        with whole(file, durable=True) as draft:
            draft.write_text(json.dumps(content | {"clients": {**before, **self.site_of}}) + "\n")


class Ledgers:
    """Heads of the sites' ledgers, which the server keeps from run to run, or only in memory without a file."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.heads: dict[str, str] = self._read()

    def lines(self, site: str) -> int:
        """Return the number of lines of a site's ledger that the server knows of."""
        return int(self.heads.get(site, "").partition(":")[0] or 0)

    def compare(self, site: str, site_info: SiteInfo) -> None:
        """Warn if the ledger of a site is not the one that was seen before."""
        known = self.heads.get(site, "")
        if known and site_info.ledger != known:
            warnings.warn(
                f"site {site!r}: its ledger is not the one that this server has seen: line {self.lines(site)} is "
                "missing or different. It was restored from an older copy, or the site has begun a new one; ask the "
                "site",
                stacklevel=4,
            )

    def write(self) -> None:
        """Write the heads; those that another process has written for other sites are kept."""
        if self.file is None:
            return
        mine, theirs = self.heads, self._read()
        for site, head in theirs.items():
            if int(head.partition(":")[0]) > self.lines(site) and site not in mine:
                mine[site] = head
        with whole(self.file) as draft:
            draft.write_text(json.dumps(mine, indent=1) + "\n")

    def _read(self) -> dict[str, str]:
        with suppress(OSError, ValueError, AttributeError):
            heads = documents.parse_json(self.file.read_text()) if self.file else {}
            return {str(site): head for site, head in heads.items() if not HEAD.fault(str(head))}
        return {}


def gather(
    transport: Transport, classes: Sequence[str], needs: Sequence[str] = (), ledgers: Ledgers | None = None
) -> tuple[list[SiteInfo], dict[str, State]]:
    """Ask all sites who they are, and whether they allow the classes that the run ``needs``.

    Returns:
        The answers in the order of the sites' names, and for each site the indices of the organisations and groups of
        its images.

    Raises:
        ConfigError: If a site does not answer, refuses, names a class that the run lacks, or has another version or
            another site's name.
    """
    ledgers, answers, sent = ledgers or Ledgers(None), {}, {}
    for attempt in range(TRIES):
        missing = [site for site in transport.sites() if isinstance(answers.get(site, NoReply("")), NoReply)]
        if attempt and missing:
            reasons = "; ".join(f"site {site!r}: {answers[site].reason}" for site in missing)
            warnings.warn(f"{reasons}; asking again who it is (try {attempt + 1} of {TRIES})", stacklevel=2)
        asked = [
            Envelope.of("hello", Hello(__version__, time.time(), list(needs), ledgers.lines(site))) for site in missing
        ]
        sent |= dict.fromkeys(missing, time.time())
        tickets = [transport.send(site, envelope, WAIT) for site, envelope in zip(missing, asked, strict=True)]
        answers |= {ticket.site: answer for ticket, answer in transport.collect(tickets)}
    problems, site_infos, arrays = [], {}, {}
    for site, answer in answers.items():
        try:
            site_infos[site] = _site_info(site, answer)
            arrays[site_infos[site].name] = answer.tensors()
        except InvalidMessageError as error:
            problems.append(f"site {site!r}: {printable(str(error))}")
    for site, site_info in site_infos.items():
        _warn(site_info, sent[site])
        ledgers.compare(site, site_info)
        if unknown := [name for name in site_info.classes if classes and name not in classes]:
            problems.append(
                f"site {site_info.name!r}: expected classes among the run's {', '.join(classes)}, found "
                f"{printable(unknown[0], 60)!r}; add it to the lead's data.classes, or correct its name in the site's "
                "data, for example with names"
            )
            continue
        if classes:
            widen(site_info, classes)
    problems += _misnamed(site_infos)
    if problems:
        raise ConfigError("--sites: " + "; ".join(problems))
    ledgers.heads |= {site: answer.ledger for site, answer in answers.items() if answer.ledger}
    return [site_infos[site] for site in sorted(site_infos)], arrays


def widen(site_info: SiteInfo, classes: Sequence[str]) -> None:
    """Report a site's numbers for all classes of a run, in the run's order: none for a class that it does not name."""
    own, site_info.classes = site_info.classes, list(classes)
    place = {name: number for number, name in enumerate(own)}
    for info in site_info.clients:
        info.counts = {
            part: [[numbers[place[name]] if name in place else 0 for name in classes] for numbers in counts]
            for part, counts in info.counts.items()
        }


def _misnamed(site_infos: Mapping[str, SiteInfo]) -> list[str]:
    """Return messages about wrong names in the sites' files."""
    by_name: dict[str, list[str]] = {}
    for address, site_info in site_infos.items():
        by_name.setdefault(site_info.name, []).append(address)
    twice = [
        f"sites {' and '.join(map(repr, addresses))} both call themselves {name!r}: give each a different name"
        for name, addresses in by_name.items()
        if len(addresses) > 1
    ]
    return twice or [
        f"site {addresses[0]!r} calls itself {name!r}: write {addresses[0]!r} as name into its own file"
        for name, addresses in by_name.items()
        if addresses != [name]
    ]


def _site_info(site: str, answer: Envelope | NoReply) -> SiteInfo:
    """Return a site's answer to `Hello`."""
    if isinstance(answer, NoReply):
        raise InvalidMessageError(answer.reason)
    if answer.verb == FAILED:
        failure = answer.message(Failure)
        raise InvalidMessageError(failure.reason)
    site_info = answer.message(SiteInfo)
    lists = [site_info.classes, *(info.classes for info in site_info.clients)]
    if any(len(set(names)) < len(names) for names in lists) or (not lists[0] and any(lists)):
        raise InvalidMessageError("expected the names of its classes, found none, or a class that is named twice")
    for info in site_info.clients:
        _check_info(info, site_info.classes)
    if site_info.fedlit != __version__:
        raise InvalidMessageError(
            f"it has fedlit {site_info.fedlit}, and the server has {__version__}; install the same version"
        )
    return site_info


def _check_info(info: ClientInfo, classes: Sequence[str]) -> None:
    """Check a site's report about a client."""
    if info.name != info.name.strip():
        raise InvalidMessageError(f"a client's name {info.name!r}: expected no space before or after it")
    if unknown := [name for name in info.classes if name not in classes]:
        raise InvalidMessageError(
            f"client {info.name!r} labels {printable(unknown[0], 60)!r}, which is not one of its classes"
        )
    for part, counts in info.counts.items():
        size = getattr(info, part)
        if size is None or len(counts) != 2 or any(len(each) != len(classes) for each in counts):
            raise InvalidMessageError(f"client {info.name!r}: counts of {part!r} that do not fit its classes")
        for positives, negatives in zip(*counts, strict=True):
            if (positives is None) != (negatives is None) or not 0 <= (positives or 0) + (negatives or 0) <= size:
                raise InvalidMessageError(
                    f"client {info.name!r}: {positives} positives and {negatives} negatives of {size} images"
                )


def _warn(site: SiteInfo, sent: float) -> None:
    """Warn about a site's clock, certificate and libraries; it has answered between ``sent`` and now."""
    off = site.time - min(max(site.time, sent), time.time())
    if abs(off) > CLOCK:
        warnings.warn(
            f"site {site.name!r}: its clock is {abs(off) / 60:.0f} minutes {'ahead of' if off > 0 else 'behind'} "
            "the server's; set it, because certificates and logs need the right time",
            stacklevel=3,
        )
    if site.until is not None and site.until - time.time() < SOON.total_seconds():
        warnings.warn(
            f"site {site.name!r}: its certificate expires on "
            f"{datetime.fromtimestamp(site.until, timezone.utc):%Y-%m-%d %H:%M} UTC; the site cannot connect "
            "after that: request a new one now",
            stacklevel=3,
        )
    if site.torch != torch.__version__:
        warnings.warn(
            f"site {site.name!r} has torch {site.torch}, and the server has {torch.__version__}: results agree "
            "with those of one version up to rounding, not bit for bit",
            stacklevel=3,
        )
