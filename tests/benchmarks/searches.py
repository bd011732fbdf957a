"""Print the differences and p-values of the searches of LocalSCGDAM, from their reports.

    python tests/benchmarks/searches.py reproductions/localscgdam-search reproductions/localscgdam-search-sampled

Both LocalSCGDAM and its in-place step are compared with every other method of the same setting, by a paired t-test over
seeds. Holm's correction is over all tests. The folders are those that `fedlit reproduce` has printed.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

METHODS = ("LocalSCGDAM", "LocalSCGDAM in place")


def main(folders: list[str]) -> None:
    """Print one row per difference, the smallest p first."""
    values = pd.concat(pd.read_csv(Path(folder, "values.csv")) for folder in folders)
    values[["setting", "method"]] = values["row"].str.rsplit(", ", n=1, expand=True)
    rows = []
    for setting, here in values.groupby("setting", sort=False):
        by_seed = here.pivot(index="seed", columns="method", values="auroc")
        for number, ours in enumerate(METHODS):
            for other in by_seed.columns.drop([*METHODS[: number + 1]]):
                gap = by_seed[ours] - by_seed[other]
                half = stats.t.ppf(0.975, len(gap) - 1) * gap.sem()
                rows.append((setting, ours, other, gap.mean(), half, stats.ttest_1samp(gap, 0).pvalue))
    table = pd.DataFrame(rows, columns=["setting", "method", "less", "difference", "half of 95%", "p"]).sort_values("p")
    steps = table["p"] * np.arange(len(table), 0, -1)
    print(table.assign(holm=steps.cummax().clip(upper=1)).to_string(index=False, float_format="{:.4f}".format))


if __name__ == "__main__":
    main(sys.argv[1:])
