"""Every argument of an aggregator, objective, schedule or optimizer changes the weights."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from simulation import simulate
from support.hostile import spread
from toys import ToyData, ToyNet

from fedlit.aggregators import (
    CODA,
    CODASCA,
    Aggregator,
    CODAPlus,
    FedAvg,
    FedProx,
    GradientDissimilarity,
    LocalSGDAM,
    LocalSGDM,
    Scaffold,
)  # fmt: skip
from fedlit.federation.federation import Federation
from fedlit.objectives import AUCSaddle, RatioLoss
from fedlit.schedules import ConstantSchedule, PracticeSchedule, Stage, StageSchedule, TheorySchedule


class Optimised(ToyNet):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer(self.parameters())


def trained(
    *aggregators: Aggregator,
    schedule: Any = None,
    objective: Any = None,
    optimizer: Any = None,
    rounds: int = 4,
    **more: Any,
) -> bytes:
    """Return the weights after some rounds."""
    torch.manual_seed(0)
    net = ToyNet() if optimizer is None else Optimised()
    if objective is not None:
        net.objective = objective
        objective.build(len(net.classes))
    if optimizer is not None:
        net.optimizer = optimizer
    schedule = schedule or StageSchedule([Stage(2, 2, "steps"), Stage(2, 3, "steps", 0.5)])
    federation = Federation(list(aggregators), rounds=rounds, schedule=schedule, **more)
    return simulate(net, ToyData(3, labelled=3), federation).server.w.numpy().tobytes()


SGD, ADAM = torch.optim.SGD, torch.optim.Adam


def made(kind: Callable, **base: Any) -> Callable:
    """Make a class with arguments, some of which are fixed."""
    return lambda **arguments: kind(**{**base, **arguments})


PARTS = [
    ("FedAvg", "aggregator", made(FedAvg), {"weights": "uniform"}),
    ("FedProx", "aggregator", made(FedProx), {"mu": 1.0}),
    ("Scaffold", "aggregator", made(Scaffold), {"eta_g": 0.5, "reset": "always"}),
    ("CODAPlus", "aggregator", made(CODAPlus), {"gamma": 1.0, "output": "average", "proximal": "implicit"}),
    ("CODA", "aggregator", made(CODA), {"gamma": 1.0, "output": "average", "proximal": "implicit"}),
    ("CODASCA", "aggregator", made(CODASCA), {"gamma": 1.0, "eta_g": 0.5, "reset": "never", "output": "average"}),
    ("GradientDissimilarity", "aggregator", made(GradientDissimilarity), {"every": 2, "batches": 2}),
    ("LocalSGDM", "aggregator", made(LocalSGDM), {"momentum": 0.5, "state": "reset"}),
    ("LocalSGDAM", "aggregator", made(LocalSGDAM), {"beta_x": 0.5}),
    ("RatioLoss", "objective", made(RatioLoss), {"a0": 2.0, "b0": 1.0, "prior": 0.01, "weigh": "both"}),
    (
        "AUCSaddle", "objective", made(AUCSaddle),
        {"margin": 2.0, "score": "raw", "form": "paper", "dual_scale": 4.0, "prior": 0.01, "start": "zeros",
            "dual_means": "clients"},
    ),
    ("AUCSaddle of a small margin", "objective", made(AUCSaddle, margin=1e-3), {"clamp": True}),
    ("ConstantSchedule", "schedule", made(ConstantSchedule, unit="steps"), {"window": 2, "unit": "epochs"}),
    (
        "Stage", "schedule", lambda **given: StageSchedule([Stage(**{"rounds": 2, "unit": "steps",
            "window": 4} | given)]),
        {"window": 2, "unit": "epochs", "lr_factor": 0.5},
    ),
    (
        "PracticeSchedule", "schedule", made(PracticeSchedule, window=2, iterations=8, decay_every=4),
        {"window": 4, "decay_every": 2, "decay": 2.0},
    ),
    (
        "TheorySchedule", "schedule", made(TheorySchedule, stages=2, window=2, iterations=4, growth=4.0),
        {"stages": 1, "window": 4, "iterations": 8, "growth": 2.0, "window_growth": "none"},
    ),
    (
        "SGD", "optimizer", lambda **given: lambda p: SGD(p, **{"lr": 0.1, "momentum": 0.9} | given),
        {"lr": 0.2, "momentum": 0.5, "dampening": 0.5, "weight_decay": 0.1, "nesterov": True, "maximize": True},
    ),
    (
        "Adam", "optimizer", lambda **given: lambda p: ADAM(p, **{"lr": 0.01, "weight_decay": 0.0} | given),
        {"lr": 0.02, "betas": (0.5, 0.9), "eps": 0.1, "weight_decay": 0.1, "amsgrad": True, "maximize": True},
    ),
]  # fmt: skip

ARGUMENTS = [(name, role, make, key, value) for name, role, make, given in PARTS for key, value in given.items()]


@cache
def before(name: str) -> bytes:
    role, make = next((role, make) for other, role, make, _ in PARTS if other == name)
    return weights_with(role, make())


def weights_with(role: str, part: Any) -> bytes:
    return trained(part) if role == "aggregator" else trained(**{role: part})


@pytest.mark.parametrize("row", spread({f"{row[0]}.{row[3]}": row for row in ARGUMENTS}))
@pytest.mark.filterwarnings("ignore:Scaffold or CODASCA")
def test_an_argument_of_a_part_changes_the_weights(row):
    name, role, make, key, value = row
    assert weights_with(role, make(**{key: value})) != before(name)


def test_a_measuring_round_looks_at_as_many_batches_as_it_is_told():
    assert trained(objective=AUCSaddle(), measure_batches=1) != trained(objective=AUCSaddle(), measure_batches=32)
