"""Lightning Fabric for a federation, and errors of modules that ask for a Trainer or its logger in its place."""

import os
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.accelerators import ACCELERATOR_REGISTRY
from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment
from lightning.fabric.strategies import DDPStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import nn
from torchmetrics import Metric

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.logged import Key, copy_of, value_of, weighed
from fedlit.core.ranges import AT_LEAST_ONE

PRECISIONS = ("32-true", "64-true", "bf16-mixed")

LIBRARIES = ("fedlit", "lightning", "torch")
"""Packages between the line of a module that asks for the Trainer, and the error."""

STEPS = (
    "set federation.schedule for a rate that follows the rounds, or pass the number to the constructor of the module"
)
FILES = "log numbers with self.log; a callback of fedlit can store files with state.run.artifact"
INSTEAD = {
    **dict.fromkeys(("estimated_stepping_batches", "max_steps", "max_epochs", "num_training_batches"), STEPS),
    **dict.fromkeys(("min_steps", "min_epochs", "fit_loop", "is_last_batch", "limit_train_batches"), STEPS),
    "lr_scheduler_configs": "learning rates change between rounds: set federation.schedule",
    "optimizers": "call self.optimizers()",
    **dict.fromkeys(
        ("callback_metrics", "logged_metrics", "progress_bar_metrics"),
        "a callback of fedlit finds the values in state.metrics after each round",
    ),
    **dict.fromkeys(("log_dir", "default_root_dir", "log_every_n_steps"), FILES),
    **dict.fromkeys(("should_stop", "early_stopping_callback"), "set federation.patience, or state.stop in a callback"),
    **dict.fromkeys(("callbacks", "checkpoint_callback", "save_checkpoint"), "use the callbacks of fedlit"),
    **dict.fromkeys(("gradient_clip_val", "gradient_clip_algorithm"), "set federation.gradient_clip"),
    "accumulate_grad_batches": "set data.batch_size",
    **dict.fromkeys(("state", "training", "validating", "testing", "evaluating", "predicting"), "use self.training"),
    **dict.fromkeys(("precision", "num_devices", "num_nodes", "device_ids"), "set fabric.*; self.device is the device"),
}
"""What to do instead of reading an attribute of the Trainer."""


class RankPerClients(DDPStrategy):
    """Strategy for ranks that train different clients: no gradients are averaged, so modules stay as they are."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Return the module without DistributedDataParallel around it."""
        return module


class FederationFabric(Fabric):
    """Fabric whose ``log`` collects values: those that a module logs are averaged over its client's round.

    Attributes:
        logged: Values of the current round by name.
        metrics: Metrics of torchmetrics logged in it, by name.
    """

    logger = progress_bar_callback = None
    """A module's ``self.logger`` is None, as with a Trainer's ``logger=False``; ``self.print`` needs the other
    attribute."""

    sanity_checking = False
    """Modules ask their Trainer for it before they log."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.logged: dict[Key, list[Any]] = defaultdict(list)
        self.metrics: dict[str, Metric] = {}
        self.counts = 0, 0

    def __getattr__(self, name: str) -> Any:
        """Refuse what ``self.trainer`` of a module lacks; its private attributes are Lightning's to try."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise missing(name)

    def setup_module(self, module: nn.Module, **options: Any) -> nn.Module:
        """Set a module up without keeping a reference to it, as Fabric does for callbacks, which are not used here.

        With it, module and fabric would refer to each other, and a trained model would stay in memory until the next
        collection.
        """
        made = super().setup_module(module, **options)
        self._callbacks[:] = (other for other in self._callbacks if other is not module)
        return made

    @property
    def double(self) -> bool:
        """True if the arithmetic is in float64."""
        return self.strategy.precision.precision == "64-true"

    @property
    def global_step(self) -> int:
        """Number of the client's training steps so far, as a module reads it from ``self.global_step``."""
        return self.counts[0]

    @property
    def current_epoch(self) -> int:
        """Number of completed passes over the client's training images, as in ``self.current_epoch``."""
        return self.counts[1]

    def count(self, steps: int, epochs: int) -> None:
        """Set both counts."""
        self.counts = steps, epochs

    def on_any_rank(self, number: int) -> int:
        """Return the maximum of a number over ranks, such as that of a signal that one of them received."""
        if self.world_size == 1:
            return number
        return int(self.all_reduce(self.to_device(torch.tensor(float(number))), reduce_op="max"))

    def begin(self) -> None:
        """Start a round, or an evaluation, with nothing logged."""
        self.logged.clear()
        for metric in self.metrics.values():
            metric.reset()
        self.metrics.clear()

    def log_dict(self, metrics: Mapping[Key, Any], step: int | None = None) -> None:
        """Collect values under their names until the round ends."""
        for name, value in metrics.items():
            self.logged[name].append(value.detach() if torch.is_tensor(value) else value)

    def means(self) -> dict[str, float]:
        """Return the mean of each logged name over the round; for a metric, its value over the round."""
        plain = {name: mean for name, (mean, _) in weighed(self.logged).items()}
        return plain | {name: value_of(name, metric) for name, metric in self.metrics.items()}

    def taken(self) -> dict[str, Metric]:
        """Return copies of the logged metrics with their states of the round."""
        return {name: copy_of(metric) for name, metric in self.metrics.items()}


