"""The tables of the canon: differences between methods over draws of the data, with intervals and Holm's correction."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedlit.core.errors import ConfigError
from fedlit.metrics.claim import Difference, claim, corrected, p_text
from fedlit.metrics.levels import LEVEL
from fedlit.reports.reproductions.published import grid
from fedlit.reports.reproductions.report import Report, curve, light_axes, measured

POOLED, OWN = "pooled", "own"
MEASURES = {POOLED: "auroc_macro", OWN: "auroc_client_mean_macro"}
"""AUROC over the test images of all hospitals together, and the mean of the AUROCs within each hospital."""

VALIDATION = "val/auroc_macro"
FEWEST = 3
"""Least number of draws for an interval."""

ROUNDS = (4, 8, 16, 32)
WINDOWS = {"I = 64": "64", "I = 256": "256", "I = 512": "512", "I = 512, IID": "iid"}
SHARES = {f"{share}% positive": str(share) for share in (2, 10, 30)}
CLIENTS = {"K = 5": "5", "K = 10": "10"}
NORMS = {
    "all findings": (("fedbn", "fedavg"), ("fedbn-plus", "fedavg")),
    "missing classes": (
        ("partial-fedbn", "partial"), ("partial-fedbn-plus", "partial"), ("surgical", "partial"),
        ("surgical-fedbn", "partial-fedbn"), ("surgical-fedbn-plus", "partial-fedbn-plus"),
    ),
}  # fmt: skip
SETTINGS = {
    "10% positive": "10", "1% positive": "1", "1%, a fifth per batch": "sampled", "10%, after cross-entropy": "after",
}  # fmt: skip
COMPOSITIONAL = {
    "scgdam": "LocalSCGDAM", "in-place": "in place", "coda": "CoDA", "sgdam": "LocalSGDAM", "sgdm": "LocalSGDM",
    "sgdm-rl": "LocalSGDM_RL",
}  # fmt: skip
HEAD = ["", "difference", "AUROC", "first", "second", "first - second", "ahead", "p (Holm)"]

Values = Mapping[str, pd.Series]
"""AUROC by measure, a series by case and seed."""


@dataclass(frozen=True)
class Contrast:
    """Two methods on the same draws: the first minus the second."""

    row: str  # What both have in common, such as the window.
    methods: tuple[str, str]
    measure: str
    values: tuple[np.ndarray, np.ndarray]  # AUROC of both by draw, [draws].
    difference: Difference

    @classmethod
    def of(cls, row: str, first: str, second: str, measure: str, ours: pd.Series, theirs: pd.Series) -> "Contrast":
        """Compare two methods over their common draws; p is not corrected yet.

        Raises:
            ConfigError: There are too few draws.
        """
        both = pd.concat([ours, theirs], axis=1, join="inner").to_numpy()
        if len(both) < FEWEST:
            raise ConfigError(f"--seeds: expected at least {FEWEST} draws for intervals, found {len(both)}; add seeds")
        # The differences of draws with their own test images contain the noise of both.
        found = claim(*both.T, error=np.nan, level=LEVEL, extra=0.0)
        return cls(row, (first, second), measure, (both[:, 0], both[:, 1]), found)

    @property
    def cells(self) -> list[str]:
        """Cells of its row in the table; a claimed difference is bold."""
        value, interval = self.difference.value, self.difference.interval
        text = f"{value:+.4f} [{interval.low:+.4f}, {interval.high:+.4f}]"
        ahead = f"{int((self.values[0] > self.values[1]).sum())} of {len(self.values[0])}"
        means = [f"{each.mean():.4f}" for each in self.values]
        shown = f"**{text}**" if self.difference.claimed else text
        return [self.row, " - ".join(self.methods), self.measure, *means, shown, ahead, p_text(self.difference.p_holm)]

    @property
    def record(self) -> dict[str, object]:
        """Values of its row in the CSV file."""
        found = self.difference
        return {
            "row": self.row, "first": self.methods[0], "second": self.methods[1], "auroc": self.measure,
            "first_mean": self.values[0].mean(), "second_mean": self.values[1].mean(), "difference": found.value,
            "low": found.interval.low, "high": found.interval.high, "p": found.p, "p_holm": found.p_holm,
            "draws": len(self.values[0]), "claimed": found.claimed,
        }  # fmt: skip


def windows(runs: pd.DataFrame) -> Iterator[Contrast]:
    """Compare CODASCA with CODA+ at each window."""
    values = at_the_end(runs)
    for row, window in WINDOWS.items():
        yield from _both(row, ("CODASCA", "CODA+"), (f"codasca-{window}", f"coda-plus-{window}"), values)


def imbalance(runs: pd.DataFrame) -> Iterator[Contrast]:
    """Compare cross-entropy with the AUC saddle at each share of positives, at the rate that each draw chose."""
    values = at_the_end(runs[runs["stage"] == "chosen"])
    for row, share in SHARES.items():
        names = ("cross-entropy", "AUC saddle")
        yield from _both(row, names, (f"cross-entropy-{share}", f"auc-saddle-{share}"), values)


def missing(runs: pd.DataFrame) -> Iterator[Contrast]:
    """Compare three ways to handle missing classes along the rounds, at the rate that each draw chose there."""
    for count in ROUNDS:
        values = _after(runs, count)
        for row, clients in CLIENTS.items():
            for first, second in (("partial", "vanilla"), ("surgical", "partial")):
                cases = f"{first}-{clients}", f"{second}-{clients}"
                yield from _both(f"{row}, round {count}", (first, second), cases, values)


def missing_at_a_rate(runs: pd.DataFrame) -> Iterator[Contrast]:
    """Compare surgical heads with the partial loss at each rate, without any choice, after the last round."""
    for rate, of_rate in runs.groupby("model.optimizer.lr"):
        values = _after(of_rate, ROUNDS[-1])
        for row, clients in CLIENTS.items():
            cases = f"surgical-{clients}", f"partial-{clients}"
            yield from _both(f"{row}, rate {rate:g}", ("surgical", "partial"), cases, values)


def methods(runs: pd.DataFrame) -> Iterator[Contrast]:
    """Compare every method with FedAvg, at the setting that each draw chose."""
    values = at_the_end(runs[runs["stage"] == "chosen"])
    for case in dict.fromkeys(runs["case"]):
        base = {"fednova": "fedavg-epochs"}.get(case, "fedavg")
        if case not in ("fedavg", "fedavg-epochs"):
            # Pooled training has one client, so the mean of the hospitals' own AUROC is not known.
            of_case = {POOLED: values[POOLED]} if case == "pooled" else values
            yield from _both("", (case, base), (case, base), of_case)


def norms(runs: pd.DataFrame) -> Iterator[Contrast]:
    """Compare ways of normalisation, at the rate that each draw chose."""
    values = at_the_end(runs[runs["stage"] == "chosen"])
    for row, pairs in NORMS.items():
        for pair in pairs:
            yield from _both(row, pair, pair, values)


def compositional(runs: pd.DataFrame) -> Iterator[Contrast]:
    """Compare LocalSCGDAM with its relatives, and the inner step in place with cross-entropy; clients are IID."""
    values = at_the_end(runs[runs["stage"] == "chosen"])[POOLED]
    pairs = [("scgdam", each) for each in COMPOSITIONAL if each != "scgdam"] + [("in-place", "sgdm")]
    for row, setting in SETTINGS.items():
        for pair in pairs:
            first, second = (COMPOSITIONAL[each] for each in pair)
            ours, theirs = (values[f"{each}-{setting}"] for each in pair)
            yield Contrast.of(row, first, second, POOLED, ours, theirs)


PARTS: Mapping[str, tuple[str, str, Callable[[pd.DataFrame], Iterator[Contrast]]]] = {
    "windows": ("windows", "A. Windows", windows),
    "imbalance": ("imbalance", "B. Imbalance", imbalance),
    "missing": ("missing", "C. Missing classes", missing),
    "missing-rates": ("missing", "C. Missing classes at each rate", missing_at_a_rate),
    "methods": ("methods", "D. Methods", methods),
    "norms": ("norms", "E. Normalisation, the whole network", norms),
    "compositional": ("compositional", "F. LocalSCGDAM", compositional),
}
"""Name, plan and title of each table, and its contrasts."""


def make(runs: pd.DataFrame) -> Report:
    """Make the tables of the plans that ran, each corrected by Holm on its own, and a figure of each.

    Raises:
        ConfigError: There are too few draws.
    """
    lines, tables, figures = [], {}, {}
    for name, (plan, title, contrasts) in PARTS.items():
        if (of_plan := runs[runs["plan"] == plan]).empty:
            continue
        found = list(contrasts(of_plan))
        tests = corrected([each.difference for each in found])
        found = [replace(each, difference=tested) for each, tested in zip(found, tests, strict=True)]
        lines += [f"## {title}", "", *grid(HEAD, [each.cells for each in found]), "", *_power(found), ""]
        tables[name] = pd.DataFrame([each.record for each in found])
        figures[name] = _figure(title, found)
    return Report("\n".join(lines), tables, figures)


def at_the_end(runs: pd.DataFrame) -> Values:
    """Return the test AUROC of each run's last model."""
    rows = runs.set_index(["case", "seed"])["directory"]
    found = rows.map(measured)

    def value(metrics: Mapping[str, float], key: str) -> float:
        # Personal heads that rank fewer images have means of their own.
        return metrics.get(f"test/federation/{key}", metrics.get(f"test/federation/{key.replace('_', '_own_', 1)}"))

    return {name: found.map(lambda each, key=key: value(each, key)).astype(float) for name, key in MEASURES.items()}


