"""Custom optimizers: a plain PyTorch loop of each client trains with them, and so does a federation."""

import timm.optim
import torch
from strangers import having, stepping
from torch import nn

RATE = 0.05


class ClipSGD(torch.optim.SGD):
    """Keeps its bound as an attribute."""

    def __init__(self, params, lr: float = RATE, clip: float = 100.0) -> None:
        super().__init__(params, lr=lr)
        self.clip = clip

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.clamp_(-self.clip, self.clip)
        return super().step(closure)


class NormSGD(torch.optim.SGD):
    """Divides by the norm of each tensor."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.div_(p.grad.norm() + 1)
        return super().step(closure)


class Needy(torch.optim.SGD):
    """Needs an argument that its defaults lack."""

    def __init__(self, params, bound: float) -> None:
        super().__init__(params, lr=RATE)


class Counting(torch.optim.SGD):
    """Divides by the number of steps, which is not part of its state."""

    taken = 0

    def step(self, closure=None):
        self.taken += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.div_(self.taken)
        return super().step(closure)


def of_timm(name: str):
    return lambda m: timm.optim.create_optimizer_v2(list(m.parameters()), opt=name, lr=RATE)


def hooked(m: nn.Module) -> torch.optim.Optimizer:
    def clamp(optimizer: torch.optim.Optimizer, *_) -> None:
        for p in optimizer.param_groups[0]["params"]:
            p.grad.clamp_(-0.01, 0.01)

    optimizer = torch.optim.SGD(m.parameters(), lr=RATE)
    optimizer.register_step_pre_hook(clamp)
    return optimizer


def once_scheduled(m: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(m.parameters(), lr=RATE)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return optimizer


def halved(m: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(m.parameters(), lr=RATE)

    def step(closure=None):
        for p in m.parameters():
            p.grad.mul_(0.5)
        return torch.optim.SGD.step(optimizer, closure)

    optimizer.step = step
    return optimizer


def loaded(m: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(m.parameters(), lr=RATE, momentum=0.9)
    for p in m.parameters():
        optimizer.state[p]["momentum_buffer"] = torch.ones_like(p)
    return optimizer


class Anchored(torch.optim.SGD):
    """Pulls towards the weights that it was made with."""

    def __init__(self, params, lr: float = RATE) -> None:
        super().__init__(params, lr=lr)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["anchor"] = p.detach().clone()

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.add_(p.detach() - self.state[p]["anchor"], alpha=0.5)
        return super().step(closure)


class Listed(torch.optim.SGD):
    """Keeps a list of tensors of the parameters' shapes."""

    def __init__(self, params, lr: float = RATE) -> None:
        super().__init__(params, lr=lr)
        self.anchors = [p.detach().clone() for group in self.param_groups for p in group["params"]]

    def step(self, closure=None):
        for p, anchor in zip(self.param_groups[0]["params"], self.anchors, strict=True):
            p.grad.add_(p.detach() - anchor)
        return super().step(closure)


class OfModule(torch.optim.SGD):
    """Takes a module in the place of parameters."""

    def __init__(self, module, lr: float = RATE) -> None:
        super().__init__(module.parameters(), lr=lr)


def own_optimizer(m: nn.Module) -> torch.optim.Optimizer:
    m.opt = torch.optim.SGD(m.parameters(), lr=RATE)
    return m.opt


def own_scheduler(m: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(m.parameters(), lr=RATE, momentum=0.9)
    m.decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    return optimizer


def sets_its_rate(m: nn.Module, loss: torch.Tensor, batch: tuple) -> torch.Tensor:
    m.opt.param_groups[0]["lr"] = 0.1 * float(loss.detach())
    return loss


def steps_its_scheduler(m: nn.Module, loss: torch.Tensor, batch: tuple) -> torch.Tensor:
    if m.decay.optimizer.state:
        m.decay.step()
    return loss


OF_TIMM = ("adan", "lion", "adopt", "radabelief", "madgrad", "adamp", "sgdp", "mars", "novograd", "clion")
TRAINED = {
    **{name: having(configure_optimizers=of_timm(name)) for name in OF_TIMM},
    **{
        what: having(configure_optimizers=configure)
        for what, configure in {
            "own attribute": lambda m: ClipSGD(m.parameters(), clip=0.01),
            "hook of the step": hooked,
            "scheduler that is not returned": once_scheduled,
            "norms of tensors": lambda m: NormSGD(m.parameters(), lr=RATE),
            "a count in an attribute": lambda m: Counting(m.parameters(), lr=RATE),
            "an argument that nobody kept": lambda m: Needy(m.parameters(), 1.0),
            "a state that is loaded": loaded,
            "the weights that it was made with": lambda m: Anchored(m.parameters()),
            "a list of tensors": lambda m: Listed(m.parameters()),
            "a module": lambda m: OfModule(m),
            "only matrices": lambda m: torch.optim.Muon([m.net.weight]),
            "factors of matrices": lambda m: torch.optim.Adafactor(m.parameters(), lr=RATE),
            "a replaced step": halved,
        }.items()
    },
    "an attribute of the module, with its rate set in the step": stepping(
        sets_its_rate, configure_optimizers=own_optimizer
    ),
    "a scheduler in an attribute, stepped in the step": stepping(
        steps_its_scheduler, configure_optimizers=own_scheduler
    ),
}  # fmt: skip
if not hasattr(torch.optim, "Muon"):  # before PyTorch 2.9
    del TRAINED["only matrices"]
