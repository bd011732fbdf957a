"""Parameters without a gradient in a step, which torch's optimizers pass over, and the flat vector does not."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedlit.core.errors import TrainingError
from fedlit.core.flat import Entry, FlatModel


class UnusedParameters:
    """The steps of a model's first round, which tell where a loss leaves parameters out.

    On the flat vector such a parameter has a gradient of zero. Plain SGD then leaves it where it is, as torch's optimizer
    would; weight decay, momentum and Adam do not.

    Args:
        model: The model.
        stateful: Returns whether the optimizer keeps something from step to step.
        optimizer: Name of its class.
    """

    def __init__(self, model: FlatModel, stateful: Callable[[], bool], optimizer: str) -> None:
        self._model, self._stateful, self._optimizer = model, stateful, optimizer
        self._used: set[str] = set()
        self._unused: set[str] = set()
        self._before: list[tuple[Entry, Tensor]] = []

    def begin(self) -> None:
        """Begin a client's round."""
        self._used.clear()
        self._unused.clear()

    def before_backward(self) -> None:
        """Take the gradients away, so that those that come can be told from zeros; the model gathers them."""
        for parameter in self._model.parameters:
            parameter.grad = None

    def after_backward(self) -> None:
        """Remember the weights that got none."""
        self._before.clear()
        for entry, parameter in zip(self._model.layout.parameters, self._model.parameters, strict=True):
            if parameter.grad is not None:
                self._used.add(entry.name)
            elif entry.size:
                self._unused.add(entry.name)
                self._before.append((entry, entry.view(self._model.w).clone()))

    def after_step(self) -> None:
        """Look at what the optimizer has made of them.

        Raises:
            TrainingError: It has moved one, or keeps another state of it than torch's optimizer would.
        """
        moved = [entry.name for entry, before in self._before if not torch.equal(entry.view(self._model.w), before)]
        now_and_then = sorted(self._used & self._unused) if self._stateful() else []
        for name in (*moved, *now_and_then):
            raise TrainingError(
                f"{type(self._model.module).__name__}: the loss of a step does not depend on its parameter {name}, which "
                f"{self._optimizer} would then pass over, and on the flat vector does not (weight decay, momentum and Adam "
                "go on with a gradient of zero); leave such parameters out of the optimizer, add 0 times their sum to the "
                "loss, or use SGD without momentum and decay"
            )
