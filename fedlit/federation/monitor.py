"""The metric that says which model is best."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from fedlit.core.errors import ConfigError
from fedlit.federation.settings import Settings

OF_ROUNDS = ("train", "drift", "round", "bytes", "time", "objective")
"""Metrics that a round has, and an evaluation before it has not: how their keys begin."""


@dataclass(frozen=True)
class Monitor:
    """The metric that says which model is best.

    Attributes:
        metric: Its key, or None where nothing tells models apart.
        mode: ``max`` or ``min``.
        notice: What the user should know of the choice.
    """

    metric: str | None
    mode: str
    notice: str = ""

    @classmethod
    def resolve(cls, settings: Settings, available: Mapping[str, float], more: bool = False) -> "Monitor":
        """Choose the metric, by the settings and by the metrics of the validation data that there are.

        Args:
            settings: What the user has chosen.
            available: The metrics of a rehearsed evaluation.
            more: Whether callbacks of one's own may log further metrics.

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
            return cls("val/loss", "min", "no scores per class: the best model is the one of the least val/loss")
        if settings.patience is not None:
            raise ConfigError(
                "federation.patience: there is no validation metric that could become better; leave it out"
            )
        needed = "AUROC needs validation data, `self.classes` in the module, and logits [B, C] from its validation_step"
        return cls(None, "max", f"no validation metric: the last model counts as the best ({needed})")

    def value(self, metrics: Mapping[str, float]) -> float:
        """Read the metric's value; NaN without a metric.

        Raises:
            ConfigError: There is no such metric.
        """
        if self.metric is None:
            return float("nan")
        if self.metric not in metrics:
            near = get_close_matches(self.metric, metrics, n=3, cutoff=0.5)
            known = near or [key for key in metrics if key.startswith("val/") and "/n_" not in key]
            raise ConfigError(
                f"federation.monitor: there is no metric {self.metric!r}; there are "
                f"{', '.join(known) or 'no validation metrics at all'}"
            )
        return metrics[self.metric]


def _foreseen(metric: str, available: Mapping[str, float], others: bool) -> bool:
    """Whether an evaluation before the first round has a metric, if anything ever has it."""
    room, _, name = metric.partition("/")
    if room in OF_ROUNDS:
        return False
    if room == "client":
        of_training = name.rpartition("/")[2].startswith(("train_", "seconds"))
        return not of_training and any(key.startswith("client/") for key in available)
    return room == "val" or not others
