"""Figures of an evaluation, one panel per class: reliability diagram, ROC and PR curves by group, decision curve."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import expit

from fedlit.metrics.calibration import Reliability, bin_edges, bin_of, net_benefit
from fedlit.metrics.intervals import MIN_PATIENTS, patient_codes
from fedlit.metrics.thresholds import Ranking
from fedlit.reports.compare.page import Chart
from fedlit.reports.compare.roc import class_panels, roc_curve
from fedlit.reports.compare.styles import SMALL, TEXT, Style, styles, tidy
from fedlit.reports.evaluation.evaluation import Evaluation
from fedlit.reports.evaluation.images import Images
from fedlit.tracking.figures import FAINT, roc_axes

MODEL, EVERYONE, NOBODY = "model", "treat all", "treat none"
RECALLS = np.linspace(0.01, 1, 100)

Draw = Callable[[Axes, int], None]


def charts(evaluation: Evaluation) -> dict[str, list[Chart]]:
    """Return the figures of the first test set, by section of the page."""
    images = evaluation.sets[0]
    level = f"{100 * evaluation.request.level:g}%"
    seeds = "" if len(images.logits) == 1 else " Curves and points are means over trainings."
    reliability = Chart(
        "reliability",
        _figure(images, {MODEL: styles([MODEL])[MODEL]}, lambda axes, i: _reliability(axes, images, i, evaluation)),
        "Observed share of positives by predicted probability, in ten bins with equal numbers of images, with "
        f"{level} intervals for other test patients. Above the diagonal, probabilities are too low.{seeds}",
        "Reliability diagrams by class.",
    )
    looks, labels = styles([MODEL, EVERYONE, NOBODY]), ("threshold probability", "net benefit")
    decision = Chart(
        "decision",
        _figure(images, looks, lambda axes, i: _decision(axes, images, i, looks), *labels),
        "Net benefit by threshold probability, from which a patient is treated: true positives minus false positives, "
        "per image, where a false positive counts as the odds of the threshold probability. The model is useful where "
        f"its line is the highest. Lines have no intervals.{seeds}",
        "Decision curves by class.",
    )
    by_group = [chart for kind in evaluation.kinds if kind in images.groups for chart in _by_group(images, kind, seeds)]
    return {"calibration": [reliability], "use": [decision], "groups": by_group}


def _by_group(images: Images, kind: str, seeds: str) -> list[Chart]:
    rows = {name: images.groups[kind] == name for name in sorted(set(images.groups[kind].tolist()) - {""})}
    classes = range(len(images.classes))
    rows = {n: mask for n, mask in rows.items() if any(_labelled(images, i, mask, MIN_PATIENTS) for i in classes)}
    if not rows:
        return []
    looks = styles(list(rows))
    return [
        Chart(
            f"{name}_{kind}",
            _figure(images, looks, lambda axes, i, draw=draw: draw(axes, images, i, rows, looks), *labels),
            f"{title} by {kind}, without groups of fewer than {MIN_PATIENTS} patients on a side. Counts and intervals "
            f"are in the tables above.{seeds}{note}",
            f"{title} by class and {kind}.",
        )
        for name, title, draw, labels, note in (
            ("roc", "ROC curves", _roc, ("false positive rate", "true positive rate"), ""),
            ("pr", "Precision-recall curves", _precision, ("recall (sensitivity)", "precision (PPV)"),
             " Precision rises with the share of positives, so groups with other shares have other curves."),
        )
    ]  # fmt: skip


def _figure(
    images: Images, looks: Mapping[str, Style], draw: Draw, x: str = "mean probability", y: str = "share of positives"
) -> Figure:
    figure, panels, _ = class_panels(images.classes, looks, (x, y), (0.3, 0.2), pad=4)
    for column, axes in enumerate(panels):
        tidy(axes, "both")
        axes.set_box_aspect(1)
        draw(axes, column)
        axes.tick_params(labelsize=SMALL)
    return figure


@dataclass(frozen=True, eq=False)
class Labelled:
    """The n labelled images of a class that a run has scored."""

    logit: np.ndarray  # `[n]`
    positive: np.ndarray  # `[n]` bool.
    patient: np.ndarray  # `[n]` number of each image's patient.


def _labelled(images: Images, column: int, rows: np.ndarray | bool = True, fewest: int = 1) -> list[Labelled] | None:
    """Return the labelled images of each run; None with fewer patients on a side than ``fewest``."""
    labels, patient = images.labels[:, column], patient_codes(images.units, len(images.units))[0]
    known = ~np.isnan(labels) & rows
    sides = [known & (labels == value) for value in (1, 0)]
    enough = min(len(np.unique(patient[side])) for side in sides) >= fewest
    if not enough or not all((side & scored).any() for side in sides for _, scored in images.by_run):
        return None
    runs = [(logits[:, column], known & scored) for logits, scored in images.by_run]
    return [Labelled(logit[ours], labels[ours] == 1, patient[ours]) for logit, ours in runs]


def _undefined(axes: Axes) -> None:
    axes.set_facecolor("#f4f4f4")
    middle = {"ha": "center", "va": "center", "transform": axes.transAxes}
    axes.text(0.5, 0.5, "undefined", fontsize=TEXT, color=FAINT, style="italic", **middle)


def _reliability(axes: Axes, images: Images, column: int, evaluation: Evaluation) -> None:
    if (labelled := _labelled(images, column)) is None:
        return _undefined(axes)
    joined = (np.concatenate([getattr(run, part) for run in labelled]) for part in ("logit", "positive", "patient"))
    logit, positive, patient = joined
    probability = expit(logit)
    edges = bin_edges(probability)
    binned = Reliability.of(probability, positive, edges)
    place = np.unique(bin_of(probability, edges), return_inverse=True)[1]
    low, high = binned.intervals(place, positive, patient, evaluation.request.level)
    most = min(1.0, 1.05 * max(binned.predicted.max(), high.max()))
    look = styles([MODEL])[MODEL]
    axes.plot([0, 1], [0, 1], color="#c4c4c4", linewidth=0.7, zorder=0.5)
    axes.vlines(binned.predicted, low, high, color=look.colour, linewidth=0.8)
    axes.plot(binned.predicted, binned.observed, **look.drawn(3.4))
    axes.set(xlim=(0, most), ylim=(0, most))


def _roc(axes: Axes, images: Images, column: int, rows: Mapping[str, np.ndarray], looks: Mapping[str, Style]) -> None:
    roc_axes(axes)
    for number, (name, mask) in enumerate(rows.items()):
        if (labelled := _labelled(images, column, mask, MIN_PATIENTS)) is not None:
            band = roc_curve([run.logit for run in labelled], [run.positive * 1.0 for run in labelled])
            _line(axes, np.append(0, band.x), np.append(0, band.mean), looks[name], number, len(rows))


def _precision(
    axes: Axes, images: Images, column: int, rows: Mapping[str, np.ndarray], looks: Mapping[str, Style]
) -> None:
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    for number, (name, mask) in enumerate(rows.items()):
        if (labelled := _labelled(images, column, mask, MIN_PATIENTS)) is not None:
            curves = [_precision_at(run.logit, run.positive) for run in labelled]
            _line(axes, RECALLS, np.mean(curves, axis=0), looks[name], number, len(rows))


def _precision_at(logit: np.ndarray, positive: np.ndarray) -> np.ndarray:
    counts = Ranking(logit, positive, np.arange(len(logit)), len(logit)).counted(np.ones((len(logit), 1)))
    true, false = counts.true[:, 0], counts.at[:, 0]
    level = np.searchsorted(true, RECALLS * true[-1] - 1e-9)
    return (true / (true + false))[level]


def _decision(axes: Axes, images: Images, column: int, looks: Mapping[str, Style]) -> None:
    if (labelled := _labelled(images, column)) is None:
        return _undefined(axes)
    share = float(np.mean([run.positive.mean() for run in labelled]))
    most = min(0.9, max(0.1, 3 * share))
    risks = np.linspace(most / 100, most, 100)
    curves = []
    for run in labelled:
        probability = expit(run.logit)
        sides = (probability[run.positive], probability[~run.positive])
        counts = [len(side) - np.searchsorted(np.sort(side), risks) for side in sides]
        curves.append(net_benefit(*counts, len(probability), risks))
    everyone = net_benefit(share, 1 - share, 1, risks)
    lines = {MODEL: np.mean(curves, axis=0), EVERYONE: everyone, NOBODY: np.zeros(len(risks))}
    for number, (name, values) in enumerate(lines.items()):
        _line(axes, risks, values, looks[name], number, 3)
    lowest = max(min(-0.15, 1.1 * lines[MODEL].min() / share), -0.5)
    axes.set(xlim=(0, most), ylim=(lowest * share, 1.1 * share))


def _line(axes: Axes, x: np.ndarray, y: np.ndarray, look: Style, number: int, lines: int) -> None:
    every = (0.12 + 0.3 * (number + 0.5) / lines, 0.4)
    axes.plot(x, y, markevery=every, zorder=3, **look.drawn(3.2) | {"linewidth": 1.1})
