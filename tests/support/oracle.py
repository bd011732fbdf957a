"""The classics written by hand, as in their papers' boxes: dictionaries of tensors, loops over names, no fedlit.

Every client's step is on its whole training set, so there is no batch order to agree on; everything is float64.
"""

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]


@dataclass
class Oracle:
    """Federated training of a module.

    Args:
        module: a start, in float64.
        data: client -> (images, labels).
        weights: client -> pi_k.
        lr, steps: of local SGD.
        factors: client -> factor of its learning rate.
        mu: FedProx.
        scaffold: control variates by option II, c_k <- c_k - c + (x - y_k) / (K lr).
        eta_g: global step size of SCAFFOLD.
        local: names of parameters and buffers that stay with the clients.
    """

    module: nn.Module
    data: dict[str, tuple[Tensor, Tensor]]
    weights: dict[str, float]
    lr: float
    steps: int
    mu: float = 0.0
    scaffold: bool = False
    eta_g: float = 1.0
    local: frozenset[str] = frozenset()
    factors: dict[str, float] = field(default_factory=dict)
    c: Tensors = field(default_factory=dict)
    c_k: dict[str, Tensors] = field(default_factory=dict)
    kept: dict[str, Tensors] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.x = _state(self.module)
        self.trained = [n for n, _ in self.module.named_parameters()]
        zeros = {n: torch.zeros_like(self.x[n]) for n in self.trained}
        self.c = copy.deepcopy(zeros)
        self.c_k = {k: copy.deepcopy(zeros) for k in self.data}
        self.kept = {k: {} for k in self.data}

    def round(self, cohort: list[str]) -> None:
        results, changes = {}, {}
        for k in cohort:
            results[k], changes[k] = self._client(k)
        present = sum(self.weights[k] for k in cohort)
        for name in self.x:
            mean = sum(self.weights[k] * results[k][name] for k in cohort) / present
            if name in self.local:
                for k in cohort:
                    self.kept[k][name] = results[k][name]
            elif name in self.trained:
                self.x[name] = self.x[name] + self.eta_g * (mean - self.x[name])
            else:
                self.x[name] = mean
        if self.scaffold:
            for name in self.trained:
                self.c[name] = self.c[name] + sum(self.weights[k] * changes[k][name] for k in cohort)

    def _client(self, k: str) -> tuple[Tensors, Tensors]:
        module = copy.deepcopy(self.module)
        start = self.x | self.kept[k]
        module.load_state_dict(start, strict=False)
        module.train()
        images, labels = self.data[k]
        lr = self.lr * self.factors.get(k, 1.0)
        for _ in range(self.steps):
            loss = module.training_step((images, labels), 0)
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            with torch.no_grad():
                for (name, y), g in zip(module.named_parameters(), gradients, strict=True):
                    shared = name not in self.local
                    g = g + shared * self.mu * (y - start[name])
                    if self.scaffold:
                        g = g + shared * (self.c[name] - self.c_k[k][name])
                    y -= lr * g
        end, change = _state(module), {}
        if self.scaffold:
            for name in self.trained:
                new = self.c_k[k][name] - self.c[name] + (start[name] - end[name]) / (self.steps * lr)
                change[name] = new - self.c_k[k][name]
                self.c_k[k][name] = new
        return end, change


def _state(module: nn.Module) -> Tensors:
    return {n: t.detach().clone() for n, t in module.state_dict().items() if t.is_floating_point()}
