"""Lightning's training hooks that a federation calls."""

from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor

from fedlit.core.errors import TrainingError
from fedlit.core.module import overrides

OF_GRADIENTS = ("on_after_backward", "on_before_optimizer_step")
CALLED = ("on_train_epoch_start", "on_train_batch_start", *OF_GRADIENTS, "on_train_batch_end")
"""Hooks that are called: at the start of a client's pass over its images, and in every local step."""


class TrainingHooks:
    """The training hooks that a module overrides.

    Attributes:
        called: Names of the hooks that it overrides.
        of_gradients: Whether one of them reads gradients: an algorithm's correction is then added after it.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module, self._outputs = module, {}
        self.called = frozenset(hook for hook in CALLED if overrides(module, hook))
        self.of_gradients = bool(self.called.intersection(OF_GRADIENTS))

    def call(self, hook: str, *arguments: Any) -> Any:
        """Call a hook, if the module overrides it."""
        return getattr(self._module, hook)(*arguments) if hook in self.called else None

    def start_batch(self, batch: Any, number: int) -> None:
        """Call ``on_train_batch_start``.

        Raises:
            TrainingError: It asks to skip the rest of a pass.
        """
        if self.call("on_train_batch_start", batch, number) == -1:
            raise TrainingError(
                f"{type(self._module).__name__}.on_train_batch_start returned -1, to skip the rest of an epoch, but a "
                "federation weighs clients by all of their images: leave these images out of the data set"
            )

    def keep(self, output: Any, loss: Tensor) -> None:
        """Keep the step's output, as the Trainer does: the loss without its graph, and the rest of a dict."""
        if "on_train_batch_end" in self.called:
            self._outputs = {**(output if isinstance(output, dict) else {}), "loss": loss.detach().clone()}

    def end_batch(self, batch: Any, number: int) -> None:
        """Call ``on_train_batch_end`` with the step's output."""
        self.call("on_train_batch_end", self._outputs, batch, number)
        self._outputs = {}
