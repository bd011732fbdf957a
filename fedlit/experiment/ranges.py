"""Ranges of values that are tried, and the draws from them."""

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedlit.core.errors import ConfigError
from fedlit.experiment.mistakes import near
from fedlit.experiment.naming import as_option

KEYS = ("low", "high", "scale", "integer")
SCALES = ("linear", "log")
ATTEMPTS = 1000
"""Number of draws after which a range counts as exhausted if none of them is new."""


@dataclass(frozen=True)
class Span:
    """A range of numbers, from which values with three significant digits are drawn."""

    low: float  # The smallest value.
    high: float  # The largest value.
    scale: Literal["linear", "log"] = "linear"  # `linear` draws uniformly; `log` draws the logarithm uniformly.
    integer: bool = False  # Whether values are integers.

    def at(self, share: float) -> float | int:
        """Return the value at a share of the range between 0 and 1."""
        if self.scale == "log":
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        return self.near(value)

    def near(self, value: float) -> float | int:
        """Return the value of the range with three significant digits, or the integer, that is nearest to a number."""
        return round(value) if self.integer else min(self.high, max(self.low, float(f"{value:.3g}")))

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g} ({self.scale}{', integers' if self.integer else ''})"


Range = Span | list[Any]
"""A span of numbers, or a list of values."""


def read_range(value: Any, where: str) -> Range:
    """Return the range that a YAML describes by a list, or by a mapping with ``low`` and ``high``.

    Raises:
        ConfigError: The range is empty, has one value, or is not a range; begins with ``where``.
    """
    if isinstance(value, list):
        texts = [as_option(each) for each in value]
        if len(texts) < 2:
            found = f"found only {texts[0]}; set it in the case or under set" if texts else "found none; leave it out"
            raise ConfigError(f"{where}: expected at least two values to choose from, {found}")
        if twice := [text for text in texts if texts.count(text) > 1]:
            raise ConfigError(f"{where}: expected different values, found {twice[0]} twice; remove one")
        return value
    if not isinstance(value, Mapping):
        form = "a list of values, or {low: 0.001, high: 1, scale: log}"
        raise ConfigError(f"{where}: expected {form}, found {as_option(value)}")
    if unknown := [key for key in value if key not in KEYS]:
        raise ConfigError(f"{where}: expected {', '.join(KEYS)}, found {unknown[0]}{near(str(unknown[0]), KEYS)}")
    low, high = (_number(value.get(key), f"{where}.{key}") for key in ("low", "high"))
    scale, integer = value.get("scale", "linear"), value.get("integer", False)
    if scale not in SCALES:
        raise ConfigError(f"{where}.scale: expected linear or log, found {scale}{near(str(scale), SCALES)}")
    if not isinstance(integer, bool):
        raise ConfigError(f"{where}.integer: expected true or false, found {as_option(integer)}")
    if not low < high:
        advice = "set it in the case or under set" if low == high else "swap them"
        raise ConfigError(f"{where}: expected low below high, found {low:g} and {high:g}; {advice}")
    if scale == "log" and low <= 0:
        raise ConfigError(f"{where}.low: expected a number above 0 on a log scale, found {low:g}; raise it")
    if integer and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"{where}: expected integers as low and high, found {low:g} and {high:g}; round them")
    return Span(low, high, scale, integer)


def _number(value: Any, where: str) -> float:
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{where}: expected a number, found {'nothing' if value is None else as_option(value)}")
    return number


def combinations(ranges: Mapping[str, Range]) -> int | None:
    """Return the number of combinations of lists, or None if one of the ranges is a span."""
    return math.prod(map(len, ranges.values())) if all(isinstance(r, list) for r in ranges.values()) else None


def every_point(ranges: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Return all combinations of lists, the last key varying fastest."""
    return [dict(zip(ranges, values, strict=True)) for values in itertools.product(*ranges.values())]


def drawn_points(ranges: Mapping[str, Range], tries: int, seed: int, where: str) -> list[dict[str, Any]]:
    """Draw different combinations at random.

    The first points do not depend on the number of tries, and equal ranges give equal points. With a span, each key has
    its own stream of draws, so methods that share a key share its values.

    Raises:
        ConfigError: The ranges have fewer combinations than tries.
    """
    if combinations(ranges) is not None:
        points = every_point(ranges)
        random.Random(f"{seed}").shuffle(points)
    else:
        points = list(itertools.islice(_distinct(ranges, seed), tries))
    if len(points) < tries:
        raise ConfigError(
            f"{where}: expected at most {len(points)}, the number of combinations of {', '.join(ranges)}, found "
            f"{tries}; lower it, or add values"
        )
    return points[:tries]


def _distinct(ranges: Mapping[str, Range], seed: int) -> Iterator[dict[str, Any]]:
    streams = {key: random.Random(f"{seed} {key}") for key in ranges}
    texts: set[str] = set()
    misses = 0
    while misses < ATTEMPTS:
        point = {
            key: each.at(streams[key].random()) if isinstance(each, Span) else each[streams[key].randrange(len(each))]
            for key, each in ranges.items()
        }
        misses = misses + 1 if as_option(point) in texts else 0
        if not misses:
            texts.add(as_option(point))
            yield point


def at_edge(value: Any, values: Sequence[Any]) -> Literal["lowest", "highest"] | None:
    """Return which end of the tried numbers a value is, or None if it is not an end or not a number."""
    numbers = [each for each in values if isinstance(each, (int, float)) and not isinstance(each, bool)]
    if len(numbers) < len(values) or len(set(numbers)) < 2:
        return None
    return "lowest" if value == min(numbers) else "highest" if value == max(numbers) else None
