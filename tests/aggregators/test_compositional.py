"""LocalSCGDAM: its gradient against autograd through the inner step, special cases, bias, large rho, errors."""

import copy

import pytest
import torch
from engine_rounds import unprobed
from refusals import refused
from saddle_toys import Scorer, Sites
from simulation import Simulation, federated, simulate
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from fedlit.aggregators import FedBN, LocalSCGDAM
from fedlit.core.errors import TrainingError
from fedlit.objectives import BCE, AUCSaddle
from fedlit.testing import check_aggregator

Named = dict[str, Tensor]


def run(aggregators, module, data, rounds=3, window=2, precision="64-true", **options) -> Simulation:
    return simulate(module, data, federated(aggregators, rounds, window, **options), precision)


def seeded(*body: nn.Module, **options) -> Scorer:
    torch.manual_seed(3)
    for part in body:
        part.apply(lambda layer: layer.reset_parameters() if hasattr(layer, "reset_parameters") else None)
    return Scorer(nn.Sequential(*body) if body else None, **options)


def at_the_newest(aggregator: LocalSCGDAM, **weights: float) -> LocalSCGDAM:
    """Make the algorithm with products that the constructor refuses: weight 1 for the newest estimate, or rho = 0."""
    for name, value in ({"alpha": 1.0, "beta_x": 1.0, "beta_y": 1.0} | weights).items():
        setattr(aggregator, name, value)
    return aggregator


class Truth(nn.Module):
    """f(g(x), y) of eq. 4 and its gradient by autograd through the inner step, with the means over clients inside."""

    def __init__(self, done: Simulation, module: Scorer, data: Sites, rho: float) -> None:
        super().__init__()
        self.module, self.rho, self.layout = copy.deepcopy(module).double(), rho, done.session.layout
        self.module.objective.p.copy_(done.buffer("objective.p"))
        data.setup()
        self.sets = [tuple(t.double() for t in client.train.tensors) for client in data.clients.values()]

    def forward(self, batch: tuple[Tensor, Tensor], inner: bool) -> Tensor:
        return BCE()(self.module(batch[0]), batch[1]) if inner else self.module.training_step(batch, 0)

    def mean(self, x: Named, inner: bool) -> Tensor:
        named = {f"module.{name}": value for name, value in x.items()}
        return sum(functional_call(self, named, (batch, inner)) for batch in self.sets) / len(self.sets)

    def inner(self, x: Named) -> Named:
        slopes = torch.autograd.grad(self.mean(x, True), list(x.values()), create_graph=True, materialize_grads=True)
        return {name: value - self.rho * slope for (name, value), slope in zip(x.items(), slopes, strict=True)}

    def at(self, w: Tensor) -> Named:
        return {e.name: e.view(w).detach().clone().requires_grad_() for e in self.layout.parameters}

    def value(self, w: Tensor) -> float:
        """f(g(x)) at the closed-form a, b, alpha."""
        x = {name: value.detach() for name, value in self.inner(self.at(w)).items()}
        logits = functional_call(self.module, x, (torch.cat([vectors for vectors, _ in self.sets]),))
        return float(self.module.objective.pooled(logits, torch.cat([labels for _, labels in self.sets]))["auc_loss"])

    def gradient(self, w: Tensor) -> Tensor:
        x = self.at(w)
        return _flat(torch.autograd.grad(self.mean(self.inner(x), False), list(x.values())))

    def outer_gradient(self, w: Tensor) -> Tensor:
        """grad_g f at h = g(x), which is what the first-order option takes for the whole."""
        h = {name: value.detach().requires_grad_() for name, value in self.inner(self.at(w)).items()}
        return _flat(torch.autograd.grad(self.mean(h, False), list(h.values())))

    def hessian_product(self, w: Tensor, q: Tensor) -> Tensor:
        """H q by central differences of the gradient of the cross-entropy."""
        sides = []
        for sign in (1, -1):
            x = self.at(w + sign * 1e-5 * q)
            sides.append(_flat(torch.autograd.grad(self.mean(x, True), list(x.values()), materialize_grads=True)))
        return (sides[0] - sides[1]) / 2e-5


