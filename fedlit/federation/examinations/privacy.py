"""Checks of a run whose steps are private: nothing else may read training images, or follow them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lightning.pytorch import LightningModule
from torch import nn

from fedlit.core.aggregator import Aggregator
from fedlit.core.batches import PoissonStream
from fedlit.core.local_training import LocalTraining
from fedlit.core.measuring import objective_of
from fedlit.core.messages import Round
from fedlit.core.objective import Objective
from fedlit.core.schedule import Schedule
from fedlit.federation.examinations.examination import Examination
from fedlit.federation.participation import Participation

FEWEST = 20
"""Least number of a client's patients: each of fewer is a large part of every step."""


@dataclass(frozen=True)
class PrivateRun:
    """A run of a private algorithm: its settings, its module as aggregators have configured it, and its batches."""

    module: LightningModule
    aggregators: Sequence[Aggregator]
    schedule: Schedule
    rounds: int
    training: LocalTraining
    precision: str  # Precision of the arithmetic.
    streams: Mapping[str, PoissonStream]
    cohorts: Participation | None = None  # How clients are chosen; a site does not know it.


class NothingElseReadsImages(Examination[PrivateRun]):
    """If an aggregator makes steps private, nothing else reads training images or labels, or follows them."""

    name = "private steps"
    advice = "leave one of the two out"

    def problem(self, run: PrivateRun) -> str:
        """Name what would leave a client without noise, and why."""
        reason = next((each for each in (*_of_settings(run), *_of_module(run.module), *_of_data(run)) if each), "")
        return reason and f"{next(type(a).__name__ for a in run.aggregators if a.private)}: {reason}"


def _of_settings(run: PrivateRun) -> Iterator[str]:
    for aggregator in run.aggregators:
        name = type(aggregator).__name__
        if aggregator.implements("extra_loss"):
            yield f"{name} adds to the loss (extra_loss), and its term need not be that of one image; leave it out"
        if aggregator.implements("personalise"):
            yield f"{name} trains a second model on the same images, without noise; leave it out"
        if aggregator.batches_per_step > 1:
            yield f"{name} draws {aggregator.batches_per_step} batches for a step, and one is accounted; leave it out"
        if aggregator.implements("measures") and _measures(aggregator, run):
            yield f"{name} asks for measuring rounds, which read images without noise; leave it out"
    if run.training.bounds:
        yield "federation.gradient_clip or gradient_clamp would act on the noise too; leave it out"
    if run.training.compiled:
        yield "federation.compile does not fit gradients of single images; leave it out"
    if run.precision == "bf16-mixed":
        yield "fabric.precision: expected 32-true or 64-true, found bf16-mixed, whose norms are too coarse; change it"
    if run.cohorts is not None and type(run.cohorts).select is not Participation.select:
        yield f"federation.participation: {type(run.cohorts).__name__} follows training losses; set a share"


def _measures(aggregator: Aggregator, run: PrivateRun) -> bool:
    rounds = (Round(index=i, seed=0, **vars(run.schedule.plan(i))) for i in range(run.rounds))
    return any(aggregator.measures(rnd, when) for rnd in rounds for when in ("before", "after"))


def _of_module(module: LightningModule) -> Iterator[str]:
    modes = [(part, part.training) for part in module.modules()]
    module.train()
    mixing = [
        name
        for (name, part), (_, training) in zip(module.named_modules(), modes, strict=True)
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.training and training
    ]
    for part, training in modes:
        part.training = training
    if mixing:
        yield f"{mixing[0]} computes with statistics of images; freeze it, or set model.norm: group"
    objective = objective_of(module)
    if objective is not None and type(objective).settle_client is not Objective.settle_client:
        yield f"{type(objective).__name__} has constants of a client's labels; use another objective"
    if objective is not None and objective.measured:
        fix = "set its prior" + " and start: zeros" * hasattr(objective, "start")
        yield f"{type(objective).__name__} measures labels or scores before the first round; {fix}"


def _of_data(run: PrivateRun) -> Iterator[str]:
    for name, stream in run.streams.items():
        where = f"client {name!r}"
        if getattr(stream.dataset, "sampler", None) is not None:
            yield f"data.sampler draws the images of {where} by their labels; leave it out"
        if stream.declared < FEWEST:
            yield f"{where}: expected at least {FEWEST} patients, found {stream.declared}; leave the client out"
        if stream.batch_size > stream.declared:
            yield (
                f"data.batch_size: expected at most the patients of {where}, {stream.declared}, found "
                f"{stream.batch_size}; lower it"
            )
