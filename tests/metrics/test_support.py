"""Distinct patients with positive and with negative labels."""

import numpy as np

from fedlit.metrics.support import independent


def test_a_patient_counts_once_on_each_side_and_unknown_labels_do_not_count():
    labels = np.array([[1, 0], [1, np.nan], [0, 0], [0, 1], [np.nan, 0]])
    positives, negatives = independent(labels, np.array(["a", "a", "a", "b", "c"]))
    assert (positives.tolist(), negatives.tolist()) == ([1, 1], [2, 2])
