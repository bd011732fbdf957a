"""Stars of a claim."""

import math

import numpy as np
import pytest

from fedlit.metrics.claim import Difference
from fedlit.metrics.intervals import Interval


@pytest.mark.parametrize(
    ("p", "mark"), [(0.0009, "***"), (0.001, "**"), (0.01, "*"), (0.05, "ns"), (1.0, "ns"), (math.nan, "-")]
)
def test_stars_are_of_p_below_their_bound(p, mark):
    assert Difference(0.1, Interval(np.nan, np.nan, 0.95), 0.0, 0.0, 0.0, p_holm=p).stars == mark
