"""Parameters without a gradient in a step, which torch's optimizers skip, unlike one over the flat vector."""

import torch
from torch import Tensor

from fedlit.core.errors import TrainingError
from fedlit.core.flat import Entry, FlatModel
from fedlit.core.optimizer import FlatOptimizer


class UnusedParameters:
    """Watch on the steps of a model's first round for parameters that the loss does not use.

    On the flat vector such a parameter has a gradient of zero. Plain SGD then leaves it where it is, as torch's
    optimizer would; weight decay, momentum and Adam do not.

    Args:
        model: The model.
        optimizer: Its optimizer.
    """

    def __init__(self, model: FlatModel, optimizer: FlatOptimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._used: set[str] = set()
        self._unused: set[str] = set()
        self._before: list[tuple[Entry, Tensor]] = []

    def begin(self) -> None:
        """Begin a client's round."""
        self._used.clear()
        self._unused.clear()

    def before_backward(self) -> None:
        """Remove the gradients, so that new ones differ from zeros; the model gathers them."""
        for parameter in self._model.parameters:
            parameter.grad = None

    def after_backward(self) -> None:
        """Remember the weights that received none."""
        self._before.clear()
        for entry, parameter in zip(self._model.layout.parameters, self._model.parameters, strict=True):
            if parameter.grad is not None:
                self._used.add(entry.name)
            elif entry.size:
                self._unused.add(entry.name)
                self._before.append((entry, entry.view(self._model.w).clone()))

    def after_step(self) -> None:
        """Check what the optimizer has done to them.

        Raises:
            TrainingError: It has moved one, or keeps another state of it than torch's optimizer would.
        """
        moved = [entry.name for entry, before in self._before if not torch.equal(entry.view(self._model.w), before)]
        now_and_then = sorted(self._used & self._unused) if self._optimizer.stateful else []
        for name in (*moved, *now_and_then):
            raise TrainingError(
                f"{type(self._model.module).__name__}: the loss of a step does not depend on its parameter {name}. "
                f"{self._optimizer.name} would skip it, but not on the flat vector, where weight decay, momentum and "
                "Adam use a gradient of zero; leave the parameter out of the optimizer, add 0 times its sum to "
                "the loss, or use SGD without momentum and decay",
                key="parameter-unused-by-loss",
            )
