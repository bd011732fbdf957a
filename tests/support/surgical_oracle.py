"""Surgical aggregation transcribed from its paper (Kulkarni et al., 2024, arXiv:2301.06683), by hand, without fedlit.

Algorithm 1, the personalised baseline of 3.2.2, vanilla and partial loss of 3.3.2 and 3.3.3, with the strategies of
3.4.2: dictionaries of tensors layer by layer, loops over clients and classes. A client of surgical aggregation has the
rows of its own classes and no others: nothing else of the task block exists there. Weights of clients are equal, as in
the paper, unless given. BatchNorm is PyTorch's: momentum 0.1, and the variance that it keeps is the unbiased one.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

Layer = dict[str, Tensor]
Net = dict[str, Layer]
BODY, NORM, HEAD = "body.0", "body.1", "head"
STATISTICS = ("running_mean", "running_var")


@dataclass
class Site:
    """A client: the names C_k that it labels, and its minibatches in order, labels [B, C] over all classes."""

    classes: tuple[str, ...]
    batches: Iterator[tuple[Tensor, Tensor]]


@dataclass
class Descent:
    """A client's optimizer, anew in every round; Adam's betas and epsilon are the usual ones."""

    lr: float
    adam: bool = False
    decay: float = 0.0
    first: dict[str, Tensor] = field(default_factory=dict)
    second: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0

    def step(self, net: Net, trained: list[tuple[str, str]], gradients: list[Tensor]) -> None:
        self.steps += 1
        for (layer, name), g in zip(trained, gradients, strict=True):
            w = net[layer][name]
            g = g + self.decay * w
            if self.adam:
                key = f"{layer}.{name}"
                m = 0.9 * self.first.get(key, torch.zeros_like(w)) + 0.1 * g
                v = 0.999 * self.second.get(key, torch.zeros_like(w)) + 0.001 * g**2
                self.first[key], self.second[key] = m, v
                m, v = m / (1 - 0.9**self.steps), v / (1 - 0.999**self.steps)
                g = m / (v.sqrt() + 1e-8)
            net[layer][name] = w - self.lr * g


@dataclass
class Written:
    """One federation, as the paper has it.

    Args:
        net: the start: a linear layer, BatchNorm, tanh, and the task block with one row a class.
        classes: C, in the order of the task block's rows.
        sites: client -> its classes and minibatches.
        lr, steps: of local training between communications.
        head: ``surgical``; ``personal`` (PFL); ``partial`` or ``vanilla``, whose task block is averaged like any layer.
        norm: ``FedAvg``, ``FedBN`` or ``FedBN+``.
        weights: client -> its share in f and g; equal if none.
        adam, decay: of the clients' optimizer.
    """

    net: Net
    classes: tuple[str, ...]
    sites: dict[str, Site]
    lr: float
    steps: int
    head: str
    norm: str
    weights: dict[str, float] | None = None
    adam: bool = False
    decay: float = 0.0
    mine: dict[str, Net] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.net = copy.deepcopy(self.net)
        self.weights = self.weights or dict.fromkeys(self.sites, 1.0)
        for k, site in self.sites.items():
            self.mine[k] = {}
            if self.head == "personal":
                self.mine[k][HEAD] = self.rows(site)
            if self.norm == "FedBN":
                self.mine[k][NORM] = dict(self.net[NORM])

    def rows(self, site: Site) -> Layer:
        own = [self.classes.index(c) for c in site.classes]
        return {name: tensor[own].clone() for name, tensor in self.net[HEAD].items()}

    def round(self, cohort: tuple[str, ...]) -> None:
        local = {k: self.train(k) for k in cohort}
        shared = [BODY] if self.norm in ("FedBN", "FedBN+") else [BODY, NORM]
        if self.head in ("partial", "vanilla"):
            shared.append(HEAD)
        new = copy.deepcopy(self.net)
        for layer in shared:
            for name in new[layer]:
                new[layer][name] = self.mean({k: local[k][layer][name] for k in cohort})
        if self.head == "surgical":
            for row, c in enumerate(self.classes):
                having = [k for k in cohort if c in self.sites[k].classes]
                for name in new[HEAD]:
                    if having:
                        theirs = {k: local[k][HEAD][name][self.sites[k].classes.index(c)] for k in having}
                        new[HEAD][name][row] = self.mean(theirs)
        for k in cohort:
            self.mine[k] = {layer: local[k][layer] for layer in self.mine[k]}
        self.net = new

    def mean(self, of: dict[str, Tensor]) -> Tensor:
        return sum(self.weights[k] * t for k, t in of.items()) / sum(self.weights[k] for k in of)

    def train(self, k: str) -> Net:
        site = self.sites[k]
        net = {layer: dict(tensors) for layer, tensors in (self.net | self.mine[k]).items()}
        if self.head == "surgical":
            net[HEAD] = self.rows(site)
        own = [self.classes.index(c) for c in site.classes]
        layers = [BODY, HEAD] if self.norm == "FedBN+" else [BODY, NORM, HEAD]
        trained = [(layer, name) for layer in layers for name in ("weight", "bias")]
        descent = Descent(self.lr, self.adam, self.decay)
        for _ in range(self.steps):
            images, labels = next(site.batches)
            for layer, name in trained:
                net[layer][name] = net[layer][name].detach().requires_grad_()
            logits, statistics = forward(net, images, frozen=self.norm == "FedBN+")
            loss = self.loss(logits, labels, own)
            gradients = torch.autograd.grad(loss, [net[layer][name] for layer, name in trained])
            with torch.no_grad():
                descent.step(net, trained, list(gradients))
            net[NORM] = net[NORM] | statistics
        return {layer: {n: t.detach() for n, t in tensors.items()} for layer, tensors in net.items()}

    def loss(self, logits: Tensor, labels: Tensor, own: list[int]) -> Tensor:
        """Eq. 3 and 8: the mean over C_k; vanilla's is over C, with 0 where the client does not label."""
        if self.head == "vanilla":
            pairs = [(logits[:, c], labels[:, c] if c in own else 0 * logits[:, c]) for c in range(len(self.classes))]
        elif self.head == "partial":
            pairs = [(logits[:, c], labels[:, c]) for c in own]
        else:
            pairs = [(logits[:, i], labels[:, c]) for i, c in enumerate(own)]
        return sum(cross_entropy(z, y) for z, y in pairs) / len(pairs)


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    s = torch.sigmoid(z)
    return -(y * torch.log(s) + (1 - y) * torch.log(1 - s)).mean()


def forward(net: Net, images: Tensor, frozen: bool) -> tuple[Tensor, Layer]:
    """Logits, and the running statistics after this batch (before it, where they are frozen)."""
    hidden, norm = images @ net[BODY]["weight"].T + net[BODY]["bias"], net[NORM]
    if frozen:
        mean, variance, statistics = norm["running_mean"], norm["running_var"], {}
    else:
        mean, variance = hidden.mean(0), hidden.var(0, unbiased=False)
        unbiased = variance * len(hidden) / (len(hidden) - 1)
        now = dict(zip(STATISTICS, (mean, unbiased), strict=True))
        statistics = {n: 0.9 * norm[n] + 0.1 * now[n].detach() for n in STATISTICS}
    hidden = (hidden - mean) / (variance + 1e-5).sqrt() * norm["weight"] + norm["bias"]
    return torch.tanh(hidden) @ net[HEAD]["weight"].T + net[HEAD]["bias"], statistics
