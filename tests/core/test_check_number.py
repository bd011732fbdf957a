"""Numbers in intervals: both ends, what lies between, and the text of a refusal."""

import math

import pytest

from fedlit.core.errors import ConfigError, DataError
from fedlit.core.system.argument_types import check_number


@pytest.mark.parametrize(
    ("allowed", "inside", "outside"),
    [
        ("[0, 1)", (0, 0.5), (-0.1, 1, 2)),
        ("(0, 1]", (0.5, 1), (0, 1.1)),
        ("(0, inf)", (1e-9, 1e9), (0, -1, math.inf)),
        ("[1, inf)", (1, 7), (0, math.inf)),
        ("[0, inf]", (0, math.inf), (-1,)),
    ],
)
def test_ends_of_an_interval(allowed: str, inside: tuple[float, ...], outside: tuple[float, ...]) -> None:
    for value in (None, *inside):
        check_number("A.b", value, allowed, key="b-out-of-range")
    for value in (*outside, math.nan):
        with pytest.raises(ConfigError) as refusal:
            check_number("A.b", value, allowed, key="b-out-of-range")
        assert refusal.value.key == "b-out-of-range"
        assert (refusal.value.where, refusal.value.found) == ("A.b", str(value))


@pytest.mark.parametrize(
    ("allowed", "text"),
    [
        ("[0, 1)", "A.b: expected a number in [0, 1), found 7; leave it out"),
        ("(9, inf)", "A.b: expected a number above 9, found 7; leave it out"),
        ("[8, inf)", "A.b: expected at least 8, found 7; leave it out"),
    ],
)
def test_text_of_a_refusal(allowed: str, text: str) -> None:
    with pytest.raises(DataError) as refusal:
        check_number("A.b", 7, allowed, key="b-out-of-range", advice="; leave it out", error=DataError)
    assert str(refusal.value) == text