def _after(runs: pd.DataFrame, count: int) -> Values:
    """Return the test AUROC after a round, at the rate that is best in validation for a case and draw."""

    def at(directory: object, key: str) -> float:
        return dict(curve(directory, key))[count]

    scored = runs.assign(score=runs["directory"].map(lambda each: at(each, VALIDATION)))
    best = scored.loc[scored.groupby(["case", "seed"])["score"].idxmax()].set_index(["case", "seed"])["directory"]
    keys = {name: f"test_curve/federation/{key}" for name, key in MEASURES.items()}
    return {name: best.map(lambda each, key=key: at(each, key)) for name, key in keys.items()}


def _both(row: str, names: tuple[str, str], cases: tuple[str, str], values: Values) -> Iterator[Contrast]:
    for measure, of_measure in values.items():
        yield Contrast.of(row, *names, measure, *(of_measure[case] for case in cases))


def _power(found: Sequence[Contrast]) -> list[str]:
    """Return a sentence on the differences that the draws can show."""
    text = []
    for measure in MEASURES:
        of_measure = [each.difference.interval for each in found if each.measure == measure]
        halves = [(each.high - each.low) / 2 for each in of_measure if each.high == each.high]
        if halves:
            text.append(f"{np.median(halves):.4f} {measure} (from {min(halves):.4f} to {max(halves):.4f})")
    claimed = sum(each.difference.claimed for each in found)
    return [
        f"{claimed} of {len(found)} differences are beyond noise (bold, p below 0.05 after Holm's correction over the "
        f"table). Half the width of an interval, the size of a difference that {len(found[0].values[0])} draws can "
        f"show before the correction, is {' and '.join(text)} at the median."
    ]


def _figure(title: str, found: Sequence[Contrast]) -> Figure:
    """Draw the differences with their intervals; claimed ones are filled."""
    rows = list(dict.fromkeys((each.row, each.methods) for each in found))
    figure = Figure(figsize=(7, 1.2 + 0.3 * len(rows)), layout="constrained")
    measures = [each for each in MEASURES if any(one.measure == each for one in found)]
    columns = figure.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    for axes, measure in zip(columns, measures, strict=True):
        for each in (each for each in found if each.measure == measure):
            place, tested = rows.index((each.row, each.methods)), each.difference
            axes.plot([tested.interval.low, tested.interval.high], [place, place], color="C0")
            axes.plot(tested.value, place, "o", color="C0", mfc="C0" if tested.claimed else "white")
        axes.axvline(0, color="0.6", lw=0.8)
        axes.set_title(f"{measure} AUROC", fontsize="medium")
        axes.set_yticks(range(len(rows)), [": ".join(filter(None, (row, " - ".join(m)))) for row, m in rows])
        axes.tick_params(labelsize="small")
        light_axes(axes)
    axes.invert_yaxis()
    figure.suptitle(f"{title}: differences with {100 * LEVEL:g}% intervals", fontsize="medium")
    return figure
