"""What is examined at the door before anything trains: a list of small classes, to which a new one is added.

What a class of one's own may do wrong is found once and said in words. Inside, nothing is looked at again.
"""

import inspect
from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn.parameter import is_lazy

from fedlit.core.errors import ConfigError
from fedlit.core.flat import Entry, FlatModel
from fedlit.core.module import copy_of, overrides
from fedlit.core.optimizer import FlatOptimizer, single_optimizer

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
    **dict.fromkeys(("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"), BATCH),
}
"""Overridden hooks without which the module would train to something else, and what to do instead."""

LOOPS = (
    "on_", "setup", "teardown", "prepare_data", "test_step", "configure_callbacks",
    "train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader",
)  # fmt: skip
"""Beginnings of the names of the Trainer's other hooks: the module trains without them."""

HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Attributes of a parameter that hold what is called with its gradient."""


class Examination:
    """Look at one thing that a module may have got wrong.

    Attributes:
        name: What is looked at.
        advice: What to do where it is wrong.
    """

    name: ClassVar[str]
    advice: ClassVar[str]

    def found(self, module: LightningModule) -> str:
        """Say what is wrong, in words with the advice; "" where nothing is. The module stays as it is."""
        raise NotImplementedError


class IsModule(Examination):
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


class AutomaticOptimization(Examination):
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


class Steps(Examination):
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


class Hooks(Examination):
    """No hook is overridden without which the module would train to something else; others are warned of."""

    name = "hooks of the trainer"
    advice = "leave out " + ", ".join(REFUSED)

    def found(self, module: LightningModule) -> str:
        """Name the hook, and what to do instead."""
        name = type(module).__name__
        if refused := [hook for hook in REFUSED if overrides(module, hook)]:
            return f"{name} overrides {refused[0]}, which a federation does not call: {REFUSED[refused[0]]}"
        hooks = {hook for hook, _ in inspect.getmembers(LightningModule, inspect.isfunction) if overrides(module, hook)}
        if ignored := sorted(hook for hook in hooks if hook.startswith(LOOPS)):
            rank_zero_warn(f"{name} overrides {', '.join(ignored)}: there is no Trainer here that would call them")
        return ""


class LazyLayers(Examination):
    """The size of every layer is known."""

    name = "lazy layers"
    advice = "give the layer its size"

    def found(self, module: LightningModule) -> str:
        """Name the parameter."""
        lazy = [parameter for parameter, value in module.named_parameters() if is_lazy(value)]
        if not lazy:
            return ""
        return f"{type(module).__name__}: the shape of {lazy[0]} is unknown before the first batch; give the layer its size"


class HooksOfParameters(Examination):
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


class SharedMemory(Examination):
    """No two parameters share memory; a copy of the module would not tell."""

    name = "shared memory"
    advice = "assign the one parameter to both places instead of its data"

    def found(self, module: LightningModule) -> str:
        """Name both parameters."""
        places: dict[int, str] = {}
        for name, parameter in module.named_parameters():
            trained = parameter.requires_grad and parameter.numel()
            first = places.setdefault(parameter.data_ptr(), name) if trained else name
            if first != name:
                return (
                    f"{type(module).__name__}: its parameters {first} and {name} share memory, which training would part; "
                    f"{self.advice}"
                )
        return ""


STEPS, SCALES, FAR = 24, (1.0, 1e-2, 10.0), 1e-4
"""Steps that an optimizer is tried for, scales of its gradients in turn, and the share of the largest move that is no rounding."""


class ElementwiseOptimizer(Examination):
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
        configured, model = single_optimizer(own), FlatModel(other)
        optimizer = FlatOptimizer(other, model)
        if not optimizer.foreign:
            return ""
        kind, start = type(configured).__name__, model.w.clone()
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
                except RuntimeError as error:
                    return f"{kind} cannot take a step along gradients that it is given: {error}"
            rounds = [self._round(optimizer, model, places, start) for _ in range(2)]
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


OF_MODULES: tuple[Examination, ...] = (
    IsModule(),
    AutomaticOptimization(),
    Steps(),
    Hooks(),
    LazyLayers(),
    HooksOfParameters(),
    SharedMemory(),
)
"""What a module is examined for, in order; each may assume what those before it have found to be right."""

OF_OPTIMIZERS: tuple[Examination, ...] = (ElementwiseOptimizer(),)
"""What its optimizer is examined for, where it is not torch's own."""


def check_module(module: LightningModule, examinations: Sequence[Examination] = OF_MODULES) -> None:
    """Refuse what a federation cannot do, and warn of hooks that it will not call; nothing is changed.

    Raises:
        ConfigError: An examination has found something; says what, and what to do.
    """
    for examination in examinations:
        if found := examination.found(module):
            raise ConfigError(found)
