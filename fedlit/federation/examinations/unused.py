"""Parameters without a gradient in a step, which torch's optimizers skip, unlike one over the flat vector."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedlit.core.aggregator import ClientContext
from fedlit.core.errors import TrainingError
from fedlit.core.flat import Entry
from fedlit.core.local_model import LocalModel


class UnusedParameters:
    """Context manager of a model's first round, whose steps must not move parameters that the loss does not use.

    On the flat vector such a parameter has a gradient of zero. Plain SGD then leaves it where it is, as torch's
    optimizer would; weight decay, momentum and Adam do not.

    Args:
        local: The model, whose first round takes these steps.
    """

    name = "unused parameters"
    advice = (
        "leave the parameter out of the optimizer, add 0 times its sum to the loss, or use SGD without momentum and "
        "decay"
    )

    def __init__(self, local: LocalModel) -> None:
        self._local, self._with_gradient = local, set[str]()
        self._used, self._unused = set[str](), set[str]()  # in some step of the round
        self._before: list[tuple[Entry, Tensor]] = []

    def __enter__(self) -> None:
        """Let the model take these steps."""
        pairs = zip(self._local.layout.parameters, self._local.flat.parameters, strict=True)
        noted = [(p, partial(_note, self._with_gradient, entry.name)) for entry, p in pairs]  # not of the model
        self._hooks = [parameter.register_post_accumulate_grad_hook(note) for parameter, note in noted]
        self._local.first_steps = self

    def __exit__(self, *error: object) -> None:
        """Let the model take its own steps from now on."""
        for hook in self._hooks:
            hook.remove()
        self._local.first_steps = None

    def compute_gradient(self, contexts: Sequence[ClientContext], batches: Sequence[Any], number: int) -> Tensor:
        """Compute the gradient; remember the weights that received none."""
        self._with_gradient.clear()
        loss, entries = self._local.compute_gradient(contexts, batches, number), self._local.layout.parameters
        without = [entry for entry in entries if entry.size and entry.name not in self._with_gradient]
        self._before = [(entry, entry.view(self._local.flat.w).clone()) for entry in without]
        self._used |= self._with_gradient
        self._unused.update(entry.name for entry in without)
        return loss

    def update(self) -> None:
        """Update the weights.

        Raises:
            TrainingError: The optimizer has moved one that received no gradient, or keeps another state of it than
                torch's optimizer would.
        """
        self._local.update()
        optimizer, w = self._local.optimizer, self._local.flat.w
        moved = [entry.name for entry, before in self._before if not torch.equal(entry.view(w), before)]
        now_and_then = sorted(self._used & self._unused) if optimizer.stateful else []
        for name in (*moved, *now_and_then):
            raise TrainingError(
                f"{type(self._local.module).__name__}: the loss of a step does not depend on its parameter {name}. "
                f"{optimizer.name} would skip it, but not on the flat vector, where weight decay, momentum and "
                f"Adam use a gradient of zero; {self.advice}",
                key="parameter-unused-by-loss",
            )


def _note(names: set[str], name: str, parameter: Tensor) -> None:
    names.add(name)
