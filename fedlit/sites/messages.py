"""Messages between server and sites: one dataclass per message, whose fields are checked against their types."""

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal
from uuid import uuid4

from fedlit.core.errors import KEY
from fedlit.core.system.typed import AnyFloat

VERBS = ("hello", "prepare", "start", "train", "measure", "evaluate", "model", "end")
"""Verbs that a site answers."""

REPLY, FAILED = "reply", "failed"
"""Verbs of a site's answers."""

SOON = timedelta(days=30)
"""fedlit warns about a certificate that expires in less than this time."""

LASTING = ("refused", "unfit", "state")
"""Kinds of failures that asking again does not fix."""

LONGEST_KEY = 60
"""Largest length of the key of a site's error."""

RUN = re.compile(r"[0-9a-f]{32}")
"""The id of a run, which becomes the name of folders at the sites."""


def new_run() -> str:
    """Make the id of a new run."""
    return uuid4().hex


def check_run(run: str) -> None:
    """Check the id of a run.

    Raises:
        ValueError: If it is not a valid id.
    """
    if not RUN.fullmatch(run):
        raise ValueError(f"run: expected 32 hexadecimal digits, found {run[:60]!r}")


def printable(text: str, most: int = 2000) -> str:
    """Escape a text from outside, so that it cannot control the terminal or imitate a line of fedlit."""
    shown = text if len(text) <= most else f"{text[:most]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


@dataclass
class ClientInfo:
    """A site's report about one of its clients.

    Attributes:
        name: The client.
        classes: The classes that it labels.
        scheme: The classes of its label scheme; None if it has none.
        train, val, test: Number of examples; None if it has no such part.
        augmented: Whether its training images are augmented.
        counts: For each part the positives and negatives of each class; None for both if the site hides the class.
        organisations: Names of the organisations of its images by part; ``organisation/CLIENT/PART`` has their indices.
            Empty unless scores of single images leave the site.
        data: Fingerprint of its data, which only the site can compute.
        groups: Names of the groups of its test images, such as ``sex``, each with its values; ``group/CLIENT/NAME`` has
            their indices, -1 for none. Empty unless scores of single images leave the site.
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
    groups: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.classes = [str(name) for name in self.classes]


@dataclass
class Hello:
    """First message to a site.

    Attributes:
        fedlit: Version of the server.
        time: Seconds since 1970.
        needs: Classes that the run's configuration names; the site refuses if it does not allow them.
        lines: Number of lines of the site's ledger that the server knows of.
    """

    fedlit: str
    time: float
    needs: list[str]
    lines: int


@dataclass
class Presence:
    """A site's answer to `Hello`: who it is, and what it has.

    Attributes:
        name: The site.
        fedlit, torch, python: Versions.
        device: The device on which it trains.
        time: Seconds since 1970 by its clock.
        classes: The classes of its data, in their order.
        clients: Its clients.
        scores: Whether scores of single images leave it.
        whole: Whether it evaluates only whole views.
        examples: Least number of examples of a client's round.
        hides_below: Its ``counts_below``.
        until: When its certificate expires, in seconds since 1970; None if it has none.
        ledger: Head of its ledger after the lines that the server knows of; "" if it has fewer.
    """

    name: str
    fedlit: str
    torch: str
    python: str
    device: str
    time: float
    classes: list[str]
    clients: list[ClientInfo]
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
    """Message that prepares a phase at a site, with the tensors of the module.

    Attributes:
        run: Id of the run.
        phase: Name of the phase; "" for the main part.
        config: Plan of the phase, see :class:`fedlit.sites.recipe.PhasePlan`.
        fingerprint: Fingerprint of the server's layout.
        clients: The site's clients, with their weights in the federation.
    """

    run: str
    phase: str
    config: dict[str, Any]
    fingerprint: str
    clients: list[Member]


@dataclass
class Prepared:
    """A site's answer to `Prepare`: the layout of the model that it has built."""

    fingerprint: str
    parameters: int
    statistics: int
    classes: list[str]
    frozen: str


@dataclass
class Train:
    """A round, or a measuring round, of a client; everything else is in the plan.

    Attributes:
        index: Index of the round, from 0.
        cohort: The clients of the round.
        moments: Whether a measuring round estimates BatchNorm's statistics again.
    """

    index: int
    cohort: list[str]
    moments: bool


@dataclass
class Look:
    """An evaluation.

    Attributes:
        holder: Client whose images are evaluated.
        part: The evaluated part of its data.
        at: Number of completed rounds; -1 for the sanity check before the run.
        method: The module's method that scores a batch.
        limit: Largest number of examples; None for all.
    """

    holder: str
    part: Literal["train", "val", "test"]
    at: int
    method: Literal["validation_step", "predict_step"]
    limit: int | None


@dataclass
class Final:
    """The best model of a run that has ended.

    Attributes:
        rounds: Number of completed rounds.
        learned: For each class, whether a client that trains labels it.
    """

    rounds: int
    learned: list[bool]


@dataclass
class Task:
    """Message to a site, with the federation's vectors: a round, an evaluation, or the best model.

    Attributes:
        run, phase, fingerprint: What was prepared.
        client: Client whose state is used; None for the federation's own model.
        accepted: Round of the client's state that the server has accepted; None before the first.
        durable: Rounds of the client's states that the server's checkpoints refer to.
        fresh: Whether the client starts afresh if its state is missing.
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
    """Message to a site, with weights and statistics: a client begins a phase with what it kept in an earlier one.

    Attributes:
        run, phase, fingerprint: What was prepared.
        client: Client whose state is used.
        before: Name of the earlier phase.
        config: The earlier phase's plan.
        accepted: Round of the earlier phase whose state is used.
        fresh: Whether the client starts afresh if that state is missing.
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
    """A site's answer to `Start`: whether the client has kept something."""

    kept: bool


@dataclass
class RoundReport:
    """Report of a client's round, see :class:`fedlit.core.messages.ClientReport`."""

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
    """A site's answer to a round, with the payload's vectors, and the fingerprint of the client's data.

    Attributes:
        whole: Full number of values of each vector that is cut to what the client shares.
    """

    weight: float
    report: RoundReport
    data: str
    whole: dict[str, int]


@dataclass
class Evaluated:
    """A site's answer to an evaluation, with scores and labels, or with AUROC and histograms.

    Attributes:
        examples: Number of images.
        logged: Means over them of what the module logs; empty if the site hides a class of the view.
        kind: ``scores``, ``tally``, or ``none`` if the module gives no scores.
        data: Fingerprint of the client's data.
    """

    examples: int
    logged: dict[str, AnyFloat]
    kind: Literal["scores", "tally", "none"]
    data: str


@dataclass
class Failure:
    """A site's answer if it did not do what was asked.

    Attributes:
        kind: ``refused`` by its policy, ``unfit`` (another version, other classes, another layout), ``state`` (a file
            is missing), ``unprepared`` (the process is new), ``damaged`` (an invalid message), or ``failed``.
        reason: Readable reason.
        key: Key of the site's own error; None if it has none, or if its text does not leave the site.
    """

    kind: str
    reason: str
    key: str | None = None

    @property
    def known_key(self) -> str | None:
        """The key, if it has the form of one; a site may send anything."""
        return self.key if self.key and len(self.key) <= LONGEST_KEY and KEY.fullmatch(self.key) else None


@dataclass
class End:
    """Message to a site: the run is over."""

    run: str


@dataclass
class Done:
    """A site's answer without a result."""

    values: dict[str, AnyFloat] = field(default_factory=dict)
