"""The report of Figures 5 to 7: IID clients by number of clients and of shared classes (section 4.2.1).

All federated methods have FedBN+, and all have the same budget. The model of all labels, one run, is the one that they
try to approach. Methods are compared by paired t-tests over the settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from fedlit.metrics.auroc import slug
from fedlit.metrics.paired import p_text, paired
from fedlit.reports.reproductions.document import Scale
from fedlit.reports.reproductions.published import grid
from fedlit.reports.reproductions.report import Report, light_axes, measured


@dataclass(frozen=True)
class SettingsReport:
    """Tables of methods by settings, of which one label varies."""

    sets: dict[str, str]  # Test sets by their names in tables.
    axes: dict[str, str]  # Labels that vary, and the names of what they count.
    usual: dict[str, int | str]  # Values of the labels while another one varies.
    reference: str  # Method with which the others are compared.
    everything: str  # Method of all labels, which has one run for all settings.

    def make(self, runs: pd.DataFrame, scale: Scale) -> Report:
        """Make the report of the runs; a setting's value is its mean over seeds."""
        aurocs = pd.DataFrame(
            {label: run[label] for label in (*self.usual, "method")}
            | {"set": title, "auroc": metrics[f"test/{slug(name)}/auroc_macro"]}
            for run in runs.to_dict("records")
            for metrics in [measured(run["directory"])]
            for title, name in self.sets.items()
        )
        values = aurocs.groupby([c for c in aurocs if c != "auroc"], sort=False, as_index=False)["auroc"].mean()
        curves = pd.concat([self._along(axis, values) for axis in self.axes], ignore_index=True)
        texts = [self._markdown(curves, axis, title) for axis in self.axes for title in self.sets]
        return Report("\n".join(texts), {"values": values}, {"figure": draw_simulation(curves, self.axes)})

    def _along(self, axis: str, values: pd.DataFrame) -> pd.DataFrame:
        """Return the settings of an axis and the model of all labels, with the number that varies."""
        (other,) = self.usual.keys() - {axis}
        chosen = values[(values[other] == self.usual[other]) & (values["method"] != self.everything)]
        shown = pd.concat([chosen, values[values["method"] == self.everything]])
        return shown.assign(axis=axis, number=shown[axis])[["axis", "number", "method", "set", "auroc"]]

    def _markdown(self, values: pd.DataFrame, axis: str, test_set: str) -> str:
        """Return a row for each method and a column for each setting, and the mean with its paired test."""
        chosen = values[(values["axis"] == axis) & (values["set"] == test_set)]
        everything = chosen.loc[chosen["method"] == self.everything, "auroc"].item()
        chosen = chosen[chosen["method"] != self.everything]
        rows = chosen.pivot(index="method", columns="number", values="auroc").loc[list(dict.fromkeys(chosen["method"]))]
        shown, odd = [], []
        for method, mine in rows.iterrows():
            mean = f"{mine.mean():.3f} ± {mine.std():.3f}"
            if method != self.reference:
                test = paired(rows.loc[self.reference], mine)
                mean += f" ({-test.difference:+.3f}, p {p_text(test.p)})"
                odd += [] if test.normal else [method]
            shown.append([method, *(f"{value:.3f}" for value in mine), mean, f"{everything - mine.mean():.3f}"])
        lines = [
            f"**{test_set}, by number of {self.axes[axis]}**",
            "",
            *grid(["method", *map(str, rows.columns), "mean", "below all labels by"], shown),
            "",
            f"Mean test AUROC over classes; its mean ± standard deviation over the {rows.shape[1]} settings. "
            f"In brackets are the difference to {self.reference} and p of its paired t-test over settings. "
            "Settings share images, so p is too small to be evidence, and has no stars. "
            f"The model of all labels has {everything:.3f}.",
        ]
        if odd:
            lines.append(f"Shapiro-Wilk p < 0.05, so the t-test does not hold for {', '.join(odd)}.")
        return "\n".join([*lines, ""])


def draw_simulation(values: pd.DataFrame, axes: Mapping[str, str]) -> Figure:
    """Draw values (axis, number, method, set, auroc) in a row of panels for each axis and a column for each test set.

    The last method, the model of all labels, is a line.
    """
    rows, sets, methods = (list(dict.fromkeys(values[column])) for column in ("axis", "set", "method"))
    figure = Figure(figsize=(3.8 * len(sets), 2.9 * len(rows) + 0.5), layout="constrained")
    panels = figure.subplots(len(rows), len(sets), squeeze=False, sharey="col")
    styles = ((":", "D", "#8c8c8c"), ("--", "s", "#7a5195"), ("-.", "^", "#1f5f8b"), ("-", "o", "#c1572b"))
    for (axis, test_set), points in values.groupby(["axis", "set"], sort=False):
        ax = panels[rows.index(axis)][sets.index(test_set)]
        for method, (dashes, marker, colour) in zip(methods[:-1], styles, strict=True):
            mine = points[points["method"] == method].sort_values("number")
            ax.plot(mine["number"], mine["auroc"], linestyle=dashes, marker=marker, color=colour, label=method)
        level = points.loc[points["method"] == methods[-1], "auroc"].item()
        ax.axhline(level, color="black", linewidth=0.9, linestyle=(0, (1, 3)), label=methods[-1])
        ax.set(title=test_set, xlabel=f"number of {axes[axis]}", ylabel="test AUROC, mean over classes")
        ax.set_xticks(sorted(points.loc[points["method"] != methods[-1], "number"].unique()))
        light_axes(ax)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize="small")
    return figure
