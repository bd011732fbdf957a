"""What server and sites say to each other: one dataclass a message, plain enough for JSON."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

VERBS = ("hello", "prepare", "start", "train", "measure", "evaluate", "end")
"""What a site can be asked."""

REPLY, FAILED = "reply", "failed"
"""What a site answers."""

SOON = timedelta(days=30)
"""A certificate that ends within this time is told."""

LASTING = ("refused", "unfit", "state")
"""Kinds of failures that asking again does not mend."""


@dataclass
class Told:
    """What a site tells of one of its clients.

    Attributes:
        name: The client.
        classes: What it labels.
        scheme: What its label scheme says, or nothing.
        train, val, test: Number of examples; None where it has no such part.
        augmented: Whether its training images are augmented.
        counts: For each part positives and negatives of each class; None for numbers that the site does not tell.
    """

    name: str
    classes: list[str]
    scheme: list[str] | None
    train: int
    val: int | None
    test: int | None
    augmented: bool
    counts: dict[str, list[list[int | None]]]

    def __post_init__(self) -> None:
        self.classes = [str(name) for name in self.classes]


@dataclass
class Hello:
    """To a site, first of all: who asks."""

    fedlit: str
    time: float


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
        until: When its certificate ends, in seconds since 1970; None where it has none.
    """

    name: str
    fedlit: str
    torch: str
    python: str
    device: str
    time: float
    classes: list[str]
    clients: list[dict[str, Any]]
    scores: bool
    until: float | None

    @property
    def told(self) -> list[Told]:
        """What it tells of its clients."""
        return [Told(**each) for each in self.clients]


@dataclass
class Prepare:
    """To a site, with the tensors of the module: what is trained in a phase.

    Attributes:
        run: The run, by an id of its own; "" before there is one.
        phase: Name of the phase; "" for the main part.
        config: Model, aggregators and what a phase changes, as YAML.
        fingerprint: Of the server's layout.
        seed: Of the phase.
        clients: The site's clients, with their weights in the federation.
        optimizer_state, gradient_clip, gradient_clamp, measure_batches, memory_format, cuda_graph, compile, threads: The federation's
            settings.
        batch_size, eval_batch_size, limit_eval_batches: How many examples a batch has, and batches an evaluation.
        precision: Of the arithmetic.
    """

    run: str
    phase: str
    config: str
    fingerprint: str
    seed: int
    clients: list[dict[str, Any]]
    optimizer_state: str
    gradient_clip: float | None
    gradient_clamp: float | None
    measure_batches: int
    memory_format: str | None
    cuda_graph: bool | str
    compile: bool | None
    threads: int
    batch_size: int
    eval_batch_size: int
    limit_eval_batches: int | None
    precision: str


@dataclass
class Prepared:
    """From a site: the layout of the model that it has built."""

    fingerprint: str
    parameters: int
    statistics: int
    classes: list[str]
    frozen: str


@dataclass
class Task:
    """To a site, with the federation's vectors: a client's part of a round, or an evaluation.

    Attributes:
        run, phase, fingerprint: What was prepared.
        client: Whose state; None for the federation's own model.
        accepted: Round after which the client's state is wanted, as the server has accepted it; None before its first.
        durable: Rounds of the client's states that checkpoints of the server go back to.
        fresh: Whether the client starts afresh where its state is missing.
        asked: Fields of the round, or of the view.
    """

    run: str
    phase: str
    fingerprint: str
    client: str | None
    accepted: int | None
    durable: list[int]
    fresh: bool
    asked: dict[str, Any]


@dataclass
class Start:
    """To a site, with weights and statistics: a client begins a phase with what it kept to itself in an earlier one.

    Attributes:
        run, phase, fingerprint: What was prepared.
        client: Whose state.
        before: Name of the earlier phase.
        config: The earlier phase as YAML.
        accepted: Round of the earlier phase after which the client's state is wanted.
        fresh: Whether the client starts afresh where it is missing.
    """

    run: str
    phase: str
    fingerprint: str
    client: str
    before: str
    config: str
    accepted: int
    fresh: bool


@dataclass
class Started:
    """From a site: whether the client begins with something of its own."""

    kept: bool


@dataclass
class Sent:
    """From a site, with the payload's vectors: a client's part of a round."""

    weight: float
    report: dict[str, Any]


@dataclass
class Scored:
    """From a site, with scores and labels or with what may leave in their place: an evaluation."""

    examples: int
    logged: dict[str, float]
    kind: str


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

    said: dict[str, Any] = field(default_factory=dict)
