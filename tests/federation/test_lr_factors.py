"""A learning rate for each client: the linked code of surgical aggregation has 1e-5 for NIH and 5e-5 for CheXpert."""

import pytest
import torch
from hostile import spread
from oracle import Oracle
from simulation import simulate
from toys import CLASSES, ToyData, ToyNet, with_objective

from fedlit.aggregators import (
    CODASCA,
    CODAPlus,
    FedAvg,
    FedProx,
    LocalSCGDAM,
    LocalSGDAM,
    LocalSGDM,
    Scaffold,
    SurgicalHeads,
)
from fedlit.experiment.phases import Phase
from fedlit.federation.federation import Federation
from fedlit.objectives import AUCSaddle
from fedlit.schedules import PracticeSchedule

SCHEDULE = {"window": 3, "iterations": 9, "decay_every": 6}
FACTORS = {"site-0": 0.2, "site-2": 3.0}


def federation(aggregators, **options) -> Federation:
    return Federation(aggregators, schedule=PracticeSchedule(**SCHEDULE), **options)


CASES = {
    "fedavg": ([FedAvg()], {}),
    "fedprox": ([FedProx(0.7)], {"mu": 0.7}),
    "scaffold": ([Scaffold()], {"scaffold": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_each_client_steps_at_its_own_rate_as_in_the_loop_written_by_hand(case):
    aggregators, options = CASES[case]
    torch.manual_seed(3)
    module, data = ToyNet(drop=0.0, lr=0.2).double(), ToyData(clients=3, batch_size=1000)
    done = simulate(module, data, federation(aggregators, lr_factors=FACTORS))
    weights = {name: client.weight for name, client in done.session.clients.items()}
    tensors = {name: each.train.tensors for name, each in done.session.data.clients.items()}
    doubled = {name: (x.double(), y.double()) for name, (x, y) in tensors.items()}
    hand = Oracle(module, doubled, weights, 0.2, 3, factors=FACTORS, **options)
    for cohort, lr in zip(done.cohorts, (0.2, 0.2, 0.2 / 3), strict=True):
        hand.lr = lr
        hand.round(list(cohort))
    for entry in done.session.layout.parameters:
        torch.testing.assert_close(entry.view(done.server.w), hand.x[entry.name], rtol=1e-11, atol=1e-12)


class OneClass(ToyData):
    """The toys with only their first class, as LocalSCGDAM needs it."""

    def __init__(self, clients):
        super().__init__(clients)
        self.classes = CLASSES[:1]

    def setup(self, stage=None):
        super().setup(stage)
        for each in self.clients.values():
            each.classes = CLASSES[:1]
            for part in (each.train, each.val, each.test):
                part.tensors = (part.tensors[0], part.tensors[1][:, :1])


ALGORITHMS = {
    "CODASCA": [CODASCA(gamma=0.5)],
    "CODA+, implicit": [CODAPlus(gamma=0.5, proximal="implicit")],
    "LocalSGDM": [LocalSGDM()],
    "LocalSGDAM": [LocalSGDAM()],
    "LocalSCGDAM": [LocalSCGDAM()],
    "together": [SurgicalHeads(), Scaffold(), FedProx(0.1)],
}


@pytest.mark.parametrize("aggregators", spread(ALGORITHMS, 2))
def test_alone_a_client_with_a_factor_is_one_at_that_rate(aggregators):
    """Whatever an algorithm does with the rate, the factor is part of it."""
    ends = []
    for lr, factors in ((0.02, {"site-0": 5.0}), (0.1, None), (0.02, None)):
        torch.manual_seed(0)
        model = with_objective(AUCSaddle(), classes=CLASSES[:1], drop=0.0, lr=lr).double()
        ends.append(simulate(model, OneClass(clients=1), federation(aggregators, lr_factors=factors)).server.w)
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-10, atol=1e-12)
    assert (ends[0] - ends[2]).abs().max() > 1e-5


def test_a_factor_of_a_client_that_does_not_take_part_now_is_accepted():
    module, data = ToyNet(), ToyData(clients=3)
    done = simulate(module, data, federation([], clients=["site-1", "site-2"], lr_factors=FACTORS), "32-true")
    assert {name: client.lr_factor for name, client in done.session.clients.items()} == {"site-1": 1.0, "site-2": 3.0}


def test_a_phase_trains_all_alike_unless_it_says_otherwise():
    main = Federation(lr_factors=FACTORS)
    assert Phase("warm-up").federation(main).lr_factors is None
    assert Phase("warm-up", lr_factors={"site-1": 2.0}).federation(main).lr_factors == {"site-1": 2.0}
