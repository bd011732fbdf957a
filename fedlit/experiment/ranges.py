"""Ranges of values that are tried."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from fedlit.core.errors import ConfigError
from fedlit.experiment.mistakes import near
from fedlit.experiment.naming import as_option

if TYPE_CHECKING:  # its import takes a tenth of a second, and `fedlit fit` does not need it
    from optuna.distributions import BaseDistribution

KEYS = ("low", "high", "scale", "integer", "values", "default")
SCALES = ("linear", "log")
ATTEMPTS = 100
"""Number of draws from a part of a span after which a value next to the part is taken, as no rounded one is inside."""


@dataclass(frozen=True)
class Span:
    """A range of numbers, from which values with three significant digits are drawn."""

    low: float  # The smallest value.
    high: float  # The largest value.
    scale: Literal["linear", "log"] = "linear"  # `linear` draws uniformly; `log` draws the logarithm uniformly.
    integer: bool = False  # Whether values are integers.
    default: float | int | None = None  # The value of the first try.

    @property
    def values(self) -> Sequence[int] | None:
        """All values; None if they are not integers."""
        return range(int(self.low), int(self.high) + 1) if self.integer else None

    @property
    def space(self) -> "BaseDistribution":
        """The distribution from which Optuna draws."""
        from optuna.distributions import FloatDistribution, IntDistribution

        kind, number = (IntDistribution, int) if self.integer else (FloatDistribution, float)
        return kind(number(self.low), number(self.high), log=self.scale == "log")

    def of(self, drawn: float) -> float | int:
        """Return the value with three significant digits, or the integer, that is nearest to a drawn number."""
        return round(drawn) if self.integer else min(self.high, max(self.low, float(f"{drawn:.3g}")))

    def index(self, value: float) -> float:
        """Return the drawn number of a value."""
        return value

    def part(self, value: float, parts: int) -> int:
        """Return the place of a value among equal parts of the range, on its scale."""
        ends = self._ends
        return min(parts - 1, int((self._scaled(value) - ends[0]) / (ends[1] - ends[0]) * parts))

    def drawn(self, part: int, parts: int, stream: random.Random) -> float | int:
        """Draw from one of equal parts of the range, on its scale."""
        low, high = self._ends
        for _ in range(ATTEMPTS):
            place = low + (part + stream.random()) / parts * (high - low)
            value = self.of(math.exp(place) if self.scale == "log" else place)
            # An integer counts for the part from which it was drawn: it has as many parts as its share of the range.
            if self.integer or self.part(value, parts) == part:
                break
        return min(int(self.high), max(int(self.low), value)) if self.integer else value

    @property
    def _ends(self) -> tuple[float, float]:
        half = 0.5 * self.integer  # each integer has as much room as the others
        return self._scaled(self.low - half), self._scaled(self.high + half)

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.scale == "log" else value

    def __str__(self) -> str:
        text = f"{self.low:g} to {self.high:g} ({self.scale}{', integers' if self.integer else ''})"
        return text if self.default is None else f"{text}, first {self.default:g}"


@dataclass(frozen=True)
class Choice:
    """A list of values, of which all are equally likely."""

    values: Sequence[Any]
    default: Any | None = None  # The value of the first try.
    keys: Mapping[Any, Mapping[str, Any]] | None = None  # Keys that each value brings, if values are names.

    @property
    def space(self) -> "BaseDistribution":
        """The distribution from which Optuna draws the place of a value."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(range(len(self.values)))

    def of(self, drawn: int) -> Any:
        """Return the value at a drawn place."""
        return self.values[drawn]

    def index(self, value: Any) -> int:
        """Return the place of a value; by its text, because 1 equals true."""
        return list(map(as_option, self.values)).index(as_option(value))

    def part(self, value: Any, parts: int) -> int:
        """Return the place of a value among equal parts of the list."""
        return int((self.index(value) + 0.5) / len(self.values) * parts)

    def drawn(self, part: int, parts: int, stream: random.Random) -> Any:
        """Draw from one of equal parts of the list."""
        return self.values[int((part + stream.random()) / parts * len(self.values))]

    def __str__(self) -> str:
        text = ", ".join(map(as_option, self.values))
        return text if self.default is None else f"{text}, first {as_option(self.default)}"


