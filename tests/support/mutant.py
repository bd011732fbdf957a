"""A fault in one place of the code."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A fault in one place of the code.

    Attributes:
        what: Description of the fault.
        file: The file, below ``fedlit/``.
        old: A text that occurs once in the file.
        new: The replacement.
        tests: The folder or file, below ``tests/``, whose fast tests must detect the fault.
    """

    what: str
    file: str
    old: str
    new: str
    tests: str
