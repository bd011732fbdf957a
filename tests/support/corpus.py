"""Strange modules: what a step reads of the steps before, copies, and memory in two places."""

import copy
import random
from array import array
from collections.abc import Callable

import numpy as np
import torch
from foreigners import Unvalidated
from strangers import having, stepping
from torch import nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy


def attribute(name: str, value: Callable) -> Callable:
    return lambda module: setattr(module, name, value(module))


class Slotted:
    """A function that keeps a number where there is no dictionary."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0

    def __call__(self) -> int:
        self.n += 1
        return self.n


class Called:
    """A function with a memory."""

    __init__, __call__ = Slotted.__init__, Slotted.__call__


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


def collected(module, loss, batch):
    module.seen.append(float(loss))
    return loss


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


def normed(module, loss, batch):
    module.others[0](batch[0].flatten(1))
    return loss * (1 + module.others[0].running_mean.abs().mean())


def registering(module, loss, batch):
    if not hasattr(module, "late"):
        module.register_buffer("late", torch.zeros((), dtype=torch.long))
    module.late += 1
    return loss / module.late


def dropped_more(module, loss, batch):
    module.net[1].p += 0.05
    return F.cross_entropy(module.net(batch[0].flatten(1)), batch[1])


def with_dropout(module) -> None:
    module.net = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.Linear(16, 4))


def noisy(module, loss, batch):
    return F.cross_entropy(module.net(batch[0].flatten(1)), batch[1])


def grid(module, loss, batch):
    if module.grid is None:
        module.grid = torch.arange(4)
    return loss + 0 * module.grid.sum()


def left_behind(module, loss, batch):
    module.features, module.latest, module.losses = batch[0].flatten(1), float(loss), {"latest": loss}
    return loss


STATE = {
    "a counter in an attribute": stepping(counted, attribute("steps", lambda m: 0)),
    "a counter in a submodule": stepping(
        lambda m, loss, b: counted(m.net, loss, b),
        attribute("net", lambda m: type("Layer", (nn.Linear,), {"steps": 0})(16, 4)),
    ),
    "a counter that divides the loss": stepping(
        lambda m, loss, b: counted(m, loss, b) / m.steps, attribute("steps", lambda m: 0)
    ),
    "a counter that begins in the second round": stepping(later, attribute("steps", lambda m: 0)),
    "a counter of calls in slots": stepping(
        lambda m, loss, b: loss / m.count(), attribute("count", lambda m: Slotted())
    ),
    "a counter of calls in an object": stepping(
        lambda m, loss, b: loss / m.count(), attribute("count", lambda m: Called())
    ),
    "a counter in a class": OfClass,
    "a counter in a global": OfFile,
    "a counter in a closure": stepping(closing_over()),
    "a mean in a tensor": stepping(averaged, attribute("mean", lambda m: torch.zeros(()))),
    "a mean of the first batch": stepping(first_mean, attribute("mean", lambda m: None)),
    "a mean in a buffer": stepping(averaged, lambda m: m.register_buffer("mean", torch.zeros(()))),
    "a list that the loss reads": stepping(queued, attribute("seen", lambda m: [])),
    "a list that grows": stepping(collected, attribute("seen", lambda m: [])),
    "an array": stepping(
        lambda m, loss, b: m.seen.append(1) or loss / len(m.seen), attribute("seen", lambda m: array("i"))
    ),
    "bytes": stepping(
        lambda m, loss, b: m.seen.append(1) or loss / len(m.seen), attribute("seen", lambda m: bytearray())
    ),
    "a generator of numpy": stepping(
        lambda m, loss, b: loss * m.rng.random(), attribute("rng", lambda m: np.random.default_rng(0))
    ),
    "a generator of python": stepping(
        lambda m, loss, b: loss * m.rng.random(), attribute("rng", lambda m: random.Random(0))
    ),
    "a metric in the loss": stepping(smoothed, attribute("accuracy", lambda m: MulticlassAccuracy(4))),
    "a frozen teacher that follows": stepping(
        taught, attribute("teacher", lambda m: nn.Linear(16, 4).requires_grad_(False))
    ),
    "a teacher in a list": stepping(taught_by_a_list, attribute("others", lambda m: [copy.deepcopy(m.net)])),
    "a norm in a list": stepping(normed, attribute("others", lambda m: [nn.BatchNorm1d(16)])),
    "a rate of dropout that rises": stepping(dropped_more, with_dropout),
    "dropout": stepping(noisy, with_dropout),
    "a late buffer": stepping(registering),
    "what a step leaves behind": stepping(left_behind),
    "a grid made once": stepping(grid, attribute("grid", lambda m: None)),
    "gradients set to none": stepping(lambda m, loss, b: m.zero_grad() or loss),
    "gradients set to zero": stepping(lambda m, loss, b: m.zero_grad(set_to_none=False) or loss),
    "a loss with one element": stepping(lambda m, loss, b: loss[None]),
}


def scaled(module) -> None:
    module.scale = nn.Parameter(torch.full((4,), 0.5))


def with_hook(module) -> None:
    scaled(module)
    module.net.register_forward_hook(lambda layer, images, out: out * module.scale)


def collecting(module) -> None:
    features: dict = {}
    module.features = features
    module.net.register_forward_hook(lambda layer, images, out: features.update(out=out))


def patched(module) -> None:
    forward = module.net.forward
    module.net.forward = lambda images: 0.5 * forward(images)


def halving(layer, images, out):
    return 0.5 * out


def normalised(module) -> None:
    module.net = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    module.net[1].running_mean.fill_(0.3)
    module.net[1].eval()


COPIES = {
    "a function of the module": stepping(
        lambda m, loss, b: F.cross_entropy(m.f(b[0].flatten(1)), b[1]), attribute("f", lambda m: lambda x: m.net(x))
    ),
    "a list of functions": having(attribute("f", lambda m: [lambda x: m.net(x)])),
    "a default of a function": stepping(
        lambda m, loss, b: F.cross_entropy(m.f(b[0].flatten(1)), b[1]),
        attribute("f", lambda m: lambda x, net=m.net: net(x)),
    ),
    "a hook of a layer": having(with_hook),
    "a hook that collects": stepping(lambda m, loss, b: loss + m.features["out"].square().mean(), collecting),
    "a hook that is a function": having(lambda m: m.net.register_forward_hook(halving)),
    "a replaced forward": having(patched),
    "a bound method": having(attribute("f", lambda m: m.net.forward)),
    "a list of parameters": having(attribute("trained", lambda m: [m.net.weight, m.net.weight.data])),
    "a layer in two places": having(attribute("again", lambda m: m.net)),
    "old weight normalisation": having(lambda m: nn.utils.weight_norm(m.net)),
    "a normalisation in evaluation mode": having(normalised),
    "a causal mask": having(lambda m: m.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))),
}


def tied_by_data(module) -> None:
    module.other = nn.Linear(16, 4)
    module.other.weight.data = module.net.weight.data


def with_frozen_twin(module) -> None:
    module.twin = nn.Linear(16, 4).requires_grad_(False)
    module.twin.weight.data = module.net.weight.data


def overlapping(module) -> None:
    values = torch.randn(10)
    module.one, module.two = nn.Parameter(values[:6]), nn.Parameter(values[4:])


def two_views(module) -> None:
    values = torch.randn(10)
    module.register_buffer("one", values)
    module.register_buffer("two", values[:5])


def of_both(module, loss, batch):
    return loss + F.cross_entropy(module.other(batch[0].flatten(1)), batch[1])


MEMORY = {
    "two layers of the same memory": stepping(of_both, tied_by_data),
    "a frozen layer of the same memory": having(with_frozen_twin),
    "a buffer of a parameter's memory": having(lambda m: m.register_buffer("alias", m.net.weight.data)),
    "an attribute of a parameter's memory": having(attribute("row", lambda m: m.net.weight[0].detach())),
    "an attribute of a parameter's memory in the loss": stepping(
        lambda m, loss, b: loss * (1 + m.row.norm()), attribute("row", lambda m: m.net.weight[0].detach())
    ),
    "parameters that overlap": stepping(lambda m, loss, b: loss + m.one.sum() + m.two.square().sum(), overlapping),
    "buffers that overlap": having(two_views),
    "an expanded buffer": having(lambda m: m.register_buffer("ones", torch.ones(1).expand(5))),
}


def extra(module) -> None:
    module.extra = nn.Linear(16, 4)


def also_extra(module, loss, batch):
    return loss + F.cross_entropy(module.extra(batch[0].flatten(1)), batch[1])


def now_and_then(module, loss, batch):
    return also_extra(module, loss, batch) if module.global_step % 2 else loss


def of_some_clients(module, loss, batch):
    return also_extra(module, loss, batch) if batch[0].mean() > 1.5 else loss


def until_the_second_round(module, loss, batch):
    return also_extra(module, loss, batch) if module.global_step < 2 else loss


def with_zero(module, loss, batch):
    return loss + 0 * sum(p.sum() for p in module.extra.parameters())


def flattened(layer: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in layer.parameters()])


def of_torch(name: str, **options):
    return lambda m: getattr(torch.optim, name)(m.parameters(), **options)


OPTIMIZERS = {
    "SGD": of_torch("SGD", lr=0.1),
    "weight decay": of_torch("SGD", lr=0.1, weight_decay=0.1),
    "momentum": of_torch("SGD", lr=0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": of_torch("AdamW", lr=0.01, weight_decay=0.1),
}
USED = {
    "never": lambda module, loss, batch: loss,
    "now and then": now_and_then,
    "by some clients": of_some_clients,
    "until the second round": until_the_second_round,
    "with a factor of 0": with_zero,
}
UNUSED = {
    f"used {used}, {name}": stepping(step, extra, configure_optimizers=configure)
    for used, step in USED.items()
    for name, configure in OPTIMIZERS.items()
}
