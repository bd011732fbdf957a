"""The reports of surgical aggregation: Tables 1 to 4, Figures 4 to 7, and two controlled experiments.

Tables 1 to 4 are of methods by test sets, each cell a mean over classes (section 5.2). Figures 5 to 7 are of IID
clients by number of clients and of shared classes (section 4.2.1). Both compare methods by paired t-tests, over classes
and over settings, as the paper does. The experiments that are not in the paper compare them by seed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from fedlit.data.schemes import by_sharing
from fedlit.metrics.auroc import slug
from fedlit.metrics.claim import ALPHA, p_text
from fedlit.reports.reproductions.heterogeneity import embedding, frequencies
from fedlit.reports.reproductions.means import compare, markdown
from fedlit.reports.reproductions.published import grid
from fedlit.reports.reproductions.report import Report, curve, light_axes, measured

__all__ = ["classes", "embedding", "frequencies", "simulation", "sites", "warmup"]

REFERENCE = "SurgAgg FedBN+"
TABLES = {
    "Table 1": ("table-1", "", "Only shared classes, so only the data differ. On the external set, PFL is the mean "
                               "over the models of the sites"),
    "Table 2": ("table-2", "", "All classes: each site labels its own"),
    "Table 3": ("table-2", "sharing", "The runs of Table 2, shared and unique classes separately"),
    "Table 4": ("table-2", "site", "The runs of Table 2 on the external test set, by the classes of each site; PFL is "
                                   "the model of that site"),
}  # fmt: skip
"""Plan of each table, what splits its columns, and its description."""

MORE = {"Table 3": "PFL FedAvg, PFL FedBN, Vanilla FedAvg, PartialLoss FedAvg, SurgAgg FedAvg, external"}
"""Rows, and beginnings of columns, that are not in the paper's table."""

AXES = {"by-clients": ("clients", "clients"), "by-shared": ("shared", "shared classes")}
"""Label that varies in a plan, and the name of what it counts."""

ALONE = ("Individual", "PFL")
"""Beginnings of methods with a model for each site; only the site's images and classes are scored by it."""


class Column(NamedTuple):
    """A column: for each class, the mean over test sets."""

    title: str
    sets: Sequence[str]  # Names of the test sets.
    classes: Sequence[str]
    models: Sequence[str] = ()  # Sites whose models score the sets if there is no common model; () for their own.


def classes(
    runs: pd.DataFrame, titles: list[str], sites: dict[str, list[str]], columns: dict[str, list[str]], ddof: int = 1
) -> Report:
    """Make tables of methods by test sets, and of the heads on a fixed body if they have been trained.

    Args:
        runs: The runs.
        titles: Tables of the paper.
        sites: Sites, and the classes that each of them labels.
        columns: Test sets of each column. Of sites, only the classes count that they label.
        ddof: Of standard deviations over classes: 1, that of a sample, or 0 as in the authors' released code.
    """
    texts, tables = [], {}
    for title in titles:
        plan, by, text = TABLES[title]
        table = values(runs[runs["plan"] == plan], columns_of(columns, sites, by, plan == "table-1"), sites)
        tables[title.lower().replace(" ", "-")] = table
        texts.append(over_classes(f"{title}. {text}", table, ddof))
        texts += [f"Not in the paper's table: {MORE[title]}.\n"] if title in MORE else []
    if len(heads := runs[runs["plan"] == "dilution"]):
        report = dilution(heads)
        tables["dilution"] = report.tables["table"]
        texts.append(f"**Dilution: heads on a fixed body**\n\n{report.text}")
    return Report("\n".join(texts), tables)


def columns_of(
    columns: Mapping[str, Sequence[str]], sites: Mapping[str, Sequence[str]], by: str, only_shared: bool
) -> list[Column]:
    """Return the columns of a table, for all classes or split by how many sites label them, or by the site."""
    kinds = by_sharing(sites)
    every = sorted(kinds["shared"] if only_shared else {label for own in sites.values() for label in own})
    whole = [
        Column(title, sets, [c for c in every if any(c in sites[name] for name in sets)])
        if set(sets) <= sites.keys() else Column(title, sets, every, [*sites])
        for title, sets in columns.items()
    ]  # fmt: skip
    if by == "sharing":
        split = [
            (kind, c, [label for label in some if label in c.classes]) for c in whole for kind, some in kinds.items()
        ]
        return [c._replace(title=f"{c.title}, {kind} classes", classes=some) for kind, c, some in split if some]
    if by == "site":
        (external,) = whole[-1].sets
        return [Column(f"{external}, {site} classes", [external], own, [site]) for site, own in sites.items()]
    return whole


