"""Numbers in intervals: both ends, what lies between, and the text of a refusal."""

import math
from collections.abc import Callable

import pytest

from fedlit.core.errors import ConfigError, DataError
from fedlit.core.system.argument_types import check_number
from fedlit.data.phantom.hospitals import Hospital
from fedlit.data.sampler import Sampler
from fedlit.federation.participation import Availability
from fedlit.federation.settings import Settings


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
        check_number("A.b", value, allowed)
    for value in (*outside, math.nan):
        with pytest.raises(ConfigError, match=rf"^A\.b: expected .*, found {value}$"):
            check_number("A.b", value, allowed)


@pytest.mark.parametrize(
    ("allowed", "value", "text"),
    [
        ("[0, 1)", 7, "a number in [0, 1)"),
        ("(9, inf)", 7, "a number above 9"),
        ("[8, inf)", 7, "at least 8"),
        ("[0, inf)", math.inf, "at least 0 and finite"),
        ("(0, inf)", math.inf, "a number above 0 and finite"),
        ("[0, 1)", math.inf, "a number in [0, 1)"),
    ],
)
def test_text_of_a_refusal(allowed: str, value: float, text: str) -> None:
    with pytest.raises(DataError) as refusal:
        check_number("A.b", value, allowed, advice="; leave it out", error=DataError)
    assert str(refusal.value) == f"A.b: expected {text}, found {value}; leave it out"


def test_a_bool_is_no_number() -> None:
    with pytest.raises(DataError, match=r"prevalence of 'Mass': expected a number in \[0, 1\], found True"):
        Hospital("north", 9, prevalence={"Mass": True})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sampler(None),
        lambda: Hospital("north", 9, prevalence={"Edema": None}),
        lambda: Hospital("north", 9, noise=None),
        lambda: Availability({"north": None}),
        lambda: Settings(lr_factors={"north": None}),
    ],
)
def test_none_is_no_number_where_one_is_needed(make: Callable[[], object]) -> None:
    with pytest.raises((ConfigError, DataError), match="found None"):
        make()
