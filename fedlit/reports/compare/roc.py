"""ROC curves of several methods with bands over seeds, or over patients where there is one seed."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlit.metrics.intervals import LEVEL, _patients, _resampled
from fedlit.reports.compare.curves import Band, spread
from fedlit.reports.compare.forest import Support
from fedlit.reports.compare.styles import PAGE, SMALL, TEXT, Legend, Style, placer, require_styles
from fedlit.reports.figures import FAINT, INK, blank_figure, fitting, roc_axes

DRAWS = 200
# Finer at the left, where a screening test is used and curves are steep.
RATES = np.unique(np.concatenate([np.linspace(0, 0.1, 41), np.linspace(0.1, 1, 91)]).round(6))
VALUES_FIT = 4


def patient_draws(patients: Sequence, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """Draw patients with replacement, as `fedlit.metrics.intervals.bootstrap` does with this seed and number.

    Args:
        patients: `[N]` ids, one an image.
        draws: Number of draws B.
        seed: Of the draws.

    Returns:
        `[B, N]` int32, how often each image is drawn.

    Raises:
        ValueError: If an id is missing or there are fewer than two patients.
    """
    patient, count = _patients(patients, len(patients))
    (drawn,) = _resampled(count, draws, seed, draws)
    return drawn.T[:, patient]


def roc_curve(
    scores: Sequence[np.ndarray], labels: Sequence[np.ndarray], draws: np.ndarray | None = None
) -> Band | None:
    """Return a class's ROC curve: the true positive rate at fixed false positive rates, averaged over seeds.

    Vertical averaging (Fawcett 2006, section 8.1), linear between a curve's points. With several seeds the band is
    over seeds (see `spread`); with one, and draws, it is the pointwise 95% percentile interval over the draws.

    Args:
        scores: `[N]` finite scores a seed; seeds may have different images.
        labels: `[N]` a seed, with 1 positive, 0 negative, NaN unlabelled.
        draws: `[B, N]`, how often each image of the only seed is drawn: see `patient_draws`.

    Returns:
        The band, or None where no seed has both positives and negatives.

    Raises:
        ValueError: If scores, labels or draws do not belong together.
    """
    if len(scores) != len(labels):
        raise ValueError(f"Expected scores and labels of the same seeds, found {len(scores)} and {len(labels)}.")
    rates = []
    for score, label in zip(scores, labels, strict=True):
        rate = _rates(np.asarray(score), np.asarray(label), None)
        if rate is not None:
            rates.append(rate[0])
    if not rates:
        return None
    values = np.stack(rates)
    if len(scores) > 1 or draws is None:
        low, high = spread(values)
    else:
        of_draws = _rates(np.asarray(scores[0]), np.asarray(labels[0]), draws)
        low, high = np.nanquantile(of_draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return Band(RATES, values.mean(0), np.clip(low, 0, 1), np.clip(high, 0, 1))


def roc_figure(
    curves: Mapping[str, Mapping[str, Band | None]],
    classes: Sequence[str],
    styles: Mapping[str, Style],
    *,
    auroc: Mapping[str, Mapping[str, float]] | None = None,
    support: Mapping[str, Support] | None = None,
    width: float = PAGE,
) -> Figure:
    """Draw the ROC curves of all methods, a panel a class, with bands.

    A class without a curve says why, from its support. AUROC is printed in the panels of up to four methods.

    Args:
        curves: By method, then by class: see `roc_curve`.
        classes: Panels, row by row.
        styles: Of all methods.
        auroc: By method, then by class.
        support: Of each class, printed under its name.
        width: Of the figure, inches.

    Raises:
        ValueError: Without any method or class, or if a method has no style.
    """
    methods = list(curves)
    require_styles(methods, styles)
    if not classes:
        raise ValueError("Expected at least one class to draw, found none.")
    across = min(len(classes), max(1, int(width / 1.4)))
    down = math.ceil(len(classes) / across)
    legend = Legend(styles, methods, width - 0.1)
    left, right, gap_x, gap_y, bottom = 0.45, 0.08, 0.12, 0.42 if support else 0.28, 0.4
    top = (0.02 + legend.height if len(methods) > 1 else 0) + gap_y
    panel = min((width - left - right - (across - 1) * gap_x) / across, 2.2)
    width = max(left + right + across * panel + (across - 1) * gap_x, 2.4)
    figure = blank_figure(width, top + down * panel + (down - 1) * gap_y + bottom)
    height, place = figure.get_figheight(), placer(figure)
    for number, name in enumerate(classes):
        row, column = divmod(number, across)
        x, y = left + column * (panel + gap_x), height - top - panel - row * (panel + gap_y)
        axes = place(x, y, panel, panel)
        roc_axes(axes)
        axes.tick_params(labelleft=column == 0, labelbottom=number + across >= len(classes), labelsize=SMALL)
        title = height - top - row * (panel + gap_y) + (0.17 if support else 0.05)
        where = (x + panel / 2) / width
        figure.text(where, title / height, fitting(str(name), TEXT, panel), fontsize=TEXT, color=INK, ha="center")
        if support and name in support:
            text = str(support[name])
            figure.text(where, (title - 0.12) / height, text, fontsize=SMALL, color=FAINT, ha="center")
        drawn = {method: band for method in methods if (band := curves[method].get(name)) is not None}
        if not drawn:
            axes.set_facecolor("#f4f4f4")
            why = _why(support.get(name) if support else None)
            axes.text(0.5, 0.5, why, fontsize=TEXT, color=FAINT, style="italic", ha="center", va="center")
        for place_of, (method, band) in enumerate(drawn.items()):
            _draw(axes, band, styles[method], (place_of + 0.5) / len(drawn))
        if auroc and drawn and len(methods) <= VALUES_FIT:
            _write_values(axes, {method: auroc[method].get(name, math.nan) for method in drawn}, styles, panel)
    centre = (left + (width - left - right) / 2) / width
    figure.text(centre, 0.07 / height, "false positive rate", fontsize=8, color=INK, ha="center")
    middle = (bottom + height - top) / 2 / height
    turned = {"rotation": 90, "va": "center", "ha": "left"}
    figure.text(0.06 / width, middle, "true positive rate", fontsize=8, color=INK, **turned)
    if len(methods) > 1:
        legend.draw(place, left, height - legend.height - 0.04)
    return figure


def _rates(scores: np.ndarray, labels: np.ndarray, draws: np.ndarray | None) -> np.ndarray | None:
    """Return `[B, G]` true positive rates at `RATES` (one row without draws), None if the class is undefined.

    A draw without positives or negatives is NaN.
    """
    if scores.shape != labels.shape or (draws is not None and draws.shape[1:] != scores.shape):
        found = f"{list(scores.shape)}, {list(labels.shape)}" + ("" if draws is None else f", {list(draws.shape)}")
        raise ValueError(f"Expected scores [N], labels [N] and draws [B, N] of the same images, found {found}.")
    if not np.isfinite(scores).all():
        raise ValueError("Expected finite scores, found NaN or infinite ones.")
    kept = np.flatnonzero((labels == 0) | (labels == 1))
    kept = kept[np.argsort(-scores[kept], kind="stable")]
    ranked, positive = scores[kept], labels[kept] == 1
    if positive.all() or not positive.any():
        return None
    last = np.append(ranked[1:] != ranked[:-1], True)
    counts = np.ones((1, len(kept)), dtype=np.int64) if draws is None else draws[:, kept]
    return np.stack([_at_rates(np.cumsum(n * ~positive)[last], np.cumsum(n * positive)[last]) for n in counts])


def _at_rates(false: np.ndarray, true: np.ndarray) -> np.ndarray:
    if not false[-1] or not true[-1]:
        return np.full(len(RATES), np.nan)
    x, y = np.append(0, false) / false[-1], np.append(0, true) / true[-1]
    # Of several points at one rate the highest: np.interp wants rising x.
    highest = np.append(x[1:] > x[:-1], True)
    return np.interp(RATES, x[highest], y[highest])


def _draw(axes: Axes, band: Band, style: Style, phase: float) -> None:
    axes.fill_between(band.x, band.low, band.high, color=style.colour, alpha=0.16, linewidth=0)
    axes.plot(
        np.append(0, band.x),
        np.append(0, band.mean),
        color=style.colour,
        linestyle=style.line,
        linewidth=1.1,
        marker=style.marker,
        markersize=style.marker_size(3.2),
        markeredgecolor="white",
        markeredgewidth=0.4,
        markevery=(0.12 + 0.4 * phase, 0.4),
        zorder=3,
    )


def _write_values(axes: Axes, values: Mapping[str, float], styles: Mapping[str, Style], panel: float) -> None:
    for line, (method, value) in enumerate(reversed(values.items())):
        y, style = 0.06 + 0.1 / panel * line, styles[method]
        axes.text(0.97, y, f"{value:.3f}", fontsize=SMALL, color=INK, ha="right", va="center_baseline")
        axes.plot(
            [0.97 - 0.33 / panel],
            [y],
            linestyle="none",
            marker=style.marker,
            color=style.colour,
            markersize=style.marker_size(3.2),
            markeredgewidth=0,
        )


def _why(support: Support | None) -> str:
    if support is None or (support.positives and support.negatives):
        return "undefined"
    return "no positives" if not support.positives else "no negatives"
