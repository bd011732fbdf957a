"""What a site allows: enforced in the site's own process, whatever the server asks. A job cannot change it."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

import numpy as np

from fedlit.core.errors import ConfigError
from fedlit.sites.ledger import Ledger
from fedlit.sites.messages import VERBS, Look

ALWAYS = ("hello", "end")
"""Verbs that ask for nothing that is the site's to refuse."""


class Refused(Exception):
    """What was asked is against the site's policy; says what, and which key of it."""


@dataclass
class Leaves:
    """Say what may leave a site.

    Args:
        vectors: Patterns of the names of vectors that training may send, such as ``w``, ``stats``, ``squares``, and
            ``0/*`` for all that the first aggregator of the list adds. By default every one.
        scores: Whether an evaluation may send a score and the labels of every image. Otherwise it sends counts, AUROC, loss
            and histograms.
        counts_below: A class with fewer positives or fewer negatives than this in a part of a client's data is hidden
            there: no counts, no AUROC, no histogram, no share of positives, and no loss of an evaluation of that part.
        errors: Whether the texts of errors leave that may name files or cells of a table. Otherwise the server is told that
            something failed, and the site's own log has the text.
    """

    vectors: list[str] = field(default_factory=lambda: ["*"])
    scores: bool = False
    counts_below: int = 10
    errors: bool = False

    def __post_init__(self) -> None:
        if self.counts_below < 0:
            raise ConfigError(
                f"leaves.counts_below: expected a number of images, at least 0, found {self.counts_below}"
            )


