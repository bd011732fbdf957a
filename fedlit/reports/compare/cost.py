"""Costs of a run, and metrics against them: rounds, local steps, communicated bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedlit.reports.compare.past_run import PastRun

DRIFT = "drift/client_drift"


@dataclass(frozen=True)
class RunCost:
    """Costs of runs, as means over the runs; NaN if a run did not log a cost."""

    rounds: float  # Rounds.
    bytes: float  # Bytes sent, up and down, over all clients.
    steps: float  # Local steps, over all clients.
    drift: float  # Mean over rounds of the client drift.


def mean_cost(runs: Sequence[PastRun]) -> RunCost:
    """Return the mean costs of runs."""
    costs = [
        (
            max((int(run.metric(key).index.max()) for key in ("round/stage", "bytes/up") if len(run.metric(key))),
                default=np.nan),
            *(series.iloc[-1] if len(series) else np.nan for series in (sent(run), steps(run))),
            run.metric(DRIFT).mean(),
        )
        for run in runs
    ]  # fmt: skip
    return RunCost(*(float(np.mean(column)) for column in zip(*costs, strict=True)))


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
