"""The transcription of LocalSCGDAM itself, against explicit numbers, finite differences and PyTorch's layers."""

import itertools

import fdam_oracle
import pytest
import torch
from compositional_oracle import Device, LocalSCGDAM, LocalSGDM, Net, Problem, Products, auc
from torch import nn

PRODUCTS = Products(alpha=0.3, beta_x=0.4, beta_y=0.2, gamma_x=0.2, gamma_y=0.15)
NETS = {"linear": Net(3), "perceptron": Net(3, 4)}


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batches(seed: int, inputs: int = 3, size: int = 5):
    """Endless minibatches with a shift of the site."""
    for step in itertools.count():
        labels = (numbers(size, seed=1000 * seed + 2 * step) > 0.3).double()
        yield numbers(size, inputs, seed=1000 * seed + 2 * step + 1) + labels[:, None] + 0.5 * seed, labels


def problem(net: Net, rho: float = 0.4) -> Problem:
    return Problem(net, p=0.3, rho=rho)


def devices(net: Net, count: int) -> dict[str, Device]:
    x, y = numbers(net.size + 2, seed=7), numbers(1, seed=8)
    fresh = {"running_mean": torch.zeros_like(x[: net.hidden]), "running_var": torch.ones_like(x[: net.hidden])}
    return {f"site-{k}": Device(batches(k), x, y, fresh if net.hidden else {}) for k in range(count)}


def difference(function, at: torch.Tensor, step: float = 1e-6) -> torch.Tensor:
    """Central differences, with one column per element of ``at``."""
    columns = []
    for i in range(len(at)):
        move = torch.zeros_like(at)
        move[i] = step
        columns.append((function(at + move) - function(at - move)) / (2 * step))
    return torch.stack(columns, -1)


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
    hand = LocalSCGDAM(
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
    hand = LocalSGDM(Problem(Net(1), 0.5), {"one": device}, PRODUCTS, p=2, momentum=0.5, positive=4.0, negative=1.0)
    hand.round(("one",))
    first = torch.tensor([-4.0, -2.0], dtype=torch.float64)
    logit = -0.2 * (2 * first[0] + first[1])
    second = 0.5 * first - 4 * torch.sigmoid(-logit) * torch.tensor([2.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(device.u, second, rtol=1e-14, atol=0)
    torch.testing.assert_close(device.x, -0.2 * (first + second), rtol=1e-14, atol=0)


def test_the_jacobian_of_a_linear_classifier_is_the_textbooks():
    net, x, (a, b) = Net(3), numbers(6), next(batches(1))
    s = torch.sigmoid(net.logits(x, a))
    extended = torch.cat([a, torch.ones(5, 1)], 1)
    gradient = ((s - b)[:, None] * extended).mean(0)
    hessian = sum(s[i] * (1 - s[i]) * torch.outer(extended[i], extended[i]) for i in range(5)) / 5
    expected = torch.eye(6, dtype=torch.float64)
    expected[:4, :4] -= 0.4 * hessian
    torch.testing.assert_close(problem(net).jacobian(x, (a, b)), expected, rtol=1e-13, atol=1e-14)
    expected = x - 0.4 * torch.cat([gradient, torch.zeros(2)])
    torch.testing.assert_close(problem(net).g(x, (a, b)), expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_derivatives_are_differences(net):
    p, x, y = problem(net), numbers(net.size + 2), numbers(1, seed=4)
    xi, zeta = itertools.islice(batches(1), 2)
    torch.testing.assert_close(p.jacobian(x, xi), difference(lambda t: p.g(t, xi), x), rtol=1e-7, atol=1e-8)
    by_g, by_y = p.gradients(x, y, zeta)
    torch.testing.assert_close(by_g, difference(lambda t: p.f(t, y, zeta), x), rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(by_y, difference(lambda t: p.f(x, t, zeta), y), rtol=1e-7, atol=1e-8)
    assert (p.jacobian(x, xi) - torch.eye(len(x))).abs().max() > 1e-2


def test_the_perceptron_is_pytorchs():
    net = Net(3, 4)
    layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).double()
    w = numbers(net.size)
    for tensor, part in zip(layers.parameters(), net.parts(w).values(), strict=True):
        tensor.data = part.clone()
    statistics = {n: t.clone() for n, t in layers[1].named_buffers() if t.is_floating_point()}
    for a, _ in itertools.islice(batches(2), 3):
        torch.testing.assert_close(net.logits(w, a), layers(a)[:, 0], rtol=1e-12, atol=1e-13)
        statistics = net.moved(statistics, w, a)
    for name, tensor in statistics.items():
        torch.testing.assert_close(tensor, getattr(layers[1], name), rtol=1e-12, atol=1e-13)
        assert (tensor - getattr(nn.BatchNorm1d(4), name)).abs().max() > 1e-2


def test_eq_1_is_eq_2_of_the_other_paper():
    h, b, (w1, w2, w3) = numbers(9).sigmoid(), (numbers(9, seed=1) > 0).double(), numbers(3, seed=2)
    p = torch.tensor(0.3, dtype=torch.float64)
    other = fdam_oracle.paper_form(h, b, w1, w2, w3, p).mean()
    torch.testing.assert_close(auc(h, b, w1, w2, w3, 0.3), other, rtol=1e-14, atol=0)


def test_after_a_communication_everybody_has_the_weighted_mean():
    """An absent device starts from the mean too, without its own estimates."""
    net, weights = NETS["perceptron"], {"site-0": 0.2, "site-1": 0.5, "site-2": 0.3}
    hand = LocalSCGDAM(problem(net), devices(net, 3), PRODUCTS, 2, weights)
    cohort = ("site-0", "site-1")
    local = {}
    for name in cohort:
        hand.start(hand.devices[name])
        hand.iterate(hand.devices[name])
        hand.iterate(hand.devices[name])
        local[name] = {letter: getattr(hand.devices[name], letter) for letter in "xyhuv"}
    hand.communicate(cohort)
    for letter in "xyhuv":
        one, two = local["site-0"][letter], local["site-1"][letter]
        assert (one - two).abs().max() > 1e-4
        for device in hand.devices.values():
            torch.testing.assert_close(getattr(device, letter), (2 * one + 5 * two) / 7, rtol=1e-13, atol=1e-14)
    hand.round(("site-2",))
    for late, drawn in (("site-2", 4), ("site-0", 6)):
        following = next(itertools.islice(batches(int(late[-1])), drawn, None))
        assert torch.equal(next(hand.devices[late].batches)[0], following[0])
