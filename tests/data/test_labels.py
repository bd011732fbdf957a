"""Label maps, policies and the table of harmonised names, against plain Python."""

import math
from itertools import product

import numpy as np
import pytest

from fedlit.data.labels import UNCERTAIN, Origin, checked_policy, decided, harmonised_names, origins
from fedlit.data.xrays.check import readers

LABELS = ("Edema", "Effusion", "Mass")
MEANS = {"ignore": math.nan, "zeros": 0.0, "ones": 1.0}


def by_hand(rule: str, values: tuple[float, ...]) -> float:
    """Three-valued logic: `any` of [0, NaN] is unknown, of [1, NaN] it is 1; `all` the other way round."""
    known = [value for value in values if not math.isnan(value)]
    decides = 1.0 if rule == "any" else 0.0
    if decides in known:
        return decides
    return 1 - decides if len(known) == len(values) else math.nan


# Several labels that make one class


@pytest.mark.parametrize("rule", ["any", "all"])
def test_several_labels_make_one_as_in_three_valued_logic(rule):
    for count in (1, 2, 3):
        rows = list(product([0.0, 1.0, math.nan], repeat=count))
        found = Origin(tuple(f"label {i}" for i in range(count)), rule).of(np.array(rows, dtype=np.float32))
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, [by_hand(rule, row) for row in rows])


def test_a_label_map_is_read():
    found = origins({"Water": {"any": ["Edema", "Effusion"]}, "Lump": "Mass"}, LABELS, "data.names")
    assert found == {"Water": Origin(("Edema", "Effusion"), "any"), "Lump": Origin(("Mass",))}
    both = origins({"Both": {"all": ["Edema", "Mass"]}}, LABELS, "data.names")
    assert both["Both"].of(np.array([[1, 1], [1, 0], [np.nan, 0], [np.nan, 1]])).tolist()[:3] == [1, 0, 0]


# Policies


def test_a_policy_decides_on_its_own_labels_only():
    rows = list(product([0.0, 1.0, UNCERTAIN, math.nan], repeat=3))
    labels = np.array(rows, dtype=np.float32)
    for values in product(MEANS, repeat=3):
        policy = checked_policy(dict(zip(LABELS, values, strict=True)), LABELS, "data.uncertain")
        found = decided(labels, labels == UNCERTAIN, policy)
        expected = [[MEANS[p] if x == UNCERTAIN else x for x, p in zip(row, values, strict=True)] for row in rows]
        np.testing.assert_array_equal(found, np.array(expected, dtype=np.float32))


def test_one_policy_for_all_or_a_default_for_the_rest():
    assert checked_policy("ones", LABELS, "k") == dict.fromkeys(LABELS, "ones")
    told = checked_policy({"Mass": "ignore", "default": "zeros"}, LABELS, "k")
    assert told == {"Edema": "zeros", "Effusion": "zeros", "Mass": "ignore"}
    assert list(told) == list(LABELS)  # `decided` goes by their order


# Names


@pytest.mark.parametrize("reader", readers().values(), ids=readers())
def test_the_table_of_names_says_what_a_data_set_calls_them(reader):
    found = origins(harmonised_names(reader.source), reader.labels, "harmonised.yaml")
    claimed = [label for origin in found.values() for label in origin.labels]
    assert len(claimed) == len(set(claimed))
    assert "No Finding" not in found
    if reader.source != "VinDr":  # whose local labels include some that no other data set has
        assert sorted(claimed) == sorted(reader.labels)
