"""LocalSCGDAM, LocalSGDAM and LocalSGDM against the transcription of their paper: x, y, h, u, v after every round."""

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from compositional_oracle import Algorithm, Device, Net, Problem, Products
from compositional_oracle import InPlace as WrittenInPlace
from compositional_oracle import LocalSCGDAM as WrittenSCGDAM
from compositional_oracle import LocalSGDAM as WrittenSGDAM
from compositional_oracle import LocalSGDM as WrittenSGDM
from fdam_oracle import prior
from fdam_toys import Scorer, Sites, batches
from simulation import Simulation, assert_near, federated, simulate
from torch import Tensor

from fedlit.aggregators import Aggregator, LocalSCGDAM, LocalSGDAM, LocalSGDM
from fedlit.federation.federation import Federation
from fedlit.objectives import BCE, RatioLoss
from fedlit.schedules import Stage, StageSchedule

LR = 0.3
TWO = {"north": (13, 0.15, ()), "south": (21, 0.5, ())}
FOUR = TWO | {"east": (34, 0.6, ()), "west": (18, 0.3, ())}
FALLING = (1.0, 0.5)
"""Factors of the rates of the rounds."""
PRECISIONS = {"64-true": 1e-9, "32-true": 1e-4}


class Trained(Scorer):
    """A network whose variables and statistics have no initial values, which could hide a mistake."""

    def __init__(self, hidden: int = 6, **objective) -> None:
        torch.manual_seed(3)
        super().__init__(hidden=hidden, lr=LR, start="zeros", **objective)
        g = torch.Generator().manual_seed(11)
        for variable in (self.objective.a, self.objective.b, self.objective.alpha):
            variable.data = torch.randn(1, generator=g) / 2
        for layer in self.body[1:2]:
            for tensor, centre in ((layer.weight, 1), (layer.bias, 0), (layer.running_mean, 0), (layer.running_var, 1)):
                tensor.data = centre + 0.6 * (torch.rand(hidden, generator=g) - 0.5)


class CrossEntropy(Trained):
    """The same network on another loss."""

    def __init__(self, objective, hidden: int = 6) -> None:
        super().__init__(hidden)
        self.objective = objective
        if isinstance(objective, RatioLoss):
            objective.build(1)


@dataclass
class Case:
    """A configuration of fedlit, and its name in the paper."""

    aggregator: Aggregator
    written: type[Algorithm]
    problem: dict[str, Any] = field(default_factory=dict)
    products: dict[str, float] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def compositional(rho: float = 0.4, alpha: float = 0.3, beta_x: float = 0.4, beta_y: float = 0.2, **options) -> Case:
    aggregator = LocalSCGDAM(rho, alpha, beta_x, beta_y, **options)
    products = {"alpha": alpha, "beta_x": beta_x, "beta_y": beta_y}
    return Case(aggregator, WrittenSCGDAM, {"rho": rho}, products, options)


def in_place(rho: float = 0.4, alpha: float = 0.9) -> Case:
    products = {"alpha": alpha, "beta_x": 0.4, "beta_y": 0.2}
    return Case(LocalSCGDAM(rho, alpha, 0.4, 0.2, inner="in_place"), WrittenInPlace, {"rho": rho}, products)


SGDAM = Case(LocalSGDAM(0.4, 0.2), WrittenSGDAM, {}, {"beta_x": 0.4, "beta_y": 0.2})
SGDM = Case(LocalSGDM(0.7), WrittenSGDM, {}, {}, {"momentum": 0.7})
SADDLES = {
    "exact": compositional(),
    "first order": compositional(first_order=True),
    "same batch": compositional(same_batch=True),
    "in place": in_place(),
    "LocalSGDAM": SGDAM,
}


def flat(net: Net, named: dict[str, Tensor], variables: tuple[str, ...] = ("objective.a", "objective.b")) -> Tensor:
    """The paper's x: the network's weights, then w1 and w2."""
    return torch.cat([named[name].detach().double().flatten() for name in (*net.shapes, *variables)])