def _flat(tensors) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


@pytest.mark.parametrize("body", [(), (nn.Linear(4, 4), nn.Tanh())], ids=["linear", "perceptron"])
def test_the_gradient_is_autograds_through_the_inner_step_and_first_order_leaves_the_hessian_out(body):
    """After one step with all weights 1, u is the gradient at the end of the step, on the whole training set."""
    rho, data, module = 2.0, Sites(1, batch_size=12), seeded(*body)
    found = {}
    for first_order in (False, True):
        aggregator = at_the_newest(LocalSCGDAM(rho, same_batch=True, first_order=first_order))
        done = run([aggregator], module, data, rounds=1, window=1)
        found[first_order] = done.server.aggregators[0]["u"]
        truth, w = Truth(done, module, data, rho), done.server.w
        expected = truth.outer_gradient(w) if first_order else truth.gradient(w)
        torch.testing.assert_close(found[first_order], expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(
            done.server.aggregators[0]["h"], _flat(truth.inner(truth.at(w)).values()).detach(), rtol=0, atol=1e-12
        )
        if first_order:
            missing = -rho * truth.hessian_product(w, found[True])
    # The points differ by then, so that theory is asked at the first-order one.
    torch.testing.assert_close(truth.gradient(w) - found[True], missing, rtol=0, atol=1e-8)
    assert missing.norm() > 0.1 * found[True].norm()


def test_the_exchange_of_gradients_removes_the_bias_between_clients():
    """Exact gradients and p = 1: Algorithm 1 rests at a nonzero gradient of eq. 4; with the exchange it is 0."""
    module, data = seeded(lr=0.6, objective=AUCSaddle(score="raw")), Sites(2, 12, positives=(3, 8))
    left = {}
    for outer in ("local", "exchanged"):
        aggregator = LocalSCGDAM(1.0, alpha=0.7, beta_x=0.7, beta_y=0.7, same_batch=True, outer=outer)
        done = run([aggregator], module, data, rounds=40, window=1)
        left[outer] = Truth(done, module, data, 1.0).gradient(done.server.w).norm()
        if outer == "local":
            at_rest = done.server.aggregators[0]["u"].norm()
    assert left["local"] > 0.2 > 8 * at_rest
    assert left["exchanged"] < 1e-3


def test_exchanged_gradients_are_the_clients_means():
    done = run([LocalSCGDAM(0.5, outer="exchanged")], seeded(), Sites(4), rounds=6, participation=0.5)
    states = [s.aggregators[0] for s in done.states.values()]
    for name in ("inner", "outer"):
        mean = sum(state[name] for state in states) / 4
        torch.testing.assert_close(mean, done.server.aggregators[0][name], rtol=0, atol=1e-12)
    assert done.server.aggregators[0]["outer"].norm() > 0


def test_at_large_rho_the_exact_jacobian_works_where_first_order_fails():
    """If rho times the Hessian is above 1 the inner step overshoots, and a step along only grad_g f leads uphill."""
    module, data = seeded(lr=1.5), Sites(1, batch_size=12, positives=(6,))
    with torch.no_grad():
        module.head.weight *= 0.2
    losses, ranked = {}, {}
    for first_order in (False, True):
        aggregator = at_the_newest(LocalSCGDAM(10.0, same_batch=True, first_order=first_order))
        done = run([aggregator], module, data, rounds=1, window=25)
        truth = Truth(done, module, data, 10.0)
        losses[first_order] = truth.value(done.server.w)
        scores = truth.sets[0][0] @ done.tensor("head.weight")[0]
        ranked[first_order] = float(
            (scores[:6, None] > scores[6:]).double().mean()
        )  # AUROC of x; 6 positives come first
    assert losses[False] < 0.03
    assert losses[True] > 3 * losses[False]
    assert ranked[False] > 0.95
    assert ranked[True] < 0.7


def test_curvature_is_recorded_with_the_exact_jacobian():
    small, large = (run([LocalSCGDAM(rho)], seeded(), Sites(), rounds=1) for rho in (0.01, 10.0))
    numbers = [LocalSCGDAM().diagnostics(d.server.aggregators[0], d.session.layout) for d in (small, large)]
    assert 0 < numbers[0]["drift/curvature"] < 0.1 < 0.5 < numbers[1]["drift/curvature"]
    none = run([LocalSCGDAM(first_order=True)], seeded(), Sites(), rounds=1)
    assert LocalSCGDAM().diagnostics(none.server.aggregators[0], none.session.layout) == {}


@pytest.mark.parametrize("outer", ["local", "exchanged"])
def test_what_a_client_keeps_to_itself_it_keeps_of_every_vector(outer):
    """A single client trains in the same way whether it keeps its normalisation layers or not."""
    module, aggregator = seeded(nn.Linear(4, 4), nn.BatchNorm1d(4)), LocalSCGDAM(0.5, outer=outer)
    if outer == "local":
        alone, keeping = (run(a, module, Sites(1)) for a in ([aggregator], [FedBN(), aggregator]))
        norm = keeping.session.layout.slices["norm"]
        own = keeping.states["site-0"]
        torch.testing.assert_close(own.w, alone.server.w[norm], rtol=0, atol=1e-12)
        for name in ("u", "h"):
            expected = alone.server.aggregators[0][name][norm]
            torch.testing.assert_close(own.aggregators[1][name], expected, rtol=0, atol=1e-12)
    several = run([FedBN(), aggregator], module, Sites(3))
    start, norm = several.start, several.session.layout.slices["norm"]
    sent = {
        name: vector[norm] for name, vector in several.server.aggregators[1].items() if vector.ndim and len(vector) > 2
    }
    assert all(not vector.any() for name, vector in sent.items() if name != "h")
    assert torch.equal(sent["h"], start.w[norm])


def test_a_frozen_part_and_mixed_precision_train():
    module = seeded(nn.Linear(4, 4), nn.Tanh())
    module.body[0].requires_grad_(False)
    frozen = run([LocalSCGDAM(0.5)], module, Sites(), rounds=2, precision="32-true")
    assert frozen.session.layout.size == 4 + 1 + 3
    single, mixed = (run([LocalSCGDAM(0.5)], seeded(), Sites(), precision=p).server for p in ("32-true", "bf16-mixed"))
    assert mixed.aggregators[0]["u"].dtype == torch.float32
    torch.testing.assert_close(mixed.w, single.w, rtol=0.05, atol=0.02)


class Doubled(Function):
    """An operation whose backward pass has no derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Squares(nn.Module):
    def forward(self, x):
        return Doubled.apply(x)


class Attention(nn.Module):
    def forward(self, x):
        heads = x[:, None, None, :]
        return nn.functional.scaled_dot_product_attention(heads, heads, heads)[:, 0, 0]


@pytest.mark.parametrize(
    ("layer", "said"), [(Squares(), "Doubled has no"), (Attention(), "_backward has no")], ids=["custom", "native"]
)
def test_an_operation_without_second_derivative_is_named(layer, said):
    module = seeded(nn.Linear(4, 4), layer)
    with refused(TrainingError, said, "first_order: true"):
        run([LocalSCGDAM()], module, Sites(), rounds=1)
    assert torch.isfinite(run([LocalSCGDAM(first_order=True)], module, Sites(), rounds=1).server.w).all()


@pytest.mark.parametrize(
    ("aggregator", "workers"),
    [
        pytest.param(LocalSCGDAM(0.5, deploy="h"), 1, id="deploy h"),
        pytest.param(LocalSCGDAM(0.5, outer="exchanged"), 2, id="exchanged", marks=pytest.mark.slow),
    ],
)
def test_it_keeps_to_the_rules(aggregator, workers):
    with unprobed():
        check_aggregator(aggregator, workers, seeded(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.2)), Sites(3))
