"""The base class of the checks that run before training."""

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from fedlit.core.errors import ConfigError

Subject = TypeVar("Subject")


class KeyedProblem(str):
    """Error message with its own key, for a mistake whose fix is not the check's advice.

    Args:
        text: The message.
        key: The key.
    """

    key: str

    def __new__(cls, text: str, key: str) -> "KeyedProblem":
        """Make a text with a key."""
        problem = super().__new__(cls, text)
        problem.key = key
        return problem


class Examination(Generic[Subject]):
    """Check for one kind of mistake.

    Attributes:
        name: Short name of the check, as ``fedlit list checks`` prints it.
        advice: How to fix the mistake.
    """

    name: ClassVar[str]
    advice: ClassVar[str]

    @property
    def key(self) -> str:
        """Key of the errors, such as ``check-lazy-layers``, except for those of a :class:`KeyedProblem`."""
        return f"check-{self.name.replace(' ', '-')}"

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
            key = problem.key if isinstance(problem, KeyedProblem) else examination.key
            raise ConfigError(str(problem), key=key)  # another process could not read a KeyedProblem
