"""Federated deep AUC maximisation in cases with a closed solution, or equal to another algorithm."""

import numpy as np
import pytest
import torch
from fdam_oracle import pairwise
from fdam_toys import Scorer, Sites
from hypothesis import given, settings
from hypothesis import strategies as some
from simulation import federated, simulate
from torch import nn

from fedlit.aggregators import CODASCA, CODAPlus
from fedlit.data import ClientData
from fedlit.federation.federation import Federation
from fedlit.objectives import AUCSaddle
from fedlit.schedules import Stage, StageSchedule

HETEROGENEOUS = {"north": (24, 0.25, ()), "south": (40, 0.6, ())}
pytestmark = pytest.mark.filterwarnings("ignore:Scaffold or CODASCA. the schedule has a stage")


class Whole(Sites):
    """Data in which a batch is a client's whole training set."""

    def __init__(self, sites, **options) -> None:
        super().__init__(sites, batch_size=1000, **options)


class Twins(Whole):
    """Every client has the first one's data."""

    def setup(self, stage=None):
        super().setup(stage)
        first = next(iter(self.clients.values()))
        self.clients = {n: ClientData(n, first.classes, first.train) for n in self.clients}


class Linear(Scorer):
    """h = w x, without a bias, which could shift together with a and b."""

    def __init__(self, lr: float) -> None:
        super().__init__(inputs=2, lr=lr, score="raw")
        self.head = nn.Linear(2, 1, bias=False)


def run(aggregator, data, module, stages, after_round=lambda done: None):
    return simulate(module, data, Federation([aggregator], schedule=StageSchedule(stages)), after_round=after_round)


def perceptron() -> Scorer:
    torch.manual_seed(5)
    return Scorer(hidden=5, lr=0.2).double()


@pytest.mark.parametrize(("window", "eta_g"), [(1, 1.0), (3, 1.4)])
def test_eq_7_is_eq_6(window, eta_g):
    """Averaged over clients, eq. 6 is c = (x_{r-1} - x_r) / (eta_g I eta_l); means of gradients must equal it."""
    data = Sites({"north": (13, 0.2, ()), "south": (21, 0.5, ()), "east": (9, 0.4, ())})
    seen = []

    def check(done) -> None:
        c, lr = done.server.aggregators[0]["c"], 0.2 * (1.0 if len(seen) < 3 else 0.5)
        if seen:
            moved = (seen[-1] - done.server.w) / (eta_g * window * lr)
            torch.testing.assert_close(c, moved, rtol=1e-9, atol=1e-9)
            assert c.abs().max() > 1e-3
        c_k = [state.aggregators[0]["c"] for state in done.states.values()]
        torch.testing.assert_close(c, sum(c_k) / 3, rtol=1e-9, atol=1e-12)
        seen.append(done.server.w.clone())

    stages = [Stage(3, window, "steps"), Stage(2, window, "steps", 0.5)]
    run(CODASCA(0.3, eta_g), data, perceptron(), stages, check)
    assert len(seen) == 5


def test_among_identical_clients_codasca_is_coda_plus():
    data = Twins({"north": (24, 0.25, ()), "south": (24, 0.25, ())})
    stages = [Stage(3, 3, "steps"), Stage(2, 2, "steps", 0.5)]
    one, other = (run(a, data, perceptron(), stages) for a in (CODASCA(0.3), CODAPlus(0.3)))
    torch.testing.assert_close(one.server.w, other.server.w, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(one.server.stats, other.server.stats, rtol=1e-11, atol=1e-12)


def test_one_round_a_stage_with_reset_is_coda_plus():
    """Federation refuses it as useless, so its check gets a schedule of longer stages."""
    data, ends = Sites({"north": (13, 0.2, ()), "south": (21, 0.5, ())}), []
    for aggregator in (CODASCA(0.3, reset="always"), CODAPlus(0.3), CODASCA(0.3, reset="never")):
        federation = federated([aggregator], rounds=3, window=2)
        federation.schedule = StageSchedule([Stage(1, 2, "steps")] * 3)
        ends.append(simulate(perceptron(), data, federation).server.w)
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=0)
    assert (ends[2] - ends[1]).abs().max() > 1e-4


def moments(data: Sites) -> list[tuple[np.ndarray, np.ndarray]]:
    data.setup()
    found = []
    for client in data.clients.values():
        x, y = (t.double().numpy() for t in client.train.tensors)
        found.append((x, y[:, 0]))
    return found


