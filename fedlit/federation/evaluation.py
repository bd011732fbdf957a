"""Evaluation of a federation's models, and metrics of the scores: AUROC per class, pooled and per client."""

import math
import re
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, quantiles
from typing import Any, Literal

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat, dim_zero_max, dim_zero_min, dim_zero_sum

from fedlit.core.logged import metric_names
from fedlit.core.messages import Broadcast, ClientReport, Round, ServerState
from fedlit.data.federated import FederatedDataModule
from fedlit.data.schemes import by_sharing
from fedlit.federation.engines.scores import Scores, View
from fedlit.federation.session import Session
from fedlit.metrics.auroc import ClassAUROC, class_auroc, client_mean_auroc, grouped_auroc, slug, slugs
from fedlit.metrics.tally import pooled_auroc
from fedlit.tracking.names import BY_CLIENT, CLIENT_MEAN
from fedlit.tracking.run import Run

MERGING = (dim_zero_cat, dim_zero_max, dim_zero_min, dim_zero_sum)
"""Reductions of a metric's states that merge exactly."""

MAX_CLIENT_CURVES = 32
"""Largest number of clients with curves of their own; for more clients there are quartiles and a table."""

MOST_CHECKED = 256
"""Largest number of clients whose validation sets are tried before the first round, spread over all clients."""


def validate(session: Session, down: Broadcast, metrics: dict[str, float]) -> list[Scores]:
    """Score the clients' validation sets and add ``val/...`` to the metrics."""
    began = time.perf_counter()
    scores = session.engine.evaluate(client_views(session.data, "val"), down)
    metrics |= _validation_metrics(session, scores, down)
    metrics["time/evaluate_s"] = time.perf_counter() - began
    return scores