def supply(data: Sites, name: str):
    return ((vectors, labels[:, 0]) for vectors, labels in batches(data, name))


def written(
    case: Case, module: Scorer, data: Sites, p: int, shares: dict[str, float] | None, offset: float
) -> Algorithm:
    """The transcription, at the module's start; ``offset`` is fedlit's alpha minus the paper's w3."""
    data.setup()
    net = Net(data.inputs, module.head.in_features if len(module.body) else 0)
    pi = shares or dict.fromkeys(data.clients, 1.0)
    labels = {name: client.train.tensors[1].double() for name, client in data.clients.items()}
    share = float(prior(labels, pi))
    saddle = hasattr(module.objective, "alpha")
    scale = getattr(module.objective, "dual_scale", 1.0)
    rates = {"alpha": 0.0, "beta_x": 0.0, "beta_y": 0.0, "gamma_x": LR, "gamma_y": LR * scale} | case.products
    named, y = dict(module.named_parameters()), torch.zeros(1, dtype=torch.float64)
    x = flat(net, named, ("objective.a", "objective.b") if saddle else ())
    if saddle:
        y = module.objective.alpha.detach().double() - offset
    layer = module.body[1] if net.hidden else None
    moving = {n: getattr(layer, n).double().clone() for n in ("running_mean", "running_var") if layer is not None}
    devices = {name: Device(supply(data, name), x, y, dict(moving)) for name in data.clients}
    score = {"score": lambda logits: logits} if getattr(module.objective, "score", "") == "raw" else {}
    options = dict(case.options)
    if isinstance(module.objective, RatioLoss):
        options["positive"] = module.objective.a0 + module.objective.b0 * (1 - share) / share
    problem = Problem(net, share, **case.problem, **score)
    return case.written(problem, devices, Products(**rates), p, shares, **options)


def compare(
    case: Case,
    module: Scorer,
    data: Sites,
    p: int = 2,
    precision: str = "64-true",
    participation: float = 1.0,
    weights: str | None = None,
    rates: tuple[float, ...] = FALLING,
    form: str = "margin",
) -> Algorithm:
    """Compare every variable after every round; all devices of the transcription hold the same values then."""
    tolerance = PRECISIONS[precision]
    module = module.double() if precision == "64-true" else module
    data.setup()
    shares = {k: float(len(client.train)) for k, client in data.clients.items()} if weights == "examples" else None
    hand = written(case, module, data, p, shares, 1.0 if form == "margin" else 0.0)
    net, base, scale = hand.problem.net, hand.products, getattr(module.objective, "dual_scale", 1.0)
    variables = ("objective.a", "objective.b") if hasattr(module.objective, "alpha") else ()
    rounds = itertools.count()

    def check(done: Simulation) -> None:
        number = next(rounds)
        factor = rates[number]
        if hasattr(hand, "rate"):
            hand.rate = factor
        hand.products = Products(base.alpha, base.beta_x, base.beta_y, base.gamma_x * factor, base.gamma_y * factor)
        hand.round(done.cohorts[-1])
        device = hand.devices[done.cohorts[-1][0]]
        w, state = done.server.w, dict(done.server.aggregators[0])
        if getattr(case.aggregator, "deploy", "x") == "h":
            w, state["h"] = state["h"], w
        named = done.parameters(w)
        ours, theirs = {"x": flat(net, named, variables)}, {"x": device.x}
        if "u" in hand.averaged:
            ours["u"], theirs["u"] = flat(net, done.parameters(state["u"]), variables), device.u
        if variables:
            # one vector holds u and v, the dual's part with the dual's own rate in it
            ours |= {"y": named["objective.alpha"], "v": done.parameters(state["u"])["objective.alpha"] / scale}
            theirs |= {"y": device.y + (1.0 if form == "margin" else 0.0), "v": device.v}
        if device.h is not None:
            ours["h"], theirs["h"] = flat(net, done.parameters(state["h"]), variables), device.h
        running = {} if getattr(case.aggregator, "deploy", "x") == "h" else device.statistics
        for name, tensor in running.items():
            ours[name], theirs[name] = done.buffer(f"body.1.{name}"), tensor
        for name, client in done.states.items():
            kept = [tensor for tensor in client.aggregators[0].values() if tensor.numel()]
            assert len(kept) == (case.options.get("state") == "local")
            for tensor in kept:
                ours[f"u of {name}"] = flat(net, done.parameters(tensor), variables)
                theirs[f"u of {name}"] = hand.devices[name].u
        assert_near(ours, theirs, tolerance, f"round {number + 1}")

    schedule = StageSchedule([Stage(1, p, "steps", factor) for factor in rates])
    federation = Federation([case.aggregator], schedule=schedule, participation=participation, weights=weights)
    done = simulate(module, data, federation, precision, check)
    assert len(done.cohorts) == len(rates)
    if participation < 1:
        assert len({name for cohort in done.cohorts for name in cohort}) > len(done.cohorts[0])
    return hand


