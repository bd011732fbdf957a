"""Ranges of numbers as annotations, such as ``mu: NonNegative = 0.01``; constructors of fedlit's classes check them."""

from dataclasses import dataclass
from math import inf
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from fedlit.core.errors import ConfigError, FedlitError


class Range:
    """Values that an annotation allows, which pydantic checks after their type."""

    def fault(self, value: Any) -> str:
        """Return what was expected if a value is another, else ""."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let pydantic check the range after the type."""
        return no_info_after_validator_function(self._inside, handler(source))

    def _inside(self, value: Any) -> Any:
        if expected := self.fault(value):
            raise ValueError(expected)
        return value


@dataclass(frozen=True)
class Within(Range):
    """Interval of a number, as metadata of an annotation: ``Annotated[float, Within("(0, 1]")]``.

    Args:
        interval: The interval, such as ``[0, 1)`` or ``(0, inf)``. ``inf]`` allows infinity; NaN is in no interval.
        advice: What to do instead, as the end of a message.
    """

    interval: str
    advice: str = ""

    def __contains__(self, value: Any) -> bool:
        """Return whether the interval has a number."""
        if value is None:
            return False
        low, high = self._ends
        return low < value < high or value == low == self._first or value == high == self._last

    def text(self, value: Any = None) -> str:
        """Return the numbers in words, such as ``a number above 0``; for infinity in place of a finite one say so."""
        low, high = self._ends
        if high < inf:
            return f"a number in {self.interval}"
        least = f"at least {low:g}" if self._first == low else f"a number above {low:g}"
        return f"{least} and finite" if value == inf else least

    def fault(self, value: Any) -> str:
        """Return what was expected if a number is outside of the interval, else ""."""
        return "" if value in self else self.text(value)

    def check(self, where: str, value: Any, mistake: type[FedlitError] = ConfigError) -> None:
        """Refuse a number outside of the interval; ``where`` begins the message."""
        if expected := self.fault(value):
            raise mistake(f"{where}: expected {expected}, found {value}{self.advice}")

    def __repr__(self) -> str:
        """Return the form in which ``--help`` shows the range."""
        low, high = self._ends
        least = f"{'above' if self._first is None else 'at least'} {low:g}"
        most = f" and {'below' if self._last is None else 'at most'} {high:g}" if high < inf else ""
        return f"<{least}{most}>"

    @property
    def _ends(self) -> tuple[float, float]:
        low, high = map(float, self.interval[1:-1].split(","))
        return low, high

    @property
    def _first(self) -> float | None:
        return self._ends[0] if self.interval[0] == "[" else None

    @property
    def _last(self) -> float | None:
        return self._ends[1] if self.interval[-1] == "]" else None


AT_LEAST_ONE = Within("[1, inf)")

Count = Annotated[int, AT_LEAST_ONE]
NonNegativeInt = Annotated[int, Within("[0, inf)")]
AtLeastOne = Annotated[float, AT_LEAST_ONE]
Positive = Annotated[float, Within("(0, inf)")]
PositiveOrInf = Annotated[float, Within("(0, inf]")]
NonNegative = Annotated[float, Within("[0, inf)")]
NonNegativeOrInf = Annotated[float, Within("[0, inf]")]
UpToOne = Annotated[float, Within("(0, 1]")]
Fraction = Annotated[float, Within("(0, 1)")]
Probability = Annotated[float, Within("[0, 1]")]
Decay = Annotated[float, Within("[0, 1)")]
