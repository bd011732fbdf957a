"""Strange modules and optimizers in one table, with its truth: whether a federation trains them as plain PyTorch does.

A federation trains a copy of the module, which clients share. What a step reads of the steps before, and what a copy
does not have, make a difference.
"""

import copy
from collections.abc import Callable

import numpy as np
import timm.optim
import torch
from foreigners import Unvalidated
from strangers import having, stepping
from torch import nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy

RATE = 0.05


def attribute(name: str, value: Callable) -> Callable:
    return lambda module: setattr(module, name, value(module))


def optimized(configure: Callable, start: Callable = lambda module: None) -> type:
    return having(start, configure_optimizers=configure)


class Slotted:
    """A function that keeps a number where there is no dictionary."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0

    def __call__(self) -> int:
        self.n += 1
        return self.n


REGISTER = {"n": 0}


class OfFile(Unvalidated):
    """Divides by a global counter."""

    def training_step(self, batch, batch_idx):
        REGISTER["n"] += 1
        return super().training_step(batch, batch_idx) / REGISTER["n"]


class OfClass(Unvalidated):
    """Divides by a counter in its class."""

    calls = 0

    def training_step(self, batch, batch_idx):
        type(self).calls += 1
        return super().training_step(batch, batch_idx) / type(self).calls


def closing_over():
    steps = []

    def step(module, loss, batch):
        steps.append(1)
        return loss / len(steps)

    return step


def counted(module, loss, batch):
    module.steps += 1
    return loss


def first_mean(m, loss, batch):
    """Divide by the mean of the first images that a copy of the module meets, whoever's they are."""
    if m.mean is None:
        m.mean = batch[0].abs().mean()
    return loss / m.mean


def averaged(module, loss, batch):
    module.mean = 0.9 * module.mean + 0.1 * batch[0].mean()
    return loss * (1 + module.mean)


def queued(module, loss, batch):
    module.seen.append(loss.detach())
    return loss if len(module.seen) < 2 else loss * module.seen[-2]


def later(module, loss, batch):
    if module.global_step >= 2:
        module.steps += 1
    return loss / (1 + module.steps)


def smoothed(module, loss, batch):
    module.accuracy.update(module.net(batch[0].flatten(1)), batch[1])
    return loss * (1 + module.accuracy.compute())


def taught(module, loss, batch):
    with torch.no_grad():
        module.teacher.weight.lerp_(module.net.weight, 0.1)
    return loss


def taught_by_a_list(module, loss, batch):
    with torch.no_grad():
        module.others[0].weight.lerp_(module.net.weight, 0.3)
    images = batch[0].flatten(1)
    return loss + F.mse_loss(module.net(images), module.others[0](images))


def registering(module, loss, batch):
    if not hasattr(module, "late"):
        module.register_buffer("late", torch.zeros((), dtype=torch.long))
    module.late += 1
    return loss / module.late


def dropped(module, loss, batch):
    return F.cross_entropy(module.net(batch[0].flatten(1)), batch[1])


def dropped_more(module, loss, batch):
    module.net[1].p += 0.05
    return dropped(module, loss, batch)


def with_dropout(module) -> None:
    module.net = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.Linear(16, 4))


def grid(module, loss, batch):
    if module.grid is None:
        module.grid = torch.arange(4)
    return loss + 0 * module.grid.sum()


def left_behind(module, loss, batch):
    module.features, module.latest, module.losses = batch[0].flatten(1), float(loss), {"latest": loss}
    return loss


def with_hook(module) -> None:
    module.scale = nn.Parameter(torch.full((4,), 0.5))
    module.net.register_forward_hook(lambda layer, images, out: out * module.scale)


def collecting(module) -> None:
    features: dict = {}
    module.features = features
    module.net.register_forward_hook(lambda layer, images, out: features.update(out=out))


def patched(module) -> None:
    forward = module.net.forward
    module.net.forward = lambda images: 0.5 * forward(images)


def normalised(module) -> None:
    module.net = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    module.net[1].running_mean.fill_(0.3)
    module.net[1].eval()


def tied_by_data(module) -> None:
    module.other = nn.Linear(16, 4)
    module.other.weight.data = module.net.weight.data


def with_frozen_twin(module) -> None:
    module.twin = nn.Linear(16, 4).requires_grad_(False)
    module.twin.weight.data = module.net.weight.data


def overlapping(module) -> None:
    values = torch.randn(10)
    module.one, module.two = nn.Parameter(values[:6]), nn.Parameter(values[4:])


def of_both(module, loss, batch):
    return loss + F.cross_entropy(module.other(batch[0].flatten(1)), batch[1])


def extra(module) -> None:
    module.extra = nn.Linear(16, 4)


def also_extra(module, loss, batch):
    return loss + F.cross_entropy(module.extra(batch[0].flatten(1)), batch[1])