def values(runs: pd.DataFrame, columns: Sequence[Column], sites: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Return the AUROC of each method, column and class, a mean over seeds; NaN if a set has none."""
    means = {case: pd.DataFrame(map(measured, of["directory"])).mean(skipna=False) for case, of in runs.groupby("case")}

    def auroc(method: str, cases: Sequence[str], column: Column, label: str) -> float:
        sets = [name for name in column.sets if column.models or label in sites[name]]
        models = column.models if column.models and method.startswith(ALONE) else [""]
        found = []
        for name in sets:
            for site in models:
                alone = f"individual-{slug(site or name)}"
                case, by = (alone, "") if alone in cases else (cases[0], f" by {site}" if site else "")
                found.append(means[case].get(f"test/{slug(name + by)}/auroc/{slug(label)}", np.nan))
        return float(np.mean(found))

    return pd.DataFrame(
        {"method": method, "column": c.title, "class": label, "auroc": auroc(method, list(of["case"]), c, label)}
        for method, of in runs.groupby("method", sort=False)
        for c in columns
        for label in c.classes
    )


def compared(
    values: Mapping[tuple[str, str], np.ndarray], reference: str, ddof: int = 1
) -> tuple[dict[tuple[str, str], str], list[str]]:
    """Return a cell for each method and column: mean ± SD, and the difference to the reference with its paired test.

    As in the paper, a cell is "-" if one of its values is missing. The list has the cells whose differences are not
    normal, so that the t-test does not hold.
    """
    cells, odd = {}, []
    for (method, column), mine in values.items():
        cells[method, column] = "-" if np.isnan(mine).any() else f"{mine.mean():.3f} ± {mine.std(ddof=ddof):.3f}"
        if method != reference and not np.isnan(mine).any():
            differences = mine - values[reference, column]
            differences = differences[~np.isnan(differences)]
            p, normality = paired_test(differences)
            cells[method, column] += f" ({differences.mean():+.3f}, p {p_text(p)})"
            odd += [f"{method}, {column}".removesuffix(", ")] if normality < ALPHA else []
    return cells, odd


def paired_test(differences: np.ndarray) -> tuple[float, float]:
    """Return p of the paired t-test, and of the Shapiro-Wilk test of normal differences (section 4.3), or NaN."""
    varied = len(set(differences.tolist())) > 1
    p = float(stats.ttest_1samp(differences, 0.0).pvalue) if varied else np.nan
    return p, float(stats.shapiro(differences).pvalue) if varied and len(differences) > 2 else np.nan


def text_of(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], said: str, odd: Sequence[str]) -> str:
    """Return a table with its title and a text below it."""
    note = [f"Shapiro-Wilk p < 0.05, so the t-test does not hold there: {'; '.join(odd)}."] * bool(odd)
    return "\n".join([f"**{title}**", "", *grid(["method", *head], rows), "", said, *note, ""])


def over_classes(title: str, table: pd.DataFrame, ddof: int = 1) -> str:
    """Return a table (method, column, class, auroc) with means over classes."""
    counts = table.groupby("column", sort=False)["class"].nunique()
    reference = next(method for method in table["method"] if method.endswith(REFERENCE))
    aurocs = {key: of["auroc"].to_numpy() for key, of in table.groupby(["method", "column"], sort=False)}
    cells, odd = compared(aurocs, reference, ddof)
    rows = [[method, *(cells[method, column] for column in counts.index)] for method in dict.fromkeys(table["method"])]
    said = (
        f"AUROC, mean ± standard deviation{f', ddof {ddof},' if ddof != 1 else ''} over classes "
        f"({', '.join(f'{column}: {number}' for column, number in counts.items())}). In brackets are the difference to "
        f"{reference} and p of its paired t-test over classes, the paper's own analysis. Classes share images and "
        "trainings, so p is too small to be evidence, and has no stars."
    )
    return text_of(title, counts.index, rows, said, odd)


def simulation(runs: pd.DataFrame, sets: dict[str, str]) -> Report:
    """Make tables and a figure of methods by number of clients or of shared classes.

    ``sets`` has the test sets by title.
    """
    keys = ["plan", "clients", "shared", "method", "set"]
    scored = [
        (*(run[key] for key in keys[:-1]), title, measured(run["directory"])[f"test/{slug(name)}/auroc_macro"])
        for run in runs.to_dict("records")
        for title, name in sets.items()
    ]
    means = pd.DataFrame(scored, columns=[*keys, "auroc"]).groupby(keys, sort=False, as_index=False)["auroc"].mean()
    levels = means[means["plan"] == "all-labels"].set_index("set")["auroc"]
    panels = {}
    for plan, title in ((plan, title) for plan in AXES if plan in set(means["plan"]) for title in sets):
        of = means[(means["plan"] == plan) & (means["set"] == title)]
        rows = of.pivot(index="method", columns=AXES[plan][0], values="auroc")
        panels[plan, title] = rows.loc[list(dict.fromkeys(of["method"]))]
    texts = [over_settings(plan, title, rows, levels[title]) for (plan, title), rows in panels.items()]
    return Report("\n".join(texts), {"values": means}, {"figure": draw(panels, levels)})


def over_settings(plan: str, test_set: str, table: pd.DataFrame, level: float) -> str:
    """Return the AUROC of methods by settings, [method, number], and their means over settings."""
    cells, odd = compared({(method, ""): mine.to_numpy() for method, mine in table.iterrows()}, "SurgAgg")
    rows = [
        [method, *(f"{value:.3f}" for value in mine), cells[method, ""], f"{level - mine.mean():.3f}"]
        for method, mine in table.iterrows()
    ]
    said = (
        f"Mean test AUROC over classes; its mean ± standard deviation over the {table.shape[1]} settings. "
        "In brackets are the difference to SurgAgg and p of its paired t-test over settings. "
        "Settings share images, so p is too small to be evidence, and has no stars. "
        f"The model of all labels has {level:.3f}."
    )
    title, head = f"{test_set}, by number of {AXES[plan][1]}", [*map(str, table.columns), "mean", "below all labels by"]
    return text_of(title, head, rows, said, odd)


def draw(panels: Mapping[tuple[str, str], pd.DataFrame], levels: pd.Series) -> Figure:
    """Draw AUROC by settings, a row of panels per plan and a column per test set; all labels are a line."""
    plans, sets = (list(dict.fromkeys(each)) for each in zip(*panels, strict=True))
    figure = Figure(figsize=(3.8 * len(sets), 2.9 * len(plans) + 0.5), layout="constrained")
    axes = figure.subplots(len(plans), len(sets), squeeze=False, sharey="col")
    styles = ((":", "D", "#8c8c8c"), ("--", "s", "#7a5195"), ("-.", "^", "#1f5f8b"), ("-", "o", "#c1572b"))
    for (plan, test_set), rows in panels.items():
        ax = axes[plans.index(plan)][sets.index(test_set)]
        for (method, mine), (dashes, marker, colour) in zip(rows.iterrows(), styles, strict=True):
            ax.plot(mine.index.astype(int), mine, linestyle=dashes, marker=marker, color=colour, label=method)
        ax.axhline(levels[test_set], color="black", linewidth=0.9, linestyle=(0, (1, 3)), label="All labels")
        ax.set(title=test_set, xlabel=f"number of {AXES[plan][1]}", ylabel="test AUROC, mean over classes")
        ax.set_xticks(rows.columns.astype(int))
        light_axes(ax)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize="small")
    return figure


def sites(runs: pd.DataFrame, rounds: list[int]) -> Report:
    """Make the table of partial loss and surgical heads by number of sites, with the test AUROC after some rounds."""
    ordered = pd.concat([of for _, of in runs.groupby(["title", "clients"], sort=False)])
    after = [after_rounds(directory, "test_curve/federation/auroc_macro", rounds) for directory in ordered["directory"]]
    setting = ordered["title"] + ", K = " + ordered["clients"].astype(str)
    what = "Test AUROC, mean over all findings, by number of rounds"
    return by_seed(
        ordered.assign(setting=setting, values=after), "PartialLoss", what, "PartialLoss in the same setting"
    )


def warmup(runs: pd.DataFrame, metrics: dict[str, str]) -> Report:
    """Make the table of partial loss after both warm-ups and surgical heads; ``metrics`` are columns by title."""
    found = [{title: measured(run)[key] for title, key in metrics.items()} for run in runs["directory"]]
    what = "Test AUROC of the model with the smallest validation loss"
    return by_seed(runs.assign(setting="FedBN+", values=found), "SurgAgg", what, "SurgAgg")


def dilution(runs: pd.DataFrame) -> Report:
    """Make the table of heads on a fixed body, with the validation AUROC after 1, 2, 4, ... rounds."""
    after = [after_rounds(run, "val/auroc_unique", [2**k for k in range(20)]) for run in runs["directory"]]
    what = "Validation AUROC of the classes that one site labels, by number of rounds"
    return by_seed(runs.assign(setting="Heads on a fixed body", values=after), "SurgAgg", what, "SurgAgg")


def after_rounds(run: Path, metric: str, rounds: Sequence[int]) -> dict[str, float]:
    """Return the values of a metric after those of some rounds in which it was measured, by column."""
    values = dict(curve(run, metric))
    return {f"{number} rounds": values[number] for number in rounds if number in values}


def by_seed(runs: pd.DataFrame, reference: str, what: str, versus: str) -> Report:
    """Compare methods with a reference in the same setting; ``values`` of a run are its cells by column."""
    rows = [
        (f"{run['setting']}, {run['method']}", f"{run['setting']}, {reference}", column, run["seed"], value)
        for run in runs.to_dict("records")
        for column, value in run["values"].items()
    ]
    values = pd.DataFrame(rows, columns=["row", "against", "column", "seed", "auroc"])
    against = dict(values.loc[values["row"] != values["against"], ["row", "against"]].to_numpy().tolist())
    table = compare(values.drop(columns="against"), against)
    return Report(markdown(table, what, versus), {"values": values.drop(columns="against"), "table": table})
