"""Parts of algorithms written by hand: dictionaries of tensors, loops over names and rows, no flat vectors.

Only the batches are fedlit's; everything is float64.
"""

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
from simulation import Simulation, simulate
from toys import ToyData, ToyNet

from fedlit.aggregators import Aggregator
from fedlit.federation.federation import Federation
from fedlit.schedules import ConstantSchedule
from fedlit.testing import OwnRows

Tensors = dict[str, torch.Tensor]


class ByHand:
    """A federation whose clients label different classes and share only their own rows.

    Attributes:
        x: Weights and statistics of the server, by name.
        trained: Names of the weights; all others are statistics of BatchNorm.
        pi: The clients' shares.
        owns: By client and name, 1 where the client shares an element and 0 elsewhere.
    """

    def __init__(self, done: Simulation, module: ToyNet, lr: float) -> None:
        self.module, self.lr = copy.deepcopy(module), lr
        self.plan, worker = done.federation.schedule.plan(0), done.session.engine._pool.worker
        self.streams = {name: worker.stream(name) for name in done.session.clients}
        self.drawn = dict.fromkeys(self.streams, 0)
        self.x = state(module)
        self.trained = [name for name, _ in module.named_parameters()]
        self.pi = {name: client.weight for name, client in done.session.clients.items()}
        self.owns: dict[str, Tensors] = {}
        for name, client in done.session.clients.items():
            rows = torch.tensor([float(c in client.classes) for c in module.classes], dtype=torch.float64)
            whole = {n: torch.ones_like(self.x[n]) for n in self.trained}
            whole["head.weight"] = whole["head.weight"] * rows[:, None]
            whole["head.bias"] = whole["head.bias"] * rows
            self.owns[name] = whole

    def zeros(self) -> Tensors:
        return {n: torch.zeros_like(self.x[n]) for n in self.trained}

    def steps(self, k: str) -> int:
        return self.plan.window * (self.streams[k].steps_per_epoch if self.plan.unit == "epochs" else 1)

    def batch(self, k: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The next batch of a client."""
        images, labels = self.streams[k][self.drawn[k]]
        self.drawn[k] += 1
        return images.double(), labels.double()

    def local(
        self,
        k: str,
        start: Tensors,
        change: Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor] = lambda name, g, y: g,
        momentum: float = 0.0,
        loss: Callable = lambda module, batch: module.training_step(batch, 0),
    ) -> Tensors:
        """A client's steps of SGD from ``start`` along ``change(name, gradient, weights)``; weights and statistics."""
        module, buffers = self.at(start), self.zeros()
        for _ in range(self.steps(k)):
            gradients = torch.autograd.grad(loss(module, self.batch(k)), list(module.parameters()))
            with torch.no_grad():
                for (name, y), g in zip(module.named_parameters(), gradients, strict=True):
                    buffers[name] = momentum * buffers[name] + change(name, g, y)
                    y -= self.lr * buffers[name]
        return state(module)

    def at(self, values: Tensors) -> ToyNet:
        module = copy.deepcopy(self.module)
        module.load_state_dict(values, strict=False)
        return module.train()

    def mean(self, cohort: Sequence[str], vectors: Mapping[str, Tensors], name: str) -> torch.Tensor:
        """Mean of an element over its owners in the cohort, 0 without any."""
        total = sum(self.pi[k] * self.owns[k][name] * vectors[k][name] for k in cohort)
        shares = sum(self.pi[k] * self.owns[k][name] for k in cohort)
        return torch.where(shares > 0, total / shares.clamp(min=1e-300), 0.0)

    def present(self, cohort: Sequence[str], name: str) -> torch.Tensor:
        """Share of an element's owners that are in the cohort."""
        return sum(self.pi[k] * self.owns[k][name] for k in cohort) / sum(
            self.pi[k] * self.owns[k][name] for k in self.pi
        )

    def average(self, cohort: Sequence[str], ends: Mapping[str, Tensors]) -> None:
        """FedAvg: the means of the weights over their owners, and of the statistics; others keep their values."""
        for name in self.trained:
            owned = sum(self.owns[k][name] for k in cohort) > 0
            self.x[name] = torch.where(owned, self.mean(cohort, ends, name), self.x[name])
        self.average_statistics(cohort, ends)

    def average_statistics(self, cohort: Sequence[str], ends: Mapping[str, Tensors]) -> None:
        total = sum(self.pi[k] for k in cohort)
        for name in self.x.keys() - set(self.trained):
            self.x[name] = sum(self.pi[k] * ends[k][name] for k in cohort) / total


def trained_by_fedlit(
    aggregators: Sequence[Aggregator],
    lr: float = 0.2,
    momentum: float = 0.0,
    module: ToyNet | None = None,
    others: Sequence[Aggregator] = (OwnRows(),),
    **options,
) -> tuple[Simulation, ByHand]:
    """Three rounds of half of four clients, which label one class each; and the same by hand, untrained."""
    torch.manual_seed(3)
    module = (module or ToyNet(drop=0.0, lr=lr, momentum=momentum)).double()
    settings = {"participation": 0.5, "rounds": 3, "schedule": ConstantSchedule(3, "steps")} | options
    done = simulate(module, ToyData(clients=4, labelled=1), Federation([*aggregators, *others], **settings))
    return done, ByHand(done, module, lr)


def assert_equal(done: Simulation, hand: ByHand) -> None:
    """Weights and statistics of the server are equal to 1e-9, and cohorts differ, some without an owner of a row."""
    assert len(set(done.cohorts)) > 1
    assert any((sum(hand.owns[k]["head.bias"] for k in cohort) == 0).any() for cohort in done.cohorts)
    for name, tensor in (done.parameters() | done.buffers()).items():
        torch.testing.assert_close(tensor, hand.x[name], rtol=0, atol=1e-9)


def state(module: torch.nn.Module) -> Tensors:
    return {n: t.detach().clone() for n, t in module.state_dict().items() if t.is_floating_point()}
