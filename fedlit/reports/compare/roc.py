"""ROC curves of several methods with bands over seeds, or over patients for a single seed."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlit.metrics.intervals import patient_codes, resampled
from fedlit.metrics.levels import LEVEL
from fedlit.reports.compare.curves import Band, spread
from fedlit.reports.compare.statistics import Statistics
from fedlit.reports.compare.styles import PAGE, SMALL, TEXT, Style, method_figure
from fedlit.tracking.figures import FAINT, INK, roc_axes, wrapped

DRAWS = 200
# The grid is finer on the left, where screening tests operate and curves are steep.
RATES = np.unique(np.concatenate([np.linspace(0, 0.1, 41), np.linspace(0.1, 1, 91)]).round(6))
VALUES_FIT = 4
"""Largest number of methods whose AUROC is printed in the panels."""
ACROSS = 5
"""Largest number of panels per row."""


def patient_draws(patients: Sequence) -> np.ndarray:
    """Return `[B, N]` int32, how often `fedlit.metrics.intervals.bootstrap` draws the images of N ids of patients."""
    patient, count = patient_codes(patients, len(patients))
    (drawn,) = resampled(count, DRAWS, 0, DRAWS)
    return drawn.T[:, patient]


def roc_curve(
    scores: Sequence[np.ndarray], labels: Sequence[np.ndarray], draws: np.ndarray | None = None
) -> Band | None:
    """Return a class's ROC curve: the true positive rate at fixed false positive rates, averaged over seeds.

    Averaging is vertical (Fawcett 2006, section 8.1), and linear between a curve's points. With several seeds the band
    is over seeds (see `spread`); with one seed and draws it is the pointwise 95% percentile interval over the draws.

    Args:
        scores: `[N]` finite scores per seed; seeds may have different images.
        labels: `[N]` labels per seed: 1 positive, 0 negative, NaN unlabelled.
        draws: `[B, N]`, the number of times that each image of a single seed is drawn: see `patient_draws`.

    Returns:
        The band, or None if no seed has both positives and negatives.
    """
    of_seeds = [_rates(s, l) for s, l in zip(scores, labels, strict=True)]
    rates = [rate for rate in of_seeds if rate is not None]
    if not rates:
        return None
    values = np.concatenate(rates)
    if len(scores) > 1 or draws is None:
        low, high = spread(values)
    else:
        of_draws = _rates(scores[0], labels[0], draws)
        low, high = np.nanquantile(of_draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return Band(RATES, values.mean(0), np.clip(low, 0, 1), np.clip(high, 0, 1))


def class_curves(numbers: Statistics) -> dict[str, list[Band | None]]:
    """Return the `roc_curve` of each class by method; classes with too few patients have no band over patients."""
    shared, curves = numbers.shared, {}
    runs = (shared.of_run(number)[:2] for number in range(len(shared.scores)))
    single = any(len(scored.method.runs) == 1 for scored in numbers.scored)
    draws, known = patient_draws(shared.units) if single else None, numbers.support.judged
    for scored in numbers.scored:
        scores, labels = zip(*(next(runs) for _ in scored.method.runs), strict=True)
        of_classes = curves.setdefault(scored.method.name, [])
        for i, enough in enumerate(known):
            drawn = draws if len(scores) == 1 and enough else None
            of_classes.append(roc_curve([each[:, i] for each in scores], [each[:, i] for each in labels], drawn))
    return curves


def comparison_roc_figure(
    curves: Mapping[str, Sequence[Band | None]], numbers: Statistics, styles: Mapping[str, Style]
) -> Figure:
    """Draw the ROC curves of all methods from `class_curves`, one panel per class, with bands.

    The panel of a class without a curve gives the reason. With up to four methods, panels show their AUROC.
    """
    looks, rates = {method: styles[method] for method in curves}, ("false positive rate", "true positive rate")
    figure, panels, panel = class_panels(numbers.shared.classes, looks, rates, (0.4, 0.3), pad=11, share=True)
    for i, axes in enumerate(panels):
        roc_axes(axes)
        axes.tick_params(labelbottom=i + ACROSS >= len(panels), labelsize=SMALL)
        above = {"fontsize": SMALL, "color": FAINT, "ha": "center", "transform": axes.transAxes}
        axes.text(0.5, 1.03, numbers.support.text(i), **above)
        drawn = {method: bands[i] for method, bands in curves.items() if bands[i] is not None}
        if not drawn:
            axes.set_facecolor("#f4f4f4")
            why = "no negatives" if numbers.support.n_pos[i] else "no positives"
            axes.text(0.5, 0.5, why, fontsize=TEXT, color=FAINT, style="italic", ha="center", va="center")
        for number, (method, band) in enumerate(drawn.items()):
            style, every = styles[method], (0.12 + 0.4 * (number + 0.5) / len(drawn), 0.4)
            axes.fill_between(band.x, band.low, band.high, color=style.colour, alpha=0.16, linewidth=0)
            curve, line = (np.append(0, band.x), np.append(0, band.mean)), style.drawn(3.2) | {"linewidth": 1.1}
            axes.plot(*curve, markevery=every, zorder=3, **line)
        if drawn and len(curves) <= VALUES_FIT:
            values = [(styles[scored.method.name], scored.classes[i].value) for scored in numbers.scored]
            for line, (style, value) in enumerate(reversed(values)):
                y = 0.06 + 0.1 / panel * line
                axes.text(0.97, y, f"{value:.3f}", fontsize=SMALL, color=INK, ha="right", va="center_baseline")
                axes.plot([0.97 - 0.38 / panel], [y], **style.drawn(3.2) | {"linestyle": "none"})
    return figure


def class_panels(
    classes: Sequence[str], looks: Mapping[str, Style], labels: Sequence[str], heights: Sequence[float], pad: float,
    share: bool = False,
) -> tuple[Figure, list[Axes], float]:  # fmt: skip
    """Return a figure with a titled panel for each class, its panels, and their width in inches.

    Labels are those of x and y; heights are inches around all panels, and around each row of them; ``pad`` is in points
    between a panel and its title. Panels may share their axes.
    """
    across = min(len(classes), ACROSS)
    down, panel = math.ceil(len(classes) / across), min(PAGE / across - 0.1, 2.2)
    figure = method_figure(looks, heights[0] + down * (panel + heights[1]), "compressed")
    panels = list(figure.subplots(down, across, sharex=share, sharey=share, squeeze=False).flat)
    for axes, name in zip(panels, classes, strict=False):
        axes.set_title(wrapped(name, panel, TEXT), fontsize=TEXT, color=INK, pad=pad)
    for axes in panels[len(classes) :]:
        axes.remove()
    figure.supxlabel(labels[0], fontsize=8, color=INK)
    figure.supylabel(labels[1], fontsize=8, color=INK)
    return figure, panels[: len(classes)], panel


def _rates(scores: np.ndarray, labels: np.ndarray, draws: np.ndarray | None = None) -> np.ndarray | None:
    """Return `[B, G]` true positive rates at `RATES`, one row without draws; None without positives or negatives.

    A draw without positives or negatives is NaN.
    """
    labelled = np.flatnonzero((labels == 0) | (labels == 1))
    labelled = labelled[np.argsort(-scores[labelled], kind="stable")]
    ranked, positive = scores[labelled], labels[labelled] == 1
    if positive.all() or not positive.any():
        return None
    last = np.append(ranked[1:] != ranked[:-1], True)
    counts = np.ones((1, len(labelled)), dtype=np.int64) if draws is None else draws[:, labelled]
    return np.stack([_at_rates(np.cumsum(n * ~positive)[last], np.cumsum(n * positive)[last]) for n in counts])


def _at_rates(false: np.ndarray, true: np.ndarray) -> np.ndarray:
    if not false[-1] or not true[-1]:
        return np.full(len(RATES), np.nan)
    x, y = np.append(0, false) / false[-1], np.append(0, true) / true[-1]
    # np.interp needs rising x: of several points at the same rate, keep the highest.
    highest = np.append(x[1:] > x[:-1], True)
    return np.interp(RATES, x[highest], y[highest])
