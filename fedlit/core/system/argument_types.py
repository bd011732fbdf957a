"""Arguments given in Python, checked against the annotations of the function or class of fedlit that takes them.

Importing this module also makes jsonargparse read and write arguments whose type is ``Number``.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from inspect import isclass
from numbers import Number, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from jsonargparse.typing import register_type
from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedlit.core.errors import ConfigError, FedlitError
from fedlit.core.ranges import Within

STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)
"""A text is not a number, and a bool is not one either."""

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

    mistake: ClassVar[type[FedlitError]] = ConfigError  # Class of the errors.

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.partition(".")[0] == "fedlit":
            checked(cls)


def checked(cls: Made) -> Made:
    """Make a class check its constructor's arguments against its annotations; NumPy numbers become Python's.

    Raises:
        ConfigError: By the constructor; names the class, the argument, what was expected and what was found.
    """
    init, mistake = vars(cls).get("__init__"), getattr(cls, "mistake", ConfigError)
    if init is None:
        return cls
    parameters = inspect.signature(init).parameters
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    single = [name for name, parameter in parameters.items() if parameter.kind not in variadic]
    by_place = [name for name in single if parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY]

    @functools.wraps(init)
    def __init__(self: Any, *positional: Any, **named: Any) -> None:
        positional, named = tuple(map(_plain, positional)), {name: _plain(value) for name, value in named.items()}
        # Too many or unknown ones are left to Python. A bound signature would take longer than the checks.
        arguments = dict(zip(by_place, (self, *positional), strict=False)) | named
        check_arguments(init, {k: arguments[k] for k in single if k in arguments}, f"{type(self).__name__}.", mistake)
        init(self, *positional, **named)

    cls.__init__ = __init__
    return cls


def check_arguments(
    function: Callable, arguments: Mapping[str, Any], prefix: str = "", mistake: type[FedlitError] = ConfigError
) -> None:
    """Refuse arguments that do not fit a function's annotations; an error begins with ``prefix`` and the argument."""
    hints = _hints(function)
    for name, value in ((name, _plain(value)) for name, value in arguments.items()):
        if name in hints and not fits(value, hints[name]):
            where, value, hint = _wrong(f"{prefix}{name}", value, hints[name])
            raise mistake(f"{where}: expected {_as_text(hint, value)}, found {_found(value)}{_advice(value, hint)}")


@functools.cache
def _hints(function: Callable) -> dict[str, Any]:
    """Return the annotations, without those that name an import for type checkers only."""
    try:
        return get_type_hints(function, include_extras=True)
    except NameError:
        texts, names = function.__annotations__, inspect.unwrap(function).__globals__
        return {name: hint for name, text in texts.items() if (hint := _hint(text, names)) is not None}


def _hint(text: str, names: dict[str, Any]) -> Any:
    try:
        return eval(text, names)
    except (NameError, TypeError):
        return None


@functools.cache
def _adapter(hint: Any) -> TypeAdapter:
    return TypeAdapter(hint, config=None if is_dataclass(hint) else STRICT)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value has an annotation's type and range.

    A list may stand for a tuple and a tuple for a list, a path for a text and a text for a path; keys are not checked.
    """
    adapter = _adapter(hint)
    if _valid(adapter, value):
        return True
    meant = (_remade(list, value), _remade(tuple, value), *([Path(value)] if isinstance(value, str) else ()))
    return any(map(functools.partial(_valid, adapter), meant))


def _valid(adapter: TypeAdapter, value: Any) -> bool:
    try:
        adapter.validate_python(value)
    except ValidationError:
        return False
    return True


def _remade(kind: type, value: Any) -> Any:
    if isinstance(value, (list, tuple, np.ndarray)):
        return kind(_remade(kind, each) for each in (value.tolist() if isinstance(value, np.ndarray) else value))
    if isinstance(value, dict):
        return {str(key): _remade(kind, each) for key, each in value.items()}
    return str(value) if isinstance(value, Path) else value


def _wrong(where: str, value: Any, hint: Any) -> tuple[str, Any, Any]:
    """Return the place, value and annotation of what does not fit: of a dict or list, its first wrong entry.

    A number is compared with a union's number alone, so the message names its range.
    """
    if get_origin(hint) in (Union, UnionType):
        ranges = [each for each in get_args(hint) if get_origin(each) is Annotated and fits(value, get_args(each)[0])]
        hint = ranges[0] if ranges else hint
    for kind in (hint, *get_args(hint)):
        if get_origin(kind) is dict and isinstance(value, dict):
            for key, entry in value.items():
                if not fits(entry, get_args(kind)[1]):
                    return _wrong(f"{where}[{key!r}]", entry, get_args(kind)[1])
        if get_origin(kind) in (list, Sequence) and get_origin(get_args(kind)[0]) is Annotated:
            for number, entry in enumerate(value if isinstance(value, (list, tuple)) else ()):
                if not fits(entry, get_args(kind)[0]):
                    return _wrong(f"{where}[{number}]", entry, get_args(kind)[0])
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


def _as_text(hint: Any, value: Any = None) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return inner[1].text(value) if isinstance(inner[1], Within) and fits(value, inner[0]) else _as_text(inner[0])
    if origin in (Union, UnionType):
        return " or ".join(_as_text(each, value) for each in inner if each is not NoneType)
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
    """Return what to do: for a range its own advice, or what to write instead of a class or of one object."""
    if get_origin(hint) is Annotated and isinstance(within := get_args(hint)[1], Within):
        return within.advice
    listed = [
        args[0] for each in (hint, *get_args(hint)) if get_origin(each) in (list, Sequence) and (args := get_args(each))
    ]
    classes = [each for each in (value if isinstance(value, (list, tuple)) else [value]) if isclass(each)]
    if classes:
        return f"; write {classes[0].__name__}(...)"
    names = [each for each in value if isinstance(each, str)] if isinstance(value, (list, tuple)) else []
    if names and names[0].isidentifier() and any(isclass(kind) and kind is not str for kind in listed):
        return f"; names are for YAML, in Python write {names[0]}(...)"
    one = any(isclass(kind) and kind is not str and isinstance(value, kind) for kind in listed)
    return f"; write [{type(value).__name__}(...)]" if one else ""
