"""The metric that selects the best model."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from fedlit.core.errors import ConfigError
from fedlit.federation.settings import Settings

OF_ROUNDS = ("train", "drift", "round", "bytes", "time", "objective")
"""Prefixes of metrics that only rounds have, not an evaluation before the first round."""


@dataclass(frozen=True)
class Monitor:
    """The metric that selects the best model.

    Attributes:
        metric: Key of the metric, or None if there is no validation metric.
        notice: Message to the user about the choice, or "".
    """

    metric: str | None
    mode: str
    notice: str = ""

    @classmethod
    def resolve(cls, settings: Settings, available: Mapping[str, float], more: bool = False) -> "Monitor":
        """Return the monitor for the settings and the metrics of the sanity check; custom callbacks may log ``more``.

        Raises:
            ConfigError: ``monitor`` is a metric that this federation does not have.
        """
        if settings.monitor != "auto":
            monitor = cls(settings.monitor, settings.better)
            others = more or any(aggregator.implements("diagnostics") for aggregator in settings.aggregators)
            if _foreseen(settings.monitor, available, others):
                monitor.value(available)
            return monitor
        if "val/auroc_macro" in available:
            return cls("val/auroc_macro", "max")
        if "val/loss" in available:
            return cls("val/loss", "min", "no scores per class: the best model has the lowest val/loss")
        if settings.patience is not None:
            raise ConfigError(
                "federation.patience: expected a validation metric to improve, found none; leave patience out"
            )
        needed = "AUROC needs validation data, `self.classes` in the module, and logits [B, C] from its validation_step"
        return cls(None, "max", f"no validation metric: the last model counts as the best ({needed})")

    def value(self, metrics: Mapping[str, float]) -> float:
        """Return the value of the metric, or NaN if there is no metric.

        Raises:
            ConfigError: The metric does not exist.
        """
        if self.metric is None:
            return float("nan")
        if self.metric not in metrics:
            near = get_close_matches(self.metric, metrics, n=3, cutoff=0.5)
            known = near or [key for key in metrics if key.startswith("val/") and "/n_" not in key]
            raise ConfigError(
                f"federation.monitor: unknown metric {self.metric!r}; available are "
                f"{', '.join(known) or 'no validation metrics'}"
            )
        return metrics[self.metric]


def _foreseen(metric: str, available: Mapping[str, float], others: bool) -> bool:
    """Check if an evaluation before the first round must have the metric for it to exist at all."""
    group, _, name = metric.partition("/")
    if group in OF_ROUNDS:
        return False
    if group == "client":
        of_training = name.rpartition("/")[2].startswith(("train_", "seconds"))
        return not of_training and any(key.startswith("client/") for key in available)
    return group == "val" or not others
