"""Ranges of a message's values, which its dataclass declares and the receiver checks before it uses any of them."""

import re
from dataclasses import dataclass, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from fedlit.core.ranges import Within
from fedlit.core.system.typed import AnyFloat

LOGGED = 1e12
"""Largest magnitude of a value that a module logs; it may also be NaN."""


@dataclass(frozen=True)
class Words:
    """Printable texts of a length, at least one character long."""

    most: int = 200

    def fault(self, value: Any) -> str:
        """Return what was expected if a text is another, else ""."""
        fits = 0 < len(value) <= self.most and value.isprintable()
        return "" if fits else f"a printable text of 1 to {self.most} characters"


@dataclass(frozen=True)
class Matching:
    """Texts of one form."""

    pattern: str
    form: str

    def fault(self, value: Any) -> str:
        """Return what was expected if a text has another form, else ""."""
        return "" if re.fullmatch(self.pattern, value) else self.form


Range = Within | Words | Matching

Count = Annotated[int, Within("[0, 1e12]")]
Text = Annotated[str, Words()]
Moment = Annotated[float, Within("[0, 2.5e11]")]
"""Seconds since 1970, up to the year 9892."""
Loss = Annotated[float, Within("[-1e6, 1e6]")]
Rate = Annotated[float, Within("[0, 1e6]")]
Head = Annotated[str, Matching("([1-9][0-9]{0,11}:[0-9a-f]{64})?", "a number of lines, a colon and a SHA-256")]
"""Head of a ledger; "" if there is none."""
Prose = Annotated[str, Matching("(?s).{0,2000}", "at most 2000 characters")]
"""A sentence, which is escaped before it is shown."""


def faults(kind: Any, value: Any, where: str = "") -> list[str]:
    """Return the values that are out of range, each with its place and what was expected there."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind == AnyFloat:
        return [f"{where}: expected NaN or a number from {-LOGGED:g} to {LOGGED:g}, found {value}"] * (
            abs(value) > LOGGED
        )
    if origin is Annotated:
        ranges = [each for each in inner[1:] if isinstance(each, Range)]
        found = [f"{where}: expected {wanted}, found {value!r:.60}" for each in ranges if (wanted := each.fault(value))]
        return found or faults(inner[0], value, where)
    if origin is Literal:
        return [] if value in inner else [f"{where}: expected one of {', '.join(map(str, inner))}, found {value!r:.60}"]
    if origin in (Union, UnionType):
        fitting = [each for each in inner if value is not None and each is not type(None)]
        fitting = [each for each in fitting if not isinstance(each, type) or isinstance(value, each)]
        return faults(fitting[0], value, where) if fitting else []
    if origin is list:
        return [fault for number, each in enumerate(value) for fault in faults(inner[0], each, f"{where}.{number}")]
    if origin is dict:
        keys = [fault for key in value for fault in faults(inner[0], key, f"{where}: its keys")]
        return keys + [fault for key, each in value.items() for fault in faults(inner[1], each, f"{where}.{key}")]
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        named = [(each.name, hints[each.name], getattr(value, each.name)) for each in fields(kind)]
        return [fault for name, hint, each in named for fault in faults(hint, each, f"{where}.{name}".lstrip("."))]
    return []
