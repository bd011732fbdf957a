"""Errors of modules that use Lightning's Trainer or its logger, which a federation does not have."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from fedlit.core.errors import TrainingError

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
