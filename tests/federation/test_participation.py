"""Participation plans: which clients train when, and plans that do not fit their clients."""

import numpy as np
import pytest
import torch
from engine_rounds import opened
from refusals import refused
from simulation import simulate
from torch.utils.data import TensorDataset
from toys import Quadratic, ToyData, ToyNet

import fedlit
from fedlit.aggregators import FedDyn, Scaffold
from fedlit.core.errors import ConfigError
from fedlit.core.randomness import generator
from fedlit.federation.description import announcement
from fedlit.federation.federation import Federation
from fedlit.federation.monitor import Monitor
from fedlit.federation.participation import Availability, Cohorts, Cyclic, HighestLoss, Participation, Share, Timetable
from fedlit.schedules import ConstantSchedule

SITES = [f"site-{k}" for k in range(5)]


def cohorts(plan, rounds=6, seed=0, clients=SITES):
    plan.check(clients, rounds)
    return [plan.cohort(clients, index, seed) for index in range(rounds)]


def test_groups_take_turns():
    assert cohorts(Cyclic(2), 3) == [SITES[::2], SITES[1::2], SITES[::2]]
    for groups in range(1, 6):
        one_turn = cohorts(Cyclic(groups), groups)
        assert sorted(name for cohort in one_turn for name in cohort) == SITES


def test_a_table_names_the_rounds_of_each_site():
    plan = Timetable({"site-0": [1, 2], "site-1": [2, 3]}, period=3)
    found = cohorts(plan, 4, clients=SITES[:2])
    assert found == [SITES[:1], SITES[:2], SITES[1:2], SITES[:1]]
    assert plan.share(SITES[:2]) == pytest.approx(4 / 6)


def test_availability_has_its_probabilities_and_its_least_number():
    plan = Availability({"site-0": 0.2, "site-1": 0.7}, least=2)
    found = cohorts(plan, 2000, clients=SITES[:3])
    share = [sum(name in cohort for cohort in found) / 2000 for name in SITES[:3]]
    # site-2 always; with it alone, which happens in 0.8 * 0.3 of the rounds, the nearer of the others joins
    assert share[2] == 1
    assert 0.2 <= share[0] <= 0.2 + 0.24
    assert share[0] + share[1] == pytest.approx(0.2 + 0.7 + 0.24, abs=0.04)
    assert min(map(len, found)) == 2
    free = cohorts(Availability(0.4), 2000)
    assert sum(map(len, free)) / 10000 == pytest.approx(0.4 + 0.6**5 / 5, abs=0.02)
    assert free == cohorts(Availability(0.4), 2000)
    assert free != cohorts(Availability(0.4), 2000, seed=1)


def test_a_number_draws_the_cohorts_that_it_has_always_drawn():
    for index in range(5):
        drawn = torch.randperm(5, generator=generator(7, "cohort", index))[:2]
        assert Share(0.4).cohort(SITES, index, 7) == [SITES[i] for i in sorted(drawn.tolist())]
    assert Share().cohort(SITES, 0, 7) == SITES


def test_a_federation_trains_the_clients_of_its_plan():
    plan = Timetable({"site-0": [1, 2], "site-1": [2], "site-2": [3]})
    settings = {"rounds": 3, "schedule": ConstantSchedule(1, "steps"), "participation": plan}
    done = simulate(ToyNet(), ToyData(3), Federation([Scaffold()], **settings), "32-true")
    assert done.cohorts == [("site-0",), ("site-0", "site-1"), ("site-2",)]
    ends = []
    for workers in (1, 2):
        federation = Federation([FedDyn()], rounds=2, participation=Cyclic(2), schedule=ConstantSchedule(1, "steps"))
        with opened(federation, ToyNet(), ToyData(4), workers) as (session, _):
            ends.append([session.round(index).cohort for index in range(3)])
    assert ends[0] == ends[1] == [("site-0", "site-2"), ("site-1", "site-3"), ("site-0", "site-2")]


