"""Checks of a module, before training and in the first rounds, and of the machine that compiles it."""

import inspect
from collections.abc import Sequence
from functools import cache

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule
from torch.nn.parameter import is_lazy

from fedlit.core.aggregator import Aggregator
from fedlit.core.configured_optimizer import configured_optimizer
from fedlit.core.errors import TrainingError
from fedlit.core.flat import FlatModel
from fedlit.core.messages import ClientReport, Round
from fedlit.core.module import CALLED, TrainingHooks, overrides
from fedlit.federation.examinations.examination import Examination

STEP = "the federation performs the optimizer step itself, on the flat vector"
BATCH = "batches reach the step unchanged: do this in the data set or in the step"
REFUSED = {
    "backward": "the federation calls loss.backward() itself: return the loss",
    "optimizer_step": STEP,
    "optimizer_zero_grad": STEP,
    "configure_gradient_clipping": "set federation.gradient_clip",
    "lr_scheduler_step": "learning rates change between rounds: set federation.schedule",
    "configure_model": "the layers are needed before training: create them in __init__",
    "configure_sharded_model": "the layers are needed before training: create them in __init__",
    "setup": "the layers are needed before training: create them in __init__",
    "on_fit_start": "clients start training again in every round: do this in __init__",
    "on_before_zero_grad": "the last gradients no longer exist: use on_after_backward or on_train_batch_end",
    **dict.fromkeys(("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"), BATCH),
}
"""Hooks that would change training if they were called, and what to do instead of overriding them."""

LOOPS = (
    "on_", "teardown", "prepare_data", "test_step", "configure_callbacks",
    "train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader",
)  # fmt: skip
"""Prefixes of the Trainer's other hooks, which do not change training."""


class IsModule(Examination[LightningModule]):
    """The model is a LightningModule, and its constructor called ``super().__init__()``."""

    name = "class"
    advice = "derive the model from LightningModule, and call super().__init__() first"

    def problem(self, module: LightningModule) -> str:
        """Name the class of the model."""
        name = type(module).__name__
        if not isinstance(module, LightningModule):
            return f"model: expected a LightningModule, found {name}; derive the class from LightningModule"
        if "_modules" not in vars(module):
            return f"{name}.__init__: expected a call of super().__init__(), found none; call it first"
        return ""


class AutomaticOptimization(Examination[LightningModule]):
    """The module leaves optimization to the federation."""

    name = "automatic optimization"
    advice = "return the loss from training_step"

    def problem(self, module: LightningModule) -> str:
        """Reject manual optimization."""
        if module.automatic_optimization:
            return ""
        return (
            f"{type(module).__name__}: expected automatic optimization, found automatic_optimization = False; a "
            "federation takes one step per batch itself: return the loss from training_step"
        )


class RequiredMethods(Examination[LightningModule]):
    """The module defines the methods that a federation calls, with the right arguments."""

    name = "steps"
    advice = "define training_step(batch, batch_idx) and configure_optimizers()"

    def problem(self, module: LightningModule) -> str:
        """Name the missing method or the unsupported argument."""
        name = type(module).__name__
        for needed in ("training_step", "configure_optimizers"):
            if not overrides(module, needed):
                return (
                    f"{name}: expected the methods training_step and configure_optimizers, found no {needed}; define it"
                )
        if "dataloader_iter" in inspect.signature(module.training_step).parameters:
            return (
                f"{name}.training_step: expected the arguments (batch) or (batch, batch_idx), found "
                "dataloader_iter; use one of these"
            )
        return ""


