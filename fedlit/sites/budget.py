"""Differential privacy at a site: its rule, what its ledger has spent, and the secret of its noise."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import dropwhile
from pathlib import Path
from typing import Any

from fedlit.aggregators.accounting import Steps, epsilon_of
from fedlit.core.aggregator import Aggregator
from fedlit.core.batches import PoissonStream
from fedlit.core.errors import ConfigError
from fedlit.core.messages import State
from fedlit.core.randomness import keyed_hash
from fedlit.core.ranges import Count, Fraction, PositiveOrInf
from fedlit.core.system.argument_types import checked
from fedlit.core.system.files import private, whole
from fedlit.sites.ledger import DAY, Ledger, LedgerEntry

SECRET, SIZE = "secret", 32
"""File with the secret of draws and noise, in the folder of states, and its number of bytes. It never leaves."""

TO_ADD = "privacy: {epsilon: 8, delta: 1.0e-6, patients: 20000}"
"""A line of a site's file, under ``policy``; the site writes its own numbers."""


@checked
@dataclass
class PrivacyRule:
    """Rule of a site that trains only with differential privacy.

    Args:
        epsilon: Largest epsilon of a training patient, over all runs of ``days``.
        delta: Probability that epsilon does not hold, below 1 / patients.
        patients: Number of training patients, rounded by you: a step draws each of them with the probability batch
            size / patients. The number is public.
        days: Number of days over which epsilon is counted.
    """

    epsilon: PositiveOrInf
    delta: Fraction
    patients: Count
    days: Count = 3650

    def spent(self, entries: Iterable[LedgerEntry]) -> float:
        """Return the epsilon of the entries of a ledger together."""
        return epsilon_of(charges(entries), self.delta)

    def recent(self, entries: Iterable[LedgerEntry], now: float) -> list[LedgerEntry]:
        """Return the entries from the first of the last days on: later lines count, also those under an early clock."""
        start = now - self.days * DAY
        return list(dropwhile(lambda entry: entry.time < start, entries))

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g} at delta {self.delta:g} over {self.days} days"

    def fault(self, ledger: Ledger, *more: LedgerEntry) -> str:
        """Return why entries to come would exceed the budget, or it is exceeded already; "" if they would not."""
        recent = self.recent(ledger.entries, ledger.now())
        before, after = self.spent(recent), self.spent([*recent, *more])
        if after <= self.epsilon:
            return ""
        if plain := [entry for entry in recent if entry.reads_training and not entry.noise]:
            day = datetime.fromtimestamp(plain[-1].time, timezone.utc)
            return (
                f"privacy: {len(plain)} answers in the ledger are without noise, or of a fedlit that did not record "
                f"it, the last on {day:%Y-%m-%d}, run {plain[-1].run[:8]}: epsilon over {self.days} days is infinite"
            )
        would = "is" if not more else f"is {before:.3g}, and this round would bring it to"
        return (
            f"privacy: epsilon {would} {after:.3g} at delta {self.delta:g}, over all runs of {self.days} days; the "
            f"site's budget is {self.epsilon:g}"
        )

    def notes(self, client: str, stream: PoissonStream) -> list[str]:
        """Return warnings about the rule, and about a client whose data have another number of patients."""
        notes = []
        if self.delta > 1 / self.patients:
            notes.append(
                f"privacy.delta: {self.delta:g} is above 1 / patients, 1 / {self.patients}: epsilon may then not hold "
                "for one of them; lower it"
            )
        if abs(stream.counted - self.patients) > self.patients / 5:
            notes.append(
                f"privacy.patients: {self.patients:,} are declared, and client {client!r} has {stream.counted:,} "
                "training patients: epsilon holds, but noise and steps are those of the declared number; correct it"
            )
        if not stream.named:
            notes.append(f"privacy: client {client!r} names no patients, so epsilon is that of one image; name them")
        return notes


def charges(entries: Iterable[LedgerEntry]) -> list[Steps]:
    """Return the private steps of entries. A question that is repeated is charged once: its answer is the same.

    What has read training images without noise counts as steps without noise.
    """
    asked = {entry.question: entry for entry in entries if entry.reads_training}
    steps = Counter[tuple[float, float]]()
    for entry in asked.values():
        steps[entry.noise, entry.rate] += max(entry.steps, 1)
    return [Steps(*kind, number) for kind, number in steps.items()]


def mismatch(aggregators: Sequence[Aggregator], has_rule: bool) -> str:
    """Return why a list of aggregators does not fit a site with or without the rule, and what to do; else ""."""
    name = next((type(each).__name__ for each in aggregators if each.private), "")
    if has_rule and not name:
        return "privacy: the site trains only with differential privacy; add DPSGD to federation.aggregators"
    if name and not has_rule:
        return (
            f"{name}: the site has declared neither a budget nor its number of patients; to train with it, the site "
            f"can write {TO_ADD} under policy, with its own numbers"
        )
    return ""


class UnsafeSecret(ConfigError):
    """Error of a secret that others may know; names the file."""

    public = "the secret of its noise is not safe"


def secret_of(folder: Path, about: tuple[Any, ...], tensors: State) -> bytes:
    """Return the secret of the noise of one purpose: a hash of the site's own secret, which is made if there is none.

    Args:
        folder: The site's folder of states.
        about: Everything but ``tensors`` and the questions of rounds that answers depend on.
        tensors: The tensors with which a run begins.

    Raises:
        UnsafeSecret: If other users can read the file, or it is damaged.
    """
    file = folder / SECRET
    if not file.exists():
        private(folder)
        with whole(file, durable=True) as draft:
            draft.touch(0o600)
            draft.write_bytes(os.urandom(SIZE))
    secret = file.read_bytes()
    if len(secret) != SIZE:
        raise UnsafeSecret(f"{file}: expected {SIZE} bytes, found {len(secret)}; delete it: the next run makes another")
    if os.name == "posix" and file.stat().st_mode & 0o077:
        raise UnsafeSecret(
            f"{file}: other users can read it, and could compute the noise; delete it: the next run makes another. "
            "Nothing that has left is private from those who have read it"
        )
    return keyed_hash(secret, about, tensors)