@pytest.mark.parametrize(("case", "p"), [("exact", 1), ("first order", 3), ("same batch", 2)])
def test_every_round_equals_the_transcription(case, p):
    compare(SADDLES[case], Trained(), Sites(TWO), p)


def test_every_round_equals_the_transcription_in_float32():
    compare(SADDLES["exact"], Trained(hidden=0), Sites(TWO), 2, "32-true")


@pytest.mark.parametrize(("case", "weights"), [("exact", None), ("in place", None), ("LocalSGDAM", "examples")])
def test_every_round_equals_the_transcription_where_few_take_part(case, weights):
    compare(SADDLES[case], Trained(), Sites(FOUR), 2, participation=0.5, weights=weights, rates=(1.0, 1.0, 0.5))


def test_where_h_is_deployed_x_goes_on_as_it_would():
    """The federation's weights are h, and x continues unchanged; another test covers BatchNorm's statistics."""
    case = compositional()
    case.aggregator.deploy = "h"
    compare(case, Trained(), Sites(FOUR), 2, participation=0.5, rates=(1.0, 1.0, 0.5))


def test_where_h_is_deployed_statistics_are_those_of_all_training_images_at_h():
    module, data = Trained().double(), Sites(TWO, batch_size=64)
    done = simulate(module, data, federated([LocalSCGDAM(0.4, 0.3, deploy="h")], rounds=2, window=3))
    data.setup()
    named = done.parameters(done.server.w)
    inner = [
        c.train.tensors[0].double() @ named["body.0.weight"].T + named["body.0.bias"] for c in data.clients.values()
    ]
    means, squares = (sum((z**power).mean(0) for z in inner) / len(inner) for power in (1, 2))
    torch.testing.assert_close(done.buffer("body.1.running_mean"), means)
    torch.testing.assert_close(done.buffer("body.1.running_var"), squares - means**2, rtol=0.2, atol=0)


@pytest.mark.parametrize("case", ["exact", "in place", "LocalSGDAM"])
def test_the_dual_has_a_rate_of_its_own_also_in_the_papers_form_and_of_raw_scores(case):
    compare(SADDLES[case], Trained(dual_scale=3.0, form="paper", score="raw"), Sites(TWO), 2, form="paper")


def test_every_round_of_momentum_equals_the_transcription():
    compare(SGDM, CrossEntropy(BCE()), Sites(TWO), 3)


def test_every_round_of_momentum_equals_the_transcription_where_few_take_part():
    module = CrossEntropy(RatioLoss(0.5, 2.0))
    compare(SGDM, module, Sites(FOUR), 2, participation=0.5, weights="examples", rates=(1.0, 1.0, 0.5))


@pytest.mark.parametrize(("state", "participation"), [("local", 0.5), ("reset", 1.0)])
def test_every_round_equals_the_transcription_where_momentum_is_not_averaged(state, participation):
    case = Case(LocalSGDM(0.7, state), WrittenSGDM, {}, {}, {"momentum": 0.7, "state": state})
    compare(case, CrossEntropy(BCE()), Sites(FOUR), 2, participation=participation, rates=(1.0, 1.0, 0.5))


