"""Arguments that are given in Python, held against the annotations of the function that takes them."""

from collections.abc import Callable, Mapping, Sequence
from inspect import isclass, signature
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from fedlit.core.errors import ConfigError

NUMBERS = {int: Integral, float: Real}
"""What stands for Python's own numbers: those of NumPy do as well."""


def check_kinds(function: Callable, given: Mapping[str, Any]) -> None:
    """Refuse an argument of a kind that the function does not take.

    Raises:
        ConfigError: Names the argument, what was expected and what was found.
    """
    hints = {name: each.annotation for name, each in signature(function).parameters.items()}
    for name, value in given.items():
        if name in hints and not fits(value, hints[name]):
            raise ConfigError(
                f"{name}: expected {_words(hints[name])}, found {_found(value)}{_meant(value, hints[name])}"
            )


def fits(value: Any, hint: Any) -> bool:
    """Tell whether a value is of an annotation's kind; a truth value is no number."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin in (list, Sequence):
        return isinstance(value, (list, tuple)) and all(fits(each, inner[0]) for each in value)
    if origin is not None:
        return isinstance(value, origin)
    if hint in NUMBERS:
        return isinstance(value, NUMBERS[hint]) and not isinstance(value, bool)
    return isinstance(value, hint)


def _words(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_words(each) for each in inner if each is not NoneType)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (list, Sequence):
        return f"a list of {_words(inner[0])}"
    if origin is not None:
        return "a dict"
    return {int: "a whole number", float: "a number", str: "a text", bool: "True or False"}.get(hint, hint.__name__)


def _found(value: Any) -> str:
    if isclass(value):
        return f"the class {value.__name__}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_found, value[:3]))}{', ...' * (len(value) > 3)}]"
    return repr(value) if isinstance(value, (str, bool, Real, NoneType)) else f"a {type(value).__name__}"


def _meant(value: Any, hint: Any) -> str:
    """Say what to write for a class in the place of an object, and for one object in the place of a list."""
    listed = [
        args[0] for each in (hint, *get_args(hint)) if get_origin(each) in (list, Sequence) and (args := get_args(each))
    ]
    classes = [each for each in (value if isinstance(value, (list, tuple)) else [value]) if isclass(each)]
    if classes:
        return f"; write {classes[0].__name__}(...)"
    names = [each for each in value if isinstance(each, str)] if isinstance(value, (list, tuple)) else []
    if names and names[0].isidentifier() and any(isclass(kind) and kind is not str for kind in listed):
        return f"; a name is for YAML, in Python write {names[0]}(...)"
    return f"; write [{type(value).__name__}(...)]" if any(isinstance(value, kind) for kind in listed) else ""
