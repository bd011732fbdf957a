"""Messages between server and sites: one dataclass per message.

The receiver checks each value against its type and its range before it uses any of them.
"""

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import AllowInfNan

from fedlit.core.ranges import Range, Within


@dataclass(frozen=True)
class Words(Range):
    """Printable texts of a length, at least one character long."""

    most: int = 200

    def fault(self, value: Any) -> str:
        """Return what was expected if a text is another, else ""."""
        fits = 0 < len(value) <= self.most and value.isprintable()
        return "" if fits else f"a printable text of 1 to {self.most} characters"


@dataclass(frozen=True)
class Matching(Range):
    """Texts of one form."""

    pattern: str
    form: str

    def fault(self, value: Any) -> str:
        """Return what was expected if a text has another form, else ""."""
        return "" if re.fullmatch(self.pattern, value) else self.form


@dataclass(frozen=True)
class Logged(Range):
    """Numbers of a magnitude, and NaN."""

    most: float = 1e12

    def fault(self, value: Any) -> str:
        """Return what was expected if a number is another, else ""."""
        return f"NaN or a number from -{self.most:g} to {self.most:g}" if abs(value) > self.most else ""


Count = Annotated[int, Within("[0, 1e12]")]
Text = Annotated[str, Words()]
Moment = Annotated[float, Within("[0, 2.5e11]")]
"""Seconds since 1970, up to the year 9892."""
Loss = Annotated[float, Within("[-1e6, 1e6]")]
Rate = Annotated[float, Within("[0, 1e6]")]
AnyFloat = Annotated[float, AllowInfNan(), Logged()]
"""What a module logs, such as a mean loss that was never logged; all other numbers are finite."""
Epsilon = Annotated[float, AllowInfNan(), Within("[0, inf]")]
HEAD = Matching("([1-9][0-9]{0,11}:[0-9a-f]{64})?", "a number of lines, a colon and a SHA-256")
Head = Annotated[str, HEAD]
"""Head of a ledger; "" if there is none."""
Prose = Annotated[str, Matching("(?s).{0,2000}", "at most 2000 characters")]
"""A sentence, which is escaped before it is shown."""


VERBS = ("hello", "prepare", "start", "train", "measure", "evaluate", "model", "end")
"""Verbs that a site answers."""

REPLY, FAILED = "reply", "failed"
"""Verbs of a site's answers."""

SOON = timedelta(days=30)
"""fedlit warns about a certificate that expires in less than this time."""