class Own(Participation):
    """A user's plan: a function of the clients."""

    def __init__(self, draw):
        self.draw = draw

    def cohort(self, clients, index, seed):
        return self.draw(clients)


@pytest.mark.parametrize("kind", [reversed, set, dict.fromkeys, np.array])
def test_a_cohort_may_be_of_any_kind_and_has_the_order_of_the_clients(kind):
    cohorts = Cohorts(Own(lambda clients: kind(clients[1:3])), SITES, 2, 0)
    assert [cohorts.of(0), cohorts.of(1)] == [("site-1", "site-2")] * 2
    assert {type(name) for name in cohorts.of(0)} == {str}
    assert (cohorts.smallest, cohorts.largest, cohorts.idle) == (2, 2, ["site-0", "site-3", "site-4"])


def test_a_run_names_clients_that_no_round_trains():
    def announced(rounds):
        plan = Timetable({"site-0": [1], "site-1": [2], "site-2": [1], "site-3": [3]}, period=3)
        with opened(Federation(rounds=rounds, participation=plan), ToyNet(), ToyData(4), 1) as (session, _):
            return " ".join(announcement(session, Monitor("val/loss", "min")))

    assert "no round trains site-3; " in announced(2)
    assert "no round trains" not in announced(3)
    assert "no round trains" not in announced(1)  # a trial run


def trained(fitted) -> list[set[str]]:
    """Return the clients of each round."""
    columns = {name: fitted.metrics[f"client/{name}/train_loss"].dropna() for name in ("a", "b", "c", "d")}
    return [{name for name, losses in columns.items() if step in losses.index} for step in fitted.metrics.index if step]


def test_clients_with_the_highest_losses_train_also_after_a_resume(tmp_path):
    def fit(rounds: int, **more):
        parts = [TensorDataset(torch.full((8, 1), 1.0 + k), torch.full((8, 1), 2.0 + k)) for k in range(4)]
        clients = dict(zip("abcd", parts, strict=True))
        more |= {"participation": HighestLoss(2, 3), "workers": 1, "run_dir": tmp_path, "monitor": "train/loss"}
        return fedlit.fit(Quadratic(), clients, batch_size=4, rounds=rounds, checkpoint_every=1, **more)

    whole, half = fit(6, name="whole"), fit(3, name="half")
    resumed = fit(6, ckpt_path=half.directory)
    assert trained(whole) == trained(half) + trained(resumed)[3:]
    assert set(map(len, trained(whole))) == {2}


def test_the_highest_losses_are_chosen_of_the_candidates():
    plan = HighestLoss(2)
    assert set(plan.select(SITES, 0, 0, {name: float(k) for k, name in enumerate(SITES)})) == {*SITES[-2:]}
    assert SITES[0] in plan.select(SITES, 0, 0, {name: 1.0 for name in SITES[1:]})
    drawn = {name for index in range(30) for name in HighestLoss(1, 2).select(SITES, index, 0, {SITES[0]: 9.0})}
    assert drawn >= {*SITES[1:]}


def test_an_undefined_loss_leaves_the_order_of_the_others():
    cohorts = Cohorts(HighestLoss(1), SITES, 3, seed=0)
    cohorts.learn(dict(zip(SITES, range(len(SITES)), strict=True)))
    last = cohorts.of(1)
    cohorts.learn(dict.fromkeys(SITES[:-1], float("nan")))
    assert cohorts.of(1) == last == (SITES[-1],)


def test_a_plan_that_changes_the_number_of_clients_with_the_losses_is_refused():
    class Growing(Participation):
        def select(self, clients, index, seed, losses):
            return clients[: 1 + len(losses)]

    cohorts = Cohorts(Growing(), SITES, 3, 0)
    assert cohorts.of(0) == (SITES[0],)
    cohorts.losses = {SITES[0]: 1.0}
    with refused(ConfigError, "Growing.select, round 2", "expected 1 to 1", "found 2"):
        cohorts.of(1)