def of_some_clients(module, loss, batch):
    return also_extra(module, loss, batch) if batch[0].mean() > 1.5 else loss


USED = {
    "never": lambda module, loss, batch: loss,
    "now and then": lambda m, loss, batch: also_extra(m, loss, batch) if m.global_step % 2 else loss,
    "by some clients": of_some_clients,
    "until the second round": lambda m, loss, batch: also_extra(m, loss, batch) if m.global_step < 2 else loss,
    "with a factor of 0": lambda m, loss, batch: loss + 0 * sum(p.sum() for p in m.extra.parameters()),
}


def adamw(m: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1)


class ClipSGD(torch.optim.SGD):
    """Keeps its bound as an attribute."""

    def __init__(self, params, clip: float) -> None:
        super().__init__(params, lr=RATE)
        self.clip = clip

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.grad.clamp_(-self.clip, self.clip)
        return super().step(closure)


class NormSGD(torch.optim.SGD):
    """Divides by the norm of each tensor."""

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.grad.div_(p.grad.norm() + 1)
        return super().step(closure)


class Anchored(torch.optim.SGD):
    """Pulls towards the weights that it was made with."""

    def __init__(self, params) -> None:
        super().__init__(params, lr=RATE)
        for p in self.param_groups[0]["params"]:
            self.state[p]["anchor"] = p.detach().clone()

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.grad.add_(p.detach() - self.state[p]["anchor"], alpha=0.5)
        return super().step(closure)


class Listed(torch.optim.SGD):
    """Keeps a list of tensors of the parameters' shapes."""

    def __init__(self, params) -> None:
        super().__init__(params, lr=RATE)
        self.anchors = [p.detach().clone() for p in self.param_groups[0]["params"]]

    def step(self, closure=None):
        for p, anchor in zip(self.param_groups[0]["params"], self.anchors, strict=True):
            p.grad.add_(p.detach() - anchor)
        return super().step(closure)


def of_timm(name: str):
    return lambda m: timm.optim.create_optimizer_v2(list(m.parameters()), opt=name, lr=RATE)