def sanity_check(session: Session, server: ServerState) -> dict[str, float]:
    """Score two examples of up to 256 clients before training, so that errors show early, and return the metrics."""
    views = client_views(session.data, "val")
    checked = range(len(views))
    if len(views) > MOST_CHECKED:
        checked = [i * len(views) // MOST_CHECKED for i in range(MOST_CHECKED)]
    views = [replace(views[i], limit=2) for i in checked]
    down = session.to_score(server, session.round(0))
    scores = session.engine.evaluate(views, down)
    session.taken = next((scored.taken for scored in scores if scored.ranks), None)
    if session.classes and scores and not any(scored.ranks for scored in scores):
        name = type(session.module).__name__
        rank_zero_warn(
            f"{name}.validation_step: expected scores of shape (examples, {len(session.classes)}) for the classes that "
            f"{name} declares, found none: AUROC is not computed"
        )
    few = len(session.clients) <= MAX_CLIENT_CURVES
    return _validation_metrics(session, scores, down) | (client_metrics(scores, (), session.classes) if few else {})


def evaluate_sets(
    session: Session, server: ServerState, part: str, method: str = "validation_step"
) -> dict[str, list[Scores]]:
    """Score the clients' parts together (``federation``), those of other clients, and each test set of the server.

    Labels of classes that a view's model has not learned are set to NaN, see :meth:`Session.learned`.
    """
    down = session.to_score(server, session.round(0))
    views = {"federation": client_views(session.data, part, method)}
    views |= views_beyond(session.everyone, session.personal, list(session.clients), part, method)
    evaluated = {name: session.engine.evaluate(group, down) for name, group in views.items() if group}
    groups = {name: scores for name, scores in evaluated.items() if scores}
    for scored in (s for scores in groups.values() for s in scores):
        learned = session.learned(scored.view.client)
        scored.mask_classes([name not in learned for name in session.classes])
        scored.fewer = learned != session.learned(None)
    return groups


def test_curves(session: Session, server: ServerState) -> dict[str, float]:
    """Score all test sets during training and return ``test_curve/<set>/...``, which are informational."""
    metrics: dict[str, float] = {}
    for name, scores in with_sites(session, evaluate_sets(session, server, "test")).items():
        metrics |= pooled_metrics(scores, session.classes, f"test_curve/{slug(name)}", session.everyone.schemes)
    return metrics


def with_sites(session: Session, groups: dict[str, list[Scores]]) -> dict[str, list[Scores]]:
    """Add groups with the clients' scores of each organisation to the groups of test sets."""
    held = {name: scores for name, scores in groups.items() if scores[0].view.holder is not None}
    return groups | by_site(held, lambda view: getattr(session.program.dataset(view), "sites", ()))


def objective_metrics(session: Session, server: ServerState, rounds: int) -> dict[str, float]:
    """Return ``objective/...``: its variables per class and, after the first round, its constants."""
    if session.objective is None:
        return {}
    prefix = next(f"{name}." for name, m in session.module.named_modules() if m is session.objective)
    vectors = [(server.w, session.layout.parameters)] + [(server.stats, session.layout.buffers)] * (rounds == 1)
    return {
        f"objective/{entry.name.removeprefix(prefix)}/{key}": float(value)
        for vector, entries in vectors
        for entry in entries
        if entry.name.startswith(prefix) and entry.shape == (len(session.classes),)
        for key, value in zip(slugs(session.classes), entry.view(vector), strict=True)
    }


def per_client(
    session: Session, run: Run, scores: Sequence[Scores], reports: Sequence[ClientReport], step: int
) -> dict[str, float]:
    """Return the curves of every client; for many clients return quartiles and log the curves to a table."""
    metrics = client_metrics(scores, reports, session.classes)
    if len(session.clients) <= MAX_CLIENT_CURVES:
        return metrics
    run.log_clients(metrics, step)
    return quartile_metrics(metrics)


def _validation_metrics(session: Session, scores: Sequence[Scores], down: Broadcast) -> dict[str, float]:
    """Return ``val/...``; the objective's of the pooled scores, ``val/<name>``, per class and their mean."""
    metrics = pooled_metrics(scores, session.classes, "val", session.everyone.schemes)
    scored = [s for s in scores if s.scores is not None]
    if session.objective is None or not scored:
        return metrics
    session.server_model.load(down.w, down.stats)
    pooled = [torch.cat([getattr(s, part) for s in scored]) for part in ("scores", "labels")]
    for name, values in session.objective.pooled(*pooled).items():
        metrics |= {f"val/{name}/{k}": float(v) for k, v in zip(slugs(session.classes), values, strict=True)}
        metrics[f"val/{name}"] = float(values.nanmean())
    return metrics


def client_views(data: FederatedDataModule, part: str, method: str = "validation_step") -> list[View]:
    """Return a view of every client that has this part of the data, with its own model."""
    return [View(name, name, part, method) for name, d in data.clients.items() if getattr(d, part) is not None]


def views_beyond(
    everyone: FederatedDataModule, personal: Sequence[str], trained: Sequence[str], part: str, method: str
) -> dict[str, list[View]]:
    """Return views of data outside of the federation: clients that did not train, and the server's test sets.

    A single global model scores all of them. Personal models each score the server's test sets, and no data of other
    clients.
    """
    if personal:
        return {f"{name} by {one}": [View(one, None, name, method)] for name in everyone.test_sets for one in trained}
    others = [n for n, d in everyone.clients.items() if n not in trained and getattr(d, part) is not None]
    beyond = {name: [View(None, name, part, method)] for name in others}
    return beyond | {name: [View(None, None, name, method)] for name in everyone.test_sets}


def by_site(groups: Mapping[str, list[Scores]], sites_of: Callable[[View], Sequence[str]]) -> dict[str, list[Scores]]:
    """Group scores by organisation; returns {} if there is only one organisation, or more than 32."""
    by_name: dict[str, list[Scores]] = {}
    for scored in (s for scores in groups.values() for s in scores if s.scores is not None):
        sites = np.asarray(sites_of(scored.view)).astype(str)[: scored.examples]
        for site in sorted(set(sites.tolist())):
            rows = torch.from_numpy(sites == site)
            selected = {"scores": scored.scores[rows], "labels": scored.labels[rows]}
            part = replace(scored, examples=int(rows.sum()), **selected, logged={}, metrics={})
            by_name.setdefault(site, []).append(part)
    return by_name if 1 < len(by_name) <= MAX_CLIENT_CURVES else {}


def pooled_metrics(
    scores: Sequence[Scores],
    classes: Sequence[str],
    prefix: str,
    schemes: Mapping[str, Sequence[str]] | None = None,
    apart: bool = False,
) -> dict[str, float]:
    """Return AUROC of the pooled scores, the mean of the clients' AUROCs, and means of logged values.

    ``apart`` adds the logged values of each of several clients, up to 32. ``schemes`` has the classes that each client
    labels, by default all. If clients label different classes, there are means over each kind of class:
    ``auroc_shared``, ``auroc_partly``, ``auroc_unique``. If personal heads rank fewer images than a single model would,
    means have separate keys such as ``auroc_own_macro``, because they cover other images.
    """
    metrics = _auroc_metrics([s for s in scores if s.ranks], classes, prefix, schemes or {})
    taken = {key.removeprefix(f"{prefix}/") for key in metrics}
    logged: dict[str, float] = {}
    for name, value, each in _logged(scores, lambda scores: scores.examples, "val", taken):
        mean = sum(value for _, value in each) / len(each)
        logged |= {f"{prefix}/{name}": value, f"{prefix}/{name}{CLIENT_MEAN}": mean}
        if apart and 1 < len(each) <= MAX_CLIENT_CURVES:
            logged |= {f"{prefix}/{name}{BY_CLIENT}{slug(s.view.holder)}": value for s, value in each}
    return logged | (own_means(metrics, prefix) if any(s.fewer for s in scores) else metrics)


def _auroc_metrics(
    scored: Sequence[Scores], classes: Sequence[str], prefix: str, schemes: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Return the metrics of :func:`pooled_metrics` without the logged values, from views with scores."""
    if not scored:
        return {}
    metrics = _ranked_together(scored, classes, prefix, schemes)
    for kind, names in by_sharing(schemes).items():
        if names:
            values = torch.tensor([metrics[f"{prefix}/auroc/{key}"] for key in slugs(names)], dtype=torch.float64)
            metrics[f"{prefix}/auroc_{kind}"] = float(values.nanmean())
    of_clients = [s for s in scored if s.view.client is not None]
    if of_clients:
        metrics[f"{prefix}/auroc_client_mean_macro"] = client_mean_auroc(_auroc_per_view(of_clients, classes))
    return metrics


def own_means(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Return metrics with the means over classes renamed to the keys for personal heads."""
    start = f"{prefix}/auroc_"
    means = re.compile(re.escape(start) + r"(macro|shared|partly|unique|client_mean_macro)")
    return {means.sub(rf"{start}own_\1", key): value for key, value in metrics.items()}


def _ranked_together(
    scored: Sequence[Scores], classes: Sequence[str], prefix: str, schemes: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Return AUROC of all images; for sites that send no scores, compute it from histograms, with a bound on its error.

    Numbers of images count the reported images only, and are NaN for classes that no site reports.
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
    for name, unreported in zip(slugs(classes), hidden, strict=True):
        counts = [f"{prefix}/{count}/{name}" for count in ("n_pos", "n_neg")]
        if unreported and not any(metrics[count] for count in counts):  # unreported is not 0
            metrics |= dict.fromkeys(counts, float("nan"))
    return metrics


def _auroc_per_view(scored: Sequence[Scores], classes: Sequence[str]) -> list[ClassAUROC]:
    if all(s.tally is None for s in scored):
        return grouped_auroc([(s.scores, s.labels) for s in scored], classes)
    return [s.result(classes)[1] for s in scored]


def client_metrics(
    scores: Sequence[Scores], reports: Sequence[ClientReport], classes: Sequence[str]
) -> dict[str, float]:
    """Return ``client/<name>/...``: training loss, seconds, and AUROC per class on the client's validation set."""
    metrics: dict[str, float] = {}
    trained = metric_names({name for r in reports for name in r.logged}, "train", ("loss",))
    for report in reports:
        prefix = f"client/{slug(report.client)}"
        if not math.isnan(report.loss):  # of private steps
            metrics[f"{prefix}/train_loss"] = report.loss
        metrics[f"{prefix}/seconds"] = report.seconds
        metrics.update({f"{prefix}/train_{slug(trained[k])}": v for k, v in report.logged.items()})
    scored = [s for s in scores if s.ranks]
    keys = [f"auroc/{key}" for key in slugs(classes)]
    taken = ("seconds", "train_loss", *["auroc_macro"] * bool(scored))
    validated = metric_names({name for s in scores for name in s.logged}, "val", taken)
    for s in scores:
        prefix = f"client/{slug(s.view.client)}"
        metrics.update({f"{prefix}/{slug(validated[k])}": v for k, v in s.logged.items()})
    for s, result in zip(scored, _auroc_per_view(scored, classes), strict=True):
        prefix = f"client/{slug(s.view.client)}"
        metrics.update((f"{prefix}/{key}", value) for key, value in zip(keys, result.auroc.tolist(), strict=True))
        metrics[f"{prefix}/auroc_macro"] = result.mean
    return metrics


def quartile_metrics(per_client: Mapping[str, float]) -> dict[str, float]:
    """Return quartiles over clients of the result of :func:`client_metrics`, ``client/q25/...`` and so on."""
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
    """Return ``train/...``: means over the cohort, with the federation's client weights."""
    total = sum(weights[r.client] for r in reports)
    named = _logged(reports, lambda report: weights[report.client], "train", ("loss",))
    logged = {f"train/{name}": value for name, value, _ in named}
    loss = sum(weights[r.client] * r.loss for r in reports) / total
    return ({} if math.isnan(loss) else {"train/loss": loss}) | logged


def round_metrics(
    rnd: Round, reports: Sequence[ClientReport], weights: Mapping[str, float], bytes_down: int, seconds: float
) -> dict[str, float]:
    """Return a round's training metrics, stage, learning-rate factor, steps and bytes of all clients, and seconds."""
    return training_metrics(reports, weights) | {
        "round/stage": rnd.stage,
        "round/lr_factor": rnd.lr_factor,
        "round/clients": len(rnd.cohort),
        "round/steps": sum(report.steps for report in reports),
        "bytes/up": sum(report.bytes_up for report in reports),
        "bytes/down": bytes_down * len(rnd.cohort),
        "time/round_s": seconds,
        **_rates(reports),
    }


def _rates(reports: Sequence[ClientReport]) -> dict[str, float]:
    """Return the learning rate of each parameter group at the start of a round, the mean if clients differ in it."""
    # A site may send fewer rates than others; that must not end the run of all.
    groups = zip(*(report.rates for report in reports), strict=False)
    means = [fmean(rates) if len(set(rates)) > 1 else rates[0] for rates in groups]
    return {f"round/lr{f'/pg{number}' * (number > 1)}": rate for number, rate in enumerate(means, 1)}


def _logged(
    results: Sequence[ClientReport | Scores],
    weight_of: Callable[[Any], float],
    stage: Literal["train", "val"],
    taken: Container[str],
) -> Iterator[tuple[str, float, list[tuple[Any, float]]]]:
    """Yield the metric's name of each logged value, its weighted mean (of merged torchmetrics, the value), and all.

    All are pairs of a result and its value.
    """
    names = metric_names({name for each in results for name in each.logged}, stage, taken)
    for name in sorted(names):
        having = [each for each in results if name in each.logged]
        value = _merged([each.metrics.get(name) for each in having])
        if value is None:
            value = sum(weight_of(each) * each.logged[name] for each in having) / sum(map(weight_of, having))
        yield slug(names[name]), value, [(each, each.logged[name]) for each in having]


def _merged(metrics: Sequence[Metric | None]) -> float | None:
    """Compute a metric over the updates of several copies; None if one is missing or states do not merge exactly."""
    first, *others = metrics
    if any(metric is None for metric in metrics) or first.full_state_update is not False:
        return None
    if any(how not in MERGING for how in first._reductions.values()):
        return None
    together = first.clone()
    for other in others:
        together.merge_state(other)
    together._computed = None
    return float(together.compute())
