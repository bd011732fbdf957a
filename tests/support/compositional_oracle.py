"""LocalSCGDAM transcribed from its paper (Zhang et al., NeurIPS 2023), and its baselines, by hand and without fedlit.

Equations 1 to 3 and Algorithm 1 as printed: x = [w, w1, w2] and y = w3, and every client has its own x, y, h, u and v.
The Jacobian of g is written out as a matrix [d1, d1]. Labels are 1 and 0 (the paper's b = 1 and -1), the classifier
has one output, and ``products`` are alpha*eta, beta_x*eta, beta_y*eta, gamma_x*eta, gamma_y*eta: nothing else of them
matters. What the paper leaves open: in each iteration a client draws xi, then zeta; BatchNorm (PyTorch's: momentum
0.1, the variance that it keeps is the unbiased one) normalises by the batch, and both passes move the running
statistics, that of g first; they are averaged with all else. Where not all clients take part, the mean is over those
that do and everybody gets it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import softplus

Batch = tuple[Tensor, Tensor]


@dataclass
class Net:
    """A linear classifier of vectors [B, D]; with ``hidden`` a linear layer, BatchNorm, tanh and a linear layer."""

    inputs: int
    hidden: int = 0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        m, n = self.hidden, self.inputs
        body = {"body.0.weight": (m, n), "body.0.bias": (m,), "body.1.weight": (m,), "body.1.bias": (m,)} if m else {}
        return body | {"head.weight": (1, m or n), "head.bias": (1,)}

    def parts(self, w: Tensor) -> dict[str, Tensor]:
        """The layers' tensors in w; what follows them in a longer vector is left out."""
        found, start = {}, 0
        for name, shape in self.shapes.items():
            size = torch.Size(shape).numel()
            found[name] = w[start : start + size].reshape(shape)
            start += size
        return found

    @property
    def size(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    def logits(self, w: Tensor, a: Tensor) -> Tensor:
        """[B] of examples a [B, D]."""
        layer = self.parts(w)
        if self.hidden:
            z = a @ layer["body.0.weight"].T + layer["body.0.bias"]
            mean, variance = z.mean(0), ((z - z.mean(0)) ** 2).mean(0)
            z = (z - mean) / torch.sqrt(variance + 1e-5)
            a = torch.tanh(layer["body.1.weight"] * z + layer["body.1.bias"])
        return (a @ layer["head.weight"].T + layer["head.bias"])[:, 0]

    def moved(self, statistics: dict[str, Tensor], w: Tensor, a: Tensor) -> dict[str, Tensor]:
        """The running statistics after a pass over a."""
        if not self.hidden:
            return statistics
        layer, size = self.parts(w), len(a)
        z = a @ layer["body.0.weight"].T + layer["body.0.bias"]
        seen = {"running_mean": z.mean(0), "running_var": ((z - z.mean(0)) ** 2).sum(0) / (size - 1)}
        return {name: 0.9 * old + 0.1 * seen[name] for name, old in statistics.items()}


def cross_entropy(logits: Tensor, b: Tensor, positive: float = 1.0, negative: float = 1.0) -> Tensor:
    """Binary cross-entropy, mean over the examples; weighted by label for the ratio loss."""
    return (positive * b * softplus(-logits) + negative * (1 - b) * softplus(logits)).mean()


def auc(h: Tensor, b: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, p: float) -> Tensor:
    """L_AUC of eq. 1, mean over the examples."""
    value = (1 - p) * (h - w1) ** 2 * b - p * (1 - p) * w3**2
    value = value + p * (h - w2) ** 2 * (1 - b)
    return (value + 2 * (1 + w3) * (p * h * (1 - b) - (1 - p) * h * b)).mean()


@dataclass
class Problem:
    """f and g of eq. 3.

    Args:
        net: the classifier.
        p: share of positives.
        rho: step of the inner function.
        score: h(w; a) of a logit.
    """

    net: Net
    p: float
    rho: float = 0.0
    score: Callable[[Tensor], Tensor] = torch.sigmoid

    def inner_loss(self, w: Tensor, xi: Batch) -> Tensor:
        return cross_entropy(self.net.logits(w, xi[0]), xi[1])

    def g(self, x: Tensor, xi: Batch) -> Tensor:
        """x - rho Delta(x), where Delta is 0 for w1 and w2."""
        delta, d = torch.zeros_like(x), self.net.size
        delta[:d] = torch.func.grad(self.inner_loss)(x[:d], xi)
        return x - self.rho * delta

    def jacobian(self, x: Tensor, xi: Batch) -> Tensor:
        """[d1, d1]: row i is the gradient of the i-th element of g."""
        matrix, d = torch.eye(len(x), dtype=x.dtype), self.net.size
        matrix[:d, :d] -= self.rho * torch.func.jacfwd(torch.func.grad(self.inner_loss))(x[:d], xi)
        return matrix

    def f(self, z: Tensor, y: Tensor, zeta: Batch) -> Tensor:
        h = self.score(self.net.logits(z, zeta[0]))
        return auc(h, zeta[1], z[-2], z[-1], y[0], self.p)

    def gradients(self, z: Tensor, y: Tensor, zeta: Batch) -> tuple[Tensor, Tensor]:
        """Those of f by its first argument (w by differentiation, w1 and w2 by hand) and by y (by hand)."""
        p, d, b = self.p, self.net.size, zeta[1]
        by_w = torch.func.grad(lambda w: self.f(torch.cat([w, z[d:]]), y, zeta))(z[:d])
        h = self.score(self.net.logits(z, zeta[0]))
        by_w1 = (-2 * (1 - p) * (h - z[-2]) * b).mean()
        by_w2 = (-2 * p * (h - z[-1]) * (1 - b)).mean()
        by_y = (2 * (p * h * (1 - b) - (1 - p) * h * b)).mean() - 2 * p * (1 - p) * y[0]
        return torch.cat([by_w, by_w1.reshape(1), by_w2.reshape(1)]), by_y.reshape(1)


@dataclass(frozen=True)
class Products:
    """Products of the paper's constants with eta: three in (0, 1), and the rates ``gamma_x`` and ``gamma_y``."""

    alpha: float
    beta_x: float
    beta_y: float
    gamma_x: float
    gamma_y: float


@dataclass
class Device:
    """The k-th: its minibatches in order and its variables; h, u and v do not exist before its first iteration."""

    batches: Iterator[Batch]
    x: Tensor
    y: Tensor
    statistics: dict[str, Tensor]
    h: Tensor | None = None
    u: Tensor | None = None
    v: Tensor | None = None
    newest: tuple[Tensor, Tensor] | None = None


@dataclass
class Algorithm:
    """What the algorithms have in common: K devices that do p iterations each and then replace theirs by the mean.

    Args:
        problem: f and g.
        devices: by name.
        products: of the constants with eta.
        p: communication period.
        weights: of the devices in the mean; equal if none.
    """

    problem: Problem
    devices: dict[str, Device]
    products: Products
    p: int
    weights: dict[str, float] | None = None
    averaged: tuple[str, ...] = field(default=("x", "y", "u", "v"), init=False)

    def round(self, cohort: tuple[str, ...]) -> None:
        """p iterations of every device of the cohort, and the communication that follows."""
        for name in cohort:
            device = self.devices[name]
            if device.u is None:
                self.start(device)
            for _ in range(self.p):
                self.iterate(device)
        self.communicate(cohort)

    def start(self, device: Device) -> None:
        raise NotImplementedError

    def iterate(self, device: Device) -> None:
        raise NotImplementedError

    def communicate(self, cohort: tuple[str, ...]) -> None:
        """Step 6."""
        share = {name: 1.0 if self.weights is None else self.weights[name] for name in cohort}
        total = sum(share.values())
        means, statistics = {}, {}
        for letter in self.averaged:
            means[letter] = sum(share[k] * getattr(self.devices[k], letter) for k in cohort) / total
        for name in self.devices[cohort[0]].statistics:
            statistics[name] = sum(share[k] * self.devices[k].statistics[name] for k in cohort) / total
        for device in self.devices.values():
            for letter, mean in means.items():
                setattr(device, letter, mean.clone())
            device.statistics = {name: mean.clone() for name, mean in statistics.items()}

    def seen(self, device: Device, w: Tensor, batch: Batch) -> None:
        device.statistics = self.problem.net.moved(device.statistics, w, batch[0])


@dataclass
class LocalSCGDAM(Algorithm):
    """Algorithm 1.

    Args:
        same_batch: zeta is xi.
        first_order: the Jacobian of g is taken for the identity.
    """

    same_batch: bool = False
    first_order: bool = False

    def __post_init__(self) -> None:
        self.averaged = ("x", "y", "h", "u", "v")

    def draw(self, device: Device) -> tuple[Batch, Batch]:
        xi = next(device.batches)
        return xi, xi if self.same_batch else next(device.batches)

    def start(self, device: Device) -> None:
        xi, zeta = self.draw(device)
        device.h = self.problem.g(device.x, xi)
        device.u, device.v = self.estimate(device, xi, zeta)

    def iterate(self, device: Device) -> None:
        c = self.products
        device.x = device.x - c.gamma_x * device.u
        device.y = device.y + c.gamma_y * device.v
        xi, zeta = self.draw(device)
        device.h = (1 - c.alpha) * device.h + c.alpha * self.problem.g(device.x, xi)
        u, v = self.estimate(device, xi, zeta)
        device.u = (1 - c.beta_x) * device.u + c.beta_x * u
        device.v = (1 - c.beta_y) * device.v + c.beta_y * v

    def estimate(self, device: Device, xi: Batch, zeta: Batch) -> tuple[Tensor, Tensor]:
        """The stochastic compositional gradient by x, with the device's h, and the gradient by y."""
        by_g, by_y = self.problem.gradients(device.h, device.y, zeta)
        self.seen(device, device.x, xi)
        self.seen(device, device.h, zeta)
        if self.first_order:
            return by_g, by_y
        return self.problem.jacobian(device.x, xi).T @ by_g, by_y


@dataclass
class InPlace(LocalSCGDAM):
    """PDSCA's step on every device, of first order, and what Algorithm 1 averages when it communicates.

    A step of cross-entropy in the weights w, their moving average h, a step of the AUC loss from there; w1, w2 and y
    have no part in the first two. ``rate`` is the rate of the schedule, which both steps have.
    """

    rate: float = 1.0

    def inner(self, device: Device, keep: float) -> None:
        xi, zeta = self.draw(device)
        d = self.problem.net.size
        stepped = device.x[:d] - self.rate * self.problem.rho * torch.func.grad(self.problem.inner_loss)(
            device.x[:d], xi
        )
        old = stepped if device.h is None else device.h[:d]
        self.seen(device, device.x, xi)
        device.h = torch.cat([keep * old + (1 - keep) * stepped, device.x[d:]])
        self.seen(device, device.h, zeta)
        device.newest = self.problem.gradients(device.h, device.y, zeta)

    def start(self, device: Device) -> None:
        self.inner(device, 0.0)
        device.u, device.v = device.newest

    def iterate(self, device: Device) -> None:
        c = self.products
        device.x, device.y = device.x - c.gamma_x * device.u, device.y + c.gamma_y * device.v
        self.inner(device, 1 - c.alpha)
        device.x = device.h.clone()
        u, v = device.newest
        device.u = (1 - c.beta_x) * device.u + c.beta_x * u
        device.v = (1 - c.beta_y) * device.v + c.beta_y * v


@dataclass
class LocalSGDAM(Algorithm):
    """Descent ascent on f itself with momenta that are moving averages (Sharma et al., ICML 2022)."""

    def start(self, device: Device) -> None:
        device.u, device.v = self.estimate(device)

    def iterate(self, device: Device) -> None:
        c = self.products
        device.x = device.x - c.gamma_x * device.u
        device.y = device.y + c.gamma_y * device.v
        u, v = self.estimate(device)
        device.u = (1 - c.beta_x) * device.u + c.beta_x * u
        device.v = (1 - c.beta_y) * device.v + c.beta_y * v

    def estimate(self, device: Device) -> tuple[Tensor, Tensor]:
        zeta = next(device.batches)
        self.seen(device, device.x, zeta)
        return self.problem.gradients(device.x, device.y, zeta)


@dataclass
class LocalSGDM(Algorithm):
    """Momentum SGD on cross-entropy (Yu et al., ICML 2019): u <- momentum u + gradient, x <- x - gamma_x u; x is w.

    With weights of positives and negatives it is cross-entropy with the ratio loss. The momentum is ``averaged`` at a
    communication, or it stays with the device (``local``), or begins anew (``reset``).
    """

    momentum: float = 0.9
    positive: float = 1.0
    negative: float = 1.0
    state: str = "averaged"

    def __post_init__(self) -> None:
        self.averaged = ("x", "u") if self.state == "averaged" else ("x",)

    def communicate(self, cohort: tuple[str, ...]) -> None:
        super().communicate(cohort)
        if self.state == "reset":
            for device in self.devices.values():
                self.start(device)

    def start(self, device: Device) -> None:
        device.u = torch.zeros_like(device.x)

    def iterate(self, device: Device) -> None:
        batch = next(device.batches)

        def loss(w: Tensor) -> Tensor:
            return cross_entropy(self.problem.net.logits(w, batch[0]), batch[1], self.positive, self.negative)

        device.u = self.momentum * device.u + torch.func.grad(loss)(device.x)
        self.seen(device, device.x, batch)
        device.x = device.x - self.products.gamma_x * device.u
