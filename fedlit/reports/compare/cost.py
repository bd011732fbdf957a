"""What a run has cost, and a metric against that: rounds, local steps, communicated bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedlit.reports.compare.past_run import PastRun

DRIFT = "drift/client_drift"


@dataclass(frozen=True)
class Cost:
    """What runs took, as means over them; NaN where one does not say."""

    rounds: float  # Rounds that were run.
    bytes: float  # Bytes sent, up and down, over all clients.
    steps: float  # Local steps, over all clients.
    drift: float  # Mean over rounds of the client drift.


def cost(runs: Sequence[PastRun]) -> Cost:
    """Return what runs took."""
    costs = [
        (
            max((int(run.metric(key).index.max()) for key in ("round/stage", "bytes/up") if len(run.metric(key))),
                default=np.nan),
            *(series.iloc[-1] if len(series) else np.nan for series in (sent(run), steps(run))),
            run.metric(DRIFT).mean(),
        )
        for run in runs
    ]  # fmt: skip
    return Cost(*(float(np.mean(column)) for column in zip(*costs, strict=True)))


def sent(run: PastRun) -> pd.Series:
    """Return bytes up and down of all clients until the end of each round; empty where the run does not say."""
    return (run.metric("bytes/up") + run.metric("bytes/down")).dropna().sort_index().cumsum()


def steps(run: PastRun) -> pd.Series:
    """Return local steps of all clients until the end of each round; empty where the run does not say."""
    return run.metric("round/steps").dropna().sort_index().cumsum()


def against(run: PastRun, key: str, x: pd.Series | None = None) -> pd.Series:
    """Return a metric by round, or by what ``x`` is at the round, such as the values of :func:`sent`."""
    y = run.metric(key).dropna()
    if x is None:
        return y
    both = y.index.intersection(x.index)
    return pd.Series(y[both].to_numpy(), index=x[both].to_numpy())