class Hooks(Examination[LightningModule]):
    """The module overrides no hook that training depends on but the federation does not call; others give a warning."""

    name = "hooks of the trainer"
    advice = "leave out " + ", ".join(REFUSED)

    def problem(self, module: LightningModule) -> str:
        """Name the hook and the alternative."""
        name = type(module).__name__
        if refused := [hook for hook in REFUSED if overrides(module, hook)]:
            return f"{name} overrides {refused[0]}, which a federation does not call: {REFUSED[refused[0]]}"
        hooks = {hook for hook, _ in inspect.getmembers(LightningModule, inspect.isfunction) if overrides(module, hook)}
        if ignored := sorted(hook for hook in hooks if hook.startswith(LOOPS) and hook not in CALLED):
            if "test_step" in ignored:
                ignored.remove("test_step")
                _warn(f"{name}.test_step is not called; test sets are scored by validation_step")
            if ignored:
                _warn(f"{name} overrides {', '.join(ignored)}, which a federation does not call: it has no Trainer")
        return ""


@cache
def _warn(text: str) -> None:
    """Warn once, though a module is examined for each part of a run, and before its data."""
    rank_zero_warn(text)


class LazyLayers(Examination[LightningModule]):
    """No layer infers its size from the first batch."""

    name = "lazy layers"
    advice = "give the layer its size"

    def problem(self, module: LightningModule) -> str:
        """Name the lazy parameter."""
        lazy = [parameter for parameter, value in module.named_parameters() if is_lazy(value)]
        if not lazy:
            return ""
        return f"{type(module).__name__}: the shape of {lazy[0]} is unknown before the first batch; {self.advice}"


class HooksOfParameters(Examination[LightningModule]):
    """No parameter has a hook, because copies of the module would lack it."""

    name = "hooks of parameters"
    advice = "change the loss, or the gradient in an aggregator's compute_gradient"

    def problem(self, module: LightningModule) -> str:
        """Name the parameter with a hook."""
        kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
        hooked = [
            name for name, value in module.named_parameters() if any(getattr(value, kind, None) for kind in kinds)
        ]
        if not hooked:
            return ""
        return (
            f"{type(module).__name__}: expected no hooks on parameters, found one on {hooked[0]}, which copies of the "
            f"module would lack; {self.advice}"
        )


class BuffersOfOneType(Examination[LightningModule]):
    """Buffers are dense, and floating-point ones have the parameters' dtype, because one vector averages them."""

    name = "types of buffers"
    advice = "use the dtype of the parameters, or an integer buffer for values that must not be averaged"

    def problem(self, module: LightningModule) -> str:
        """Name the buffer, and both types."""
        trained = next((p.dtype for p in module.parameters() if p.requires_grad), None)
        for name, buffer in module.named_buffers():
            if buffer.layout is not torch.strided:
                return (
                    f"{type(module).__name__}: expected a dense tensor for the buffer {name}, found {buffer.layout}, "
                    "which cannot be sent; use a dense buffer, or buffers of its indices and values"
                )
            if trained is not None and buffer.is_floating_point() and buffer.dtype != trained:
                return (
                    f"{type(module).__name__}: expected {trained}, the dtype of the parameters, for the buffer {name}, "
                    f"found {buffer.dtype}; {self.advice}"
                )
        return ""


ModuleWithAggregators = tuple[LightningModule, Sequence[Aggregator]]
"""A module and the algorithms that train it."""


class HooksOfSteps(Examination[ModuleWithAggregators]):
    """If the module overrides hooks of training steps, each step is one batch and the gradient of its loss."""

    name = "hooks of steps"
    advice = "leave the hook out, or choose another algorithm"

    def problem(self, trained: ModuleWithAggregators) -> str:
        """Name the algorithm that computes gradients itself, and the hook."""
        module, aggregators = trained
        computing = [a for a in aggregators if a.implements("compute_gradient") or a.batches_per_step > 1]
        hooks = sorted(TrainingHooks(module).called)
        if not computing or not hooks:
            return ""
        batches = computing[0].batches_per_step
        return (
            f"{type(computing[0]).__name__} computes the gradient of a step itself, from {batches} "
            f"{'batch' if batches == 1 else 'batches'}: the hook {type(module).__name__}.{hooks[0]} would not "
            f"work as documented; {self.advice}"
        )


