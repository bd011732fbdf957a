"""The policy of a site, which its own process enforces. A job cannot change it."""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from typing import Any

import numpy as np
from lightning.pytorch import LightningModule

from fedlit.aggregators.accounting import epsilon_of
from fedlit.core.aggregator import Aggregator, PrivateAggregator
from fedlit.core.configured_optimizer import configured_optimizer
from fedlit.core.errors import ConfigError, FedlitError
from fedlit.core.ranges import Count, NonNegativeInt, PositiveOrInf
from fedlit.core.system.argument_types import checked
from fedlit.sites.budget import PrivacyRule, charges, mismatch
from fedlit.sites.ledger import Ledger, LedgerEntry
from fedlit.sites.messages import VERBS, Look
from fedlit.sites.optimizers import optimizer_fault, rate_fault

ALWAYS = ("hello", "end")
"""Verbs that a policy cannot refuse."""


class PolicyError(FedlitError):
    """Error of a request against the site's policy; names the key."""


class TooManyMessages(PolicyError):
    """Error of a message after the one that was refused because of the day's limit; it has no line in the ledger."""


@checked
@dataclass
class Leaves:
    """Limits of what may leave a site.

    Args:
        vectors: Patterns of the names of vectors that training may send, such as ``w``, ``stats``, ``squares``, and
            ``0/*`` for everything that the first aggregator of the list adds. By default every vector.
        scores: Whether an evaluation may send a score and the labels of every image. Otherwise it sends counts, AUROC,
            loss and histograms.
        counts_below: A class with fewer positives or fewer negatives than this in a part of a client's data is hidden
            there: no counts, no AUROC, no histogram, no share of positives, and no loss of an evaluation of that part.
            A group of images with fewer patients than this is hidden with its complement.
        errors: Whether error messages leave that may name files or cells of a table, or come from the images. Otherwise
            the server learns only that something failed, and the site's own log has the message.
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


@checked
@dataclass
class Floors:
    """Least sizes of what a site answers.

    Args:
        batch_size: Smallest number of examples in a training batch.
        examples: Smallest number of examples in a client's round; for a smaller client, its whole training set.
        whole: Whether evaluations must cover whole parts of a client's data, with one question for each part and round.
        questions: Number of evaluations of a part, over all runs of ``days``, beyond two for each round that the client
            has answered. Raise it if a client takes part in few of the rounds.
    """

    batch_size: Count = 8
    examples: Count = 64
    whole: bool = True
    questions: Count = 10


def half_of_memory() -> float:
    """Return half of the machine's memory in gigabytes; infinity if the system does not say how much it has."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2e9
    except (AttributeError, ValueError, OSError):
        return math.inf


@checked
@dataclass
class Limits:
    """Limits of the resources of a site that a server may use.

    Args:
        parameters: Largest number of weights of a model.
        steps: Largest number of local steps in a client's round.
        threads: Largest number of threads that train.
        megabytes: Largest size of a message.
        seconds: Longest time of one answer.
        memory: Gigabytes of memory for the site's process. By default half of the machine's.
        messages: Largest number of messages in a day.
        models: Largest number of runs whose models are kept.
    """

    parameters: Count = 300_000_000
    steps: Count = 100_000
    threads: Count = 16
    megabytes: Count = 8_000
    seconds: PositiveOrInf = 3_600.0
    memory: PositiveOrInf = field(default_factory=half_of_memory)
    messages: Count = 20_000
    models: Count = 20