def operators(clients, p: float) -> list[np.ndarray]:
    """Each client's matrix B_k of its field (descent on w, a, b, ascent on alpha), B_k (w, a, b, alpha) - r."""
    found = []
    for x, y in clients:
        n, d = x.shape
        sides = []
        for value in (1, 0):
            xs = x[y == value]
            sides.append((len(xs) / n, xs.sum(0) / n, xs.T @ xs / n))
        (q, sp, spp), (qn, sn, snn) = sides
        lever = p * sn - (1 - p) * sp
        matrix = np.zeros((d + 3, d + 3))
        matrix[:d, :d] = 2 * (1 - p) * spp + 2 * p * snn
        matrix[:d, d], matrix[:d, d + 1], matrix[:d, d + 2] = -2 * (1 - p) * sp, -2 * p * sn, 2 * lever
        matrix[d, :d], matrix[d, d] = -2 * (1 - p) * sp, 2 * (1 - p) * q
        matrix[d + 1, :d], matrix[d + 1, d + 1] = -2 * p * sn, 2 * p * qn
        matrix[d + 2, :d], matrix[d + 2, d + 2] = -2 * lever, 2 * p * (1 - p)
        found.append(matrix)
    return found


def pooled_saddle(clients) -> np.ndarray:
    """Weighted least squares over all pairs of a positive and a negative, across clients; then a, b, alpha."""
    x = np.concatenate([x for x, _ in clients])
    y = np.concatenate([y for _, y in clients])
    weight = np.concatenate([np.full(len(y), 1 / len(y)) for _, y in clients])
    above, below = x.T @ np.diag(weight) @ x * 0, np.zeros(x.shape[1])
    for i in np.flatnonzero(y == 1):
        for j in np.flatnonzero(y == 0):
            difference = x[i] - x[j]
            above += weight[i] * weight[j] * np.outer(difference, difference)
            below += weight[i] * weight[j] * difference
    w = np.linalg.solve(above, below)
    a, b = ((weight * (y == v) * (x @ w)).sum() / (weight * (y == v)).sum() for v in (1, 0))
    return np.array([*w, a, b, 1 + b - a])


@pytest.mark.slow
def test_codasca_reaches_the_pooled_saddle_where_coda_plus_keeps_the_bias_that_algebra_predicts():
    window, lr, rounds = 8, 0.16, 25
    data = Whole(HETEROGENEOUS, inputs=2)
    clients = moments(data)
    p = float(np.mean([y.mean() for _, y in clients]))
    saddle, matrices = pooled_saddle(clients), operators(clients, p)
    r = np.array([0, 0, 0, 0, 2 * p * (1 - p)])
    np.testing.assert_allclose(np.linalg.solve(np.mean(matrices, axis=0), r), saddle, rtol=1e-9)
    # each client's window is affine, x -> M_k^I x + s_k; CODA+ rests where their mean does not move
    steps = [np.eye(5) - lr * matrix for matrix in matrices]
    many = [np.linalg.matrix_power(step, window) for step in steps]
    shifts = [sum(np.linalg.matrix_power(s, j) for j in range(window)) @ (lr * r) for s in steps]
    biased = np.linalg.solve(np.eye(5) - np.mean(many, axis=0), np.mean(shifts, axis=0))
    ends = {}
    for aggregator in (CODASCA(0.0), CODAPlus(0.0)):
        torch.manual_seed(1)
        done = run(aggregator, data, Linear(lr).double(), [Stage(rounds, window, "steps")])
        names = ("head.weight", "objective.a", "objective.b", "objective.alpha")
        ends[type(aggregator)] = torch.cat([done.tensor(n).flatten() for n in names]).numpy()
    np.testing.assert_allclose(ends[CODASCA], saddle, rtol=0, atol=1e-6)
    np.testing.assert_allclose(ends[CODAPlus], biased, rtol=0, atol=1e-5)
    assert np.abs(biased - saddle).max() > 0.05


@settings(max_examples=25, deadline=None)
@given(
    some.lists(some.tuples(some.floats(-3, 3), some.booleans()), min_size=2, max_size=15).filter(
        lambda pairs: len({positive for _, positive in pairs}) == 2
    ),
    some.floats(0.1, 2),
    some.sampled_from(["margin", "paper"]),
    some.sampled_from(["sigmoid", "raw"]),
)
def test_at_the_saddle_of_a_b_alpha_the_objective_is_the_pairwise_surrogate(pairs, margin, form, score):
    logits = torch.tensor([[s] for s, _ in pairs], dtype=torch.float64)
    labels = torch.tensor([[float(y)] for _, y in pairs], dtype=torch.float64)
    margin = 1.0 if form == "paper" else margin
    objective = AUCSaddle(margin, score, form)
    objective.build(1)
    objective.double().settle(objective.measure(logits, labels, labels))
    p = labels.mean()
    h = objective.scores(logits)[:, 0]
    constant = p * (1 - p) if form == "paper" else 0.0
    value = objective(logits, labels)
    torch.testing.assert_close(value + constant, p * (1 - p) * pairwise(h, labels[:, 0], margin), rtol=1e-6, atol=1e-6)
    for name, sign in (("a", 1), ("b", 1), ("alpha", -1)):
        for step in (-0.1, 0.1):
            with torch.no_grad():
                getattr(objective, name).add_(step)
                assert sign * float(objective(logits, labels) - value) > 0
                getattr(objective, name).sub_(step)
