"""The table of private training: AUROC on test images, and of the attack by the loss, by data, network and epsilon."""

from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t

from fedlit.metrics.levels import LEVEL
from fedlit.reports.audit import audited, images_of
from fedlit.reports.reproductions.published import grid
from fedlit.reports.reproductions.report import Report, measured

PLANS = {
    "phantom-whole": "150 to 310 patients, whole network", "phantom-head": "150 to 310 patients, head",
    "nih-whole": "NIH, 240 patients, whole network", "nih-head": "NIH, 240 patients, head",
    "large-head": "20,000 patients, head",
}  # fmt: skip
FEW = 20
"""Draws for an interval of each audit, which the table does not show."""

CASES = {"epsilon-1": "epsilon 1", "epsilon-3": "epsilon 3", "epsilon-8": "epsilon 8", "none": "no privacy"}


def make(runs: pd.DataFrame) -> Report:
    """Make the tables from the runs that each seed chose: means over seeds, and half of their interval."""
    chosen = runs[runs["stage"] == "chosen"]
    tested = chosen["directory"].map(lambda run: measured(run)["test/federation/auroc_macro"])
    values = pd.DataFrame({"auroc": tested, "membership": chosen["directory"].map(membership)})
    values = pd.concat([chosen[["plan", "case", "seed"]], values], axis=1)
    lines = []
    for title, column in (("Test AUROC", "auroc"), ("Membership AUROC", "membership")):
        of = values.groupby(["plan", "case"])[column]
        known = {key: _cell(of.get_group(key)) for key in of.groups}
        rows = [
            [words, *(known.get((plan, case), "-") for case in CASES)]
            for plan, words in PLANS.items() if plan in set(values["plan"])
        ]  # fmt: skip
        lines += [f"## {title}", "", *grid(["", *CASES.values()], rows), ""]
    return Report("\n".join(lines), {"privacy": values.assign(directory=chosen["directory"].map(str))})


def membership(run: Path) -> float:
    """Return the AUROC of the attack by the loss on a run's best model; NaN where it is not comparable."""
    rows = audited(images_of(run)[0], (), LEVEL, FEW).rows
    return rows[0].estimates["auroc"].value if rows and rows[0].estimates else np.nan


def _cell(values: pd.Series) -> str:
    """Return mean and half of Student's interval over seeds."""
    known = values.dropna()
    if len(known) < 2:
        return f"{known.mean():.3f}" if len(known) else "-"
    half = t.ppf((1 + LEVEL) / 2, len(known) - 1) * known.std() / np.sqrt(len(known))
    return f"{known.mean():.3f} ± {half:.3f}"
