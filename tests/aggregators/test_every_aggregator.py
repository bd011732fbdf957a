"""Properties of every aggregator: it keeps to the rules, and refuses arguments and companions that do not fit."""

import math

import pytest
import torch
from refusals import refused

from fedlit.aggregators import (
    CODA,
    CODASCA,
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
from fedlit.core.errors import ConfigError
from fedlit.experiment.choices import shipped
from fedlit.federation.federation import Federation
from fedlit.testing import check_aggregator

IN_ONE_PROCESS = [
    CODA(0.1), CODAPlus(0.1, "average"), CODASCA(0.1, output="random"), CoordinateMedian(), Ditto(), FedAvg(), FedBN(),
    FedBNPlus(), FedDyn(), FedNova(), FedProx(0.5), FedRep(), LocalOnly(), LocalSGDAM(), LocalSGDM(),
    LocalSGDM(state="local"), LocalSGDM(state="reset"), MOON(), MovingAverage(0.5), NormBound(), NormBound(12.5),
    Scaffold(0.7), ServerOptimizer(lambda p: torch.optim.Adam(p, lr=0.01)), TrimmedMean(0.2),
]  # fmt: skip
IN_WORKER_PROCESSES = [PersonalHeads(), Scaffold(), SurgicalHeads()]
SLOWLY = [
    Ditto(1.0, lr=0.05), FedAdagrad(), FedAdam(), FedAvgM(), FedDyn(1.0), FedPer(), FedRep(2), FedYogi(), LocalOnly(),
    MOON(5.0), ServerOptimizer(),
]  # fmt: skip
ELSEWHERE = {
    GradientDissimilarity: "refuses clients with rows of their own: test_dissimilarity.py",
    LocalSCGDAM: "needs a module of one class: test_compositional.py",
    NPA: "needs a window of one step; it is CODAPlus otherwise",
}


def name_of(aggregator: Aggregator) -> str:
    return type(aggregator).__name__


@pytest.mark.parametrize("aggregator", IN_ONE_PROCESS, ids=name_of)
@pytest.mark.filterwarnings("ignore:FedBNPlus freezes")
def test_it_keeps_to_the_rules(aggregator):
    check_aggregator(aggregator, workers=1)


@pytest.mark.parametrize(
    "aggregator", [*IN_WORKER_PROCESSES, *(pytest.param(a, marks=pytest.mark.slow) for a in SLOWLY)], ids=name_of
)
def test_it_keeps_to_the_rules_in_worker_processes(aggregator):
    check_aggregator(aggregator)


def test_each_that_ships_is_checked():
    checked = {type(aggregator) for aggregator in (*IN_ONE_PROCESS, *IN_WORKER_PROCESSES, *SLOWLY)}
    assert checked | {*ELSEWHERE} == {*shipped("aggregators")}


@pytest.mark.parametrize(
    ("make", "mistake"),
    [
        (lambda: CODASCA(eta_g=-1.0), (ConfigError,)),
        (lambda: Ditto(-1.0), (ConfigError, "found -1")),
        (lambda: Ditto(lr=0.0), (ConfigError, "found 0")),
        (lambda: FedAdam(beta_2=1.0), (ConfigError, "FedAdam.beta_2")),
        (lambda: FedAdam(tau=0.0), (ConfigError, "FedAdam.tau")),
        (lambda: FedAvgM(1.0), (ConfigError, "FedAvgM.momentum", "found 1")),
        (lambda: FedDyn(0.0), (ConfigError, "found 0")),
        (lambda: FedNova(1.0), (ConfigError, "found 1")),
        (lambda: FedProx(-1.0), (ConfigError,)),
        (lambda: FedRep(0), (ConfigError, "FedRep.head", "found 0")),
        (lambda: FedYogi(lr=-1.0), (ConfigError, "FedYogi.lr")),
        (lambda: LocalSGDAM(beta_x=1.0), (ConfigError, "beta_x", "beta", "found 1")),
        (lambda: LocalSGDAM(beta_x=math.nan), (ConfigError, "beta_x", "nan")),
        (lambda: LocalSGDAM(beta_y=0.0), (ConfigError, "beta_y", "found 0")),
        (lambda: LocalSGDM(-0.1), (ConfigError, "found -0.1")),
        (lambda: LocalSGDM(1.0), (ConfigError, "found 1")),
        (lambda: MOON(-1.0), (ConfigError, "found -1.0")),
        (lambda: MOON(temperature=0.0), (ConfigError, "temperature", "found 0.0")),
        (lambda: MovingAverage(1.0), (ConfigError, "found 1")),
        (lambda: NormBound(0.0), (ConfigError, "found 0.0")),
        (lambda: NormBound(math.inf), (ConfigError, "inf")),
        (lambda: Scaffold(0.0), (ConfigError,)),
        (lambda: ServerOptimizer(torch.optim.LBFGS), (ConfigError, "LBFGS")),
        (lambda: TrimmedMean(0.0), (ConfigError, "found 0.0")),
        (lambda: TrimmedMean(0.5), (ConfigError, "found 0.5")),
        (lambda: TrimmedMean(math.nan), (ConfigError, "nan")),
        (lambda: Federation([FedAvg("examples"), FedAvg("uniform")]), (ConfigError,)),
    ],
)
def test_bad_values_are_refused(make, mistake):
    with refused(*mistake):
        make()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (FedAvgM(), FedAdam()), (FedDyn(), FedProx()), (FedDyn(), Scaffold()), (FedNova(), LocalSGDM()),
        (FedRep(), PersonalHeads()), (LocalOnly(), FedBN()), (LocalSGDM(), LocalSGDAM()), (NormBound(), TrimmedMean()),
    ],
    ids=name_of,
)  # fmt: skip
def test_two_that_decide_the_same_thing_are_refused(one, other):
    with refused(ConfigError, name_of(one), name_of(other)):
        Federation([one, other])