class NewOptimizer(Examination[FlatModel]):
    """``configure_optimizers`` returns an optimizer of the module's parameters, and does not change the module."""

    name = "new optimizer"
    advice = "only make an optimizer of self.parameters() there"

    def problem(self, model: FlatModel) -> str:
        """Name the parameter, or what the optimizer needs."""
        module, before = model.module, model.w.clone()
        optimizer, name = configured_optimizer(module).optimizer, type(module).__name__
        kind, given = type(optimizer).__name__, [p for group in optimizer.param_groups for p in group["params"]]
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        known = {id(parameter) for parameter in module.parameters()}
        others = [parameter for parameter in given if id(parameter) not in known]
        pairs = zip(model.layout.parameters, model.parameters, strict=True)
        frozen = [entry.name for entry, parameter in pairs if not parameter.requires_grad]
        if closure is not None and closure.default is inspect.Parameter.empty:
            return (
                f"{kind}.step: expected no arguments, found a closure, with which it calls training_step several times "
                "per step; use an optimizer without one, such as SGD or Adam"
            )
        if any(group.get("differentiable") for group in optimizer.param_groups):
            return f"{kind}: expected steps without a graph, found differentiable=True; leave it out"
        if len({id(parameter) for parameter in given}) < len(given):
            return f"{name}.configure_optimizers: a group has a parameter twice; give the optimizer each one once"
        if others:
            return (
                f"{name}: its optimizer has {len(others)} parameters that are not the module's, the first of shape "
                f"{list(others[0].shape)}: keep layers in a ModuleList instead of a list, and use self.parameters() in "
                "configure_optimizers"
            )
        if frozen:
            return f"{name}.configure_optimizers freezes the parameter {frozen[0]}: freeze it in __init__"
        if not any(parameter.requires_grad for parameter in given):
            return f"{name}: its optimizer trains no parameter; {self.advice}"
        if not torch.equal(model.w, before):
            return f"{name}.configure_optimizers changes weights, but is called in every round: do it in __init__"
        return ""


class Compiler(Examination[torch.device]):
    """A machine that compiles the forward pass for a CPU has a C++ compiler; checked with ``compile: true``."""

    name = "compiler"
    advice = "install g++ or clang, or leave federation.compile out"

    def problem(self, device: torch.device) -> str:
        """Ask PyTorch for a compiler."""
        if device.type != "cpu":
            return ""
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
        except InvalidCxxCompiler:
            return (
                "federation.compile: expected a C++ compiler, which PyTorch needs on a CPU, found none; install g++ or "
                "clang, or leave compile out"
            )
        return ""


class StalledTraining:
    """Some client's weights change in the first rounds of a run.

    A single client may have a reason not to change, such as unknown labels, and so may a round, such as the first of a
    warm-up from a learning rate of 0. The error is raised only when every client has had a round that trains, and none
    has changed.

    Args:
        clients: Names of the clients of the federation.
        over: Whether to skip the check, as for a resumed run.
    """

    name = "stalled training"
    advice = "check that the loss depends on the weights"

    def __init__(self, clients: Sequence[str], over: bool) -> None:
        self._waiting, self._over = set(clients), over

    def after(self, rnd: Round, reports: Sequence[ClientReport], module: str) -> None:
        """Process the reports of a round.

        Raises:
            TrainingError: No client's weights have changed since the start.
        """
        if self._over or rnd.window == 0 or rnd.lr_factor == 0:
            return
        self._over = any(not report.still for report in reports)
        self._waiting -= {report.client for report in reports}
        if self._over or self._waiting:
            return
        reasons = ", or ".join(sorted({report.still for report in reports}))
        raise TrainingError(
            f"round {rnd.index + 1}: {module} does not train: no client's weights changed, because {reasons}; "
            f"{self.advice} (detach, a copy of a layer, a factor of 0)"
        )
