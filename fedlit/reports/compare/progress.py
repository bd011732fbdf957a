"""A metric against rounds, local steps and communicated bytes, and what a run has cost."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedlit.reports.compare.runs import PastRun

DRIFT = "drift/client_drift"


@dataclass(frozen=True)
class Cost:
    """What runs took, as means over them; NaN where one does not say.

    Attributes:
        rounds: that were run.
        bytes: sent, up and down, over all clients.
        steps: local steps of a client.
        drift: mean over rounds of the client drift.
    """

    rounds: float
    bytes: float
    steps: float
    drift: float


def cost(runs: Sequence[PastRun]) -> Cost:
    """What runs took."""
    found = [
        (
            max((int(run.metric(key).index.max()) for key in ("round/stage", "bytes/up") if len(run.metric(key))),
                default=np.nan),
            *(series.iloc[-1] if len(series) else np.nan for series in (sent(run), steps(run))),
            run.metric(DRIFT).mean(),
        )
        for run in runs
    ]  # fmt: skip
    return Cost(*(float(np.mean(column)) for column in zip(*found, strict=True)))


def sent(run: PastRun) -> pd.Series:
    """Bytes up and down of all clients until the end of each round; empty where the run does not say."""
    return (run.metric("bytes/up") + run.metric("bytes/down")).dropna().sort_index().cumsum()


def steps(run: PastRun) -> pd.Series:
    """Local steps of a client until the end of each round, the mean over clients; empty where the run does not say."""
    return (run.metric("round/steps") / run.metric("round/clients")).dropna().sort_index().cumsum()


def against(run: PastRun, key: str, x: pd.Series | None = None) -> pd.Series:
    """A metric by round, or by what ``x`` is at the round.

    Args:
        run: whose metric.
        key: of the metric.
        x: by round, such as :func:`sent`.
    """
    y = run.metric(key).dropna()
    if x is None:
        return y
    both = y.index.intersection(x.index)
    return pd.Series(y[both].to_numpy(), index=x[both].to_numpy())
