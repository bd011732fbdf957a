"""What a federation honours of somebody else's LightningModule, and what it has to refuse.

A federation trains a module by ``training_step`` and ``configure_optimizers``, scores it by ``validation_step`` and
``predict_step``, and collects ``self.log``. There is no Trainer.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule
from torch.nn.parameter import is_lazy
from torchmetrics import Metric

from fedlit.errors import ConfigError
from fedlit.fabric import FederationFabric

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
    "on_before_batch_transfer": BATCH,
    "transfer_batch_to_device": BATCH,
    "on_after_batch_transfer": BATCH,
}
"""Overridden hooks without which the module would train to something else, and what to do instead."""

LOOPS = (
    "on_",
    "setup",
    "teardown",
    "prepare_data",
    "test_step",
    "configure_callbacks",
    "train_dataloader",
    "val_dataloader",
    "test_dataloader",
    "predict_dataloader",
)
"""Beginnings of the names of the Trainer's other hooks: the module trains without them."""


def check_module(module: LightningModule) -> None:
    """Refuse what a federation cannot do, and warn of hooks that it will not call; nothing is changed.

    Raises:
        ConfigError: manual optimization, no ``training_step`` or ``configure_optimizers``, an overridden hook that
            changes what is trained, or a lazy layer.
    """
    name = type(module).__name__
    hooks = {hook for hook, _ in inspect.getmembers(LightningModule, inspect.isfunction) if overrides(module, hook)}
    if not module.automatic_optimization:
        raise ConfigError(
            f"{name} optimizes manually (automatic_optimization = False); a federation takes one step a "
            "batch itself: return the loss from training_step instead"
        )
    for needed in ("training_step", "configure_optimizers"):
        if needed not in hooks:
            raise ConfigError(f"{name} has no {needed}; a federation needs training_step and configure_optimizers")
    refused = [hook for hook in REFUSED if hook in hooks]
    if refused:
        raise ConfigError(f"{name} overrides {refused[0]}, which a federation does not call: {REFUSED[refused[0]]}")
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise ConfigError(f"{name}.training_step takes dataloader_iter; expected (batch) or (batch, batch_idx)")
    lazy = [parameter for parameter, value in module.named_parameters() if is_lazy(value)]
    if lazy:
        raise ConfigError(f"{name}: the shape of {lazy[0]} is unknown before the first batch; give the layer its size")
    ignored = sorted(hook for hook in hooks if hook.startswith(LOOPS))
    if ignored:
        rank_zero_warn(f"{name} overrides {', '.join(ignored)}: there is no Trainer here that would call them")


def overrides(module: LightningModule, hook: str) -> bool:
    """Whether a module defines this method of LightningModule itself."""
    return getattr(type(module), hook) is not getattr(LightningModule, hook)


def step_of(module: LightningModule, name: str) -> Callable[[Any, int], Any]:
    """A step as a function of (batch, batch_idx): Lightning lets a module leave ``batch_idx`` out."""
    step = getattr(module, name)
    parameters = inspect.signature(step).parameters.values()
    if len(parameters) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return step
    return lambda batch, batch_idx: step(batch)


def collect_logs(module: LightningModule, fabric: FederationFabric) -> None:
    """Send what the module logs to ``fabric``, torchmetrics objects included, which Lightning refuses under Fabric.

    Metrics of the module no longer meet those of other processes, which train other clients for other numbers of steps.
    """
    for metric in (part for part in module.modules() if isinstance(part, Metric)):
        metric.distributed_available_fn = _by_itself

    def log(name: str, value: Any, prog_bar: bool = False, logger: bool | None = None, **options: Any) -> None:
        log_dict({name: value}, prog_bar, logger)

    def log_dict(values: Mapping[str, Any], prog_bar: bool = False, logger: bool | None = None, **options: Any) -> None:
        if logger is not False:
            fabric.log_dict({name: _since_last(value) for name, value in values.items()})

    module.log, module.log_dict = log, log_dict


def _by_itself() -> bool:
    """What a metric asks for: whether there are other processes."""
    return False


def _since_last(value: Any) -> Any:
    """A metric's value over what it has seen since it was last logged; anything else as it is."""
    if not isinstance(value, Metric):
        return value
    result = value.compute()
    value.reset()
    return result
