"""Sums of per-example gradients, each clipped to a norm."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fedlit.core.flat import FlatModel

LARGE = 1_000_000
"""Number of weights above which a CPU takes examples one by one: vmap is no faster there, and needs more memory."""

CHUNK = 16
"""Number of examples whose gradients vmap computes together, if the model is not small."""

VALUES = 2**22
"""Number of weights times examples in a chunk of a small model: any chunk takes milliseconds, however few it has."""

LEAST = 1e-6
"""Least norm to clip to: far above 1e-19, below which float32 loses a number's square, and a gradient's norm is 0."""

TOLERANCE = 1e-4
"""Largest relative difference of the two ways on the first examples of a round."""

Loss = Callable[[Any], Tensor]
"""Returns the loss of a batch of one example."""

_vectorised: WeakKeyDictionary[FlatModel, bool] = WeakKeyDictionary()
_warned: WeakSet[FlatModel] = WeakSet()


def clipped_sum(model: FlatModel, loss: Loss, examples: Sequence[Any], clip: float, first: bool = False) -> Tensor:
    """Return the sum [P] of the gradients of examples, each scaled to a norm of at most ``clip``.

    A gradient that is not finite counts as 0: an error would tell of the example. The first call of a round that has
    examples computes two of them one by one and by vmap, and its later calls take examples one by one if the two ways
    differ. A round that is repeated therefore draws and rounds as it did: its noise is the same, and would not hide
    another dropout.

    Args:
        model: The model at whose weights gradients are computed.
        loss: Loss of a batch of one example.
        examples: Batches of one example each; there may be none.
        clip: Largest norm over all weights together, dual variables included; infinity does not clip.
        first: Whether a round begins.
    """
    if first:
        _vectorised.pop(model, None)
    if not examples:
        return torch.zeros_like(model.w)
    if model not in _vectorised:
        _vectorised[model] = _vmap_agrees(model, loss, examples[:2], clip)
    if not _vectorised[model]:
        return one_by_one(model, loss, examples, clip)
    # Frozen weights count too: a large body needs memory for each example, although its head has few gradients.
    size = max(CHUNK, VALUES // sum(each.numel() for each in model.module.parameters()))
    chunks = (examples[start : start + size] for start in range(0, len(examples), size))
    return sum((by_vmap(model, loss, chunk, clip) for chunk in chunks), torch.zeros_like(model.w))


def one_by_one(model: FlatModel, loss: Loss, examples: Sequence[Any], clip: float) -> Tensor:
    """Return the clipped sum [P] by a loop over the examples."""
    total = torch.zeros_like(model.w)
    views = model.views(total)  # no gradient is copied to a vector of its own: for DenseNet121 that costs a pass
    for example in examples:
        gradients = torch.autograd.grad(loss(example), model.parameters, materialize_grads=True)
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        if norm.isfinite():
            scale = float((clip / norm).clamp(max=1.0))
            for view, gradient in zip(views, gradients, strict=True):
                view.add_(gradient, alpha=scale)
    return total


def by_vmap(model: FlatModel, loss: Loss, examples: Sequence[Any], clip: float) -> Tensor:
    """Return the clipped sum [P] by one vectorised pass over all examples, which must have one shape."""
    step = _Step(model.module, loss)

    def value(w: Tensor, example: Any) -> Tensor:
        named = {f"module.{e.name}": view for e, view in zip(model.layout.parameters, model.views(w), strict=True)}
        return torch.func.functional_call(step, named, (example,)).squeeze()

    stacked = tree_map(lambda *parts: torch.stack(parts), *examples)
    gradients = torch.func.vmap(torch.func.grad(value), in_dims=(None, 0))(model.w.detach(), stacked)
    norms = gradients.norm(dim=1)
    factors = torch.where(norms.isfinite(), (clip / norms).clamp(max=1.0), 0.0)
    return factors @ gradients.masked_fill_(~norms.isfinite()[:, None], 0.0)


class _Step(nn.Module):
    """A loss as the forward pass of a module, as ``functional_call`` needs it."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.module, self._loss = module, loss

    def forward(self, example: Any) -> Tensor:
        return self._loss(example)


def _vmap_agrees(model: FlatModel, loss: Loss, examples: Sequence[Any], clip: float) -> bool:
    """Return whether vmap is to be used: it is faster here, and gives what the loop gives."""
    if model.w.device.type == "cpu" and len(model.w) > LARGE:
        return False
    expected = one_by_one(model, loss, examples, clip)
    try:
        found = by_vmap(model, loss, examples, clip)
    except Exception as error:  # of torch or of the user's code, such as .item() and control flow that follows the data
        reason = f"vmap cannot compute its step ({str(error).strip().splitlines()[0]:.100})"
    else:
        # Dropout draws other numbers in vmap, so such a model takes the loop too.
        if (found - expected).norm() <= TOLERANCE * expected.norm():
            return True
        reason = "vmap gives other gradients than a loop, as with dropout"
    if model not in _warned:
        _warned.add(model)
        warnings.warn(f"{type(model.module).__name__}: {reason}: examples are computed one by one", stacklevel=2)
    return False
