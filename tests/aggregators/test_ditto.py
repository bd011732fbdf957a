"""Ditto against Algorithm 1 written by hand, and the evaluation of personal models."""

import pytest
import torch
from canon_oracle import assert_equal, state, trained_by_fedlit
from refusals import refused
from simulation import federated, simulate
from toys import Problems, Quadratic, SaddleModule, ToyData, ToyNet, TwoRates

from fedlit.aggregators import Ditto, FedAvg, FedBN, Scaffold
from fedlit.core.errors import ConfigError
from fedlit.federation.evaluation import client_views
from fedlit.federation.federation import Federation
from fedlit.predictions.export import kept_parts, owner
from fedlit.schedules import Stage, StageSchedule
from fedlit.testing import OwnRows

LAM = 0.3


def test_three_rounds_equal_algorithm_1_by_hand():
    done, hand = trained_by_fedlit([Ditto(LAM)])
    personal = {}
    for cohort in done.cohorts:
        start, ends = dict(hand.x), {}
        for k in cohort:
            first = hand.drawn[k]
            ends[k] = hand.local(k, start)
            hand.drawn[k] = first

            def pulled(name, g, v, start=start):
                return g + LAM * (v - start[name])

            personal[k] = hand.local(k, personal.get(k, start), pulled)
        hand.average(cohort, ends)
    assert_equal(done, hand)
    assert 2 <= len(personal) <= 4
    for k in hand.pi:  # the client's model, or the federation's where the client has not trained
        model = state(done.session.model(done.server, k, done.states.get(k)))
        for name, expected in personal.get(k, hand.x).items():
            torch.testing.assert_close(model[name], expected, rtol=0, atol=1e-9)


def test_two_clients_and_two_steps_computed_by_hand():
    # (x - b)^2 / 2 from 0 at rate 0.1, lam = 0.5, b = 1: v = 0.1, then 0.1 - 0.1 (-0.9 + 0.05) = 0.185
    # b = 3: v = 0.3, then 0.3 - 0.1 (-2.7 + 0.15) = 0.555; w = (0.19 + 0.57) / 2
    data = Problems(one=(1.0, 1.0), two=(1.0, 3.0))
    done = simulate(Quadratic(), data, federated([Ditto(0.5)], rounds=1))
    found = [done.server.w, *(done.states[name].aggregators[0]["v"] for name in ("one", "two"))]
    expected = torch.tensor([0.38, 0.185, 0.555], dtype=torch.float64)
    torch.testing.assert_close(torch.cat(found), expected, rtol=0, atol=1e-12)


def test_a_rate_of_its_own_has_the_factors_of_the_round_and_of_the_client():
    # (x - 1)^2 / 2 from 0, lam = 0: rates 0.2 and 0.2 * 0.5 (client) in round 1, a quarter of them (round) in round 2
    schedule = StageSchedule([Stage(1, 1, "steps"), Stage(1, 1, "steps", lr_factor=0.25)])
    federation = Federation([Ditto(0.0, lr=0.2)], schedule=schedule, lr_factors={"two": 0.5})
    done = simulate(Quadratic(), Problems(one=(1.0, 1.0), two=(1.0, 1.0)), federation)
    v = {name: float(state.aggregators[0]["v"]) for name, state in done.states.items()}
    assert v == pytest.approx({"one": 1 - 0.8 * 0.95, "two": 1 - 0.9 * 0.975}, abs=1e-12)


@pytest.mark.parametrize(("lam", "expected"), [(0.0, (0.0, 1.0)), (1e3, None), (1.0, None)])
def test_lambda_leads_from_local_training_to_the_global_model(lam, expected):
    """The fixed point is (f_k + lam/2 |v - w|^2)'s: (a b + lam w) / (a + lam); lam = 0 is each client alone."""
    data = Problems(one=(1.0, 0.0), two=(2.0, 1.0))
    done = simulate(Quadratic(lr=0.4), data, federated([Ditto(lam, lr=1 / (2 + lam))], rounds=5, window=4))
    w = float(done.server.w)
    for i, (name, (a, b)) in enumerate(data.problems.items()):
        v = float(done.states[name].aggregators[0]["v"])
        assert v == pytest.approx((a * b + lam * w) / (a + lam), abs=1e-4)
        if expected:
            assert v == pytest.approx(expected[i], abs=1e-4)


def test_dual_variables_ascend_and_are_not_pulled():
    done = simulate(SaddleModule().double(), Problems(one=(2.0, 1.0)), federated([Ditto(0.5)], rounds=1))
    x, y = 1.0, 1.0
    for _ in range(2):
        x, y = x - 0.1 * (2 * x + y + 0.5 * (x - 1.0)), y + 0.1 * (x - y)
    v = done.states["one"].aggregators[0]["v"]
    torch.testing.assert_close(v, torch.tensor([x, y], dtype=torch.float64), rtol=0, atol=1e-12)


def run(aggregators):
    torch.manual_seed(0)
    return simulate(ToyNet(drop=0.0), ToyData(3, labelled=2), federated([*aggregators, OwnRows()], 2))


@pytest.mark.parametrize("others", [[], [Scaffold(), FedBN()]], ids=["FedAvg", "Scaffold and FedBN"])
def test_the_federations_model_is_trained_as_without_ditto(others):
    ours, plain = run([Ditto(), *others]), run([FedAvg(), *others])
    assert torch.equal(ours.server.w, plain.server.w)
    assert torch.equal(ours.server.stats, plain.server.stats)


def test_evaluations_score_each_client_with_its_personal_model():
    done = run([Ditto()])
    session, states = done.session, done.states
    assert session.personal == list(session.clients)
    views = client_views(session.data, "val")
    for scored in session.engine.evaluate(views, session.broadcast(done.server, session.round(0))):
        module, name = ToyNet(drop=0.0).double(), scored.view.client
        module.load_state_dict(state(session.model(done.server, name, states[name])), strict=False)
        images = session.data.clients[name].val.tensors[0].double()
        torch.testing.assert_close(scored.scores, module.eval()(images).float(), rtol=0, atol=1e-6)
        shared = state(session.model(done.server))
        assert not torch.equal(module.state_dict()["head.weight"], shared["head.weight"])
    assert kept_parts(session)["Ditto"] == ["a personal model"]
    with refused(ConfigError, "federations with FedAvg"):
        owner(session, None)


def test_with_a_rate_of_its_own_the_optimizer_may_have_several():
    simulate(TwoRates(), ToyData(2), federated([Ditto(lr=0.1)], rounds=1))
