"""Ranges of a message's values, which its dataclass declares and the receiver checks before it uses any of them."""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AllowInfNan

from fedlit.core.ranges import Range, Within


@dataclass(frozen=True)
class Words(Range):
    """Printable texts of a length, at least one character long."""

    most: int = 200

    def fault(self, value: Any) -> str:
        """Return what was expected if a text is another, else ""."""
        fits = 0 < len(value) <= self.most and value.isprintable()
        return "" if fits else f"a printable text of 1 to {self.most} characters"


@dataclass(frozen=True)
class Matching(Range):
    """Texts of one form."""

    pattern: str
    form: str

    def fault(self, value: Any) -> str:
        """Return what was expected if a text has another form, else ""."""
        return "" if re.fullmatch(self.pattern, value) else self.form


@dataclass(frozen=True)
class Logged(Range):
    """Numbers of a magnitude, and NaN."""

    most: float = 1e12

    def fault(self, value: Any) -> str:
        """Return what was expected if a number is another, else ""."""
        return f"NaN or a number from -{self.most:g} to {self.most:g}" if abs(value) > self.most else ""


Count = Annotated[int, Within("[0, 1e12]")]
Text = Annotated[str, Words()]
Moment = Annotated[float, Within("[0, 2.5e11]")]
"""Seconds since 1970, up to the year 9892."""
Loss = Annotated[float, Within("[-1e6, 1e6]")]
Rate = Annotated[float, Within("[0, 1e6]")]
AnyFloat = Annotated[float, AllowInfNan(), Logged()]
"""What a module logs, such as a mean loss that was never logged; all other numbers are finite."""
HEAD = Matching("([1-9][0-9]{0,11}:[0-9a-f]{64})?", "a number of lines, a colon and a SHA-256")
Head = Annotated[str, HEAD]
"""Head of a ledger; "" if there is none."""
Prose = Annotated[str, Matching("(?s).{0,2000}", "at most 2000 characters")]
"""A sentence, which is escaped before it is shown."""
