"""Models, data and bare PyTorch loops with which `tests/benchmarks/overhead.py` compares fedlit."""

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from floor import CLASSES, LR
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedlit.data.in_memory import GivenClients
from fedlit.models import ImageClassifier
from fedlit.objectives import AUCSaddle

SEQUENTIAL_THREADS = int(os.environ.get("SEQUENTIAL_THREADS", os.cpu_count()))


def densenet(classes: tuple[str, ...] = CLASSES, **options) -> LightningModule:
    return ImageClassifier(classes, in_chans=3, optimizer=lambda p: torch.optim.SGD(p, lr=LR), **options)


def densenet_auc() -> LightningModule:
    return densenet(objective=AUCSaddle())


def densenet_group() -> LightningModule:
    return densenet(norm="group")


def densenet_group_auc() -> LightningModule:
    return densenet(norm="group", objective=AUCSaddle(prior=0.5, start="zeros"))


def densenet_binary() -> LightningModule:
    return densenet(CLASSES[:1], objective=AUCSaddle())


class Images(Dataset):
    """Random images in memory, fetched in batches."""

    def __init__(self, size: int, seed: int, classes: int, side: int = 32) -> None:
        g = torch.Generator().manual_seed(seed)
        self.images = torch.randn(size, 3, side, side, generator=g)
        self.labels = torch.randint(0, 2, (size, classes), generator=g).float()

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.images[indices], self.labels[indices]


@dataclass(frozen=True)
class Work:
    """K clients, ``steps`` steps of ``batch`` images each, of which a client has ``images``: by default one epoch."""

    make: Callable[[], LightningModule]
    clients: int
    steps: int
    batch: int
    classes: tuple[str, ...] = CLASSES
    side: int = 32
    images: int | None = None

    def data(self) -> GivenClients:
        size, classes = self.images or self.steps * self.batch, len(self.classes)
        sets = {f"client-{k:03d}": Images(size, k, classes, self.side) for k in range(self.clients)}
        return GivenClients(sets, self.classes, batch_size=self.batch)


def bare_client(model: nn.Module, start: list[Tensor], data: Images, work: Work, epoch: int) -> None:
    """Run one client's local steps in plain PyTorch."""
    with torch.no_grad():
        for tensor, shared in zip(model.state_dict().values(), start, strict=True):
            tensor.copy_(shared)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    model.train()
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
    for step in range(work.steps):
        indices = order[step * work.batch : (step + 1) * work.batch]
        optimizer.zero_grad()
        loss = model.training_step(data.batch(indices), step)
        loss.backward()
        optimizer.step()


class BareSequential:
    """One client at a time on all cores."""

    def __init__(self, work: Work, data: GivenClients) -> None:
        self.work, self.data = work, [d.train for d in data.clients.values()]
        self.model = work.make()
        self.start = [t.clone() for t in self.model.state_dict().values()]
        self.epoch = 0

    def round(self) -> None:
        torch.set_num_threads(SEQUENTIAL_THREADS)
        total = [torch.zeros_like(t, dtype=torch.float32) for t in self.start]
        for data in self.data:
            bare_client(self.model, self.start, data, self.work, self.epoch)
            torch._foreach_add_(total, [t.float() for t in self.model.state_dict().values()], alpha=1 / len(self.data))
        for shared, mean in zip(self.start, total, strict=True):
            shared.copy_(mean)
        self.epoch += 1
        torch.set_num_threads(1)

    def close(self) -> None: ...


class BareSideBySide:
    """One process per core, each with its share of the clients and one thread; states in shared memory."""

    def __init__(self, work: Work, data: GivenClients) -> None:
        context, workers = multiprocessing.get_context("spawn"), os.cpu_count()
        self.start = [t.clone().share_memory_() for t in work.make().state_dict().values()]
        self.totals = [
            [torch.zeros_like(t, dtype=torch.float32).share_memory_() for t in self.start] for _ in range(workers)
        ]
        self.begin, self.end = context.Barrier(workers + 1), context.Barrier(workers + 1)
        for w in range(workers):
            names = list(data.clients)[w::workers]
            share = [data.clients[n].train for n in names]
            args = (work, share, len(data.clients), self.start, self.totals[w], self.begin, self.end)
            context.Process(target=_side_by_side, args=args, daemon=True).start()

    def round(self) -> None:
        self.begin.wait()
        self.end.wait()
        for i, shared in enumerate(self.start):
            shared.copy_(sum(total[i] for total in self.totals))

    def close(self) -> None:
        self.begin.abort()


def _side_by_side(work: Work, share: list[Images], clients: int, start: list[Tensor], total: list[Tensor], begin, end):
    torch.set_num_threads(1)
    model, epoch = work.make(), 0
    while True:
        try:
            begin.wait()
        except Exception:
            return
        torch._foreach_zero_(total)
        for data in share:
            bare_client(model, start, data, work, epoch)
            torch._foreach_add_(total, [t.float() for t in model.state_dict().values()], alpha=1 / clients)
        epoch += 1
        end.wait()
