"""Membership inference: how well a score tells the patients that a model was trained on from other patients."""

from dataclasses import dataclass

import numpy as np

from fedlit.metrics.intervals import CHUNK, resampled
from fedlit.metrics.levels import DRAWS, LEVEL

RATES = {"tpr_at_1pct_fpr": 0.01, "tpr_at_0.1pct_fpr": 0.001}
"""Rates of false positives at which the rate of true positives is given."""

FEWEST_FALSE = 2
"""Smallest number of false positives at which a rate is given: with one, its interval covers it too rarely."""

TITLES = {
    "auroc": "AUROC", "tpr_at_1pct_fpr": "TPR at 1% FPR", "tpr_at_0.1pct_fpr": "TPR at 0.1% FPR",
    "advantage": "advantage",
}  # fmt: skip
"""Titles of the measures of ``membership``."""


@dataclass(frozen=True)
class Estimate:
    """A measure and its interval; NaN where it is undefined."""

    value: float
    low: float
    high: float


def membership(
    loss: np.ndarray, member: np.ndarray, level: float = LEVEL, draws: int = DRAWS, seed: int = 0
) -> dict[str, Estimate]:
    """Return each measure of the attack that calls patients with a low loss members of the training set.

    ``auroc`` is the probability that a member has a lower loss than another patient; a tie counts one half. ``tpr_...``
    is the share of members that are found if at most this share of other patients is called members; it is undefined
    with too few other patients for one false positive. ``advantage`` is the share of members whose loss is at most the
    mean loss of members, minus this share of other patients (Yeom et al. 2018). Intervals are percentiles over the
    draws of patients of ``fedlit.metrics.intervals.bootstrap``; a measure that no draw changes has none.

    Args:
        loss: ``[P]`` loss of each patient.
        member: ``[P]`` bool, whether the model was trained on the patient.
        level: Level of the intervals.
        draws: Number of draws.
        seed: Seed of the draws.
    """
    loss = np.asarray(loss, dtype=np.float64)
    members, others = (side[np.argsort(loss[side], kind="stable")] for side in map(np.flatnonzero, (member, ~member)))
    chunks = resampled(len(loss), draws, seed, max(1, CHUNK // len(loss)))
    values = _measures(np.ones((len(loss), 1), np.int32), loss, members, others)
    drawn = [_measures(counts, loss, members, others) for counts in chunks]
    estimates = {}
    for name, (value,) in values.items():
        each = np.concatenate([part[name] for part in drawn])
        each = each[np.isfinite(each)] if np.isfinite(value) else each[:0]
        low, high = np.quantile(each, [(1 - level) / 2, (1 + level) / 2]) if len(each) else (np.nan, np.nan)
        estimates[name] = Estimate(float(value), *((float(low), float(high)) if low < high else (np.nan, np.nan)))
    return estimates


def _measures(counts: np.ndarray, loss: np.ndarray, members: np.ndarray, others: np.ndarray) -> dict[str, np.ndarray]:
    """Return ``[B]`` values of each measure if patients occur ``counts[P, B]`` times; sides are sorted by loss."""
    ours, theirs, draw = loss[members], loss[others], np.arange(counts.shape[1])
    # Members and other patients among the first ones of their side.
    true, false = (np.pad(np.cumsum(counts[side], 0, dtype=np.int32), ((1, 0), (0, 0))) for side in (members, others))
    lower, at_most = (np.searchsorted(ours, theirs, side) for side in ("left", "right"))
    found = true[at_most] if np.array_equal(lower, at_most) else (true[lower] + true[at_most]) / 2
    n_true, n_false = true[-1].astype(np.float64), false[-1].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        pairs = np.einsum("jb,jb->b", counts[others], found, dtype=np.float64)
        values = {"auroc": pairs / (n_true * n_false)}
        for name, rate in RATES.items():
            first = (false[1:] <= rate * n_false + 1e-9).sum(0)  # of the other patients who may not be called members
            enough = len(others) * rate >= FEWEST_FALSE
            reached = np.append(lower, len(members))[first]
            values[name] = true[reached, draw] / n_true if enough else np.full_like(n_true, np.nan)
        mean = loss[members] @ counts[members] / n_true
        rates = (cum[np.searchsorted(of, mean, "right"), draw] for cum, of in ((true, ours), (false, theirs)))
        values["advantage"] = next(rates) / n_true - next(rates) / n_false
    defined = (n_true > 0) & (n_false > 0)
    return {name: np.where(defined, value, np.nan) for name, value in values.items()}