def sgd(m: nn.Module, **options: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(m.parameters(), lr=RATE, **options)


def hooked(m: nn.Module) -> torch.optim.Optimizer:
    def clamp(optimizer: torch.optim.Optimizer, *_) -> None:
        for p in optimizer.param_groups[0]["params"]:
            p.grad.clamp_(-0.01, 0.01)

    optimizer = sgd(m)
    optimizer.register_step_pre_hook(clamp)
    return optimizer


def halved(m: nn.Module) -> torch.optim.Optimizer:
    optimizer = sgd(m)

    def step(closure=None):
        for p in m.parameters():
            p.grad.mul_(0.5)
        return torch.optim.SGD.step(optimizer, closure)

    optimizer.step = step
    return optimizer


def loaded(m: nn.Module) -> torch.optim.Optimizer:
    optimizer = sgd(m, momentum=0.9)
    for p in m.parameters():
        optimizer.state[p]["momentum_buffer"] = torch.ones_like(p)
    return optimizer


def own_optimizer(m: nn.Module) -> torch.optim.Optimizer:
    m.opt = sgd(m)
    return m.opt


def own_scheduler(m: nn.Module) -> torch.optim.Optimizer:
    optimizer = sgd(m, momentum=0.9)
    m.decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    return optimizer


def sets_its_rate(m: nn.Module, loss: torch.Tensor, batch: tuple) -> torch.Tensor:
    m.opt.param_groups[0]["lr"] = 0.1 * float(loss.detach())
    return loss


def steps_its_scheduler(m: nn.Module, loss: torch.Tensor, batch: tuple) -> torch.Tensor:
    if m.decay.optimizer.state:
        m.decay.step()
    return loss


SAME, OTHER = True, False
CORPUS: dict[str, tuple[bool, Callable]] = {
    # what a step reads of the steps before
    "a counter in an attribute": (SAME, stepping(counted, attribute("steps", lambda m: 0))),
    "a counter that divides the loss": (
        OTHER, stepping(lambda m, loss, b: counted(m, loss, b) / m.steps, attribute("steps", lambda m: 0))),
    "a counter that begins in the second round": (OTHER, stepping(later, attribute("steps", lambda m: 0))),
    "a counter of calls in slots": (
        OTHER, stepping(lambda m, loss, b: loss / m.count(), attribute("count", lambda m: Slotted()))),
    "a counter in a class": (OTHER, OfClass),
    "a counter in a global": (OTHER, OfFile),
    "a counter in a closure": (OTHER, stepping(closing_over())),
    "a mean in a tensor": (OTHER, stepping(averaged, attribute("mean", lambda m: torch.zeros(())))),
    "a mean of the first batch": (OTHER, stepping(first_mean, attribute("mean", lambda m: None))),
    "a mean in a buffer": (SAME, stepping(averaged, lambda m: m.register_buffer("mean", torch.zeros(())))),
    "a list that the loss reads": (OTHER, stepping(queued, attribute("seen", lambda m: []))),
    "a list that grows": (
        SAME, stepping(lambda m, loss, b: m.seen.append(float(loss)) or loss, attribute("seen", lambda m: []))),
    "a generator of numpy": (
        OTHER, stepping(lambda m, loss, b: loss * m.rng.random(), attribute("rng", lambda m: np.random.default_rng(0)))
    ),
    "a metric in the loss": (OTHER, stepping(smoothed, attribute("accuracy", lambda m: MulticlassAccuracy(4)))),
    "a frozen teacher that follows": (
        OTHER, stepping(taught, attribute("teacher", lambda m: nn.Linear(16, 4).requires_grad_(False)))),
    "a teacher in a list": (OTHER, stepping(taught_by_a_list, attribute("others", lambda m: [copy.deepcopy(m.net)]))),
    "a rate of dropout that rises": (OTHER, stepping(dropped_more, with_dropout)),
    "dropout": (SAME, stepping(dropped, with_dropout)),
    "a late buffer": (OTHER, stepping(registering)),
    "what a step leaves behind": (SAME, stepping(left_behind)),
    "a grid made once": (SAME, stepping(grid, attribute("grid", lambda m: None))),
    "gradients set to none": (SAME, stepping(lambda m, loss, b: m.zero_grad() or loss)),
    "a loss with one element": (SAME, stepping(lambda m, loss, b: loss[None])),
    # what a copy has to lead to the copy
    "a function of the module": (SAME, stepping(
        lambda m, loss, b: F.cross_entropy(m.f(b[0].flatten(1)), b[1]), attribute("f", lambda m: lambda x: m.net(x)))),
    "a default of a function": (SAME, stepping(
        lambda m, loss, b: F.cross_entropy(m.f(b[0].flatten(1)), b[1]),
        attribute("f", lambda m: lambda x, net=m.net: net(x)))),
    "a hook of a layer": (SAME, having(with_hook)),
    "a hook that collects": (
        SAME, stepping(lambda m, loss, b: loss + m.features["out"].square().mean(), collecting)),
    "a replaced forward": (SAME, having(patched)),
    "a list of parameters": (SAME, having(attribute("trained", lambda m: [m.net.weight, m.net.weight.data]))),
    "a layer in two places": (SAME, having(attribute("again", lambda m: m.net))),
    "old weight normalisation": (SAME, having(lambda m: nn.utils.weight_norm(m.net))),
    "a normalisation in evaluation mode": (SAME, having(normalised)),
    "a causal mask": (SAME, having(lambda m: m.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1)))),
    # memory in two places
    "two layers of the same memory": (OTHER, stepping(of_both, tied_by_data)),
    "a frozen layer of the same memory": (OTHER, having(with_frozen_twin)),
    "a buffer of a parameter's memory": (OTHER, having(lambda m: m.register_buffer("alias", m.net.weight.data))),
    "an attribute of a parameter's memory in the loss": (OTHER, stepping(
        lambda m, loss, b: loss * (1 + m.row.norm()), attribute("row", lambda m: m.net.weight[0].detach()))),
    "parameters that overlap": (
        OTHER, stepping(lambda m, loss, b: loss + m.one.sum() + m.two.square().sum(), overlapping)),
    "an expanded buffer": (SAME, having(lambda m: m.register_buffer("ones", torch.ones(1).expand(5)))),
    # layers that the loss does not use, and optimizers
    **{f"used {used}": (SAME, stepping(step, extra, configure_optimizers=adamw)) for used, step in USED.items()},
    "adan": (SAME, optimized(of_timm("adan"))),
    "own attribute": (SAME, optimized(lambda m: ClipSGD(m.parameters(), clip=0.01))),
    "hook of the step": (SAME, optimized(hooked)),
    "norms of tensors": (SAME, optimized(lambda m: NormSGD(m.parameters(), lr=RATE))),
    "a state that is loaded": (SAME, optimized(loaded)),
    "the weights that it was made with": (SAME, optimized(lambda m: Anchored(m.parameters()))),
    "a list of tensors": (SAME, optimized(lambda m: Listed(m.parameters()))),
    "factors of matrices": (SAME, optimized(lambda m: torch.optim.Adafactor(m.parameters(), lr=RATE))),
    "a replaced step": (SAME, optimized(halved)),
    "a rate that the step sets": (SAME, stepping(sets_its_rate, configure_optimizers=own_optimizer)),
    "a scheduler that the step steps": (SAME, stepping(steps_its_scheduler, configure_optimizers=own_scheduler)),
}  # fmt: skip
if hasattr(torch.optim, "Muon"):  # since PyTorch 2.9
    CORPUS["only matrices"] = SAME, optimized(lambda m: torch.optim.Muon([m.net.weight]))
