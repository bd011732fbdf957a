"""Arguments given in Python, checked against the annotations of the function or class of fedlit that takes them.

Importing this module also makes jsonargparse read and write arguments whose type is ``Number``.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from inspect import isclass
from math import inf
from numbers import Integral, Number, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from jsonargparse.typing import register_type

from fedlit.core.errors import ConfigError, FedlitError

NUMBERS = {int: Integral, float: Real}
"""Types accepted for Python's own numbers: those of NumPy too."""

NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "True or False", Path: "a path"}

Made = TypeVar("Made", bound=type)


def _number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"expected a number, found {value!r}")
    return value


# Without this, jsonargparse cannot write ``degrees`` of torchvision's transforms to a run's config.
register_type(Number, serializer=_number, deserializer=_number, fail_already_registered=False)


class Checked:
    """Base class whose subclasses in fedlit check their constructor's arguments against its annotations.

    The constructor of a class outside of fedlit is left as it is; arguments that it passes on are checked.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.partition(".")[0] == "fedlit":
            checked(cls)


def checked(cls: Made) -> Made:
    """Make a class check its constructor's arguments against its annotations; NumPy numbers become Python's.

    Raises:
        ConfigError: By the constructor; names the class, the argument, what was expected and what was found.
    """
    init = vars(cls).get("__init__")
    if init is None:
        return cls
    signature = inspect.signature(init)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    single = [name for name, parameter in signature.parameters.items() if parameter.kind not in variadic]

    @functools.wraps(init)
    def __init__(self: Any, *positional: Any, **named: Any) -> None:
        positional, named = tuple(map(_plain, positional)), {name: _plain(value) for name, value in named.items()}
        try:
            arguments = signature.bind(self, *positional, **named).arguments
        except TypeError:
            arguments = {}  # Python's own message is clearer
        check_arguments(init, {k: arguments[k] for k in single if k in arguments}, f"{type(self).__name__}.")
        init(self, *positional, **named)

    cls.__init__ = __init__
    return cls


def check_arguments(function: Callable, arguments: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse arguments that do not fit a function's annotations; an error begins with ``prefix`` and the argument."""
    hints = _hints(function)
    for name, value in arguments.items():
        if name in hints and not fits(value, hints[name]):
            where, value, hint = _wrong(f"{prefix}{name}", value, hints[name])
            raise ConfigError(f"{where}: expected {_as_text(hint)}, found {_found(value)}{_advice(value, hint)}")


def check_number(
    where: str,
    value: float | None,
    allowed: str,
    *,
    advice: str = "",
    error: type[FedlitError] = ConfigError,
    optional: bool = True,
) -> None:
    """Refuse a number outside of an interval such as ``[0, 1)`` or ``(0, inf)``, and None if it is not ``optional``.

    Raises:
        ConfigError: Or ``error``; names the place, the interval and the number. ``advice`` ends the message.
    """
    if value is None and optional:
        return
    low, high = map(float, allowed[1:-1].split(","))
    inside = not isinstance(value, (bool, NoneType)) and (
        low < value < high or (value == low and allowed[0] == "[") or (value == high and allowed[-1] == "]")
    )
    if not inside:
        least = f"at least {low:g}" if allowed[0] == "[" else f"a number above {low:g}"
        least += " and finite" if value == inf else ""
        expected = least if high == inf else f"a number in {allowed}"
        raise error(f"{where}: expected {expected}, found {value}{advice}")


@functools.cache
def _hints(function: Callable) -> dict[str, Any]:
    """Return the annotations, without those that name an import for type checkers only."""
    try:
        return get_type_hints(function)
    except NameError:
        texts, names = function.__annotations__, inspect.unwrap(function).__globals__
        return {name: hint for name, text in texts.items() if (hint := _hint(text, names)) is not None}


def _hint(text: str, names: dict[str, Any]) -> Any:
    try:
        return eval(text, names)
    except (NameError, TypeError):
        return None


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value has an annotation's type; a bool is not a number."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if origin is Annotated:
        return fits(value, inner[0])
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin in (list, tuple, Sequence):
        kind = (np.ndarray, Sequence) if origin is Sequence else (list, tuple)
        return isinstance(value, kind) and not isinstance(value, str) and all(fits(each, inner[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(each, inner[1]) for each in value.values())
    if origin is not None:
        return isinstance(value, origin)
    if hint in NUMBERS:
        return isinstance(value, NUMBERS[hint]) and not isinstance(value, bool)
    return isinstance(value, (str, Path) if hint in (str, Path) else hint)  # a path may be given as either


def _wrong(where: str, value: Any, hint: Any) -> tuple[str, Any, Any]:
    """Return the place, value and annotation of what does not fit: of a dict, its first wrong entry."""
    for kind in (hint, *get_args(hint)):
        if get_origin(kind) is dict and isinstance(value, dict):
            for key, entry in value.items():
                if not fits(entry, get_args(kind)[1]):
                    return _wrong(f"{where}[{key!r}]", entry, get_args(kind)[1])
    return where, value, hint


def _plain(value: Any) -> Any:
    """Convert NumPy numbers to Python's, which JSON and YAML take too, also inside a list or a dict."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        plain = [_plain(each) for each in value]
        return value if all(map(lambda a, b: a is b, plain, value)) else type(value)(plain)
    if type(value) is dict:
        plain = {key: _plain(each) for key, each in value.items()}
        return value if all(plain[key] is value[key] for key in value) else plain
    return value


def _as_text(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _as_text(inner[0])
    if origin in (Union, UnionType):
        return " or ".join(_as_text(each) for each in inner if each is not NoneType)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (list, tuple, Sequence):
        return f"a list of {_as_text(inner[0])}"
    if origin is not None:
        return "a function" if issubclass(origin, Callable) else "a dict"
    return NAMES.get(hint) or hint.__name__


def _found(value: Any) -> str:
    if isclass(value):
        return f"the class {value.__name__}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_found, value[:3]))}{', ...' * (len(value) > 3)}]"
    return repr(value) if isinstance(value, (str, bool, Real, NoneType)) else f"a {type(value).__name__}"


def _advice(value: Any, hint: Any) -> str:
    """Return what to write instead of a class where an object is expected, or of one object where a list is."""
    listed = [
        args[0] for each in (hint, *get_args(hint)) if get_origin(each) in (list, Sequence) and (args := get_args(each))
    ]
    classes = [each for each in (value if isinstance(value, (list, tuple)) else [value]) if isclass(each)]
    if classes:
        return f"; write {classes[0].__name__}(...)"
    names = [each for each in value if isinstance(each, str)] if isinstance(value, (list, tuple)) else []
    if names and names[0].isidentifier() and any(isclass(kind) and kind is not str for kind in listed):
        return f"; names are for YAML, in Python write {names[0]}(...)"
    one = any(kind is not str and isinstance(value, kind) for kind in listed)
    return f"; write [{type(value).__name__}(...)]" if one else ""
