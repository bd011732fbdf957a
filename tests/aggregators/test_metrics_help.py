"""Aggregators and objectives describe the metrics that they log, and name what gives one model instead."""

import pytest
import torch
from saddle_toys import Scorer, Sites
from simulation import federated, simulate

from fedlit import aggregators
from fedlit.aggregators import CODASCA, FedBN, LocalSCGDAM, LocalSGDAM, PersonalHeads, Scaffold
from fedlit.federation.evaluation import objective_metrics
from fedlit.objectives import AUCSaddle, RatioLoss


@pytest.mark.parametrize(
    "aggregator", [Scaffold(), CODASCA(), LocalSCGDAM(), LocalSGDAM()], ids=lambda a: type(a).__name__
)
def test_every_diagnostic_has_a_sentence(aggregator):
    done = simulate(Scorer(), Sites(), federated([aggregator], rounds=1))
    logged = aggregator.diagnostics(done.server.aggregators[0], done.session.layout)
    assert set(aggregator.metrics_help) == set(logged)


@pytest.mark.parametrize("objective", [AUCSaddle(), RatioLoss()], ids=lambda o: type(o).__name__)
def test_every_metric_of_an_objective_has_a_sentence(objective):
    done = simulate(Scorer(objective=objective), Sites(), federated([], rounds=1))
    logged = {key.rpartition("/")[0] for key in objective_metrics(done.session, done.server, 1)}
    own = done.session.objective
    logged |= {f"val/{name}" for name in own.pooled(torch.randn(6, 1), torch.tensor([[0.0], [1.0]] * 3))}
    assert set(objective.metrics_help) == logged


def test_an_aggregator_that_keeps_a_part_names_one_that_ends_in_one_model():
    assert (FedBN.one_model, PersonalHeads.one_model) == ("FedBNPlus", "SurgicalHeads")
    for kind in (FedBN, PersonalHeads):
        instead = getattr(aggregators, kind.one_model)
        assert instead.governs == kind.governs
        assert instead.one_model == ""
