"""The plan of a run: all that is known before it begins, as JSON, and the table of classes that it may name.

A server sends the plan, and a site checks it. Every receiver of a configuration looks up classes in a table of its own,
at a server too. It adds the classes that its own file allows, which are imported at its start, never because a message
names them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import signature
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.optim import Optimizer

from fedlit.core.aggregator import Aggregator
from fedlit.core.errors import ConfigError
from fedlit.core.messages import Round
from fedlit.core.ranges import AT_LEAST_ONE
from fedlit.core.system.typed import Mistyped, Table, built, class_paths, made
from fedlit.experiment.choices import AXES, shipped
from fedlit.federation.callbacks import Callback
from fedlit.schedules import ConstantSchedule, Schedule
from fedlit.sites.messages import Train

OF_A_FEDERATION = (
    "optimizer_state", "gradient_clip", "gradient_clamp", "measure_batches", "memory_format", "compile",
    "threads",
)  # fmt: skip
"""Settings of the federation that a plan has."""

STARTS = ("pretrained", "weights")
"""Arguments for a model's first weights, which the server sends instead."""


@dataclass(frozen=True)
class RunPlan:
    """A run in the form that a site approves: only the weights of rounds are not in it."""

    model: dict[str, Any]  # The model: `class_path` and `init_args`.
    classes: list[str]  # Its classes, in the server's order.
    aggregators: list[Any]  # Its algorithms.
    schedule: Any  # Its schedule; None for one epoch in each round.
    rounds: int  # Number of rounds.
    seed: int  # Seed of the rounds.
    weights: str  # SHA-256 of the tensors from which it starts; "" if an earlier phase will have trained them.
    lr_factors: dict[str, float]  # Factors of the learning rates of single clients.
    # Those of :data:`OF_A_FEDERATION`.
    optimizer_state: Literal["reset", "keep"]
    gradient_clip: float | None
    gradient_clamp: float | None
    measure_batches: int
    memory_format: Literal["contiguous", "channels_last"] | None
    compile: bool | None
    threads: int
    # batch_size, eval_batch_size, limit_eval_batches: Examples in a batch, and batches in an evaluation.
    batch_size: int
    eval_batch_size: int
    limit_eval_batches: int | None
    precision: str  # Precision of the arithmetic.

    def __post_init__(self) -> None:
        for name in ("rounds", "measure_batches", "threads", "batch_size", "eval_batch_size"):
            AT_LEAST_ONE.check(name, getattr(self, name))
        if not self.classes or len(set(self.classes)) < len(self.classes):
            raise ConfigError("classes: expected different names, found none, or one twice")
        if not all(factor > 0 for factor in self.lr_factors.values()):
            raise ConfigError("lr_factors: expected factors above 0")

    def round(self, asked: Train, schedule: Schedule, measures: bool = False) -> Round:
        """Return a round from the schedule; a measuring round trains nothing.

        Raises:
            ConfigError: If there is no such round.
        """
        if not 0 <= asked.index < self.rounds:
            raise ConfigError(f"round: expected 1 to {self.rounds}, found {asked.index + 1}")
        plan = vars(schedule.plan(asked.index)) | ({"window": 0} if measures else {})
        plan |= {"participation": torch.tensor(1.0), "moments": not measures or asked.moments}
        return Round(asked.index, seed=self.seed, cohort=tuple(asked.cohort), **plan)


@dataclass(frozen=True)
class Recipe:
    """Objects of a plan."""

    plan: RunPlan  # The plan.
    module: LightningModule  # The model.
    aggregators: list[Aggregator]  # The algorithms.
    schedule: Schedule  # The schedule of rounds.


def parts_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a run's resolved configuration that a site builds: model, aggregators and schedule."""
    federation = settings["federation"]
    return {
        "model": without_start(settings["model"]),
        "aggregators": federation.get("aggregators") or [],
        "schedule": federation.get("schedule"),
    }


