"""What server and sites say to each other: one dataclass a message, whose fields are checked against their types."""

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal
from uuid import uuid4

from fedlit.core.system.typed import AnyFloat

VERBS = ("hello", "prepare", "start", "train", "measure", "evaluate", "model", "end")
"""What a site can be asked."""

REPLY, FAILED = "reply", "failed"
"""What a site answers."""

SOON = timedelta(days=30)
"""A certificate that ends within this time is told."""

LASTING = ("refused", "unfit", "state")
"""Kinds of failures that asking again does not mend."""

RUN = re.compile(r"[0-9a-f]{32}")
"""The id of a run, which becomes the name of folders at the sites."""


def new_run() -> str:
    """Make the id of a new run."""
    return uuid4().hex


def check_run(run: str) -> None:
    """Refuse what is no id of a run.

    Raises:
        ValueError: Says what it is.
    """
    if not RUN.fullmatch(run):
        raise ValueError(f"run: expected 32 hexadecimal digits, found {run[:60]!r}")


def printable(text: str, most: int = 2000) -> str:
    """Write a text of somebody else so that no terminal takes it for commands, and no line of it for one of ours."""
    shown = text if len(text) <= most else f"{text[:most]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


@dataclass
class Told:
    """What a site tells of one of its clients.

    Attributes:
        name: The client.
        classes: What it labels.
        scheme: What its label scheme says, or nothing.
        train, val, test: Number of examples; None where it has no such part.
        augmented: Whether its training images are augmented.
        counts: For each part positives and negatives of each class; None for both where the site hides one of them.
        organisations: Names of the organisations of its images by part, in whose order ``organisation/CLIENT/PART`` counts
            them; only where scores of single images leave.
        data: Fingerprint of its data, which the site alone can make.
    """

    name: str
    classes: list[str]
    scheme: list[str] | None
    train: int
    val: int | None
    test: int | None
    augmented: bool
    counts: dict[str, list[list[int | None]]]
    organisations: dict[str, list[str]]
    data: str

    def __post_init__(self) -> None:
        self.classes = [str(name) for name in self.classes]


@dataclass
class Hello:
    """To a site, first of all: who asks.

    Attributes:
        fedlit: Version.
        time: Seconds since 1970.
        needs: Classes that the run's configuration names, of which the site says whether it takes them.
        lines: How many lines of the site's ledger the server has heard of.
    """

    fedlit: str
    time: float
    needs: list[str]
    lines: int


@dataclass
class Presence:
    """From a site: who it is, and what it has.

    Attributes:
        name: The site.
        fedlit, torch, python: Versions.
        device: Where it trains.
        time: Seconds since 1970 by its clock.
        classes: The classes of its data, in their order.
        clients: Its clients.
        scores: Whether scores of single images leave it.
        whole: Whether it evaluates whole views only.
        examples: Examples that a client's round has at least.
        hides_below: Its ``counts_below``.
        until: When its certificate ends, in seconds since 1970; None where it has none.
        ledger: Head of its ledger after as many lines as the server has heard of; "" where it has fewer.
    """

    name: str
    fedlit: str
    torch: str
    python: str
    device: str
    time: float
    classes: list[str]
    clients: list[Told]
    scores: bool
    whole: bool
    examples: int
    hides_below: int
    until: float | None
    ledger: str


@dataclass
class Member:
    """A client of a site in the federation.

    Attributes:
        name: The client.
        weight: Its share pi_k, in (0, 1].
    """

    name: str
    weight: float


@dataclass
class Prepare:
    """To a site, with the tensors of the module: what is trained in a phase.

    Attributes:
        run: The run, by an id of its own.
        phase: Name of the phase; "" for the main part.
        config: All that is known of the phase before it begins, see :class:`fedlit.sites.recipe.Plan`.
        fingerprint: Of the server's layout.
        clients: The site's clients, with their weights in the federation.
    """

    run: str
    phase: str
    config: dict[str, Any]
    fingerprint: str
    clients: list[Member]


