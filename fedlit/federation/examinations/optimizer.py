"""Checks of the optimizer that a module configures."""

from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim import Optimizer

from fedlit.core.configured_optimizer import HOOKS, single_optimizer
from fedlit.core.flat import Entry, FlatModel
from fedlit.core.module import copy_of
from fedlit.core.optimizer import FlatOptimizer
from fedlit.federation.examinations.examination import Examination, KeyedProblem

STEPS, SCALES, FAR = 24, (1.0, 1e-2, 10.0), 1e-4
"""Number of trial steps, alternating scales of their gradients, and the largest rounding error relative to the move."""


class FreshOptimizer(Examination[FlatModel]):
    """``configure_optimizers`` returns a new optimizer of the module's parameters, and does not change the module."""

    name = "new optimizer"
    advice = "only make an optimizer of self.parameters() there"

    def problem(self, model: FlatModel) -> str:
        """Name the parameter that is frozen, changed, foreign or not new."""
        module, before = model.module, model.w.clone()
        configured, name = single_optimizer(module), type(module).__name__
        pairs = zip(model.layout.parameters, model.parameters, strict=True)
        if frozen := [entry.name for entry, parameter in pairs if not parameter.requires_grad]:
            return KeyedProblem(
                f"{name}.configure_optimizers freezes the parameter {frozen[0]}: freeze it in __init__",
                key="optimizer-freezes-parameter",
            )
        if not torch.equal(model.w, before):
            return KeyedProblem(
                f"{name}.configure_optimizers changes weights, but is called for every copy of the module: do it in "
                "__init__",
                key="optimizer-changes-weights",
            )
        known = {id(parameter) for parameter in module.parameters()}
        if others := [p for group in configured.param_groups for p in group["params"] if id(p) not in known]:
            return KeyedProblem(
                f"{name}: its optimizer has {len(others)} parameters that are not the module's, the first of shape "
                f"{list(others[0].shape)}: keep layers in a ModuleList instead of a list, and use self.parameters() in "
                "configure_optimizers",
                key="optimizer-of-other-parameters",
            )
        rebuilt = FlatOptimizer(module, model)
        held = {parameter: dict(state) for parameter, state in rebuilt.configured.state.items()}
        fresh = rebuilt.optimizer.state
        for entry, parameter in zip(model.layout.parameters, model.parameters, strict=True):
            if parameter in fresh and not _same_state(held.get(parameter, {}), fresh[parameter]):
                return (
                    f"{type(configured).__name__} has a state before training (of {entry.name}), but every client's "
                    "round begins with a new one; return an optimizer that has not been stepped or loaded"
                )
        return ""


def _same_state(one: dict[str, Any], other: dict[str, Any]) -> bool:
    tensors = [(value, other.get(key)) for key, value in one.items() if torch.is_tensor(value)]
    return one.keys() == other.keys() and all(torch.equal(a.flatten(), b.flatten()) for a, b in tensors)


def is_foreign(configured: Optimizer) -> bool:
    """Return whether an optimizer must be tried: it is not torch's own, its steps have hooks, or an option may fail."""
    options = ("differentiable", *["capturable"] * (not torch.accelerator.is_available()))
    failing = any(group.get(option) for option in options for group in configured.param_groups)
    hooked = any(getattr(configured, hooks) for hooks in HOOKS)
    return failing or hooked or not type(configured).__module__.startswith("torch.optim.")


class ElementwiseOptimizer(Examination[LightningModule]):
    """The optimizer takes the same steps on the flat vector as on the parameters.

    Only optimizers that are not from torch.optim are tried. They get random gradients of the module's shapes,
    alternately small and large, for enough steps to include periodic behaviour. The second gradient is orthogonal to
    the weights, as behind a normalisation layer, because some optimizers project in this case. The steps are repeated,
    as for two clients' rounds: if an optimizer keeps state outside of ``state``, the second round differs from the
    first, and a run with one worker would differ from a run with two.
    """

    name = "optimizer"
    advice = "use an elementwise optimizer, such as SGD or Adam of torch.optim"

    def problem(self, module: LightningModule) -> str:
        """Try the optimizer on copies of the module; report the largest difference and its parameter."""
        reference, flattened = copy_of(module), copy_of(module)
        model = FlatModel(flattened)
        optimizer = FlatOptimizer(flattened, model)
        if not is_foreign(optimizer.configured):
            return ""
        with torch.no_grad():  # rounds start from other weights than those at construction
            for parameter in reference.parameters():
                parameter.mul_(1.5 if parameter.requires_grad else 1)
        configured, start = single_optimizer(reference), 1.5 * model.w
        kind, parameters = type(configured).__name__, dict(reference.named_parameters())
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
                    return f"{kind} fails on gradients that are set from outside: {error}; {self.advice}"
            try:
                rounds = [self._round(optimizer, model, places, start) for _ in range(2)]
            except Exception as error:
                return f"{kind} cannot take a step on the flat vector: {error}; {self.advice}"
        wanted = {name: parameters[name].detach().to(start.dtype) for name in places}
        moved = max(float((wanted[name] - entry.view(start)).abs().max()) for name, entry in places.items())
        compared = ("than on the parameters", "in a second round than in the first")
        for vector, comparison in zip(rounds, compared, strict=True):
            errors = {name: float((entry.view(vector) - wanted[name]).abs().max()) for name, entry in places.items()}
            worst = max(errors, key=errors.__getitem__)
            if not errors[worst] <= FAR * moved:
                return (
                    f"{kind} takes different steps on the flat vector {comparison}: {errors[worst]:.2g} away at "
                    f"{worst} after a move of {moved:.2g} in {STEPS} steps; it uses whole tensors or keeps hidden "
                    f"state: {self.advice}"
                )
        return ""

    def _round(self, optimizer: FlatOptimizer, model: FlatModel, places: dict[str, Entry], start: Tensor) -> Tensor:
        """Return the vector after the trial steps from the start."""
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
