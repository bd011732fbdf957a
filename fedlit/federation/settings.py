"""The settings of a federation's rounds; those of the main part and of every phase are of this one class."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from math import inf
from typing import Literal

from typing_extensions import TypedDict

from fedlit.core.aggregator import Aggregator, governed_twice
from fedlit.core.argument_types import checked
from fedlit.core.checkpoints.cadence import Cadence
from fedlit.core.checkpoints.manifest import Best
from fedlit.core.checkpoints.stored_states import in_bytes
from fedlit.core.errors import ConfigError
from fedlit.core.local_model import LocalTraining
from fedlit.metrics.direction import better
from fedlit.schedules import ConstantSchedule, Schedule


@checked
@dataclass
class Settings:
    """Say what the rounds of a federation are: algorithms, schedule, clients, evaluation, checkpoints.

    Args:
        aggregators: The algorithms, composed as a list. An empty list is federated averaging.
        rounds: Number of rounds. By default as many as the schedule describes, and 10 where it has no end.
        schedule: What each round does: its window, unit and learning rate. By default one epoch a round.
        clients: Names of the clients that belong to the federation. By default all that the data have.
        participation: Share of the clients that train in a round, in (0, 1]. They are drawn anew for each round.
        weights: Weights of the clients in every mean, ``examples`` (n_k / n) or ``uniform`` (1 / K). By default what
            the aggregators state, and ``examples`` where they state nothing.
        optimizer_state: What happens to a client's optimizer state between its rounds: ``reset`` or ``keep``.
        lr_factors: Factors of the learning rates of single clients by name, such as ``{NIH: 0.2}``, in every round and for
            every parameter group. Clients that are left out train at the schedule's rates.
        gradient_clip: Largest norm of a local gradient. By default gradients are not clipped.
        gradient_clamp: Largest absolute value of each element of a local gradient, but for an objective's own variables.
            Corrections such as control variates are added after it. By default gradients are not clamped.
        measure_batches: Number of batches of each client that a measuring round looks at. Measuring rounds give the
            start of an objective's variables, CODA's dual, or BatchNorm's statistics.
        workers: Number of processes that train clients side by side on this machine. By default the cores of a CPU,
            which runs side by side share, 1 on an accelerator, and no more than clients train in a round.
        threads: Number of threads of each worker. Another number gives other bits.
        memory_format: Order in which convolutions find images in memory: ``contiguous``, or ``channels_last``, which gives
            other bits. By default ``channels_last`` for ImageClassifier on a GPU, and on a CPU for backbones
            that are faster with it, such as DenseNet; ``contiguous`` else.
        cuda_graph: Whether local steps are recorded once, as a CUDA graph, and replayed for every client: ``true``, or
            ``false``. By default (``auto``) they are not.
        compile: Whether torch.compile compiles the model's forward pass, which gives other bits and takes about a minute at
            the start. By default it is not compiled.
        eval_every: Number of rounds between evaluations. The last round is always evaluated.
        test_curves: Whether each evaluation scores the test sets too and logs them as ``test_curve/...``, which no choice may
            depend on. By default the test sets are scored once, by the best model.
        monitor: Metric that says which model is best. By default (``auto``) ``val/auroc_macro``; where the model gives
            no scores ``val/loss``; where it logs no loss the last model counts as the best.
        monitor_mode: Whether more of the metric is better (``max``) or less (``min``). By default (``auto``) less of a loss
            and more of an AUROC; any other metric needs one of the two.
        patience: Number of rounds without a better model after which the run stops. By default it never stops early.
        patience_margin: How much worse than the best a round's metric has to be for the round to count for patience. By
            default every round counts that is not better.
        checkpoint_every: Rounds between checkpoints, seconds such as ``60s``, or ``auto``: as often as costs under 2%
            of the time.
        state_memory: Memory for what the clients keep between rounds, such as ``4GB`` or a number of bytes. Where their
            states would take more, they live in files of the run's directory. By default (``auto``) a quarter of the
            memory that is free. No number depends on it.
        quorum: Least number of clients whose replies make a round across sites, with ``on_site_error: skip``. By default
            one. Below it the round is repeated.
        deadline: Seconds that a site has for its part of a round, or of an evaluation, across sites. By default it has as long
            as it lives.
        on_site_error: What happens when a site fails in a round across sites: ``repeat`` asks it again and gives the same
            numbers as if nothing had happened, ``skip`` goes on with the others, ``stop`` ends the run. By default
            ``repeat``.

    Raises:
        ConfigError: A value is outside of its range, or the aggregators do not fit together or to the schedule.
    """

    aggregators: list[Aggregator] | None = None
    rounds: int | None = None
    schedule: Schedule | None = None
    clients: list[str] | None = None
    participation: float = 1.0
    weights: Literal["examples", "uniform"] | None = None
    optimizer_state: Literal["reset", "keep"] = "reset"
    lr_factors: dict[str, float] | None = None
    gradient_clip: float | None = None
    gradient_clamp: float | None = None
    measure_batches: int = 32
    workers: int | Literal["auto"] = "auto"
    threads: int = 1
    memory_format: Literal["contiguous", "channels_last"] | None = None
    cuda_graph: bool | Literal["auto"] = "auto"
    compile: bool | None = None
    eval_every: int = 1
    test_curves: bool | None = None
    monitor: str = "auto"
    monitor_mode: Literal["auto", "max", "min"] = "auto"
    patience: int | None = None
    patience_margin: float | None = None
    checkpoint_every: int | str = "auto"
    state_memory: int | str = "auto"
    quorum: int | None = None
    deadline: float | None = None
    on_site_error: Literal["repeat", "skip", "stop"] | None = None

    def __post_init__(self) -> None:
        self.aggregators = list(self.aggregators or [])
        self.schedule = self.schedule or ConstantSchedule()
        self.rounds = self.rounds if self.rounds is not None else self.schedule.rounds or 10
        for name in ("rounds", "workers", "threads", "eval_every", "measure_batches"):
            value = getattr(self, name)
            if value != "auto" and value < 1:
                raise ConfigError(f"federation.{name}: expected at least 1, found {value}")
        if not 0 < self.participation <= 1:
            raise ConfigError(f"federation.participation: expected a share in (0, 1], found {self.participation}")
        if self.patience is not None and self.patience < self.eval_every:
            raise ConfigError(
                f"federation.patience: expected at least one evaluation, {self.eval_every} rounds, found "
                f"{self.patience}; raise it, or lower federation.eval_every"
            )
        if self.patience_margin is not None and not 0 < self.patience_margin < inf:
            raise ConfigError(f"federation.patience_margin: expected a value above 0, found {self.patience_margin}")
        if self.patience_margin is not None and self.patience is None:
            raise ConfigError(
                "federation.patience_margin: it has no effect without federation.patience; set that, or leave it out"
            )
        if self.gradient_clip is not None and not self.gradient_clip > 0:
            raise ConfigError(f"federation.gradient_clip: expected a norm above 0, found {self.gradient_clip}")
        if self.gradient_clamp is not None and not self.gradient_clamp > 0:
            raise ConfigError(f"federation.gradient_clamp: expected a value above 0, found {self.gradient_clamp}")
        if self.gradient_clip is not None and self.gradient_clamp is not None:
            raise ConfigError("federation.gradient_clamp: gradients are clipped (gradient_clip) or clamped; set one")
        for name, factor in (self.lr_factors or {}).items():
            if not 0 < factor < inf:
                raise ConfigError(f"federation.lr_factors: expected a factor above 0 for {name!r}, found {factor}")
        if self.deadline is not None and not self.deadline > 0:
            raise ConfigError(f"federation.deadline: expected seconds above 0, found {self.deadline}")
        if self.quorum is not None and self.quorum < 1:
            raise ConfigError(f"federation.quorum: expected at least 1 client, found {self.quorum}")
        if self.quorum is not None and self.on_site_error != "skip":
            raise ConfigError(
                "federation.quorum: a round without some of its clients is one of federation.on_site_error: skip; set it, or "
                "leave the quorum out"
            )
        self.better = _better(self.monitor, self.monitor_mode)
        self.cadence = Cadence.parse(self.checkpoint_every)
        self.state_bytes = in_bytes(self.state_memory)
        self.client_weights = _agreed_weights(self.aggregators, self.weights)
        self.training = LocalTraining(
            self.optimizer_state, self.gradient_clip, self.gradient_clamp, self.measure_batches
        )
        _check_composition(self.aggregators)
        for aggregator in self.aggregators:
            aggregator.check_schedule(self.schedule, self.rounds)

    def cohort_size(self, clients: int) -> int:
        """Give how many of so many clients train in a round."""
        return max(1, round(self.participation * clients))

    def over(self, done: int, best: Best) -> bool:
        """Tell whether ``done`` completed rounds are all, or the last ``patience`` of them have brought nothing."""
        return done >= self.rounds or (self.patience is not None and done - best.round - best.near >= self.patience)

    def evaluates_after(self, done: int) -> bool:
        """Tell whether the model is evaluated after so many completed rounds."""
        return done % self.eval_every == 0 or done == self.rounds

    def one_step(self) -> None:
        """Shorten the federation to one round of one step, for a trial run."""
        self.rounds, self.schedule = 1, ConstantSchedule(1, "steps")


OF_YAML = ("clients", "quorum", "deadline", "on_site_error")
"""Settings that Python has not: ``clients`` are data there, and none of them are at sites."""

Options = TypedDict("Options", {s.name: s.type for s in fields(Settings) if s.name not in OF_YAML}, total=False)
"""The settings as arguments of a function in Python, by name."""


def _better(metric: str, mode: str) -> str:
    """Whether the best model has most (``max``) or least (``min``) of a metric."""
    if metric.startswith(("test/", "test_curve/")):
        metric_of_validation = metric.replace("test_curve/", "test/").replace("test/federation/", "test/")
        raise ConfigError(
            f"federation.monitor: {metric!r} is of the test set, which may not choose the model; use a metric of the "
            f"validation data such as {metric_of_validation.replace('test/', 'val/', 1)!r}"
        )
    if metric.startswith("total/"):
        raise ConfigError(f"federation.monitor: {metric!r} is known when all rounds are over; use a metric of a round")
    if metric == "auto" and mode == "min":
        warnings.warn("federation.monitor_mode: min has no effect where federation.monitor is auto", stacklevel=3)
    known = better(metric) if mode == "auto" else mode
    if known is None:
        near = get_close_matches(metric, ("val/auroc_macro", "val/loss", "train/loss"), n=1, cutoff=0.7)
        meant = f", or did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"federation.monitor_mode: expected max or min for the metric {metric!r}, found auto, which knows losses and "
            f"AUROC; say whether more of it is better (max) or less (min){meant}"
        )
    return known


def _check_composition(aggregators: Sequence[Aggregator]) -> None:
    if twice := governed_twice(aggregators):
        raise ConfigError(f"federation.aggregators: {twice}")


def _agreed_weights(aggregators: Sequence[Aggregator], weights: str | None) -> str:
    if weights is not None:
        return weights
    stated = {a.weights: type(a).__name__ for a in aggregators if a.weights is not None}
    if len(stated) > 1:
        said = ", ".join(f"{name} {w}" for w, name in stated.items())
        raise ConfigError(f"the aggregators state different client weights ({said}); set federation.weights")
    return next(iter(stated), "examples")