@dataclass
class Prepared:
    """From a site: the layout of the model that it has built."""

    fingerprint: str
    parameters: int
    statistics: int
    classes: list[str]
    frozen: str


@dataclass
class Train:
    """What is asked of a client in a round; all else is the plan's.

    Attributes:
        index: Of the round, from 0.
        cohort: The clients of the round.
        moments: Of a measuring round, whether BatchNorm's statistics are estimated anew.
    """

    index: int
    cohort: list[str]
    moments: bool


@dataclass
class Look:
    """What is asked of an evaluation.

    Attributes:
        holder: Whose images.
        part: Which of them.
        at: Number of completed rounds; -1 for a first look before the run has begun.
        method: The module's method that scores a batch.
        limit: No more than so many examples; None for all.
    """

    holder: str
    part: Literal["train", "val", "test"]
    at: int
    method: Literal["validation_step", "predict_step"]
    limit: int | None


@dataclass
class Final:
    """What is said of the best model of a run that has ended.

    Attributes:
        rounds: Number of completed rounds.
        learned: Whether somebody who trains labels a class, for each class.
    """

    rounds: int
    learned: list[bool]


@dataclass
class Task:
    """To a site, with the federation's vectors: a client's part of a round, an evaluation, or the model that came of it.

    Attributes:
        run, phase, fingerprint: What was prepared.
        client: Whose state; None for the federation's own model.
        accepted: Round after which the client's state is wanted, as the server has accepted it; None before its first.
        durable: Rounds of the client's states that checkpoints of the server go back to.
        fresh: Whether the client starts afresh where its state is missing.
        asked: The round, the evaluation, or the model.
    """

    run: str
    phase: str
    fingerprint: str
    client: str | None
    accepted: int | None
    durable: list[int]
    fresh: bool
    asked: Train | Look | Final


@dataclass
class Start:
    """To a site, with weights and statistics: a client begins a phase with what it kept to itself in an earlier one.

    Attributes:
        run, phase, fingerprint: What was prepared.
        client: Whose state.
        before: Name of the earlier phase.
        config: The earlier phase's plan.
        accepted: Round of the earlier phase after which the client's state is wanted.
        fresh: Whether the client starts afresh where it is missing.
    """

    run: str
    phase: str
    fingerprint: str
    client: str
    before: str
    config: dict[str, Any]
    accepted: int
    fresh: bool


@dataclass
class Started:
    """From a site: whether the client begins with something of its own."""

    kept: bool


@dataclass
class Report:
    """How a client's round went, see :class:`fedlit.core.messages.ClientReport`."""

    client: str
    steps: int
    examples: int
    loss: AnyFloat
    seconds: float
    bytes_up: int
    logged: dict[str, AnyFloat]
    error: str
    still: str


@dataclass
class Sent:
    """From a site, with the payload's vectors: a client's part of a round, and the fingerprint of its data.

    Attributes:
        whole: Number of values of the vectors of which only those come that the client shares.
    """

    weight: float
    report: Report
    data: str
    whole: dict[str, int]


@dataclass
class Scored:
    """From a site, with scores and labels or with what may leave in their place: an evaluation.

    Attributes:
        examples: Number of images.
        logged: Means over them of what the module logs; nothing where the site hides a class of the view.
        kind: ``scores``, ``tally``, or ``none`` where the module gives no scores.
        data: Fingerprint of the client's data.
    """

    examples: int
    logged: dict[str, AnyFloat]
    kind: Literal["scores", "tally", "none"]
    data: str


@dataclass
class Failure:
    """From a site: what was asked was not done.

    Attributes:
        kind: ``refused`` by its policy, ``unfit`` (another version, other classes, another layout), ``state`` (a file is
            missing), ``unprepared`` (the process is new), ``damaged`` (what has arrived), or ``failed``.
        reason: Why, in words.
    """

    kind: str
    reason: str


@dataclass
class End:
    """To a site: the run is over."""

    run: str


@dataclass
class Done:
    """From a site: it has been done."""

    values: dict[str, AnyFloat] = field(default_factory=dict)
