"""Settings of a federation's rounds, for every run and every phase."""

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise
from typing import Literal

from typing_extensions import TypedDict

from fedlit.core.aggregator import Aggregator
from fedlit.core.checkpoints.cadence import Cadence
from fedlit.core.checkpoints.manifest import Best
from fedlit.core.checkpoints.stored_states import in_bytes
from fedlit.core.errors import ConfigError
from fedlit.core.governing import governed_twice
from fedlit.core.hooks import refuse_misspelt
from fedlit.core.local_model import LocalTraining
from fedlit.core.ranges import Count, Positive, PositiveOrInf, UpToOne
from fedlit.core.system.argument_types import checked
from fedlit.federation.participation import Participation, Share
from fedlit.schedules import ConstantSchedule, Schedule
from fedlit.tracking.names import better


@dataclass(kw_only=True)
class RoundSettings:
    """Settings of rounds that the last part of a run and every phase before it have.

    Args:
        aggregators: The algorithms, composed as a list. An empty list is federated averaging.
        rounds: Number of rounds. By default the number that the schedule describes, or 10 if it has no end.
        schedule: Window, unit and learning rate of each round. By default one epoch per round.
        clients: Names of the clients in the federation. By default all clients of the data.
        participation: Share of the clients that train in a round, in (0, 1], of whom a new cohort is drawn for each
            round; or a plan: ``Cyclic``, ``Timetable``, ``Availability`` or ``HighestLoss``.
        weights: Weights of the clients in every mean, ``examples`` (n_k / n) or ``uniform`` (1 / K). By default the
            aggregators decide, and ``examples`` is used if they do not.
        optimizer_state: Optimizer state of a client between its rounds: ``reset`` or ``keep``.
        lr_factors: Factors of the learning rates of single clients by name, such as ``{NIH: 0.2}``, for every round and
            parameter group. Other clients train at the schedule's rates.
        gradient_clip: Largest norm of a local gradient. By default gradients are not clipped.
        gradient_clamp: Largest absolute value of each element of a local gradient, except for an objective's own
            variables. Corrections such as control variates are added afterwards. By default gradients are not clamped.
        eval_every: Rounds between evaluations, or local steps such as ``512 steps``, with which runs of different
            windows are evaluated equally often: after the first round that reaches each multiple. The last round is
            always evaluated.
        monitor: Metric that selects the best model. By default (``auto``) ``val/auroc_macro``, or ``val/loss`` if the
            model gives no scores; if it logs no loss either, the last model counts as the best.
        monitor_mode: Whether the metric should be high (``max``) or low (``min``). By default (``auto``) a loss should
            be low and an AUROC high; set it for any other metric.
        patience: Number of rounds without improvement after which the run stops. By default it never stops early.
        patience_margin: Rounds that are worse than the best by less than this margin do not count towards patience.
            By default every round without improvement counts.
        checkpoint_every: Rounds between checkpoints, seconds such as ``60s``, or ``auto``: as often as possible at less
            than 2% of the time.
    """

    aggregators: list[Aggregator] | None = None
    rounds: Count | None = None
    schedule: Schedule | None = None
    clients: list[str] | None = None
    participation: UpToOne | Participation = 1.0
    weights: Literal["examples", "uniform"] | None = None
    optimizer_state: Literal["reset", "keep"] = "reset"
    lr_factors: dict[str, Positive] | None = None
    gradient_clip: PositiveOrInf | None = None
    gradient_clamp: PositiveOrInf | None = None
    eval_every: Count | str = 1
    monitor: str = "auto"
    monitor_mode: Literal["auto", "max", "min"] = "auto"
    patience: int | None = None
    patience_margin: Positive | None = None
    checkpoint_every: int | str = "auto"


