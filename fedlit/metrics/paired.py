"""Paired comparisons of two methods over classes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

ALPHA = 0.05


@dataclass(frozen=True)
class Paired:
    """The comparison of two methods over the same classes (Kulkarni et al., arXiv:2301.06683, section 4.3)."""

    classes: int  # Number of classes that both methods have.
    difference: float  # Mean over classes of the first method minus the second.
    p: float  # p-value of the two-sided paired t-test; NaN with fewer than 2 classes, or if all differences are equal.
    normality: float  # p-value of the Shapiro-Wilk test of the differences; NaN with fewer than 3.

    @property
    def normal(self) -> bool:
        """True unless the Shapiro-Wilk test rejects normal differences, which the t-test assumes."""
        return not self.normality < ALPHA


def paired(first: Sequence[float], second: Sequence[float]) -> Paired:
    """Compare the AUROC of two methods over classes.

    Args:
        first: ``[C]`` AUROC of the first method; NaN for missing classes.
        second: ``[C]`` AUROC of the second method. Classes that are missing in either method are left out.

    Raises:
        ValueError: The methods have different numbers of values.
    """
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != other.shape:
        raise ValueError(f"paired: expected the same number of values, found {one.shape} and {other.shape}")
    differences = (one - other)[~(np.isnan(one) | np.isnan(other))]
    n, varied = len(differences), len(set(differences.tolist())) > 1
    return Paired(
        n,
        float(differences.mean()) if n else float("nan"),
        float(stats.ttest_1samp(differences, 0.0).pvalue) if n > 1 and varied else float("nan"),
        float(stats.shapiro(differences).pvalue) if n > 2 and varied else float("nan"),
    )


def stars(p: float) -> str:
    """Return ``***`` below 0.001, ``**`` below 0.01, ``*`` below 0.05, else ``ns``; ``-`` if p is NaN."""
    if p != p:
        return "-"
    return next((mark for bound, mark in ((0.001, "***"), (0.01, "**"), (ALPHA, "*")) if p < bound), "ns")


def p_text(p: float) -> str:
    """Return p as text: ``< 0.001``, ``0.034``, or ``-`` if p is NaN."""
    return "-" if p != p else "< 0.001" if p < 0.001 else f"{p:.3f}"


def holm(p: Sequence[float], weights: Sequence[float] | None = None) -> np.ndarray:
    """Correct p-values for the number of tests (Holm 1979, "A simple sequentially rejective multiple test procedure").

    Args:
        p: ``[C]`` p-values, one per class; NaN means no test and is not counted.
        weights: ``[C]`` shares of the error that each test may use, above 0; by default equal ones.

    Returns:
        ``[C]`` float64 adjusted p-values; NaN if ``p`` is NaN.
    """
    adjusted, shares = np.array(p, dtype=np.float64), np.ones(len(p)) if weights is None else np.asarray(weights)
    order = np.argsort(adjusted / shares)[: np.count_nonzero(~np.isnan(adjusted))]  # NaN sorts last
    steps = adjusted[order] / shares[order] * np.cumsum(shares[order][::-1])[::-1]
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted
