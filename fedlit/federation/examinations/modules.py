"""What a module may have got wrong."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule
from torch.nn.parameter import is_lazy

from fedlit.core.aggregator import Aggregator
from fedlit.core.module import overrides
from fedlit.core.training_hooks import CALLED, TrainingHooks
from fedlit.federation.examinations.examination import Examination

STEP = "the federation takes the optimizer's step itself, on the flat vector"
BATCH = "batches go from the data set to the step as they are: do it in the data set, or in the step"
REFUSED = {
    "backward": "the federation calls loss.backward() itself: return the loss",
    "optimizer_step": STEP,
    "optimizer_zero_grad": STEP,
    "configure_gradient_clipping": "set federation.gradient_clip",
    "lr_scheduler_step": "the rate follows rounds: set federation.schedule",
    "configure_model": "the layers are needed before training: create them in __init__",
    "configure_sharded_model": "the layers are needed before training: create them in __init__",
    "setup": "the layers are needed before training: create them in __init__",
    "on_fit_start": "a client's training begins again in every round: do it in __init__",
    "on_before_zero_grad": "the gradients of the step before are gone by then: use on_after_backward or on_train_batch_end",
    **dict.fromkeys(("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"), BATCH),
}
"""Overridden hooks without which the module would train to something else, and what to do instead."""

LOOPS = (
    "on_", "teardown", "prepare_data", "test_step", "configure_callbacks",
    "train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader",
)  # fmt: skip
"""Beginnings of the names of the Trainer's other hooks: the module trains without them."""


class IsModule(Examination[LightningModule]):
    """The model is a LightningModule whose constructor has run."""

    name = "class"
    advice = "derive the model from LightningModule, and call super().__init__() first"

    def found(self, module: LightningModule) -> str:
        """Name its class."""
        name = type(module).__name__
        if not isinstance(module, LightningModule):
            return f"the model is of the class {name}; expected a LightningModule"
        if "_modules" not in vars(module):
            return f"{name}.__init__ does not call super().__init__(); call it first"
        return ""


class AutomaticOptimization(Examination[LightningModule]):
    """The federation takes the steps."""

    name = "automatic optimization"
    advice = "return the loss from training_step"

    def found(self, module: LightningModule) -> str:
        """Refuse manual optimization."""
        if module.automatic_optimization:
            return ""
        return (
            f"{type(module).__name__} optimizes manually (automatic_optimization = False); a federation takes one step a "
            "batch itself: return the loss from training_step instead"
        )


class Steps(Examination[LightningModule]):
    """What a federation calls is there, and takes a batch."""

    name = "steps"
    advice = "define training_step(batch, batch_idx) and configure_optimizers()"

    def found(self, module: LightningModule) -> str:
        """Name the method that is missing, or the argument that is no batch."""
        name = type(module).__name__
        for needed in ("training_step", "configure_optimizers"):
            if not overrides(module, needed):
                return f"{name} has no {needed}; a federation needs training_step and configure_optimizers"
        if "dataloader_iter" in inspect.signature(module.training_step).parameters:
            return f"{name}.training_step takes dataloader_iter; expected (batch) or (batch, batch_idx)"
        return ""


class Hooks(Examination[LightningModule]):
    """No hook is overridden without which the module would train to something else; others are warned of."""

    name = "hooks of the trainer"
    advice = "leave out " + ", ".join(REFUSED)

    def found(self, module: LightningModule) -> str:
        """Name the hook, and what to do instead."""
        name = type(module).__name__
        if refused := [hook for hook in REFUSED if overrides(module, hook)]:
            return f"{name} overrides {refused[0]}, which a federation does not call: {REFUSED[refused[0]]}"
        hooks = {hook for hook, _ in inspect.getmembers(LightningModule, inspect.isfunction) if overrides(module, hook)}
        if ignored := sorted(hook for hook in hooks if hook.startswith(LOOPS) and hook not in CALLED):
            rank_zero_warn(f"{name} overrides {', '.join(ignored)}: there is no Trainer here that would call them")
        return ""


class LazyLayers(Examination[LightningModule]):
    """The size of every layer is known."""

    name = "lazy layers"
    advice = "give the layer its size"

    def found(self, module: LightningModule) -> str:
        """Name the parameter."""
        lazy = [parameter for parameter, value in module.named_parameters() if is_lazy(value)]
        if not lazy:
            return ""
        return f"{type(module).__name__}: the shape of {lazy[0]} is unknown before the first batch; give the layer its size"


class HooksOfParameters(Examination[LightningModule]):
    """No parameter has a hook, which no copy of the module would have."""

    name = "hooks of parameters"
    advice = "change the loss, or the gradient in an aggregator's compute_gradient"

    def found(self, module: LightningModule) -> str:
        """Name the parameter."""
        kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
        hooked = [
            name for name, value in module.named_parameters() if any(getattr(value, kind, None) for kind in kinds)
        ]
        if not hooked:
            return ""
        return (
            f"{type(module).__name__}: a hook is registered on its parameter {hooked[0]}, which no copy of the module has; "
            f"{self.advice}"
        )


class BuffersOfOneType(Examination[LightningModule]):
    """Buffers are dense, and those of floating point have the type of the parameters: they lie in one vector, and are averaged."""

    name = "types of buffers"
    advice = "make it of the parameters' type, or keep in a buffer of integers what nobody should average"

    def found(self, module: LightningModule) -> str:
        """Name the buffer, and both types."""
        trained = next((p.dtype for p in module.parameters() if p.requires_grad), None)
        for name, buffer in module.named_buffers():
            if buffer.layout is not torch.strided:
                return (
                    f"{type(module).__name__}: its buffer {name} is a sparse tensor ({buffer.layout}), which no message of a "
                    "federation holds; keep it dense, or keep its indices and values and make it in the step"
                )
            if trained is not None and buffer.is_floating_point() and buffer.dtype != trained:
                return (
                    f"{type(module).__name__}: its buffer {name} is of {buffer.dtype}, and would become one of {trained}, as its "
                    f"parameters are; {self.advice}"
                )
        return ""


@dataclass(frozen=True)
class Trained:
    """A module, and the algorithms that train it.

    Attributes:
        module: The module.
        aggregators: The algorithms.
    """

    module: LightningModule
    aggregators: Sequence[Aggregator]


class HooksOfSteps(Examination[Trained]):
    """Where the module has hooks of training steps, a step is one batch and the gradient of its loss."""

    name = "hooks of steps"
    advice = "leave the hook out, or choose another algorithm"

    def found(self, given: Trained) -> str:
        """Name the algorithm that computes gradients itself, and the hook."""
        own = [a for a in given.aggregators if a.implements("compute_gradient") or a.batches_per_step > 1]
        called = sorted(TrainingHooks(given.module).called)
        if not own or not called:
            return ""
        return (
            f"{type(own[0]).__name__} computes the gradient of a step itself, from {own[0].batches_per_step} "
            f"{'batch' if own[0].batches_per_step == 1 else 'batches'}: {type(given.module).__name__}.{called[0]} would not mean "
            f"what it says; {self.advice}"
        )