def test_a_client_alone_has_nobody_to_exchange_gradients_with():
    ends = []
    for outer in ("local", "exchanged"):
        aggregator = LocalSCGDAM(0.4, 0.3, 0.4, 0.2, outer=outer)
        server = simulate(Trained().double(), Sites({"south": TWO["south"]}), federated([aggregator], rounds=2)).server
        ends.append(torch.cat([server.w, server.stats, server.aggregators[0]["u"], server.aggregators[0]["h"]]))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-12, atol=1e-13)


PRODUCTS = Products(alpha=0.3, beta_x=0.4, beta_y=0.2, gamma_x=0.2, gamma_y=0.15)


class Scalars(Problem):
    """g = x - rho c (x - o) and f = (z - t)^2/2 + z y - y^2/2, where xi = (c, o) and zeta = (t, anything)."""

    def g(self, x, xi):
        return x - self.rho * xi[0] * (x - xi[1])

    def jacobian(self, x, xi):
        return (1 - self.rho * xi[0]).reshape(1, 1)

    def gradients(self, z, y, zeta):
        return z - zeta[0] + y, z - y


def test_two_rounds_of_algorithm_1_by_hand():
    """Site one has g = x/2, t = 1, site two g = 2x - 1/2, t = 0; x_0 = 1, y_0 = 0; both sums are exact in binary."""

    def scalar(value):
        return torch.tensor([value], dtype=torch.float64)

    def supply(c, o, t):
        return itertools.cycle([(scalar(c), scalar(o)), (scalar(t), None)])

    sites = {"one": supply(1.0, 0.0, 1.0), "two": supply(-2.0, 0.5, 0.0)}
    net = Net(1)
    hand = WrittenSCGDAM(
        Scalars(net, 0.5, 0.5),
        {name: Device(batches, scalar(1.0), scalar(0.0), {}) for name, batches in sites.items()},
        Products(alpha=1 / 2, beta_x=1 / 2, beta_y=1 / 4, gamma_x=1 / 2, gamma_y=1.0),
        p=1,
    )
    one, two = hand.devices.values()
    hand.start(one)
    hand.start(two)
    assert [float(t) for t in (one.h, one.u, one.v)] == [1 / 2, -1 / 4, 1 / 2]
    assert [float(t) for t in (two.h, two.u, two.v)] == [3 / 2, 3, 3 / 2]
    hand.iterate(one)
    hand.iterate(two)
    assert [float(t) for t in (one.x, one.y, one.h, one.u, one.v)] == [9 / 8, 1 / 2, 17 / 32, -15 / 128, 49 / 128]
    assert [float(t) for t in (two.x, two.y, two.h, two.u, two.v)] == [-1 / 2, 3 / 2, 0, 3, 3 / 4]
    hand.communicate(("one", "two"))
    for site in (one, two):
        assert [float(t) for t in (site.x, site.y, site.h)] == [5 / 16, 1, 17 / 64]
        assert [float(t) for t in (site.u, site.v)] == [369 / 256, 145 / 256]
    hand.round(("one", "two"))
    for site in (one, two):
        assert [float(t) for t in (site.x, site.y)] == [-209 / 512, 401 / 256]


def test_momentum_by_hand():
    """Two steps from w = 0, where the gradient of cross-entropy is (1/2 - b) a: momentum is a sum, not an average."""
    batch = torch.tensor([[2.0]], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    device = Device(itertools.repeat(batch), torch.zeros(2, dtype=torch.float64), torch.zeros(1), {})
    hand = WrittenSGDM(Problem(Net(1), 0.5), {"one": device}, PRODUCTS, p=2, momentum=0.5, positive=4.0, negative=1.0)
    hand.round(("one",))
    first = torch.tensor([-4.0, -2.0], dtype=torch.float64)
    logit = -0.2 * (2 * first[0] + first[1])
    second = 0.5 * first - 4 * torch.sigmoid(-logit) * torch.tensor([2.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(device.u, second, rtol=1e-14, atol=0)
    torch.testing.assert_close(device.x, -0.2 * (first + second), rtol=1e-14, atol=0)
