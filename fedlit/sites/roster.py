"""The sites of a federation, as the server knows them: how they are reached, and what each has told of itself."""

import json
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from uuid import uuid4

import torch

from fedlit import __version__
from fedlit.core.errors import CheckpointError, ConfigError
from fedlit.core.files import whole
from fedlit.sites.carrier import Carrier, Lost
from fedlit.sites.envelope import Damaged, Envelope
from fedlit.sites.messages import FAILED, SOON, Failure, Hello, Presence

FILE = "sites.json"
"""Of a run's directory: the run's id, by which sites know what they have kept, and which sites it began with."""

TRIES = 3
"""How often a site is asked who it is, where it gives no answer."""

CLOCK = 300
"""Seconds by which a clock may be off without a word."""


@dataclass
class Roster:
    """Who takes part.

    Attributes:
        carrier: How they are reached.
        presences: What each site has told, in the order of their names.
        texts: What is trained in each phase, as YAML; the main part's is "".
        fresh: Sites whose clients go on without a state that is missing.
        run: The run's id; "" before there is a run, unless whoever asked for it has given it one.
    """

    carrier: Carrier
    presences: Sequence[Presence]
    texts: Mapping[str, str] = field(default_factory=dict)
    fresh: Sequence[str] = ()
    run: str = ""

    def __post_init__(self) -> None:
        names = [presence.name for presence in self.presences]
        if unknown := [name for name in self.fresh if name not in names]:
            raise ConfigError(f"--fresh_state {unknown[0]}: there is no such site; sites are {', '.join(names)}")

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
            with whole(file, durable=True) as draft:
                told = {"run": self.run or uuid4().hex, "sites": [presence.name for presence in self.presences]}
                draft.write_text(json.dumps(told) + "\n")
        try:
            self.run = str(json.loads(file.read_text())["run"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{file} cannot be read ({error}): restore it from a copy, sites know the run by it"
            ) from error


def run_with(folder: Path, run: str) -> Path | None:
    """Find the directory of the run with an id, in the folder of an experiment; None where it has not begun."""
    files = (file for file in folder.glob(f"*/{FILE}") if f'"{run}"' in file.read_text())
    return next((file.parent for file in files), None)


def gather(carrier: Carrier, classes: Sequence[str]) -> list[Presence]:
    """Ask all sites who they are.

    Args:
        carrier: How they are reached.
        classes: Of the model that is to be trained, in their order.

    Returns:
        What each has told, in the order of the sites' names.

    Raises:
        ConfigError: A site is not there, refuses, has other classes or another version, or the name of another one.
    """
    asked, answers = Envelope.of("hello", Hello(__version__, time.time())), {}
    for _ in range(TRIES):
        missing = [site for site in carrier.sites() if isinstance(answers.get(site, Lost("")), Lost)]
        tickets = [carrier.send(site, asked) for site in missing]
        answers |= {ticket.site: answer for ticket, answer in carrier.collect(tickets)}
    problems, found = [], {}
    for site, answer in answers.items():
        try:
            found[site] = _presence(site, answer)
        except Damaged as error:
            problems.append(f"site {site!r}: {error}")
    for presence in found.values():
        _warn(presence)
        if classes and list(presence.classes) != list(classes):
            problems.append(
                f"site {presence.name!r}: its classes are {', '.join(presence.classes)}, and the model's {', '.join(classes)}; "
                "give its data the model's, in their order"
            )
    problems += _misnamed(found)
    if problems:
        raise ConfigError("--sites: " + "; ".join(problems))
    return [found[site] for site in sorted(found)]


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
    if presence.fedlit != __version__:
        raise Damaged(f"it has fedlit {presence.fedlit}, and the server {__version__}; install the same")
    return presence


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
