"""A federation's models scored, and from scores to metrics: AUROC per class, pooled and per client."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import quantiles

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn

from fedlit.core.logged import merged
from fedlit.core.messages import Broadcast, ClientReport, Round, ServerState
from fedlit.data.federated import FederatedDataModule
from fedlit.data.schemes import by_sharing
from fedlit.federation.engines.base import Scores, View
from fedlit.federation.session import Session
from fedlit.metrics.auroc import ClassAUROC, class_auroc, grouped_auroc, mean_auroc, slug, slugs
from fedlit.metrics.tally import pooled_auroc
from fedlit.tracking.run import Run

MAX_CLIENT_CURVES = 32
"""With more clients than this, their curves become quartiles, and a table holds the rest."""

MOST_CHECKED = 256
"""Clients whose validation sets are tried before the first round; of more clients so many, spread over all."""


def validate(session: Session, down: Broadcast, metrics: dict[str, float]) -> list[Scores]:
    """Score the clients' validation sets, and add their ``val/...`` to the metrics."""
    began = time.perf_counter()
    scores = session.engine.evaluate(client_views(session.data, "val"), down)
    metrics |= pooled_metrics(scores, session.classes, "val", session.everyone.schemes)
    metrics |= _pooled_loss(session, scores, down)
    metrics["time/evaluate_s"] = time.perf_counter() - began
    return scores


