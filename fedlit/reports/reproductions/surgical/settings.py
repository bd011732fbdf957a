"""The report of Figures 5 to 7: IID clients by number of clients and of shared classes (section 4.2.1).

All federated methods have FedBN+, and all have the same budget. The model of all labels, one run, is the one that they
try to approach. Methods are compared by paired t-tests over the settings.
"""

from dataclasses import dataclass

import pandas as pd

from fedlit.metrics.auroc import slug
from fedlit.metrics.paired import p_text, paired
from fedlit.reports.reproductions.document import Scale
from fedlit.reports.reproductions.published import grid
from fedlit.reports.reproductions.report import Report, measured
from fedlit.reports.reproductions.surgical.figure import draw_simulation


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
        kept = pd.concat([chosen, values[values["method"] == self.everything]])
        return kept.assign(axis=axis, number=kept[axis])[["axis", "number", "method", "set", "auroc"]]

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
