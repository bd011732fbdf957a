"""Summary of one effect over several sites that may differ (DerSimonian and Laird 1986, Hartung and Knapp 2001)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RandomEffects:
    """Mean effect over sites, and how much sites differ."""

    sites: int  # Number of sites K.
    mean: float  # Mean effect, with DerSimonian and Laird's weights.
    error: float  # Its standard error by Hartung and Knapp, with K - 1 degrees of freedom.
    weights: np.ndarray  # `[K]` weights of the sites, which sum to 1.
    tau2: float  # Variance of the effect between sites.
    i2: float  # Share of the observed variance that is between sites, in [0, 1].


def random_effects(effects: Sequence[float], variances: Sequence[float]) -> RandomEffects:
    """Combine the effects of K sites, at least two, given their variances above 0."""
    effect, variance = np.asarray(effects, dtype=np.float64), np.asarray(variances, dtype=np.float64)
    count = len(effect)
    fixed = 1 / variance
    q = float(fixed @ (effect - fixed @ effect / fixed.sum()) ** 2)
    excess = q - (count - 1)
    tau2 = max(0.0, excess / (fixed.sum() - fixed @ fixed / fixed.sum()))
    weights = 1 / (variance + tau2)
    shares = weights / weights.sum()
    mean = float(shares @ effect)
    error = float(np.sqrt(shares @ (effect - mean) ** 2 / (count - 1)))
    return RandomEffects(count, mean, error, shares, tau2=float(tau2), i2=max(0.0, excess / q) if q else 0.0)
