"""A look at one thing that comes in."""

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from fedlit.core.errors import ConfigError

Given = TypeVar("Given")


class Examination(Generic[Given]):
    """Look at one thing that may be wrong.

    Attributes:
        name: What is looked at.
        advice: What to do where it is wrong.
    """

    name: ClassVar[str]
    advice: ClassVar[str]

    def found(self, given: Given) -> str:
        """Say what is wrong, in words with the advice; "" where nothing is. What is given stays as it is."""
        raise NotImplementedError


def check(given: Given, examinations: Sequence[Examination[Given]]) -> None:
    """Refuse what a federation cannot do.

    Raises:
        ConfigError: An examination has found something; says what, and what to do.
    """
    for examination in examinations:
        if found := examination.found(given):
            raise ConfigError(found)
