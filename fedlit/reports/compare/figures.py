"""The figures of a comparison, under one name: every one takes plain values and returns a matplotlib figure."""

from fedlit.reports.compare.curves import Band, band_note, curves_figure, drift_figure
from fedlit.reports.compare.forest import Point, Support, TestedPoint, differences_figure, intervals_figure
from fedlit.reports.compare.roc import patient_draws, roc_curve, roc_figure
from fedlit.reports.compare.styles import COLUMN, PAGE, Style, save, styles, svg

__all__ = [
    "COLUMN",
    "PAGE",
    "Band",
    "Point",
    "Style",
    "Support",
    "TestedPoint",
    "band_note",
    "curves_figure",
    "differences_figure",
    "drift_figure",
    "intervals_figure",
    "patient_draws",
    "roc_curve",
    "roc_figure",
    "save",
    "styles",
    "svg",
]
