"""From scores to metrics: AUROC per class, pooled and per client."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from statistics import quantiles

import numpy as np
import torch

from fedlit.data.federated import FederatedDataModule
from fedlit.engines.base import Scores, View
from fedlit.errors import ConfigError
from fedlit.flat import Layout
from fedlit.messages import ClientReport, Mask, Round
from fedlit.metrics.auroc import class_auroc, mean_auroc, slug, slugs

MAX_CLIENT_CURVES = 32
"""With more clients than this, their curves become quartiles, and a table holds the rest."""


@dataclass(frozen=True)
class Monitor:
    """The metric that says which model is best.

    Attributes:
        metric: its key, or None where nothing tells models apart.
        mode: ``max`` or ``min``.
        notice: what the user should know of the choice.
    """

    metric: str | None
    mode: str
    notice: str = ""

    def value(self, metrics: Mapping[str, float]) -> float:
        """The metric's value, NaN without a metric.

        Raises:
            ConfigError: there is no such metric.
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


def client_views(data: FederatedDataModule, part: str, method: str = "validation_step") -> list[View]:
    """Every client that has this part of the data, seen through its own model."""
    return [View(name, name, part, method) for name, d in data.clients.items() if getattr(d, part) is not None]


def keeping(masks: Mapping[str, Mask], layout: Layout) -> list[str]:
    """Clients that keep a part of the model; where there are any, there is no single global model."""
    filled = torch.zeros(layout.num_groups, dtype=torch.bool)
    filled[[run.group for run in layout.runs]] = True
    filled[layout.stats_group] = layout.stats_size > 0
    return [name for name, mask in masks.items() if (mask.kept & filled).any()]


def views_beyond(
    everyone: FederatedDataModule, personal: Sequence[str], trained: Sequence[str], part: str, method: str
) -> dict[str, list[View]]:
    """What lies beyond the federation's own data: parts of clients that did not train, and the server's test sets.

    A single global model scores them; personal models score a test set of the server each by itself, and what another
    client has not at all.
    """
    if personal:
        return {
            f"{name} by {client}": [View(client, None, name, method)]
            for name in everyone.test_sets
            for client in trained
        }
    others = [n for n, d in everyone.clients.items() if n not in trained and getattr(d, part) is not None]
    beyond = {name: [View(None, name, part, method)] for name in others}
    return beyond | {name: [View(None, None, name, method)] for name in everyone.test_sets}


def by_site(groups: Mapping[str, list[Scores]], sites_of: Callable[[View], Sequence[str]]) -> dict[str, list[Scores]]:
    """The same scores, those of each organisation together; {} where there is one alone."""
    found: dict[str, list[Scores]] = {}
    for scored in (s for scores in groups.values() for s in scores if s.scores is not None):
        sites = np.asarray(sites_of(scored.view)).astype(str)[: scored.examples]
        for site in sorted(set(sites.tolist())):
            rows = torch.from_numpy(sites == site)
            part = replace(
                scored, examples=int(rows.sum()), scores=scored.scores[rows], labels=scored.labels[rows], logged={}
            )
            found.setdefault(site, []).append(part)
    return found if 1 < len(found) <= MAX_CLIENT_CURVES else {}


def pooled_metrics(
    scores: Sequence[Scores],
    classes: Sequence[str],
    prefix: str,
    sharing: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, float]:
    """All scores ranked together, means of what the module logged, and the mean over clients of their own AUROC.

    Args:
        sharing: kinds of classes, for a mean over each: ``auroc_shared``, ``auroc_partly``, ``auroc_unique``.
    """
    metrics = {f"{prefix}/{k}": v for k, v in _logged(scores).items()}
    scored = [s for s in scores if s.scores is not None]
    if not scored:
        return metrics
    pooled = class_auroc(torch.cat([s.scores for s in scored]), torch.cat([s.labels for s in scored]), classes)
    metrics |= pooled.as_metrics(prefix)
    metrics |= {
        f"{prefix}/auroc_{kind}": _mean_of(metrics, prefix, names) for kind, names in (sharing or {}).items() if names
    }
    own = {s.view.client: class_auroc(s.scores, s.labels, classes) for s in scored if s.view.client is not None}
    if own:
        metrics[f"{prefix}/auroc_client_mean_macro"] = mean_auroc(own).mean
    return metrics


