"""Names of methods and runs."""

import re

import pytest
from torch import nn

from fedlit.aggregators import FedBN, Scaffold
from fedlit.experiment.naming import OF_RUNS, Names, check_name, run_name
from fedlit.federation.federation import Federation
from fedlit.objectives import BCE, AUCSaddle


class Labelled(nn.Module):
    """A loss with its own label."""

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
    assert Names.of(Federation(aggregators, rounds=1), model).method == name


def test_the_default_name_of_a_run_has_its_method_its_seed_and_the_time():
    name = run_name("CODASCA-AUCSaddle", 3)
    assert re.fullmatch(r"CODASCA-AUCSaddle-seed3-\d{8}-\d{4}", name)
    check_name("name", name, OF_RUNS)
    check_name("name", run_name("+".join(["LocalSCGDAM"] * 50), 2**63), OF_RUNS)