def make_fabric(
    accelerator: str = "auto",
    devices: int | list[int] = 1,
    num_nodes: int = 1,
    precision: str = "32-true",
    benchmark: bool | None = None,
) -> FederationFabric:
    """Make the fabric of a federation; several devices or nodes pin clients to ranks.

    Under ``torchrun`` or ``fabric run`` the launcher's numbers of processes and nodes replace the defaults.

    Args:
        accelerator: Device to train on: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        devices: Number of processes on this machine, one device each, or a list of device indices.
        num_nodes: Number of machines; start one ``torchrun`` or ``fabric run`` on each.
        precision: Precision of the arithmetic: ``32-true``, ``64-true`` or ``bf16-mixed``.
        benchmark: Whether cuDNN chooses its algorithms by their time, as the Trainer's ``benchmark``. This can be
            faster on a GPU, but its results are not bit-identical from run to run. By default it does not.

    Raises:
        ConfigError: The machine lacks the device, no process is asked for, or the precision needs a loss scaler or
            half-precision weights, which break mean gradients.
    """
    if precision not in PRECISIONS:
        raise ConfigError(
            f"fabric.precision: expected one of {', '.join(PRECISIONS)}, found {precision!r} (loss scalers skip steps "
            "and half-precision weights lose digits; both break mean gradients)"
        )
    if "LOCAL_WORLD_SIZE" in os.environ and (devices, num_nodes) == (1, 1):
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        num_nodes = int(os.environ["WORLD_SIZE"]) // devices
    _check_processes(devices, num_nodes)
    plugins = _environment(devices, num_nodes)
    if benchmark:
        torch.backends.cudnn.benchmark = True
    several = num_nodes > 1 or (devices if isinstance(devices, int) else len(devices)) > 1
    strategy = RankPerClients() if several else "auto"
    try:
        return FederationFabric(
            accelerator=accelerator,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            strategy=strategy,
            plugins=plugins,
        )
    except (RuntimeError, ValueError, TypeError, ImportError, MisconfigurationException) as error:
        usable = ", ".join(
            name for name in ("cpu", "cuda", "mps") if ACCELERATOR_REGISTRY[name]["accelerator"].is_available()
        )
        raise ConfigError(
            f"fabric.accelerator: {accelerator!r} with devices {devices} cannot be used here: "
            f"{' '.join(str(error).split()).rstrip('.')}; this machine has {usable}"
        ) from error


def _check_processes(devices: int | list[int], num_nodes: int) -> None:
    wrong = (
        devices < 1 and devices != -1 if isinstance(devices, int) else not devices or len(set(devices)) < len(devices)
    )
    if wrong:
        raise ConfigError(f"fabric.devices: expected at least 1, -1 for all, or different indices, found {devices}")
    AT_LEAST_ONE.check("fabric.num_nodes", num_nodes)


def _environment(devices: int | list[int], num_nodes: int) -> list[ClusterEnvironment]:
    """Return how processes start, where Lightning would take SLURM's tasks for the processes of this run.

    Raises:
        ConfigError: SLURM has started several tasks, but not one for each device.
    """
    tasks = int(os.environ.get("SLURM_NTASKS", 1))
    if "SLURM_JOB_ID" not in os.environ or os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return []
    if tasks == 1:
        return [] if "LOCAL_WORLD_SIZE" in os.environ else [LightningEnvironment()]
    wanted = num_nodes * (devices if isinstance(devices, int) else len(devices))
    if tasks != wanted or "SLURM_NTASKS_PER_NODE" not in os.environ:
        raise ConfigError(
            f"fabric.devices: expected one task of SLURM for each device, {wanted} with --ntasks-per-node, found "
            f"{tasks} tasks; for more cores use --cpus-per-task and one task, for more devices --fabric.devices with "
            "--ntasks-per-node and srun"
        )
    return []


def launch(fabric: FederationFabric) -> None:
    """Start the other processes of this machine, unless a launcher already has."""
    if os.environ.get("LT_CLI_USED", "0") == "0":
        fabric.launch()


def missing(name: str) -> TrainingError:
    """Return the error for an attribute of ``self.trainer``; it names the line of the module that asks for it."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in LIBRARIES:
        frame = frame.f_back
    advice = INSTEAD.get(name, "pass what it needs to the constructor of the module")
    return TrainingError(
        f"{frame.f_code.co_filename}, line {frame.f_lineno}: expected a module that needs no Trainer, found "
        f"self.trainer.{name}; {advice}"
    )


@contextmanager
def without_logger() -> Iterator[None]:
    """Context manager for the code of a module, in which ``self.logger`` is None and ``self.loggers`` is empty.

    Raises:
        TrainingError: The module uses one of them; names the line.
    """
    try:
        yield
    except (AttributeError, IndexError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        line = last.line or "self.logger.experiment" * (getattr(error, "name", "") == "experiment")  # of exec's code
        if "logger" not in line or getattr(error, "obj", None) is not None:
            raise
        raise TrainingError(
            f"{last.filename}, line {last.lineno}: expected a module that needs no logger, found {line}; {FILES}"
        ) from error
