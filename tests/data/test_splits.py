"""The split of patients into training, validation and test, as properties over random sources."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_records import FRACTIONS, random_records, seeds, values_per

from fedlit.data.records import Records
from fedlit.data.splits import split_by_patient


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data_seed=seeds, seed=seeds, sites=st.integers(1, 4))
def test_patients_are_split_in_the_fractions_at_every_site(data_seed, seed, sites):
    records = random_records(data_seed, patients=200, sites=sites)
    splits = split_by_patient(records, FRACTIONS, seed)
    assert values_per(records.patients, splits).max() == 1
    np.testing.assert_array_equal(splits, split_by_patient(records, FRACTIONS, seed))
    order = np.random.default_rng(data_seed).permutation(len(splits))
    np.testing.assert_array_equal(splits[order], split_by_patient(records.take(order), FRACTIONS, seed))
    for site in np.unique(records.sites):
        here = splits[records.sites == site]
        for split, fraction in zip(("train", "val", "test"), FRACTIONS, strict=True):
            assert abs((here == split).sum() - fraction * len(here)) <= 6


def test_a_patient_of_two_hospitals_is_in_one_split():
    records = random_records(0, patients=60)
    records.sites[:] = np.where(np.arange(len(records.sites)) % 2, "A", "B")
    assert values_per(records.patients, split_by_patient(records, FRACTIONS, 0)).max() == 1


def test_a_fraction_of_zero_is_an_empty_split():
    splits = split_by_patient(random_records(0, patients=60), (0.8, 0.0, 0.2), 0)
    assert set(splits) == {"train", "test"}


def official(records: Records) -> np.ndarray:
    return np.where(np.char.endswith(records.patients, "3"), "test", "train_val")


def test_the_official_test_set_stays_and_train_val_is_divided():
    records = random_records(0, patients=400)
    records = replace(records, splits=official(records))
    splits = split_by_patient(records, (0.7, 0.1, 0.2), 5)
    np.testing.assert_array_equal(splits == "test", records.splits == "test")
    assert values_per(records.patients, splits).max() == 1
    divided = splits[records.splits == "train_val"]
    assert (divided == "val").mean() == pytest.approx(1 / 8, abs=0.01)
    assert set(divided) == {"train", "val"}


def test_official_splits_are_kept_as_they_are():
    records = random_records(0, patients=50)
    given_splits = np.where(np.char.endswith(records.patients, "3"), "test", "train")
    np.testing.assert_array_equal(split_by_patient(replace(records, splits=given_splits), FRACTIONS, 0), given_splits)
