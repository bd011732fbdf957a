"""What an optimizer may do otherwise on one vector than on the parameters."""

from collections.abc import Iterator

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from fedlit.core.flat import Entry, FlatModel
from fedlit.core.module import copy_of
from fedlit.core.optimizer import FlatOptimizer, single_optimizer
from fedlit.federation.examinations.examination import Examination

STEPS, SCALES, FAR = 24, (1.0, 1e-2, 10.0), 1e-4
"""Steps that an optimizer is tried for, scales of its gradients in turn, and the share of the largest move that is no rounding."""


class ElementwiseOptimizer(Examination[LightningModule]):
    """The optimizer does the same steps on the flat vector as on the parameters; one that is not torch's own is tried.

    Gradients of the module's own shapes are drawn, small and large ones in turn, for more steps than what happens now and
    then needs; the second is orthogonal to the weights, as behind a normalisation, where some optimizers project. The steps
    are taken twice, as two clients' rounds: what an optimizer keeps outside of its state would make the second unlike the
    first, and a run with one worker unlike a run with two.
    """

    name = "optimizer"
    advice = "use an elementwise optimizer, such as SGD or Adam of torch.optim"

    def found(self, module: LightningModule) -> str:
        """Try the module's optimizer on copies of the module; say by how much it differs, and where most."""
        own, other = copy_of(module), copy_of(module)
        model = FlatModel(other)
        optimizer = FlatOptimizer(other, model)
        if not optimizer.foreign:
            return ""
        with torch.no_grad():  # a round begins from other weights than those that it was made with
            for parameter in own.parameters():
                parameter.mul_(1.5 if parameter.requires_grad else 1)
        configured, start = single_optimizer(own), 1.5 * model.w
        kind = type(configured).__name__
        parameters = dict(own.named_parameters())
        places = {
            entry.name: entry
            for entry in model.layout.parameters
            if parameters[entry.name].requires_grad and entry.size
        }
        with torch.random.fork_rng(devices=[]):
            for step in range(STEPS):
                for name, gradient in self._gradients(step, start, places):
                    parameters[name].grad = gradient.to(parameters[name])
                torch.manual_seed(step)
                try:
                    configured.step()
                except Exception as error:
                    return f"{kind} cannot take a step along gradients that it is given: {error}; {self.advice}"
            try:
                rounds = [self._round(optimizer, model, places, start) for _ in range(2)]
            except Exception as error:
                return f"{kind} cannot take a step on the flat vector: {error}; {self.advice}"
        wanted = {name: parameters[name].detach().to(start.dtype) for name in places}
        moved = max(float((wanted[name] - entry.view(start)).abs().max()) for name, entry in places.items())
        for found, what in zip(
            rounds, ("than on the parameters themselves", "in a second round than in the first"), strict=True
        ):
            away = {name: float((entry.view(found) - wanted[name]).abs().max()) for name, entry in places.items()}
            worst = max(away, key=away.__getitem__)
            if not away[worst] <= FAR * moved:
                return (
                    f"{kind} does other steps on the flat vector {what}: {away[worst]:.2g} away at {worst} after a move of "
                    f"{moved:.2g} in {STEPS} steps; it looks at whole tensors, or keeps something of its own: {self.advice}"
                )
        return ""

    def _round(self, optimizer: FlatOptimizer, model: FlatModel, places: dict[str, Entry], start: Tensor) -> Tensor:
        """Give the vector after the same steps from the start."""
        with torch.no_grad():
            model.w.copy_(start)
        optimizer.begin({}, 1.0)
        for step in range(STEPS):
            for name, gradient in self._gradients(step, start, places):
                places[name].view(model.grad).copy_(gradient)
            torch.manual_seed(step)
            optimizer.step()
        return model.w.detach().clone()

    def _gradients(self, step: int, start: Tensor, places: dict[str, Entry]) -> Iterator[tuple[str, Tensor]]:
        drawn, first = torch.Generator().manual_seed(step), torch.Generator().manual_seed(0)
        for name, entry in places.items():
            gradient = torch.randn(entry.shape, generator=drawn, dtype=start.dtype)
            if step == 1:
                weights = entry.view(start).flatten()
                before = torch.randn(entry.shape, generator=first, dtype=start.dtype).flatten()
                span, _ = torch.linalg.qr(torch.stack([weights, before], dim=1))
                gradient -= (span @ (span.T @ gradient.flatten())).view(entry.shape)
            yield name, SCALES[step % len(SCALES)] * gradient
