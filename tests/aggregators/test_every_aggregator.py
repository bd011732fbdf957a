"""Properties of every aggregator: it keeps to the rules, and describes the metrics that it logs."""

import pytest
import torch
from saddle_toys import Scorer, Sites
from simulation import federated, simulate

from fedlit import aggregators
from fedlit.aggregators import (
    CODA,
    CODASCA,
    DPSGD,
    MOON,
    NPA,
    Aggregator,
    CODAPlus,
    CoordinateMedian,
    Ditto,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedBN,
    FedBNPlus,
    FedDyn,
    FedNova,
    FedPer,
    FedProx,
    FedRep,
    FedYogi,
    GradientDissimilarity,
    LocalOnly,
    LocalSCGDAM,
    LocalSGDAM,
    LocalSGDM,
    MovingAverage,
    NormBound,
    PersonalHeads,
    Scaffold,
    ServerOptimizer,
    SurgicalHeads,
    TrimmedMean,
)
from fedlit.experiment.choices import shipped
from fedlit.federation.evaluation import objective_metrics
from fedlit.objectives import AUCSaddle, RatioLoss
from fedlit.testing import ToyData, check_aggregator

IN_ONE_PROCESS = [
    CODA(0.1, "average"), CODASCA(0.1, output="random"), Ditto(), FedBNPlus(), FedDyn(), FedNova(), FedRep(),
    FedYogi(), LocalSGDM(), LocalSGDM(state="local"), NormBound(), TrimmedMean(0.2),
    ServerOptimizer(lambda p: torch.optim.Adam(p, lr=0.01)),
]  # fmt: skip
IN_WORKER_PROCESSES = [Scaffold(0.7, extra_batches=2)]
SLOWLY = [MOON(5.0), PersonalHeads()]
ELSEWHERE = {
    CODAPlus: "is CODA without measuring rounds",
    CoordinateMedian: "is TrimmedMean with another cut",
    DPSGD: "refuses BatchNorm and small clients: test_dpsgd.py",
    FedAdagrad: "differs from FedYogi by a formula",
    FedAdam: "differs from FedYogi by a formula",
    FedAvg: "has no hook",
    FedAvgM: "is a ServerOptimizer",
    FedBN: "keeps parts as PersonalHeads does, and has no state: test_composition.py",
    FedPer: "is FedRep without its steps of one part",
    FedProx: "stands beside each of these",
    GradientDissimilarity: "refuses clients with rows of their own: test_dissimilarity.py",
    LocalOnly: "keeps parts as PersonalHeads does, and has no state",
    LocalSCGDAM: "needs a module of one class: test_compositional.py",
    LocalSGDAM: "is checked on a saddle: test_momentum.py",
    MovingAverage: "is listed with others and resumed: test_moving_average.py",
    NPA: "needs a window of one step; it is CODAPlus otherwise",
    SurgicalHeads: "stands beside each of these",
}


def name_of(aggregator: Aggregator) -> str:
    return type(aggregator).__name__


@pytest.mark.parametrize("aggregator", IN_ONE_PROCESS, ids=name_of)
@pytest.mark.filterwarnings("ignore:FedBNPlus freezes")
def test_it_keeps_to_the_rules(aggregator):
    clients = 5 if isinstance(aggregator, TrimmedMean) else 3
    check_aggregator(aggregator, workers=1, data=ToyData(clients, labelled=2))


@pytest.mark.parametrize(
    "aggregator", [*IN_WORKER_PROCESSES, *(pytest.param(a, marks=pytest.mark.slow) for a in SLOWLY)], ids=name_of
)
def test_it_keeps_to_the_rules_in_worker_processes(aggregator):
    check_aggregator(aggregator)


def test_each_that_ships_is_checked():
    checked = {type(aggregator) for aggregator in (*IN_ONE_PROCESS, *IN_WORKER_PROCESSES, *SLOWLY)}
    assert checked | {*ELSEWHERE} == {*shipped("aggregators")}


@pytest.mark.parametrize("aggregator", [CODASCA(), LocalSCGDAM()], ids=name_of)
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