def read_plan(config: Mapping[str, Any], table: Table, parameters: float = float("inf")) -> Recipe:
    """Build the objects of a plan, on the CPU and with random weights, of which there are at most ``parameters``.

    Raises:
        ConfigError: If they cannot be built here, or would load weights from a file or a hub.
    """
    try:
        plan = made(RunPlan, config, "")
        if starts := [key for key in STARTS if (plan.model.get("init_args") or {}).get(key)]:
            raise Mistyped(f"model.{starts[0]}: expected nothing, as the server sends the weights; leave it out")
        model = with_classes(plan.model, plan.classes, table)
        with torch.random.fork_rng(devices=[]):
            check_size(model, table, parameters)
            module = built(LightningModule, model, "model", table)
            aggregators = built(list[Aggregator], plan.aggregators, "aggregators", table)
            schedule = built(Schedule | None, plan.schedule, "schedule", table)
            return Recipe(plan, module, aggregators, schedule or ConstantSchedule())
    except Mistyped as error:
        raise ConfigError(f"the plan cannot be built here: {error}") from error


def with_classes(model: Mapping[str, Any], classes: Sequence[str], table: Table) -> dict[str, Any]:
    """Return a model's ``class_path`` and ``init_args`` with the classes of the run, if it takes them.

    Raises:
        Mistyped: If the table does not have the model's class.
    """
    if not isinstance(model.get("class_path"), str):
        raise Mistyped("model: expected a class_path")
    cls, options = table.get(model["class_path"], LightningModule, "model: "), dict(model.get("init_args") or {})
    if "classes" in signature(cls).parameters:
        options["classes"] = list(classes)
    return {**model, "init_args": options}


def check_size(model: Mapping[str, Any], table: Table, parameters: float) -> None:
    """Count a model's weights before they take memory; if that fails, only the memory limit applies.

    Raises:
        ConfigError: If it has too many.
    """
    try:
        with torch.device("meta"):
            count = sum(p.numel() for p in built(LightningModule, model, "model", table).parameters())
    except Exception:  # its constructor reads a value; a real mistake shows when the model is built
        return
    if count > parameters:
        raise ConfigError(f"a model of {count:,} weights; limits.parameters allows {parameters:,}")


def without_start(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's configuration without its first weights and without the classes of the data."""
    options = {key: value for key, value in (model.get("init_args") or {}).items() if key not in ("classes", *STARTS)}
    return {"class_path": model["class_path"], "init_args": options}


SHIPPED = ("aggregators", "models", "objectives", "schedules")
"""Packages whose exports the table has; optimizers are those of ``torch.optim``."""

BASES = (Aggregator, Schedule, Callback, Optimizer, LightningModule, nn.Module)


@cache
def shipped_classes() -> dict[str, type]:
    """Return the classes that every receiver allows: by short name, by exported path and by canonical path."""
    table = {}
    for axis in SHIPPED:
        for cls in shipped(axis):
            table |= dict.fromkeys((cls.__name__, f"{AXES[axis].home}.{cls.__name__}", _path(cls)), cls)
    for name, cls in vars(torch.optim).items():
        if isinstance(cls, type) and issubclass(cls, Optimizer) and cls is not Optimizer:
            table |= dict.fromkeys((name, f"torch.optim.{name}", _path(cls)), cls)
    return table


def table_of(allow: Sequence[str] = ()) -> Table:
    """Return the table of a receiver; the classes that its own file allows are imported.

    Raises:
        ConfigError: If one of them cannot be imported, or is not a class of an accepted type.
    """
    allowed = {}
    for path in allow:
        module, _, name = path.rpartition(".")
        try:
            cls = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"allow: {path} cannot be imported: {error}; install the package, or remove the path"
            ) from error
        if not isinstance(cls, type) or not issubclass(cls, BASES):
            raise ConfigError(
                f"allow: expected classes that derive from one of {', '.join(base.__name__ for base in BASES)}, "
                f"found {path}"
            )
        allowed |= dict.fromkeys((path, _path(cls)), cls)
    return Table(shipped_classes() | allowed, BASES)


def lacking(config: Any, table: Table | None = None) -> list[str]:
    """Return the classes of a configuration that are not in a table, by default the one of every receiver."""
    known = shipped_classes() if table is None else table.classes
    return [path for path in class_paths(config) if path not in known]


def line_to_add(paths: Sequence[str]) -> str:
    """Return the line that a receiver writes into its own file to allow some classes."""
    return f"allow: [{', '.join(paths)}]"


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
