"""Ranges of numbers: both ends, what lies between, the text of a refusal, and where constructors check them."""

import math

import pytest

from fedlit.core.errors import ConfigError, DataError
from fedlit.core.ranges import Within


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, 1)", (0, 0.5), (-0.1, 1, 2)),
        ("(0, 1]", (0.5, 1), (0, 1.1)),
        ("(0, inf)", (1e-9, 1e9), (0, -1, math.inf)),
        ("[1, inf)", (1, 7), (0, math.inf)),
        ("[0, inf]", (0, math.inf), (-1,)),
    ],
)
def test_ends_of_an_interval(interval: str, inside: tuple[float, ...], outside: tuple[float, ...]) -> None:
    for value in inside:
        Within(interval).check("A.b", value)
    for value in (*outside, math.nan):
        with pytest.raises(ConfigError, match=rf"^A\.b: expected .*, found {value}$"):
            Within(interval).check("A.b", value)


@pytest.mark.parametrize(
    ("interval", "value", "text", "shown"),
    [
        ("[0, 1)", 7, "a number in [0, 1)", "<at least 0 and below 1>"),
        ("(9, inf)", 7, "a number above 9", "<above 9>"),
        ("[8, inf)", 7, "at least 8", "<at least 8>"),
        ("[0, inf)", math.inf, "at least 0 and finite", "<at least 0>"),
        ("(0, inf)", math.inf, "a number above 0 and finite", "<above 0>"),
        ("(0, 1]", math.inf, "a number in (0, 1]", "<above 0 and at most 1>"),
    ],
)
def test_text_of_a_refusal_and_of_the_help(interval: str, value: float, text: str, shown: str) -> None:
    with pytest.raises(DataError) as refusal:
        Within(interval, "; leave it out").check("A.b", value, DataError)
    assert str(refusal.value) == f"A.b: expected {text}, found {value}; leave it out"
    assert repr(Within(interval)) == shown