@checked
@dataclass(kw_only=True)
class Settings(RoundSettings):
    """Settings of a federation's rounds: algorithms, schedule, clients, evaluation and checkpoints.

    Args:
        measure_batches: Number of batches per client in a measuring round. Measuring rounds compute initial values of
            an objective's variables, CODA's dual, or BatchNorm's statistics.
        workers: Number of processes that train clients in parallel on this machine. By default the number of CPU cores,
            shared among parallel runs, or 1 on an accelerator, and at most the number of clients in a round.
        threads: Number of threads of each worker and of the server. Results are bit-identical only for the same number.
        memory_format: Memory format of images in convolutions, ``contiguous`` or ``channels_last``. Results are
            bit-identical only for the same format. By default ``channels_last`` for ImageClassifier on a GPU, and on a
            CPU for backbones that it makes faster, such as DenseNet; otherwise ``contiguous``.
        compile: Whether torch.compile compiles the model's forward pass, which takes about a minute at the start.
            Results are not bit-identical to those without it. By default the model is not compiled.
        test_curves: Whether each evaluation also scores the test sets and logs ``test_curve/...``; do not base any
            choice on these curves. By default only the best model is scored on the test sets, once.
        state_memory: Memory for the clients' states between rounds, such as ``4GB`` or a number of bytes. Larger states
            are stored in files of the run's directory. By default (``auto``) a quarter of the free memory. It does not
            change any result.
        quorum: With ``on_site_error: skip``, the least number of clients whose replies complete a round. A round with
            fewer replies is repeated. By default one.
        deadline: Seconds that a site has for its part of a round or of an evaluation. By default there is no limit
            while the site is alive.
        on_site_error: Reaction to an error of a site in a round: ``repeat`` asks the site again, with the same results
            as without the error, ``skip`` continues without it, ``stop`` ends the run. By default ``repeat``.

    Raises:
        ConfigError: A value is outside of its range, or the aggregators do not fit each other or the schedule.
    """

    aggregators: list[Aggregator] | None = field(default=None, kw_only=False)
    rounds: Count | None = field(default=None, kw_only=False)
    schedule: Schedule | None = field(default=None, kw_only=False)
    measure_batches: Count = 32
    workers: Count | Literal["auto"] = "auto"
    threads: Count = 1
    memory_format: Literal["contiguous", "channels_last"] | None = None
    compile: bool | None = None
    test_curves: bool | None = None
    state_memory: int | str = "auto"
    quorum: Count | None = None
    deadline: PositiveOrInf | None = None
    on_site_error: Literal["repeat", "skip", "stop"] | None = None

    def __post_init__(self) -> None:
        self.aggregators = list(self.aggregators or [])
        for aggregator in self.aggregators:
            refuse_misspelt("federation.aggregators", aggregator, Aggregator)
        self.schedule = self.schedule or ConstantSchedule()
        self.rounds = self.rounds if self.rounds is not None else self.schedule.rounds or 10
        plan = self.participation
        self.cohorts = plan if isinstance(plan, Participation) else Share(plan)
        self.evaluated = _evaluated(self.eval_every, self.schedule, self.rounds)
        longest = max(done - before for before, done in pairwise((0, *self.evaluated)))
        if self.patience is not None and self.patience < longest:
            raise ConfigError(
                f"federation.patience: expected at least one evaluation, {longest} rounds, found "
                f"{self.patience}; raise it, or lower federation.eval_every"
            )
        if self.patience_margin is not None and self.patience is None:
            raise ConfigError(
                "federation.patience_margin: it needs federation.patience; set that, or leave patience_margin out"
            )
        if self.gradient_clip is not None and self.gradient_clamp is not None:
            raise ConfigError(
                "federation.gradient_clamp: expected only one of gradient_clip and gradient_clamp; remove one"
            )
        if self.quorum is not None and self.on_site_error != "skip":
            raise ConfigError("federation.quorum: it needs on_site_error: skip; set that, or leave quorum out")
        self.better = _better(self.monitor, self.monitor_mode)
        self.cadence = Cadence.parse(self.checkpoint_every)
        self.state_bytes = in_bytes(self.state_memory)
        self.client_weights = _agreed_weights(self.aggregators, self.weights)
        self.training = LocalTraining(
            self.optimizer_state, self.gradient_clip, self.gradient_clamp, self.measure_batches
        )
        if twice := governed_twice(self.aggregators):
            raise ConfigError(f"federation.aggregators: {twice}")
        for aggregator in self.aggregators:
            aggregator.check_schedule(self.schedule, self.rounds)
            if aggregator.optimizer_state not in (None, self.optimizer_state):
                raise ConfigError(
                    f"federation.optimizer_state: expected reset, as {type(aggregator).__name__} needs momentum that "
                    f"starts from zero in each round, found {self.optimizer_state}; set it to reset"
                )

    def over(self, done: int, best: Best) -> bool:
        """Check if ``done`` is the number of rounds, or if patience has run out."""
        return done >= self.rounds or (self.patience is not None and done - best.round - best.near >= self.patience)

    def evaluates_after(self, done: int) -> bool:
        """Check if the model is evaluated after ``done`` completed rounds."""
        return done in self.evaluated or done == self.rounds

    def unevaluated_before(self, done: int) -> int:
        """Return the number of rounds since the evaluation before that of a round, which counts too."""
        return done - max((each for each in self.evaluated if each < done), default=0)

    def one_step(self) -> None:
        """Reduce the federation to one round of one step, for a trial run."""
        self.rounds, self.schedule = 1, ConstantSchedule(1, "steps")


