"""The tables of surgical aggregation, from the metrics of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from fedlit.metrics.auroc import slug
from fedlit.metrics.paired import p_text, paired
from fedlit.reports.reproductions.published import grid


@dataclass(frozen=True)
class SurgicalMethod:
    """A row."""

    title: str  # Name of the row.
    cases: Sequence[str]  # Names of the cases behind it: one, or one for each site.
    # Whether each site has its own model; then only the site's images and classes are scored.
    personal: bool = False
    # Test metrics of each case, means over seeds.
    measured: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    part: str = ""  # Part of the cases; "" for every part.

    def auroc(self, test_set: str, label: str, site: str = "") -> float:
        """Return the AUROC of a class on a test set, by the model of a site if named; NaN if it was not learned."""
        alone = f"individual-{slug(site or test_set)}"
        case, by = (alone, "") if alone in self.cases else (self.cases[0], f" by {site}" if site else "")
        return self.measured[case].get(f"test/{slug(test_set + by)}/auroc/{slug(label)}", np.nan)


@dataclass(frozen=True)
class Column:
    """A column: for each class, the mean over test sets."""

    title: str  # Name of the column.
    sets: Sequence[str]  # Names of the test sets.
    own: bool = False  # Whether only the classes that a set's site labels count.
    classes: Sequence[str] | None = None  # Classes of the column; by default all of the table.
    # Sites whose models score an external set if there is no common model; by default every site.
    models: Sequence[str] | None = None

    def value(self, method: SurgicalMethod, label: str, sites: Mapping[str, Sequence[str]]) -> float:
        """Return the AUROC of a class; NaN if it is undefined on one of the sets."""
        sets = [name for name in self.sets if not self.own or label in sites[name]]
        models = (self.models or sites) if method.personal and not self.own else [""]
        aurocs = [np.mean([method.auroc(name, label, site) for site in models]) for name in sets]
        return float(np.mean(aurocs)) if aurocs else np.nan


def values(
    methods: Sequence[SurgicalMethod],
    columns: Sequence[Column],
    classes: Sequence[str],
    sites: Mapping[str, Sequence[str]],
) -> pd.DataFrame:
    """Return the AUROC of each method, column and class."""
    return pd.DataFrame(
        {"method": m.title, "column": c.title, "class": label, "auroc": c.value(m, label, sites)}
        for m in methods
        for c in columns
        for label in (c.classes or reachable(c, classes, sites))
    )


def markdown(title: str, table: pd.DataFrame, reference: str, ddof: int = 1) -> str:
    """Return mean ± SD over classes, with the paired t-test against a reference and the difference to it.

    As in the paper, a mean is undefined ("-") if one of its classes is.
    """
    columns = list(dict.fromkeys(table["column"]))
    shown, odd = [], []
    reference = next(m for m in table["method"] if m.endswith(reference))
    for method, rows in table.groupby("method", sort=False):
        cells = []
        for column in columns:
            mine = rows.loc[rows["column"] == column, "auroc"].to_numpy()
            best = table.loc[(table["method"] == reference) & (table["column"] == column), "auroc"].to_numpy()
            if np.isnan(mine).any():
                cells.append("-")
                continue
            cell = f"{mine.mean():.3f} ± {mine.std(ddof=ddof):.3f}"
            if method != reference:
                test = paired(best, mine)
                cell += f" ({-test.difference:+.3f}, p {p_text(test.p)})"
                if not test.normal:
                    odd.append(f"{method}, {column}")
            cells.append(cell)
        shown.append([method, *cells])
    counts = table.groupby("column", sort=False)["class"].nunique()
    lines = [
        f"**{title}**",
        "",
        *grid(["method", *columns], shown),
        "",
        f"AUROC, mean ± standard deviation{f', ddof {ddof},' if ddof != 1 else ''} over classes "
        f"({', '.join(f'{column}: {number}' for column, number in counts.items())}). In brackets are the difference to "
        f"{reference} and p of its paired t-test over classes, the paper's own analysis. Classes share images and "
        "trainings, so p is too small to be evidence, and has no stars.",
    ]
    if odd:
        lines.append(f"Shapiro-Wilk p < 0.05, so the t-test does not hold there: {'; '.join(odd)}.")
    return "\n".join([*lines, ""])


def dilution_markdown(curves: pd.DataFrame) -> str:
    """Return AUROC of unique classes after 1, 2, 4, ... rounds, with differences to surgical heads."""
    rounds = [n for n in (2**k for k in range(20)) if n <= curves["round"].max()]
    by_round = curves.pivot_table(index=["method", "seed"], columns="round", values="auroc")[rounds]
    shown = []
    best = by_round.loc["SurgAgg"]
    for method in dict.fromkeys(curves["method"]):
        mine = by_round.loc[method]
        behind = mine - best
        gaps = [f" ({behind[n].mean():+.3f} ± {behind[n].std():.3f})" * (method != "SurgAgg") for n in rounds]
        shown.append([method, *(f"{mine[n].mean():.3f}{gap}" for n, gap in zip(rounds, gaps, strict=True))])
    seeds = len(best)
    lines = [
        "**Dilution: heads on a fixed body, unique classes**",
        "",
        *grid(["method", *(f"{n} rounds" for n in rounds)], shown),
        "",
        f"Validation AUROC, mean over {seeds} seeds; in brackets is the difference to surgical heads with the same "
        "seed, mean ± standard deviation. One of the sites labels each of these classes.",
        "",
    ]
    return "\n".join(lines)


def reachable(column: Column, classes: Sequence[str], sites: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the possible classes of a column; for an ``own`` column, those that one of its sites labels."""
    if not column.own:
        return list(classes)
    return [label for label in classes if any(label in sites[name] for name in column.sets)]