@checked
@dataclass
class Policy:
    """Policy of a site: what it does for a server.

    Its ``check`` methods raise a :class:`PolicyError` that names the key of the policy.

    Args:
        verbs: What the server may ask for: ``prepare``, ``start``, ``train``, ``measure``, ``evaluate``, ``model``.
        allow: Paths of classes that a configuration may name, in addition to those of fedlit and ``torch.optim``, such
            as ``our_project.fancy.FancyAggregator``. They are imported when the site starts.
        leaves: What may leave the site.
        floors: Least sizes of what its answers are made of. None for no floors, for example if one person has server
            and sites.
        limits: Resources that a server may use.
        rounds: Largest number of rounds, measuring rounds included, for which a client answers in ``days``, over all
            runs. By default there is no limit.
        days: Number of days over which rounds are counted.
        configs: SHA-256 of the approved plans. By default any plan is accepted.
        privacy: Budget of differential privacy; the site then trains only with ``DPSGD``. By default it has none, and
            refuses ``DPSGD``.

    Raises:
        ConfigError: If a verb is unknown, or a number is out of range.
    """

    verbs: list[str] = field(default_factory=lambda: [verb for verb in VERBS if verb not in ALWAYS])
    allow: list[str] = field(default_factory=list)
    leaves: Leaves = field(default_factory=Leaves)
    floors: Floors | None = field(default_factory=Floors)
    limits: Limits = field(default_factory=Limits)
    rounds: NonNegativeInt | None = None
    days: Count = 30
    configs: list[str] | None = None
    privacy: PrivacyRule | None = None

    def __post_init__(self) -> None:
        if unknown := [verb for verb in self.verbs if verb not in VERBS]:
            raise ConfigError(f"verbs: expected some of {', '.join(VERBS)}, found {unknown[0]!r}")

    def check_message(self, nbytes: int, ledger: Ledger) -> None:
        """Refuse a message that is too large, or one too many in a day."""
        if nbytes > self.limits.megabytes * 10**6:
            raise PolicyError(f"a message of {nbytes:,} bytes; limits.megabytes allows {self.limits.megabytes:,}")
        if (answered := ledger.count(1)) >= self.limits.messages:
            kind = PolicyError if answered == self.limits.messages else TooManyMessages
            raise kind(f"limits.messages allows {self.limits.messages:,} in a day, and as many were answered")

    def check_verb(self, verb: str) -> None:
        """Refuse a verb that the policy does not allow."""
        if verb not in (*self.verbs, *ALWAYS):
            raise PolicyError(f"verbs: expected one of {', '.join(self.verbs)}, found {verb!r}")
        if verb == "measure" and self.privacy is not None:
            raise PolicyError("privacy: a measuring round reads training images without noise; leave it out")

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Refuse a plan that was not approved; the error names its SHA-256."""
        if self.configs is not None and (sha256 := digest(config)) not in self.configs:
            raise PolicyError(f"configs: the configuration with the SHA-256 {sha256} is not approved")

    def check_plan(self, batch_size: int, sizes: Mapping[str, int], threads: int, limited: bool) -> None:
        """Refuse a plan below the floors, or beyond a limit.

        Args:
            batch_size: Examples in a training batch.
            sizes: Training examples of each client.
            threads: Threads that train.
            limited: Whether evaluations use a part of a view.
        """
        if threads > self.limits.threads:
            raise PolicyError(f"{threads:,} threads; limits.threads allows {self.limits.threads}")
        if self.floors is None:
            return
        for name, size in sizes.items():
            if batch_size < min(self.floors.batch_size, size):
                raise PolicyError(
                    f"a batch of {batch_size} examples of client {name!r}; floors.batch_size is "
                    f"{self.floors.batch_size}"
                )
        if limited and self.floors.whole:
            raise PolicyError("an evaluation of some batches; floors.whole requires whole parts; leave out the limit")

    def check_private(self, aggregators: Sequence[Aggregator], ledger: Ledger) -> None:
        """Refuse a plan with private steps if there is no rule for them, and one without them if there is."""
        if reason := mismatch(aggregators, self.privacy is not None):
            raise PolicyError(reason)
        if self.privacy is not None and (spent := self.privacy.fault(ledger)):
            raise PolicyError(spent)

    def check_budget(self, ledger: Ledger, entry: LedgerEntry, aggregator: PrivateAggregator) -> None:
        """Refuse a round that would exceed the site's budget, or the plan's for the run."""
        entry = replace(entry, touched=True)
        if reason := self.privacy.fault(ledger, entry):
            raise PolicyError(reason)
        of_run = [each for each in ledger.entries if (each.run, each.client) == (entry.run, entry.client)]
        if aggregator.epsilon is not None:
            spent = epsilon_of(charges([*of_run, entry]), aggregator.delta)
            if not spent <= aggregator.epsilon:
                raise PolicyError(
                    f"privacy: this round would bring epsilon of client {entry.client!r} in the run to {spent:.3g}; "
                    f"the plan's budget is {aggregator.epsilon:g}"
                )

    @property
    def smallest_batch(self) -> int:
        """Least number of examples in a batch: a smaller rest of a pass is dropped."""
        return self.floors.batch_size if self.floors is not None else 2

    def check_optimizer(self, module: LightningModule, aggregators: Sequence[Aggregator]) -> None:
        """Refuse an optimizer or an algorithm whose round could send the gradient of a single batch."""
        if self.floors is None:
            return
        if fault := optimizer_fault(configured_optimizer(module), aggregators, self.allow):
            raise PolicyError(f"{fault}; floors requires a round that uses all of its batches alike; see allow")

    def check_rate(self, module: LightningModule, aggregators: Sequence[Aggregator], factor: float) -> None:
        """Refuse a round with larger steps than the floors allow."""
        if self.floors is None:
            return
        if fault := rate_fault(configured_optimizer(module), aggregators, factor):
            raise PolicyError(f"{fault}; floors requires a round that uses all of its batches alike")

    def check_steps(self, steps: int) -> None:
        """Refuse a client's round, or a measuring round, of too many local steps."""
        if steps > self.limits.steps:
            raise PolicyError(f"a round of {steps:,} steps; limits.steps allows {self.limits.steps:,}")

    def check_examples(self, examples: int, size: int) -> None:
        """Refuse a client's round, or a measuring round, that uses too few of the client's ``size`` examples."""
        if self.floors is not None and examples < (least := min(self.floors.examples, size)):
            raise PolicyError(
                f"a round of {examples} examples; floors.examples requires {least}; raise federation.schedule.window, "
                "or federation.measure_batches for a measuring round"
            )

    def check_round(self, ledger: Ledger, client: str) -> None:
        """Refuse a round beyond the allowed number."""
        answered = sum(entry.trains and entry.client == client for entry in ledger.since(self.days))
        if self.rounds is not None and answered >= self.rounds:
            raise PolicyError(
                f"client {client!r} has answered for {answered} rounds in {self.days} days, over all runs; rounds "
                f"allows {self.rounds}"
            )

    def check_look(self, look: Look, run: str, question: str, ledger: Ledger) -> None:
        """Refuse an evaluation of a part of a view, a second question about a view after a round, and one too many.

        With a privacy rule, training images are not evaluated. If a client has trained a round again, as after a
        resume, another question about the following rounds is allowed. The hash of the question includes the weights.
        """
        if self.privacy is not None and look.part == "train":
            raise PolicyError("privacy: an evaluation of training images has no noise; leave it out")
        if self.floors is None or not self.floors.whole:
            return
        view = view_of(look)
        if look.limit is not None:
            raise PolicyError(f"an evaluation of {look.limit} images of {view}; floors.whole requires whole parts")
        for entry in reversed(ledger.entries):
            if entry.run != run:
                continue
            if entry.verb == "train" and entry.trains and entry.at < look.at:
                break  # it was trained again, up to this round
            if entry.evaluates and entry.view == view and entry.at == look.at:
                if entry.question == question:
                    return
                raise PolicyError(
                    f"another question about {view} after round {look.at}: floors.whole allows one for each part and "
                    f"round"
                )
        recent = list(ledger.since(self.days))
        asked = len({(e.run, e.at, e.question) for e in recent if e.evaluates and e.view == view})
        trained = sum(e.trains and e.client == look.holder for e in recent)
        if asked >= 2 * trained + self.floors.questions:
            raise PolicyError(
                f"{asked} evaluations of {view} in {self.days} days, over all runs, and {trained} rounds: "
                f"floors.questions ({self.floors.questions}) allows that many more than two for each round"
            )
        if self.rounds is not None:
            most = self.rounds + 2 * len({entry.run for entry in recent if entry.trains})
            if asked >= most:
                raise PolicyError(
                    f"{asked} evaluations of {view} in {self.days} days, over all runs: rounds ({self.rounds}) allows "
                    "as many, plus two for each run"
                )

    def check_vectors(self, names: Iterable[str]) -> None:
        """Refuse to send vectors that may not leave the site."""
        withheld = [name for name in names if not any(fnmatch(name, pattern) for pattern in self.leaves.vectors)]
        if withheld:
            raise PolicyError(
                f"leaves.vectors: expected names that match {', '.join(self.leaves.vectors)}, found "
                f"{', '.join(map(repr, withheld))}"
            )

    def hidden(self, labels: Any) -> list[bool]:
        """Return for each class whether it is hidden in labels [n, C] in {0, 1, NaN}; an unlabelled class is not."""
        positives, negatives = (np.asarray(labels == value).sum(0) for value in (1, 0))
        few = np.minimum(positives, negatives) < self.leaves.counts_below
        return (few & (positives + negatives > 0)).tolist()

    def visible_groups(self, groups: np.ndarray, patients: np.ndarray) -> np.ndarray:
        """Return groups [n] of images in which those that may not leave are "", as unknown ones are.

        A group of fewer patients than the limit is hidden. Hidden images must not stand out as what the others leave:
        the next smallest group is hidden too until the images without a group are of at least as many patients.

        Args:
            groups: Group of each image, [n] str, "" if unknown.
            patients: Patient of each image, [n].
        """

        def people(mask: np.ndarray) -> int:
            return len(np.unique(patients[mask]))

        limit, visible = self.leaves.counts_below, groups.copy()
        size = {name: people(groups == name) for name in np.unique(groups[groups != ""])}
        for name in sorted(size, key=size.get):
            is_small, stands_out = size[name] < limit, people(visible == "") < limit and (visible != groups).any()
            if is_small or stands_out:
                visible[groups == name] = ""
        return visible

    def visible_counts(self, labels: Any) -> list[list[int | None]]:
        """Count positives and negatives of each class in labels [n, C]; None for both if the class is hidden."""
        hidden = self.hidden(labels)
        counts = [np.asarray(labels == value).sum(0) for value in (1, 0)]
        return [[None if gone else int(n) for gone, n in zip(hidden, each, strict=True)] for each in counts]


def view_of(look: Look) -> str:
    """Return the name of the images of an evaluation, whichever model scores them."""
    return f"{look.holder}/{look.part}"


def digest(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a plan, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