class Options(TypedDict, total=False):
    """Settings as keyword arguments of ``fedlit.fit``, which type checkers and editors show.

    Those of a YAML file that are missing: ``clients`` are data there, and no client is at a site.
    """

    aggregators: Sequence[Aggregator] | None
    rounds: int | None
    schedule: Schedule | None
    participation: float | Participation
    weights: Literal["examples", "uniform"] | None
    optimizer_state: Literal["reset", "keep"]
    lr_factors: dict[str, float] | None
    gradient_clip: float | None
    gradient_clamp: float | None
    eval_every: int | str
    monitor: str
    monitor_mode: Literal["auto", "max", "min"]
    patience: int | None
    patience_margin: float | None
    checkpoint_every: int | str
    measure_batches: int
    workers: int | Literal["auto"]
    threads: int
    memory_format: Literal["contiguous", "channels_last"] | None
    compile: bool | None
    test_curves: bool | None
    state_memory: int | str


def _evaluated(every: int | str, schedule: Schedule, rounds: int) -> Collection[int]:
    """Return the numbers of rounds after which the model is evaluated, in order; the last may be missing."""
    if isinstance(every, int):
        return range(every, max(rounds, every) + 1, every)
    number = every.removesuffix(" steps")
    if number == every or not number.isdecimal() or int(number) == 0:
        raise ConfigError(
            f"federation.eval_every: expected rounds such as 5, or local steps such as '512 steps', found {every!r}"
        )
    steps, evaluated = 0, []
    for index in range(rounds):
        plan = schedule.plan(index)
        if plan.unit != "steps":
            raise ConfigError(
                f"federation.eval_every: expected rounds, as the schedule counts {plan.unit}, found {every!r}; write "
                "a number of rounds, or choose a schedule of steps"
            )
        before, steps = steps // int(number), steps + plan.window
        evaluated += [index + 1] if steps // int(number) > before else []
    return evaluated or [rounds]


def _better(metric: str, mode: str) -> str:
    """Return ``max`` or ``min``: the direction in which the monitored metric improves."""
    if metric.startswith(("test/", "test_curve/")):
        metric_of_validation = metric.replace("test_curve/", "test/").replace("test/federation/", "test/")
        raise ConfigError(
            f"federation.monitor: expected a validation metric, found {metric!r} of the test set, which must not "
            f"select the model; use a metric such as {metric_of_validation.replace('test/', 'val/', 1)!r}"
        )
    if metric.startswith("total/"):
        raise ConfigError(
            f"federation.monitor: {metric!r} is logged only after the last round; choose a per-round metric"
        )
    if metric == "auto" and mode == "min":
        warnings.warn("federation.monitor_mode: min has no effect if federation.monitor is auto", stacklevel=3)
    known = better(metric) if mode == "auto" else mode
    if known is None:
        near = get_close_matches(metric, ("val/auroc_macro", "val/loss", "train/loss"), n=1, cutoff=0.7)
        meant = f", or did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"federation.monitor_mode: expected max or min for the metric {metric!r}, found auto, which works only for "
            f"losses and AUROC; set max if higher values are better, else min{meant}"
        )
    return known


def _agreed_weights(aggregators: Sequence[Aggregator], weights: str | None) -> str:
    if weights is not None:
        return weights
    stated = {a.weights: type(a).__name__ for a in aggregators if a.weights is not None}
    if len(stated) > 1:
        differing = ", ".join(f"{name} {w}" for w, name in stated.items())
        raise ConfigError(
            f"federation.weights: the aggregators need different client weights ({differing}); set federation.weights"
        )
    return next(iter(stated), "examples")