def sanity_check(session: Session, server: ServerState) -> dict[str, float]:
    """Score two examples a client, of at most 256: what fails there, fails before hours of training. Returns the metrics."""
    views = client_views(session.data, "val")
    chosen = {i * len(views) // MOST_CHECKED for i in range(MOST_CHECKED)} if len(views) > MOST_CHECKED else None
    views = [replace(view, limit=2) for i, view in enumerate(views) if chosen is None or i in chosen]
    down = session.broadcast(server, session.round(0))
    scores = session.engine.evaluate(views, down)
    if session.classes and scores and not any(scored.ranks for scored in scores):
        name = type(session.module).__name__
        rank_zero_warn(
            f"{name}.validation_step returns no scores of shape (examples, {len(session.classes)}) for the classes that {name} "
            "declares: there is no AUROC"
        )
    metrics = pooled_metrics(scores, session.classes, "val", session.everyone.schemes)
    metrics |= _pooled_loss(session, scores, down)
    few = len(session.clients) <= MAX_CLIENT_CURVES
    return metrics | (client_metrics(scores, (), session.classes) if few else {})


def evaluate_sets(
    session: Session, server: ServerState, part: str, method: str = "validation_step"
) -> dict[str, list[Scores]]:
    """Score the clients' parts together (``federation``), those of other clients, and each test set of the server.

    A class that a view's model has not learned is unknown there (labels NaN), see :meth:`Session.learned`.
    """
    down = session.broadcast(server, session.round(0))
    views = {"federation": client_views(session.data, part, method)}
    views |= views_beyond(session.everyone, session.personal, list(session.clients), part, method)
    groups = {name: found for name, seen in views.items() if seen and (found := session.engine.evaluate(seen, down))}
    for scored in (s for scores in groups.values() for s in scores):
        learned = session.learned(scored.view.client)
        scored.mask_classes([name not in learned for name in session.classes])
        scored.fewer = learned != session.learned(None)
    return groups


def test_curves(session: Session, server: ServerState) -> dict[str, float]:
    """Score all test sets in the course of training: ``test_curve/<set>/...``, for the record alone."""
    metrics: dict[str, float] = {}
    for name, scores in with_sites(session, evaluate_sets(session, server, "test")).items():
        metrics |= pooled_metrics(scores, session.classes, f"test_curve/{slug(name)}", session.everyone.schemes)
    return metrics


def with_sites(session: Session, groups: dict[str, list[Scores]]) -> dict[str, list[Scores]]:
    """Add to the scores of test sets the clients' scores regrouped: those of each organisation together."""
    held = {name: scores for name, scores in groups.items() if scores[0].view.holder is not None}
    return groups | by_site(held, lambda view: getattr(session.program.dataset(view), "sites", ()))


def objective_metrics(session: Session, server: ServerState, rounds: int) -> dict[str, float]:
    """Read off ``objective/...``: its variables per class, and after the first round its constants too."""
    if session.objective is None:
        return {}
    prefix = next(f"{name}." for name, m in session.module.named_modules() if m is session.objective)
    vectors = [(server.w, session.layout.parameters)] + [(server.stats, session.layout.buffers)] * (rounds == 1)
    return {
        f"objective/{entry.name.removeprefix(prefix)}/{key}": float(value)
        for vector, entries in vectors
        for entry in entries
        if entry.name.startswith(prefix)
        for key, value in zip(slugs(session.classes), entry.view(vector), strict=True)
    }


def per_client(
    session: Session, run: Run, scores: Sequence[Scores], reports: Sequence[ClientReport], step: int
) -> dict[str, float]:
    """Give every client's own curves; of many clients their quartiles, and a table beside with the rest."""
    metrics = client_metrics(scores, reports, session.classes)
    if len(session.clients) <= MAX_CLIENT_CURVES:
        return metrics
    run.log_clients(metrics, step)
    return quartile_metrics(metrics)


def _pooled_loss(session: Session, scores: Sequence[Scores], down: Broadcast) -> dict[str, float]:
    """What the objective makes of all scores together, ``val/<name>/<class>`` and its mean over classes."""
    scored = [s for s in scores if s.scores is not None]
    if session.objective is None or not scored:
        return {}
    session.server_model.load(down.w, down.stats)
    metrics = {}
    together = [torch.cat([getattr(s, part) for s in scored]) for part in ("scores", "labels")]
    for name, values in session.objective.pooled(*together).items():
        metrics |= {f"val/{name}/{k}": float(v) for k, v in zip(slugs(session.classes), values, strict=True)}
        metrics[f"val/{name}"] = float(values.nanmean())
    return metrics


def client_views(data: FederatedDataModule, part: str, method: str = "validation_step") -> list[View]:
    """List every client that has this part of the data, seen through its own model."""
    return [View(name, name, part, method) for name, d in data.clients.items() if getattr(d, part) is not None]


def views_beyond(
    everyone: FederatedDataModule, personal: Sequence[str], trained: Sequence[str], part: str, method: str
) -> dict[str, list[View]]:
    """List what lies beyond the federation's data: parts of clients that did not train, and the server's test sets.

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
    """Put the scores of each organisation together; returns {} where there is one alone."""
    found: dict[str, list[Scores]] = {}
    for scored in (s for scores in groups.values() for s in scores if s.scores is not None):
        sites = np.asarray(sites_of(scored.view)).astype(str)[: scored.examples]
        for site in sorted(set(sites.tolist())):
            rows = torch.from_numpy(sites == site)
            part = replace(
                scored,
                examples=int(rows.sum()),
                scores=scored.scores[rows],
                labels=scored.labels[rows],
                logged={},
                metrics={},
            )
            found.setdefault(site, []).append(part)
    return found if 1 < len(found) <= MAX_CLIENT_CURVES else {}


def pooled_metrics(
    scores: Sequence[Scores], classes: Sequence[str], prefix: str, schemes: Mapping[str, Sequence[str]] | None = None
) -> dict[str, float]:
    """Rank all scores together; add means of what the module logged, and the mean over clients of their own AUROC.

    ``schemes`` has the classes that each client labels, by default all. Where they differ there is a mean over each kind:
    ``auroc_shared``, ``auroc_partly``, ``auroc_unique``. Where personal heads rank fewer images than one model would, all
    means have keys of their own, such as ``auroc_own_macro``: they are of other images.
    """
    metrics = {f"{prefix}/{k}": v for k, v in _logged(scores).items()}
    scored = [s for s in scores if s.ranks]
    if not scored:
        return metrics
    metrics |= _ranked_together(scored, classes, prefix, schemes or {})
    metrics |= {
        f"{prefix}/auroc_{kind}": _mean_of(metrics, prefix, names)
        for kind, names in by_sharing(schemes or {}).items()
        if names
    }
    own = [s for s in scored if s.view.client is not None]
    if own:
        by_client = dict(zip((s.view.client for s in own), _each(own, classes), strict=True))
        metrics[f"{prefix}/auroc_client_mean_macro"] = mean_auroc(by_client).mean
    return own_means(metrics, prefix) if any(s.fewer for s in scored) else metrics


def own_means(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Return metrics with the means over classes under the keys of personal heads."""
    start = f"{prefix}/auroc_"
    means = re.compile(re.escape(start) + r"(macro|shared|partly|unique|client_mean_macro)")
    return {means.sub(rf"{start}own_\1", key): value for key, value in metrics.items()}


def _ranked_together(
    scored: Sequence[Scores], classes: Sequence[str], prefix: str, schemes: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """AUROC of all images together; where a site tells no scores, from histograms, with how far it may be away.

    Numbers of images are of those that are told, and NaN for a class of which no site tells any.
    """
    if all(s.tally is None for s in scored):
        pooled = class_auroc(torch.cat([s.scores for s in scored]), torch.cat([s.labels for s in scored]), classes)
        return pooled.as_metrics(prefix)
    hidden = [
        sum(s.examples for s in scored if s.hides(i) and name in schemes.get(s.view.holder or "", classes))
        for i, name in enumerate(classes)
    ]
    pooled, within = pooled_auroc([s.result(classes)[0] for s in scored], classes, hidden)
    bounds = {f"{prefix}/auroc_within/{k}": v for k, v in zip(slugs(classes), within.tolist(), strict=True)}
    metrics = pooled.as_metrics(prefix) | bounds
    for name, kept in zip(slugs(classes), hidden, strict=True):
        counts = [f"{prefix}/{count}/{name}" for count in ("n_pos", "n_neg")]
        if kept and not any(metrics[count] for count in counts):  # no number is 0 as it is not told
            metrics |= dict.fromkeys(counts, float("nan"))
    return metrics


def _each(scored: Sequence[Scores], classes: Sequence[str]) -> list[ClassAUROC]:
    """AUROC of each view by itself, exact whatever it tells."""
    if all(s.tally is None for s in scored):
        return grouped_auroc([(s.scores, s.labels) for s in scored], classes)
    return [s.result(classes)[1] for s in scored]


def client_metrics(
    scores: Sequence[Scores], reports: Sequence[ClientReport], classes: Sequence[str]
) -> dict[str, float]:
    """Give ``client/<name>/...``: training loss and seconds, and AUROC per class on the client's own validation set."""
    metrics: dict[str, float] = {}
    for report in reports:
        prefix = f"client/{slug(report.client)}"
        metrics.update({f"{prefix}/train_loss": report.loss, f"{prefix}/seconds": report.seconds})
        metrics.update({f"{prefix}/train_{slug(k)}": v for k, v in report.logged.items()})
    for s in scores:
        prefix = f"client/{slug(s.view.client)}"
        metrics.update({f"{prefix}/{slug(k)}": v for k, v in s.logged.items()})
    scored = [s for s in scores if s.ranks]
    keys = [f"auroc/{key}" for key in slugs(classes)]
    for s, result in zip(scored, _each(scored, classes), strict=True):
        prefix = f"client/{slug(s.view.client)}"
        metrics.update((f"{prefix}/{key}", value) for key, value in zip(keys, result.auroc.tolist(), strict=True))
        metrics[f"{prefix}/auroc_macro"] = result.mean
    return metrics


def quartile_metrics(per_client: Mapping[str, float]) -> dict[str, float]:
    """Take quartiles over clients of what :func:`client_metrics` gave, ``client/q25/...`` and so on."""
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
    """Give ``train/...``: means over the cohort, with the federation's client weights."""
    total = sum(weights[r.client] for r in reports)
    metrics = {"train/loss": sum(weights[r.client] * r.loss for r in reports) / total}
    for name in sorted({name for r in reports for name in r.logged}):
        having = [r for r in reports if name in r.logged]
        share = sum(weights[r.client] for r in having)
        mean = sum(weights[r.client] * r.logged[name] for r in having) / share
        metrics[f"train/{slug(name)}"] = _together(name, having, mean)
    return metrics


def round_metrics(
    rnd: Round, reports: Sequence[ClientReport], weights: Mapping[str, float], bytes_down: int, seconds: float
) -> dict[str, float]:
    """Give a round's training metrics, its place in the schedule, steps and bytes over all clients, and its seconds."""
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


def _together(name: str, having: Sequence[ClientReport | Scores], mean: float) -> float:
    """Value of a metric over what all clients have seen, where every copy is here and they merge; otherwise the mean."""
    if any(name not in each.metrics for each in having):
        return mean
    value = merged([each.metrics[name] for each in having])
    return mean if value is None else value


def _logged(scores: Sequence[Scores]) -> dict[str, float]:
    means = {}
    for name in sorted({name for s in scores for name in s.logged}):
        having = [s for s in scores if name in s.logged]
        mean = sum(s.examples * s.logged[name] for s in having) / sum(s.examples for s in having)
        means[slug(name)] = _together(name, having, mean)
        means[f"{slug(name)}_client_mean"] = sum(s.logged[name] for s in having) / len(having)
    return means
