"""The interface of LightningModules in a federation: the supported parts, and errors for the others.

A federation trains a module by ``training_step`` and ``configure_optimizers``, scores it by ``validation_step`` and
``predict_step``, and collects ``self.log``. There is no Trainer. ``self.global_step`` is the number of steps that the
client has trained so far, over all rounds, and ``self.current_epoch`` its completed passes over its own
training images; both continue after a resume.
"""

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import Metric

from fedlit.core.errors import ConfigError, DataError, TrainingError
from fedlit.core.fabric import FederationFabric, without_logger
from fedlit.core.logged import logged_key
from fedlit.core.system.pickling import copied

OF_GRADIENTS = ("on_after_backward", "on_before_optimizer_step")
CALLED = ("on_train_epoch_start", "on_train_batch_start", *OF_GRADIENTS, "on_train_batch_end")
"""Training hooks that are called: at the start of a client's pass over its images, and in every local step."""

NUMBERS = (int, float, np.floating, np.integer, np.bool_)
"""Types of logged numbers, besides tensors."""

SIGNALS = 128
"""Exit codes above this mean that a signal ended the process."""


def copy_of(module: LightningModule) -> LightningModule:
    """Return a copy of a module that shares nothing with it.

    Raises:
        ConfigError: It cannot be copied; names the attribute that prevents it.
    """
    try:
        return copied(module)
    except Exception as error:  # of any library; the message quotes it
        raise ConfigError(
            f"{type(module).__name__} cannot be copied{_culprit(module)}: {str(error).partition('. ')[0]}; create open "
            "files, locks and generators where they are used"
        ) from error


def _culprit(module: LightningModule) -> str:
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if name != "_modules":
                try:
                    copied(value)
                except Exception:
                    return f", because of its attribute {f'{prefix}.{name}'.lstrip('.')}"
    return ""


def overrides(module: LightningModule, hook: str) -> bool:
    """Return whether a module overrides this method of LightningModule."""
    return getattr(type(module), hook) is not getattr(LightningModule, hook)


def step_of(module: LightningModule, name: str) -> Callable[[Any, int], Any]:
    """Return a step as a function of (batch, batch_idx): Lightning lets a module leave ``batch_idx`` out."""
    step = getattr(module, name)
    parameters = inspect.signature(step).parameters.values()
    if len(parameters) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return step
    return lambda batch, batch_idx: step(batch)


def collect_logs(module: LightningModule, fabric: FederationFabric) -> None:
    """Send the module's logs to ``fabric``, including torchmetrics objects, which Lightning refuses under Fabric.

    Metrics of the module are not synchronised with other processes, which train other clients for other numbers of
    steps.
    """
    for metric in (part for part in module.modules() if isinstance(part, Metric)):
        metric.distributed_available_fn = _by_itself
    name_of_class = type(module).__name__
    module.trainer = fabric  # for self.global_step and self.current_epoch

    def log(name: str, value: Any, *options: Any, **named: Any) -> None:
        log_dict({name: value}, *options, **named)

    def log_dict(
        values: Mapping[str, Any],
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable = "mean",
        *others: Any,
        batch_size: int | None = None,
        **more: Any,
    ) -> None:
        for name, value in values.items() if logger is not False else ():
            key = logged_key(name_of_class, name, on_step, on_epoch, reduce_fx, batch_size)
            if isinstance(value, Metric) and key is not None:
                fabric.metrics[name] = value
            elif key is not None:
                fabric.log_dict({key: _number(name_of_class, name, value)})

    module.log, module.log_dict = log, log_dict


def _by_itself() -> bool:
    """Answer a metric's question for other processes: there are none."""
    return False


def loss_of(module: LightningModule, output: Any) -> Tensor:
    """Return the loss in the output of ``training_step``, on which ``backward`` can be called except under no_grad.

    Raises:
        TrainingError: It is not a loss; names what was found.
    """
    loss = output.get("loss") if isinstance(output, Mapping) else output
    graph = torch.is_tensor(loss) and (loss.requires_grad or not torch.is_grad_enabled())
    if graph and loss.numel() == 1 and not loss.is_complex():
        return loss
    if isinstance(output, Mapping) and "loss" not in output:
        found = f"a dict without 'loss' (it has {', '.join(map(repr, output)) or 'nothing'})"
    elif loss is None:
        found = "no loss (None)"
    elif not torch.is_tensor(loss):
        found = f"a {type(loss).__name__}"
    elif loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}; take its mean"
    elif loss.is_complex():
        found = f"a tensor of {loss.dtype}; take its real part"
    else:
        found = "a tensor without a graph (detached, made from numbers, or computed under no_grad)"
    raise TrainingError(
        f"{type(module).__name__}.training_step returned {found}; expected at every step the loss, a tensor with one "
        'element that depends on the weights, or a dict with it as "loss"'
    )


@contextmanager
def readable_errors(module: LightningModule, doing: str) -> Iterator[None]:
    """Context manager that explains errors of the module whose own message does not.

    Raises:
        DataError: The data cannot be used; the message begins with ``doing``.
        TrainingError: The module uses ``self.logger``; or it, or its data, called ``sys.exit``, which would make the
            run look finished; or its weights have a higher precision than the images.
    """
    try:
        with without_logger():
            yield
    except RuntimeError as error:
        if isinstance(error, TrainingError) or "double" not in str(error).lower():
            raise
        if not any(parameter.dtype == torch.float64 for parameter in module.parameters()):
            raise DataError(
                f"{doing}: expected numbers of the weights' dtype, found torch.float64 ({error}); convert images and "
                "labels with float() in the data set"
            ) from error
        raise TrainingError(
            f"{type(module).__name__} has weights of torch.float64, and the images are torch.float32 ({error}); set "
            "--fabric.precision 64-true, or call float() on the module"
        ) from error
    except DataError as error:
        raise DataError(f"{doing}: {error}") from error
    except SystemExit as stopped:
        if isinstance(stopped.code, int) and stopped.code > SIGNALS:
            raise
        where = traceback.extract_tb(stopped.__traceback__)[-1]
        raise TrainingError(
            f"{type(module).__name__}: {where.name} ({where.filename}, line {where.lineno}) called "
            f"sys.exit({stopped.code!r}) while {doing}; raise an exception instead"
        ) from stopped


def _number(module: str, name: Any, value: Any) -> Any:
    """Return a logged value as a number or a tensor with one element; refuse anything else."""
    one = value.numel() == 1 and not value.is_complex() if torch.is_tensor(value) else isinstance(value, NUMBERS)
    if isinstance(name, str) and one:
        return value
    if not isinstance(name, str):
        raise TrainingError(f"{module} logs under {name!r}; expected a name, found {type(name).__name__}")
    shaped = f" of shape {tuple(value.shape)}; log its mean, or each element" if torch.is_tensor(value) else ""
    raise TrainingError(
        f"{module} logs {name!r} as a {type(value).__name__}{shaped or f' ({value!r:.40})'}: expected a number or a "
        "tensor with one element"
    )


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
