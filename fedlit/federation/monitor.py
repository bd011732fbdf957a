"""The metric that selects the best model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from fedlit.core.errors import ConfigError
from fedlit.data.schemes import by_sharing
from fedlit.federation.settings import Settings
from fedlit.metrics.auroc import slugs

OF_ROUNDS = ("train", "drift", "round", "bytes", "time", "objective")
"""Prefixes of metrics that only rounds have, not an evaluation before the first round."""

FEW = 10
"""Number of positive validation images below which the AUROC of a class says too little to choose a model by it."""


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

    def few_positives(self, metrics: Mapping[str, float], schemes: Mapping[str, Sequence[str]]) -> str:
        """Return a warning if the metric rests on classes with few positives in an evaluation, or "".

        ``schemes`` has the classes that each client labels.
        """
        if not (self.metric or "").startswith("val/auroc"):
            return ""
        _, _, name = self.metric.partition("/auroc")
        kind = by_sharing(schemes).get(name.removeprefix("_own").removeprefix("_"))
        classes = metrics if kind is None else {f"val/auroc/{key}" for key in slugs(kind)}
        few = [
            f"{key.removeprefix('val/n_pos/')} ({count:.0f})"
            for key, count in metrics.items()
            if key.startswith("val/n_pos/") and 0 < count < FEW and (auroc := key.replace("n_pos", "auroc")) in classes
            if not name.startswith("/") or auroc == self.metric
        ]
        if not few:
            return ""
        return (
            f"warning: {self.metric}, which selects the best model, rests on classes with fewer than {FEW} positive "
            f"validation images: {', '.join(few)}; use more validation images, or another federation.monitor"
        )


def _foreseen(metric: str, available: Mapping[str, float], others: bool) -> bool:
    """Check if an evaluation before the first round must have the metric for it to exist at all."""
    group, _, name = metric.partition("/")
    if group in OF_ROUNDS:
        return False
    if group == "client":
        of_training = name.rpartition("/")[2].startswith(("train_", "seconds"))
        return not of_training and any(key.startswith("client/") for key in available)
    return group == "val" or not others
