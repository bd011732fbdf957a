"""Costs of a run, and metrics against them: rounds, local steps, communicated bytes."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedlit.reports.compare.past_run import PastRun
from fedlit.reports.compare.words import number, size

DRIFT = "drift/client_drift"


def mean_cost(runs: Sequence[PastRun]) -> pd.Series:
    """Return the means over runs of their costs; NaN if a run did not log a cost.

    They are ``rounds``, ``bytes`` up and down and local ``steps``, both over all clients, and the mean ``drift``.
    """
    costs = [
        {
            # An empty index has the maximum NaN, which fmax ignores.
            "rounds": np.fmax(*(run.metric(key).index.max() for key in ("round/stage", "bytes/up"))),
            "bytes": sent(run).max(),
            "steps": steps(run).max(),
            "drift": run.metric(DRIFT).mean(),
        }
        for run in runs
    ]
    return pd.DataFrame(costs).mean(skipna=False)


def cost_row(runs: Sequence[PastRun]) -> tuple[str, str, str, str]:
    """Return the mean rounds, bytes, local steps and drift of runs as text."""
    cost = mean_cost(runs)
    return number(cost.rounds), size(cost.bytes), number(cost.steps), number(cost.drift, ".3g")


def sent(run: PastRun) -> pd.Series:
    """Return the bytes up and down of all clients until the end of each round; empty if they were not logged."""
    return (run.metric("bytes/up") + run.metric("bytes/down")).dropna().sort_index().cumsum()


def steps(run: PastRun) -> pd.Series:
    """Return the local steps of all clients until the end of each round; empty if they were not logged."""
    return run.metric("round/steps").dropna().sort_index().cumsum()


def metric_against(run: PastRun, key: str, x: pd.Series | None = None) -> pd.Series:
    """Return a metric by round, or by the value of ``x`` at the round, such as that of :func:`sent`."""
    y = run.metric(key).dropna()
    if x is None:
        return y
    both = y.index.intersection(x.index)
    return pd.Series(y[both].to_numpy(), index=x[both].to_numpy())