def client_metrics(
    scores: Sequence[Scores], reports: Sequence[ClientReport], classes: Sequence[str]
) -> dict[str, float]:
    """``client/<name>/...``: training loss and seconds, and AUROC per class on the client's own validation set."""
    metrics: dict[str, float] = {}
    for report in reports:
        prefix = f"client/{slug(report.client)}"
        metrics |= {f"{prefix}/train_loss": report.loss, f"{prefix}/seconds": report.seconds}
        metrics |= {f"{prefix}/train_{slug(k)}": v for k, v in report.logged.items()}
    for s in scores:
        prefix = f"client/{slug(s.view.client)}"
        metrics |= {f"{prefix}/{slug(k)}": v for k, v in s.logged.items()}
        if s.scores is not None:
            result = class_auroc(s.scores, s.labels, classes).as_metrics(prefix)
            metrics |= {k: v for k, v in result.items() if "/n_" not in k}
    return metrics


def quartile_metrics(per_client: Mapping[str, float]) -> dict[str, float]:
    """Quartiles over clients of what :func:`client_metrics` gave, ``client/q25/...`` and so on."""
    by_key: dict[str, list[float]] = {}
    for key, value in per_client.items():
        if value == value:
            by_key.setdefault(key.split("/", 2)[2], []).append(value)
    return {
        f"client/{name}/{key}": cut
        for key, values in by_key.items()
        if len(values) > 1
        for name, cut in zip(("q25", "q50", "q75"), quantiles(values, n=4, method="inclusive"), strict=True)
    }


def training_metrics(reports: Sequence[ClientReport], weights: Mapping[str, float]) -> dict[str, float]:
    """``train/...``: means over the cohort, with the federation's client weights."""
    total = sum(weights[r.client] for r in reports)
    metrics = {"train/loss": sum(weights[r.client] * r.loss for r in reports) / total}
    for name in sorted({name for r in reports for name in r.logged}):
        having = [r for r in reports if name in r.logged]
        share = sum(weights[r.client] for r in having)
        metrics[f"train/{slug(name)}"] = sum(weights[r.client] * r.logged[name] for r in having) / share
    return metrics


def round_metrics(
    rnd: Round, reports: Sequence[ClientReport], weights: Mapping[str, float], bytes_down: int, seconds: float
) -> dict[str, float]:
    """A round's training metrics, its place in the schedule, steps and bytes over all clients, and its seconds."""
    return training_metrics(reports, weights) | {
        "round/stage": rnd.stage,
        "round/lr_factor": rnd.lr_factor,
        "round/clients": len(rnd.cohort),
        "round/steps": sum(report.steps for report in reports),
        "bytes/up": sum(report.bytes_up for report in reports),
        "bytes/down": bytes_down * len(rnd.cohort),
        "time/round_s": seconds,
    }


def _mean_of(metrics: Mapping[str, float], prefix: str, names: Sequence[str]) -> float:
    """Mean AUROC over some classes, NaN where none is defined."""
    values = torch.tensor([metrics[f"{prefix}/auroc/{key}"] for key in slugs(names)], dtype=torch.float64)
    return float(values.nanmean())


def _logged(scores: Sequence[Scores]) -> dict[str, float]:
    means = {}
    for name in sorted({name for s in scores for name in s.logged}):
        having = [s for s in scores if name in s.logged]
        means[slug(name)] = sum(s.examples * s.logged[name] for s in having) / sum(s.examples for s in having)
        means[f"{slug(name)}_client_mean"] = sum(s.logged[name] for s in having) / len(having)
    return means