LASTING = ("refused", "unfit", "state")
"""Kinds of failures that asking again does not fix."""

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
    """A site's report about one of its clients."""

    name: Text  # The client.
    classes: list[Text]  # The classes that it labels.
    scheme: list[Text] | None  # The classes of its label scheme; None if it has none.
    # train, val, test: Number of examples; None if it has no such part.
    train: Count
    val: Count | None
    test: Count | None
    augmented: bool  # Whether its training images are augmented.
    # For each part the positives and negatives of each class; None for both if the site hides the class.
    counts: dict[Literal["train", "val", "test"], list[list[Count | None]]]
    # Names of the organisations of its images by part; `organisation/CLIENT/PART` has their indices. Empty unless
    # scores of single images leave the site.
    organisations: dict[Literal["train", "val", "test"], list[Text]]
    data: Text  # Fingerprint of its data, which only the site can compute.
    # Names of the groups of its test images, such as `sex`, each with its values; `group/CLIENT/NAME` has their
    # indices, -1 for none. Empty unless scores of single images leave the site.
    groups: dict[Text, list[Text]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.classes = [str(name) for name in self.classes]


@dataclass
class Hello:
    """First message to a site."""

    fedlit: str  # Version of the server.
    time: float  # Seconds since 1970.
    needs: list[str]  # Classes that the run's configuration names; the site refuses if it does not allow them.
    lines: int  # Number of lines of the site's ledger that the server knows of.


@dataclass
class SitePrivacy:
    """A site's rule to train only with differential privacy, and what it has spent."""

    # epsilon, delta: Its budget.
    epsilon: Epsilon
    delta: Annotated[float, Within("(0, 1)")]
    patients: Count  # Number of training patients that it declares.
    spent: Epsilon  # Epsilon of its ledger.


@dataclass
class SiteInfo:
    """A site's answer to `Hello`: who it is, and what it has."""

    name: Text  # The site.
    # fedlit, torch, python: Versions.
    fedlit: Text
    torch: Text
    python: Text
    device: Text  # The device on which it trains.
    time: Moment  # Seconds since 1970 by its clock.
    classes: list[Text]  # The classes of its data, in their order.
    clients: list[ClientInfo]  # Its clients.
    scores: bool  # Whether scores of single images leave it.
    whole: bool  # Whether it evaluates only whole views.
    examples: Count  # Least number of examples of a client's round.
    batch: Count  # Least number of examples in a batch; a smaller rest of a pass is dropped.
    hides_below: Count  # Its `counts_below`.
    privacy: SitePrivacy | None  # Its rule for private training; None if it has none.
    until: Moment | None  # When its certificate expires, in seconds since 1970; None if it has none.
    ledger: Head  # Head of its ledger after the lines that the server knows of; "" if it has fewer.


@dataclass
class Member:
    """A client of a site in the federation."""

    name: str  # The client.
    weight: float  # Its share pi_k, in (0, 1].


@dataclass
class Prepare:
    """Message that prepares a run at a site, with the tensors of the module."""

    run: str  # Id of the run.
    config: dict[str, Any]  # Its plan, see :class:`fedlit.sites.plan.RunPlan`.
    fingerprint: str  # Fingerprint of the server's layout.
    clients: list[Member]  # The site's clients, with their weights in the federation.


@dataclass
class Prepared:
    """A site's answer to `Prepare`: the layout of the model that it has built."""

    fingerprint: Text
    parameters: Count
    statistics: Count
    classes: list[Text]
    frozen: Annotated[str, Matching("[0-9a-f]{0,64}", "a SHA-256 or nothing")]


@dataclass
class Train:
    """A round, or a measuring round, of a client; everything else is in the plan."""

    index: int  # Index of the round, from 0.
    cohort: list[str]  # The clients of the round.
    moments: bool  # Whether a measuring round estimates BatchNorm's statistics again.


@dataclass
class Look:
    """An evaluation."""

    holder: str  # Client whose images are evaluated.
    part: Literal["train", "val", "test"]  # The evaluated part of its data.
    at: int  # Number of completed rounds; -1 for the sanity check before the run.
    method: Literal["validation_step", "predict_step"]  # The module's method that scores a batch.
    limit: int | None  # Largest number of examples; None for all.


@dataclass
class Final:
    """The best model of a run that has ended."""

    rounds: int  # Number of completed rounds.
    learned: list[bool]  # For each class, whether a client that trains labels it.


@dataclass
class Task:
    """Message to a site, with the federation's vectors: a round, an evaluation, or the best model."""

    # run, fingerprint: What was prepared.
    run: str
    fingerprint: str
    client: str | None  # Client whose state is used; None for the federation's own model.
    accepted: int | None  # Round of the client's state that the server has accepted; None before the first.
    durable: list[int]  # Rounds of the client's states that the server's checkpoints refer to.
    fresh: bool  # Whether the client starts afresh if its state is missing.
    asked: Train | Look | Final  # The round, the evaluation, or the model.


@dataclass
class Start:
    """Message to a site, with weights and statistics: a client starts afresh with only its own part of the model."""

    # run, fingerprint: What was prepared.
    run: str
    fingerprint: str
    client: str  # Client whose state is used.
    accepted: int  # Round whose state is used.
    fresh: bool  # Whether the client starts afresh if that state is missing.


@dataclass
class Started:
    """A site's answer to `Start`: whether the client has kept something."""

    kept: bool


@dataclass
class RoundReport:
    """Report of a client's round, see :class:`fedlit.core.messages.ClientReport`."""

    client: Text
    steps: Count
    examples: Count
    loss: Loss | None  # None if steps are private.
    seconds: Annotated[float, Within("[0, 1e9]")]
    bytes_up: Count
    logged: dict[Text, AnyFloat]
    error: Prose
    still: Prose
    rates: list[Rate]


@dataclass
class Sent:
    """A site's answer to a round, with the payload's vectors, and the fingerprint of the client's data."""

    weight: Annotated[float, Within("[0, 1]")]
    report: RoundReport
    data: Text
    whole: dict[Text, Count]  # Full number of values of each vector that is cut to what the client shares.


@dataclass
class Evaluated:
    """A site's answer to an evaluation, with scores and labels, or with AUROC and histograms."""

    examples: Count  # Number of images.
    logged: dict[
        Text, AnyFloat
    ]  # Means over them of what the module logs; empty if the site hides a class of the view.
    kind: Literal["scores", "tally", "none"]  # `scores`, `tally`, or `none` if the module gives no scores.
    data: Text  # Fingerprint of the client's data.
    taken: Literal["own", "softmax", "probabilities"]  # What the scores were made from.


@dataclass
class Failure:
    """A site's answer if it did not do what was asked."""

    # `refused` by its policy, `unfit` (another version, other classes, another layout), `state` (a file is missing),
    # `unprepared` (the process is new), `damaged` (an invalid message), or `failed`.
    kind: Literal["refused", "unfit", "state", "unprepared", "damaged", "failed"]
    reason: Prose  # Readable reason.


@dataclass
class End:
    """Message to a site: the run is over."""

    run: str


@dataclass
class Done:
    """A site's answer without a result."""

    values: dict[Text, AnyFloat] = field(default_factory=dict)
