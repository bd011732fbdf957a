"""What runs are called: the aggregators, and the objective where it has a label."""

import re

import pytest
from torch import nn

from fedlit.aggregators import FedBN, Scaffold
from fedlit.experiment.naming import OF_RUNS, check_name, method_name, run_name
from fedlit.federation.federation import Federation
from fedlit.objectives import BCE, AUCSaddle


class Labelled(nn.Module):
    """A loss with a name of its own."""

    objective_label = "Ours"


@pytest.mark.parametrize(
    ("aggregators", "objective", "name"),
    [
        ([], BCE(), "FedAvg"),
        ([], AUCSaddle(), "FedAvg-AUCSaddle"),
        ([Scaffold(), FedBN()], BCE(), "Scaffold+FedBN"),
        ([], Labelled(), "FedAvg-Ours"),
        ([], None, "FedAvg"),
        ([], lambda logits, labels: 0.0, "FedAvg"),
    ],
    ids=["BCE", "AUC", "list", "own label", "no objective", "a function"],
)
def test_a_method_is_called_by_its_aggregators_and_its_objective(aggregators, objective, name):
    model = nn.Module()
    model.objective = objective
    assert method_name(Federation(aggregators, rounds=1), model) == name


def test_a_run_is_named_by_its_method_and_seed_and_when_it_began():
    name = run_name("CODASCA-AUCSaddle", 3)
    assert re.fullmatch(r"CODASCA-AUCSaddle-seed3-\d{8}-\d{4}", name)
    check_name("name", name, OF_RUNS)
    check_name("name", run_name("+".join(["LocalSCGDAM"] * 50), 2**63), OF_RUNS)
