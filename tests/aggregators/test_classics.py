"""FedAvg, FedProx, SCAFFOLD and FedBN against explicit loops, in float64."""

import copy
import re
from importlib import import_module
from operator import attrgetter

import pytest
import torch
from oracle import Oracle
from simulation import federated, simulate
from toys import Problems, Quadratic, SaddleModule, ToyData, ToyNet

from fedlit.aggregators import Aggregator, FedAvg, FedBN, FedProx, Scaffold

WHOLE = 1000
"""A batch size that no training set reaches, so that the order of examples does not matter."""

NORM = frozenset(f"body.1.{n}" for n in ("weight", "bias", "running_mean", "running_var"))


CASES = {
    "fedavg": ([FedAvg()], {}),
    "uniform": ([FedAvg("uniform")], {"uniform": True}),
    "fedprox": ([FedProx(0.7)], {"mu": 0.7}),
    "scaffold, eta_g": ([Scaffold(0.5)], {"scaffold": True, "eta_g": 0.5}),
    "fedbn": ([FedBN()], {"local": NORM}),
    "all": ([FedBN(), Scaffold(), FedProx(0.3)], {"local": NORM, "scaffold": True, "mu": 0.3}),
}


@pytest.mark.parametrize(("case", "participation"), [*((case, 0.5) for case in CASES), ("all", 1.0)])
def test_trajectory_equals_the_loop_written_by_hand(case, participation):
    aggregators, options = CASES[case]
    options = dict(options)
    torch.manual_seed(3)
    module, data = ToyNet(drop=0.0, lr=0.2).double(), ToyData(batch_size=WHOLE, clients=4)
    done = simulate(module, data, federated(aggregators, 3, 2, participation=participation))
    clients = done.session.clients
    uniform = options.pop("uniform", False)
    weights = {n: 1 / len(clients) if uniform else c.weight for n, c in clients.items()}
    tensors = {n: d.train.tensors for n, d in done.session.data.clients.items()}
    hand = Oracle(module, {n: (x.double(), y.double()) for n, (x, y) in tensors.items()}, weights, 0.2, 2, **options)
    for cohort in done.cohorts:
        hand.round(list(cohort))
    if participation < 1:
        assert {len(c) for c in done.cohorts} == {2}
        assert len(set(done.cohorts)) > 1
    for name, tensor in (done.parameters() | done.buffers()).items():
        if name not in hand.local:
            torch.testing.assert_close(tensor, hand.x[name], rtol=1e-11, atol=1e-12)
    for name, state in done.states.items():
        for position, aggregator in enumerate(aggregators):
            if isinstance(aggregator, Scaffold):
                for key, ours in done.parameters(state.aggregators[position]["c"]).items():
                    if key not in hand.local:
                        torch.testing.assert_close(ours, hand.c_k[name][key], rtol=1e-8, atol=1e-10)
        if hand.local:
            ours = torch.cat([state.w, state.stats])
            order = [f"body.1.{n}" for n in ("weight", "bias", "running_mean", "running_var")]
            torch.testing.assert_close(ours, torch.cat([hand.kept[name][n] for n in order]), rtol=1e-11, atol=1e-12)


def test_fixed_point_scaffold_reaches_the_optimum_and_fedavg_does_not():
    # f_1 = (x - 0)^2 / 2, f_2 = 4 (x - 1)^2 / 2: the mean of both is least at 0.8
    data = Problems(one=(1.0, 0.0), two=(4.0, 1.0))
    many = {"rounds": 25, "window": 3}
    plain = simulate(Quadratic(lr=0.2), data, federated([FedAvg("uniform")], **many)).server.w
    corrected = simulate(Quadratic(lr=0.2), data, federated([FedAvg("uniform"), Scaffold()], **many)).server.w
    torch.testing.assert_close(corrected, torch.tensor([0.8], dtype=torch.float64), rtol=0, atol=1e-9)
    # FedAvg's own fixed point: x = mean of b_k + (1 - lr a_k)^3 (x - b_k)
    kept = [(1 - 0.2 * a) ** 3 for a in (1.0, 4.0)]
    expected = (1 - kept[1]) / (2 - kept[0] - kept[1])
    torch.testing.assert_close(plain, torch.tensor([expected], dtype=torch.float64), rtol=0, atol=1e-9)
    assert abs(expected - 0.8) > 0.1


