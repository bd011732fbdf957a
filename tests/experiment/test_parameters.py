"""Parameters of runs: short names first, then those of algorithms, at most 40."""

import pytest
from torch import nn

from fedlit.aggregators import FedProx, Scaffold
from fedlit.experiment.naming import Names
from fedlit.experiment.parameters import MOST, parameters
from fedlit.federation.federation import Federation
from fedlit.objectives import BCE, AUCSaddle
from fedlit.schedules import ConstantSchedule

SETTINGS = {
    "seed": 3,
    "name": None,
    "experiment": "nih",
    "tags": {"who": "me"},
    "logger": True,
    "fabric": {"devices": 2, "precision": "32-true"},
    "data": {
        "class_path": "fedlit.data.PhantomCXR",
        "init_args": {"hospitals": 3, "batch_size": 16, "partition": None},
    },
    "model": {
        "class_path": "fedlit.models.ImageClassifier",
        "init_args": {
            "backbone": "densenet121",
            "objective": {"class_path": "fedlit.objectives.AUCSaddle", "init_args": {"margin": 1.0}},
            "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, "momentum": 0.9}},
        },
    },
    "federation": {
        "aggregators": [
            {"class_path": "fedlit.aggregators.Scaffold", "init_args": {"eta_g": 1.0}},
            {"class_path": "fedlit.aggregators.FedProx", "init_args": {"mu": 0.1}},
        ],
        "rounds": 5,
        "workers": 2,
        "schedule": {"class_path": "fedlit.schedules.ConstantSchedule", "init_args": {"window": 4, "unit": "steps"}},
    },
}


def made(settings: dict, federation: Federation, objective: nn.Module | None = None) -> dict:
    """The parameters of a run whose model has an objective."""
    model = nn.Module()
    model.objective = objective
    return parameters(settings, federation, Names.of(federation, model))


def test_short_names_come_first_then_algorithms_then_the_rest():
    federation = Federation([Scaffold(), FedProx(0.1)], rounds=5, schedule=ConstantSchedule(4, "steps"))
    found = made(SETTINGS, federation, AUCSaddle())
    assert list(found.items()) == [
        ("method", "Scaffold+FedProx-AUCSaddle"), ("aggregator", "Scaffold+FedProx"), ("objective", "AUCSaddle"),
        ("window", 4), ("rounds", 5), ("weights", "examples"), ("lr", 0.1), ("seed", 3), ("data", "PhantomCXR"),
        ("model", "ImageClassifier"), ("backbone", "densenet121"), ("optimizer", "SGD"), ("batch_size", 16),
        ("schedule", "ConstantSchedule"),
        ("with.AUCSaddle.margin", 1.0), ("with.Scaffold.eta_g", 1.0), ("with.FedProx.mu", 0.1),
        ("yaml.data.hospitals", 3), ("yaml.federation.schedule.unit", "steps"),
        ("yaml.fabric.precision", "32-true"), ("yaml.model.optimizer.momentum", 0.9),
    ]  # fmt: skip
    names = sorted(found)  # as pages show them
    assert [name for name in names if "." not in name] == names[:14]
    assert names[0] == "aggregator"


def test_there_are_at_most_forty():
    many = SETTINGS | {"data": {"class_path": "x.Data", "init_args": {f"option_{i}": i for i in range(100)}}}
    found = made(many, Federation([], rounds=1), BCE())
    assert len(found) == MOST == 40
    assert list(found)[:3] == ["method", "aggregator", "objective"]
    assert not any(name.startswith("yaml.model.optimizer") for name in found)


@pytest.mark.parametrize("bare", [{}, {"model": {"class_path": "mine.Net", "init_args": {"lr": 0.5}}}])
def test_a_model_of_ones_own_has_what_it_has(bare: dict):
    found = made(bare, Federation([], rounds=1))
    assert "objective" not in found
    assert found.get("lr") == (0.5 if bare else None)
    assert found["method"] == "FedAvg"
