"""Measure how often a table of cases claims a difference that is none, and how often its intervals cover the mean.

    python tests/benchmarks/cases.py --trials 1500

Two methods have the same mean. The value of a case is the sum of four parts: of its patient, of the case (both are the
same for all models), of the case and the model, and of the training. With `skewed`, the patients' parts are
exponential. Claims have a nominal error of 5%; intervals, of one method for the trainings at hand, a level of 95%.
"""

import argparse

import numpy as np
import pandas as pd
from claims import _method, rate

from fedlit.metrics.claim import ALPHA
from fedlit.metrics.levels import LEVEL
from fedlit.reports.compare.logged import MethodMetric, _Cases, _change

MEAN = 0.8


def drawn(rng: np.random.Generator, seeds: int, patients: int, images: int, sd: float, skewed: bool) -> list:
    """Return two methods, the second with its difference from the first."""
    parts = 0.15 - rng.exponential(0.15, patients) if skewed else rng.normal(0, 0.1, patients)
    cases = MEAN + np.repeat(parts, images) + rng.normal(0, 0.05, patients * images)
    methods = [_method(name, range(seeds)) for name in ("first", "second")]
    columns = {run.where: run for method in methods for run in method.runs}
    table = pd.DataFrame({where: cases + rng.normal(0, sd) + rng.normal(0, 0.05, len(cases)) for where in columns})
    table = table.assign(patient=np.repeat(np.arange(patients), images).astype(str), client="")
    found = _Cases((table,), 1.0)
    ours, theirs = (MethodMetric(each, found.values(each), found.interval(each, LEVEL), {}) for each in methods)
    return [ours, _change(theirs, ours, found, LEVEL)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1500)
    trials = parser.parse_args().trials
    for seeds, patients, images, sd, skewed in (
        (3, 10, 1, 0.01, False), (3, 30, 3, 0.01, False), (3, 100, 2, 0.01, False), (5, 30, 1, 0.003, False),
        (10, 100, 1, 0.01, False), (3, 30, 1, 0.01, True),
    ):  # fmt: skip
        rngs = [np.random.default_rng((trial, seeds, patients)) for trial in range(2 * trials)]
        claimed = [drawn(rng, seeds, patients, images, sd, skewed)[1].p < ALPHA for rng in rngs[:trials]]
        ends = [drawn(rng, seeds, patients, images, 0.0, skewed)[0].interval for rng in rngs[trials:]]
        covered = [each.low < MEAN < each.high for each in ends]
        where = f"{seeds} seeds, {patients} patients x {images}, SD {sd}{', skewed' if skewed else ''}"
        print(f"{where:44} false claims {rate(claimed)}   coverage {rate(covered)}", flush=True)


if __name__ == "__main__":
    main()
