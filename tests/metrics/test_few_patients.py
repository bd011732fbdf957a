"""Error rates of tests and intervals with few patients, which justify the minimum of ten."""

import numpy as np
import pytest
from scipy import stats

from fedlit.metrics.intervals import MIN_PATIENTS, bootstrap

NEGATIVES, DRAWS, TRIALS, SHIFT = 60, 200, 250, 1.0


def wrong(positives: int, each: int = 1) -> tuple[float, float]:
    """Return the error rates of a 5% test of two equal models and of a 95% interval, with equal images per patient."""
    truth = stats.norm.cdf(SHIFT / np.sqrt(2))
    found, missed = 0, 0
    for trial in range(TRIALS):
        rng = np.random.default_rng(trial)
        labels = np.repeat([1.0, 0.0], [positives, NEGATIVES])
        common = rng.normal(size=len(labels))
        scores = np.stack([SHIFT * labels + (common + rng.normal(size=len(labels))) / np.sqrt(2) for _ in range(2)], 1)
        rows = np.repeat(np.arange(len(labels)), each)
        boot = bootstrap(scores[rows], np.stack([labels, labels], 1)[rows], rows, DRAWS)
        error = np.nanstd(boot.draws[:, 0] - boot.draws[:, 1], ddof=1)
        found += abs(boot.estimate[0] - boot.estimate[1]) > 1.96 * error
        low, high = np.nanquantile(boot.draws, [0.025, 0.975], axis=0)
        missed += np.mean((truth < low) | (truth > high) | (low == high))
    return found / TRIALS, missed / TRIALS


@pytest.mark.slow
def test_as_many_as_are_asked_for_are_enough_and_two_are_not_however_many_images_they_have():
    found, missed = wrong(MIN_PATIENTS)
    assert found < 0.10
    assert missed < 0.12
    for each in (1, 5):
        found, missed = wrong(2, each)
        assert found > 0.10
        assert missed > 0.2