@pytest.mark.parametrize("aggregators", [[], [FedProx(0.5)], [FedAvg("uniform"), Scaffold()]])
def test_dual_parameters_ascend_and_are_not_pulled(aggregators):
    """Two explicit steps: x descends (pulled by FedProx), y ascends (never pulled)."""
    data = Problems(one=(2.0, 1.0))
    done = simulate(SaddleModule().double(), data, federated(aggregators, rounds=1))
    mu = 0.5 if any(isinstance(a, FedProx) for a in aggregators) else 0.0
    x, y = 1.0, 1.0
    for _ in range(2):
        gx, gy = 2.0 * x + y + mu * (x - 1.0), x - 1.0 * y
        x, y = x - 0.1 * gx, y + 0.1 * gy
    assert done.session.layout.slices["dual"] == slice(1, 2)
    torch.testing.assert_close(done.server.w, torch.tensor([x, y], dtype=torch.float64), rtol=1e-12, atol=0)


class SaddlesApart(SaddleModule):
    """``a/2 x^2 + x y - a/2 (y - b)^2`` with a and b of a client."""

    def training_step(self, batch, batch_idx):
        (a, b), x, y = batch, self.objective.x, self.objective.y
        return (a / 2 * x**2 + x * y - a / 2 * (y - b) ** 2).mean()


def test_scaffold_corrects_duals_too():
    """Two sites with different saddles: the joint saddle is the fixed point of SCAFFOLD, not of FedAvg."""
    data = Problems(one=(1.0, 3.0), two=(5.0, 0.5))
    saddle = torch.tensor([-0.275, 0.825], dtype=torch.float64)  # 3 x + y = 0 and x - 3 y + 2.75 = 0
    module = SaddlesApart().double()
    module.lr = 0.2
    for aggregators, reached in (([FedAvg("uniform"), Scaffold()], True), ([FedAvg("uniform")], False)):
        end = simulate(module, data, federated(aggregators, rounds=30)).server.w
        assert ((end - saddle).abs().max() < 1e-8) == reached, end


def test_a_window_in_epochs_gives_each_client_its_own_number_of_steps():
    data = ToyData(clients=3, size=9, batch_size=4)
    done = simulate(ToyNet(), data, federated([], rounds=1, unit="epochs"), "32-true")
    # 9, 11, 13 images in batches of 4; the single left-over image of 9 and 13 is dropped
    assert {name: state.batches for name, state in done.states.items()} == {"site-0": 4, "site-1": 6, "site-2": 6}


def test_states_given_to_a_round_are_left_as_they_are():
    torch.manual_seed(0)
    frozen = {}

    def check(done) -> None:
        for name, (state, copied) in frozen.items():
            if done.states[name] is not state:
                for key, tensor in state.tensors().items():
                    assert torch.equal(tensor, copied[key]), key
        frozen.update({n: (s, copy.deepcopy(s.tensors())) for n, s in done.states.items()})

    federation = federated([Scaffold(), FedBN()], optimizer_state="keep")
    simulate(ToyNet(momentum=0.5), ToyData(), federation, "32-true", check)
    assert len(frozen) == 3


def test_the_places_of_fedavgs_lines_exist():
    """FedAvg's docstring names the file, function and hook of each line."""
    places = re.findall(r"(\w+(?:/\w+)*)\.py, ([\w.]+)", FedAvg.__doc__)
    assert len(places) == 10
    for file, name in places:
        assert attrgetter(name)(import_module(f"fedlit.{file.replace('/', '.')}"))
    hooks = re.findall(r"^ .*\.py, [\w.]+ +(\w+)$", FedAvg.__doc__, re.MULTILINE)
    assert len(hooks) == 6
    assert all(hasattr(Aggregator, hook) for hook in hooks)
