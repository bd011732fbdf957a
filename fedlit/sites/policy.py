"""What a site allows: enforced in the site's own process, whatever the server asks. A job cannot change it."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch

import yaml

from fedlit.core.errors import ConfigError
from fedlit.core.known_code import foreign
from fedlit.sites.messages import VERBS

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
        counts_below: Numbers of images below this one are not told: of a class with fewer positives or fewer negatives
            there are no counts, no AUROC and no histogram.
    """

    vectors: list[str] = field(default_factory=lambda: ["*"])
    scores: bool = False
    counts_below: int = 10

    def __post_init__(self) -> None:
        if self.counts_below < 0:
            raise ConfigError(
                f"leaves.counts_below: expected a number of images, at least 0, found {self.counts_below}"
            )


@dataclass
class Policy:
    """Say what a site does for a server, and what it does not.

    Args:
        verbs: What may be asked: ``prepare``, ``start``, ``train``, ``measure``, ``evaluate``.
        modules: Modules in which the code lies that a configuration may name. An empty list allows all code that is installed.
        leaves: What may leave the site.
        rounds: Largest number of rounds of a run for which a client trains. By default there is no limit.
        configs: SHA-256 of the configurations that were approved. By default any is taken.

    Raises:
        ConfigError: A verb is none, or a number is out of its range.
    """

    verbs: list[str] = field(default_factory=lambda: [verb for verb in VERBS if verb not in ALWAYS])
    modules: list[str] = field(default_factory=lambda: ["fedlit", "torch.optim", "torch.nn"])
    leaves: Leaves = field(default_factory=Leaves)
    rounds: int | None = None
    configs: list[str] | None = None

    def __post_init__(self) -> None:
        if unknown := [verb for verb in self.verbs if verb not in VERBS]:
            raise ConfigError(f"verbs: expected some of {', '.join(VERBS)}, found {unknown[0]!r}")
        if self.rounds is not None and self.rounds < 0:
            raise ConfigError(f"rounds: expected a number of rounds, at least 0, found {self.rounds}")

    def check_verb(self, verb: str) -> None:
        """Refuse what may not be asked.

        Raises:
            Refused: It is none of ``verbs``.
        """
        if verb not in (*self.verbs, *ALWAYS):
            raise Refused(f"{verb!r} is none of its verbs ({', '.join(self.verbs)})")

    def check_config(self, text: str) -> None:
        """Refuse a configuration that was not approved, or that names other code; nothing of it is imported for that.

        Raises:
            Refused: Says what.
        """
        digest = hashlib.sha256(text.encode()).hexdigest()
        if self.configs is not None and digest not in self.configs:
            raise Refused(f"the configuration with the SHA-256 {digest} is none of its configs")
        if self.modules and (odd := foreign(yaml.safe_load(text), self.modules)):
            raise Refused(
                f"the configuration names {', '.join(map(repr, odd))}, which is not of its modules ({', '.join(self.modules)})"
            )

    def check_round(self, trained: int) -> None:
        """Refuse to train for more rounds.

        Args:
            trained: Rounds of the run for which the client has trained so far.

        Raises:
            Refused: They are as many as allowed.
        """
        if self.rounds is not None and trained >= self.rounds:
            raise Refused(
                f"the client has trained for {trained} rounds of this run, and rounds: {self.rounds} are allowed"
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

    def told(self, counts: Sequence[int]) -> list[int | None]:
        """Give numbers of images, and None in the place of those that are not told."""
        return [count if count >= self.leaves.counts_below else None for count in counts]