Range = Span | Choice
"""A span of numbers, or a list of values."""


def read_range(value: Any, where: str) -> Range:
    """Return the range that a YAML describes by a list, or by a mapping with ``low`` and ``high`` or ``values``.

    A mapping of mappings has names of values, and the keys that each of them brings.

    Raises:
        ConfigError: The range is empty, has one value, or is not a range; begins with ``where``.
    """
    if isinstance(value, list):
        value = {"values": value}
    if not isinstance(value, Mapping):
        form = "a list of values, or {low: 0.001, high: 1, scale: log}"
        raise ConfigError(f"{where}: expected {form}, found {as_option(value)}")
    if value and all(isinstance(keys, Mapping) for keys in value.values()):
        return replace(_choice({"values": [*value]}, where), keys=value)
    if unknown := [key for key in value if key not in KEYS]:
        raise ConfigError(f"{where}: expected {', '.join(KEYS)}, found {unknown[0]}{near(str(unknown[0]), KEYS)}")
    return _choice(value, where) if "values" in value else _span(value, where)


def _choice(keys: Mapping[str, Any], where: str) -> Choice:
    values, default = keys["values"], keys.get("default")
    if both := [key for key in keys if key not in ("values", "default")]:
        raise ConfigError(f"{where}: expected values, or low and high, found values and {both[0]}; remove one")
    if not isinstance(values, list):
        raise ConfigError(f"{where}.values: expected a list, found {as_option(values)}")
    texts = [as_option(each) for each in values]
    if len(texts) < 2:
        found = f"found only {texts[0]}; set it in the case or under set" if texts else "found none; leave it out"
        raise ConfigError(f"{where}: expected at least two values to choose from, {found}")
    if twice := [text for text in texts if texts.count(text) > 1]:
        raise ConfigError(f"{where}: expected different values, found {twice[0]} twice; remove one")
    if default is not None and as_option(default) not in texts:
        raise ConfigError(f"{where}.default: expected one of {', '.join(texts)}, found {as_option(default)}; add it")
    return Choice(values, default)


def _span(keys: Mapping[str, Any], where: str) -> Span:
    low, high = (_number(keys.get(key), f"{where}.{key}") for key in ("low", "high"))
    scale, integer = keys.get("scale", "linear"), keys.get("integer", False)
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
    default = keys.get("default")
    if default is not None:
        default = _number(default, f"{where}.default")
        if not low <= default <= high:
            raise ConfigError(f"{where}.default: expected {low:g} to {high:g}, found {default:g}; widen the range")
        if integer and not default.is_integer():
            raise ConfigError(f"{where}.default: expected an integer, found {default:g}; round it")
        default = int(default) if integer else default
    return Span(low, high, scale, integer, default)


def _number(value: Any, where: str) -> float:
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{where}: expected a number, found {'nothing' if value is None else as_option(value)}")
    return number


def combinations(ranges: Mapping[str, Range]) -> int | None:
    """Return the number of combinations of values, or None if one of the ranges has any number."""
    values = [each.values for each in ranges.values()]
    return None if None in values else math.prod(map(len, values))


def defaults(ranges: Mapping[str, Range]) -> dict[str, Any]:
    """Return the values of the first try, by key; ranges without a default have none."""
    return {key: each.default for key, each in ranges.items() if each.default is not None}


def at_edge(value: Any, values: Sequence[Any]) -> Literal["lowest", "highest"] | None:
    """Return which end of the tried numbers a value is; None if it is not an end, or of fewer than three numbers."""
    numbers = [each for each in values if isinstance(each, (int, float)) and not isinstance(each, bool)]
    if len(numbers) < len(values) or len(set(numbers)) < 3:  # of two numbers, each is an end
        return None
    return "lowest" if value == min(numbers) else "highest" if value == max(numbers) else None