@dataclass
class Floors:
    """Say what a site's answers are at least made of.

    Args:
        batch_size: Smallest number of examples in a training batch.
        examples: Smallest number of examples in a client's round; of a smaller client its whole training set.
        whole: Whether evaluations are of whole parts of a client's data only, with one question for each part and round.
    """

    batch_size: int = 8
    examples: int = 64
    whole: bool = True

    def __post_init__(self) -> None:
        for name in ("batch_size", "examples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"floors.{name}: expected at least 1, found {getattr(self, name)}")


@dataclass
class Limits:
    """Say what a server may use up of a site.

    Args:
        parameters: Weights of a model.
        steps: Local steps of a client's round.
        threads: Threads that train.
        megabytes: Size of a message.
        seconds: Time that one answer may take.
        memory: Gigabytes of memory of the site's process.
        messages: Messages in a day.
        models: Runs whose models are kept.
    """

    parameters: int = 300_000_000
    steps: int = 100_000
    threads: int = 16
    megabytes: int = 8_000
    seconds: float = 86_400.0
    memory: float = 64.0
    messages: int = 20_000
    models: int = 20

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ConfigError(f"limits.{name}: expected a number above 0, found {value}")


@dataclass
class Policy:
    """Say what a site does for a server, and what it does not.

    Args:
        verbs: What may be asked: ``prepare``, ``start``, ``train``, ``measure``, ``evaluate``, ``model``.
        allow: Paths of classes that a configuration may name beside those of fedlit and ``torch.optim``, such as
            ``our_project.fancy.FancyAggregator``. They are imported when the site starts.
        leaves: What may leave the site.
        floors: What its answers are at least made of. None for no floors, as where one person has server and sites.
        limits: What a server may use up.
        rounds: Largest number of rounds, measuring rounds included, for which a client answers within ``days``, over all
            runs. By default there is no limit.
        days: The days in which rounds are counted.
        configs: SHA-256 of the plans that were approved. By default any is taken.

    Raises:
        ConfigError: A verb is none, or a number is out of its range.
    """

    verbs: list[str] = field(default_factory=lambda: [verb for verb in VERBS if verb not in ALWAYS])
    allow: list[str] = field(default_factory=list)
    leaves: Leaves = field(default_factory=Leaves)
    floors: Floors | None = field(default_factory=Floors)
    limits: Limits = field(default_factory=Limits)
    rounds: int | None = None
    days: int = 30
    configs: list[str] | None = None

    def __post_init__(self) -> None:
        if unknown := [verb for verb in self.verbs if verb not in VERBS]:
            raise ConfigError(f"verbs: expected some of {', '.join(VERBS)}, found {unknown[0]!r}")
        if self.rounds is not None and self.rounds < 0:
            raise ConfigError(f"rounds: expected a number of rounds, at least 0, found {self.rounds}")
        if self.days < 1:
            raise ConfigError(f"days: expected at least 1, found {self.days}")

    def check_message(self, nbytes: int, ledger: Ledger) -> None:
        """Refuse a message that is too large, or one too many.

        Raises:
            Refused: Says which.
        """
        if nbytes > self.limits.megabytes * 10**6:
            raise Refused(f"a message of {nbytes:,} bytes, and limits.megabytes: {self.limits.megabytes:,} are allowed")
        if sum(1 for _ in ledger.since(1)) >= self.limits.messages:
            raise Refused(f"limits.messages: {self.limits.messages:,} in a day are allowed, and were answered")

    def check_verb(self, verb: str) -> None:
        """Refuse what may not be asked.

        Raises:
            Refused: It is none of ``verbs``.
        """
        if verb not in (*self.verbs, *ALWAYS):
            raise Refused(f"{verb!r} is none of its verbs ({', '.join(self.verbs)})")

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Refuse a plan that was not approved.

        Raises:
            Refused: Names its SHA-256.
        """
        if self.configs is not None and (found := digest(config)) not in self.configs:
            raise Refused(f"the configuration with the SHA-256 {found} is none of its configs")

    def check_plan(self, batch_size: int, sizes: Mapping[str, int], threads: int, limited: bool) -> None:
        """Refuse a plan below the floors, or beyond a limit.

        Args:
            batch_size: Examples in a training batch.
            sizes: Training examples of each client.
            threads: Threads that train.
            limited: Whether evaluations look at a part of a view.

        Raises:
            Refused: Names the key.
        """
        if threads > self.limits.threads:
            raise Refused(f"{threads:,} threads, and limits.threads: {self.limits.threads} are allowed")
        if self.floors is None:
            return
        for name, size in sizes.items():
            if batch_size < min(self.floors.batch_size, size):
                raise Refused(
                    f"a batch of {batch_size} examples of client {name!r}, and floors.batch_size is {self.floors.batch_size}"
                )
        if limited and self.floors.whole:
            raise Refused("an evaluation of some batches, and floors.whole asks for whole parts; leave the limit out")

    def check_steps(self, steps: int, examples: int, size: int) -> None:
        """Refuse a client's round, or a measuring round, that is too short or too long.

        Args:
            steps: Local steps.
            examples: Examples that they look at.
            size: Training examples of the client.

        Raises:
            Refused: Names the key.
        """
        if steps > self.limits.steps:
            raise Refused(f"a round of {steps:,} steps, and limits.steps: {self.limits.steps:,} are allowed")
        if self.floors is not None and examples < (least := min(self.floors.examples, size)):
            raise Refused(
                f"a round of {examples} examples, and floors.examples asks for {least}; raise federation.schedule.window, or "
                "federation.measure_batches of a measuring round"
            )

    def check_round(self, ledger: Ledger, client: str) -> None:
        """Refuse one round more than is allowed.

        Raises:
            Refused: As many were answered.
        """
        answered = sum(entry.trains and entry.client == client for entry in ledger.since(self.days))
        if self.rounds is not None and answered >= self.rounds:
            raise Refused(
                f"client {client!r} has answered for {answered} rounds in {self.days} days, over all runs, and rounds: {self.rounds} "
                "are allowed"
            )

    def check_look(self, look: Look, run: str, phase: str, question: str, ledger: Ledger) -> None:
        """Refuse an evaluation of a part of a view, a second question about one view after one round, and one too many.

        A client that has trained a round once more, as after a resume, may be asked anew about what follows that round.

        Args:
            look: What is asked.
            run: Of which run.
            phase: Of which phase.
            question: SHA-256 of what is asked, weights included.
            ledger: What was answered before.

        Raises:
            Refused: Says which.
        """
        if self.floors is None or not self.floors.whole:
            return
        view = view_of(look)
        if look.limit is not None:
            raise Refused(f"an evaluation of {look.limit} images of {view}, and floors.whole asks for whole parts")
        for entry in reversed(ledger.entries):
            if (entry.run, entry.phase) != (run, phase):
                continue
            if entry.verb == "train" and entry.trains and entry.at < look.at:
                break  # it was trained again, up to this round
            if entry.evaluates and entry.view == view and entry.at == look.at:
                if entry.question == question:
                    return
                raise Refused(
                    f"another question about {view} after round {look.at}: there is one for each part and round (floors.whole)"
                )
        if self.rounds is not None:
            recent = list(ledger.since(self.days))
            asked = len({(e.run, e.phase, e.at, e.question) for e in recent if e.evaluates and e.view == view})
            most = self.rounds + 2 * len({entry.run for entry in recent if entry.trains})
            if asked >= most:
                raise Refused(
                    f"{asked} evaluations of {view} in {self.days} days, over all runs: as many as rounds: {self.rounds} allows, and two "
                    "for each run"
                )

    def check_vectors(self, names: Iterable[str]) -> None:
        """Refuse to send vectors that may not leave.

        Raises:
            Refused: Names them.
        """
        kept = [name for name in names if not any(fnmatch(name, pattern) for pattern in self.leaves.vectors)]
        if kept:
            raise Refused(
                f"{', '.join(map(repr, kept))} may not leave it, by leaves.vectors ({', '.join(self.leaves.vectors)})"
            )

    def hidden(self, labels: Any) -> list[bool]:
        """Say of each class whether it is hidden in some labels [n, C] in {0, 1, NaN}: a class that nobody labels is not."""
        positives, negatives = (np.asarray(labels == value).sum(0) for value in (1, 0))
        few = np.minimum(positives, negatives) < self.leaves.counts_below
        return (few & (positives + negatives > 0)).tolist()

    def told(self, labels: Any) -> list[list[int | None]]:
        """Count positives and negatives of each class in labels [n, C]; None for both of a class that is hidden."""
        hidden = self.hidden(labels)
        return [
            [
                None if gone else int(count)
                for gone, count in zip(hidden, np.asarray(labels == value).sum(0), strict=True)
            ]
            for value in (1, 0)
        ]


def view_of(look: Look) -> str:
    """Name the images that an evaluation looks at, whichever model scores them."""
    return f"{look.holder}/{look.part}"


def digest(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a plan, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
