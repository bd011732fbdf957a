"""The base class of the checks that run before training."""

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from fedlit.core.errors import ConfigError

Subject = TypeVar("Subject")


class Examination(Generic[Subject]):
    """Check for one kind of mistake.

    Attributes:
        name: Short name of the check, as ``fedlit list checks`` prints it.
        advice: How to fix the mistake.
    """

    name: ClassVar[str]
    advice: ClassVar[str]

    def problem(self, subject: Subject) -> str:
        """Return an error message with the advice, or "" if there is no problem; ``subject`` is not changed."""
        raise NotImplementedError


def examine(subject: Subject, examinations: Sequence[Examination[Subject]]) -> None:
    """Run examinations in order and raise an error for the first problem.

    Raises:
        ConfigError: An examination found a problem; the message says how to fix it.
    """
    for examination in examinations:
        if problem := examination.problem(subject):
            raise ConfigError(problem)
