"""The five findings of FDAM's chest X-ray tables."""

import pandas as pd

from fedlit.metrics.auroc import slug
from fedlit.reports.reproductions.base import measured

FINDINGS = {
    "Cardiomegaly (C0)": ("Cardiomegaly",),
    "Edema (C1)": ("Edema",),
    "Consolidation (C2)": ("Consolidation",),
    "Atelectasis (C3)": ("Atelectasis",),
    "Pleural Effusion (C4)": ("Pleural Effusion", "Effusion"),
}
"""Column of the tables, and what data sets call the finding."""


def by_finding(runs: pd.DataFrame, prefix: str) -> pd.DataFrame:
    """AUROC of the five findings: row, column, seed, auroc.

    Args:
        runs: directory, seed and the table's row of each run.
        prefix: of the metrics, such as ``test/federation``.
    """
    values = []
    for run in runs.itertuples():
        metrics = measured(run.directory)
        for column, names in FINDINGS.items():
            (auroc,) = (metrics[key] for name in names if (key := f"{prefix}/auroc/{slug(name)}") in metrics)
            values.append({"row": run.row, "column": column, "seed": run.seed, "auroc": auroc})
    return pd.DataFrame(values)
