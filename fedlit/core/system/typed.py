"""Values out of JSON, checked against a constructor's declared types; classes come from a table, never by import.

Everything that crosses a boundary is built here: the fields of every message, and the model, algorithms and schedule of
a configuration. A class is an entry of the receiver's own table (:mod:`fedlit.sites.table`); no string is ever
imported.
"""

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fedlit.core.errors import FedlitError

LARGEST = 2**63
"""Upper bound of whole numbers."""

AnyFloat = Annotated[float, "also NaN and infinity"]
"""A number that may be NaN or infinite, such as a mean loss that was never logged; all others are finite."""

SPEC = {"class_path", "init_args", "dict_kwargs"}
"""Keys of a value that names a class; the last one holds arguments of a constructor that takes any."""

Kind = TypeVar("Kind")


class Mistyped(FedlitError, ValueError):
    """A value that does not fit its place; names the place."""


@dataclass(frozen=True)
class Table:
    """The classes that a configuration may name.

    Attributes:
        classes: Every class by each of its names.
        bases: Base classes of the kinds of parts, subclasses first: a class fits only where its own kind is expected.
    """

    classes: Mapping[str, type]
    bases: tuple[type, ...] = ()

    def get(self, name: str, kind: type, where: str) -> type:
        """Return a class for a place.

        Raises:
            Mistyped: It is not in the table, or of another kind than the place takes.
        """
        cls = self.classes.get(name)
        if cls is None:
            raise Mistyped(f"{where}: {_shown(name)} is not in the table of classes")
        if not issubclass(cls, kind) or self._base(cls) is not self._base(kind):
            raise Mistyped(f"{where}: expected a {kind.__name__}, found {_shown(name)}")
        return cls

    def _base(self, cls: type) -> type | None:
        return next((base for base in self.bases if issubclass(cls, base)), None)


NO_CLASSES = Table({})


def built(kind: Any, value: Any, where: str = "", table: Table = NO_CLASSES) -> Any:
    """Make a value for a place from JSON.

    Args:
        kind: The declared type, such as ``int | None``, ``list[str]``, a dataclass, or a base class.
        value: The value.
        where: The place, for errors.
        table: The classes that a value may name; none by default.

    Returns:
        The value: a tuple for a sequence of fixed length, an instance for a dataclass or a class of the table.

    Raises:
        Mistyped: It is of another type, or names a class that is not in the table or does not belong there.
    """
    origin = get_origin(kind)
    if kind is Any or kind is inspect.Parameter.empty or isinstance(kind, str | TypeVar):
        return _plain(value, where)
    if kind == AnyFloat and isinstance(value, float):
        return value
    if origin is Annotated:
        return built(get_args(kind)[0], value, where, table)
    if origin in (Union, types.UnionType):
        return _one_of(get_args(kind), value, where, table)
    if origin is Literal:
        if not any(type(value) is type(each) and value == each for each in get_args(kind)):
            raise Mistyped(f"{where}: expected one of {', '.join(map(str, get_args(kind)))}, found {_shown(value)}")
        return value
    if origin is tuple and get_args(kind)[-1:] != (Ellipsis,):
        parts = _sequence(value, where)
        if len(parts) != len(get_args(kind)):
            raise Mistyped(f"{where}: expected {len(get_args(kind))} values, found {len(parts)}")
        return tuple(
            built(k, part, f"{where}.{i}", table) for i, (k, part) in enumerate(zip(get_args(kind), parts, strict=True))
        )
    if origin in (list, tuple, Sequence, Iterable, Collection):
        items = [
            built(get_args(kind)[0], part, f"{where}.{i}", table) for i, part in enumerate(_sequence(value, where))
        ]
        return tuple(items) if origin is tuple else items
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise Mistyped(f"{where}: expected a map, found {_shown(value)}")
        return {key: built(get_args(kind)[1], part, f"{where}.{key}", table) for key, part in value.items()}
    if origin is Callable:
        return _factory(get_args(kind), value, where, table)
    if kind in (None, type(None), bool, int, float, str):
        return _simple(kind, value, where)
    if kind in (list, tuple, dict):
        return _plain(value, where)
    if not isinstance(kind, type):
        raise Mistyped(f"{where}: no value in a message can be a {kind}")
    if is_dataclass(kind) and not (isinstance(value, dict) and "class_path" in value):
        return made(kind, value, where, table)
    if issubclass(kind, Path):
        if isinstance(value, Path):  # the receiver's own, because JSON has no paths
            return value
        raise Mistyped(f"{where}: expected no path, which is never sent, found {_shown(value)}")
    cls, arguments = _entry(kind, value, where, table)
    return made(cls, arguments, where, table)


def made(cls: Callable[..., Kind], arguments: Any, where: str, table: Table = NO_CLASSES) -> Kind:
    """Call a class with checked arguments by name, from JSON; see :func:`built`.

    Raises:
        Mistyped: An argument is unknown, missing or of another type, or the class refuses it.
    """
    values = _arguments(cls, arguments, where, table)
    try:
        return cls(**values)
    except (TypeError, ValueError, ArithmeticError, AttributeError, KeyError, RuntimeError) as error:
        raise Mistyped(f"{where}: {str(error) or type(error).__name__}") from error


def class_paths(value: Any) -> list[str]:
    """List the classes that a configuration names, each once, in their order."""
    paths: list[str] = []
    if isinstance(value, dict) and isinstance(value.get("class_path"), str):
        paths.append(value["class_path"])
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        paths += class_paths(part)
    return list(dict.fromkeys(paths))


def _arguments(cls: Any, arguments: Any, where: str, table: Table, skipped: int = 0) -> dict[str, Any]:
    if not isinstance(arguments, dict):
        raise Mistyped(f"{where}: expected arguments by name, found {_shown(arguments)}")
    kinds = inspect.Parameter
    parameters = [
        p for p in list(inspect.signature(cls).parameters.values())[skipped:] if p.kind != kinds.VAR_POSITIONAL
    ]
    named = {p.name: p for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)}
    open_ended = any(p.kind == kinds.VAR_KEYWORD for p in parameters)
    hints = _hints(cls)
    unknown = [name for name in arguments if name not in named and not open_ended]
    if unknown:
        raise Mistyped(f"{where}: {getattr(cls, '__name__', cls)} has no {_shown(unknown[0])}")
    needed = [name for name, p in named.items() if p.default is kinds.empty and name not in arguments]
    if needed:
        raise Mistyped(f"{where}: {getattr(cls, '__name__', cls)} needs {needed[0]!r}")
    return {
        name: built(hints.get(name, Any) if name in named else Any, value, f"{where}.{name}" if where else name, table)
        for name, value in arguments.items()
    }


def _hints(cls: Any) -> dict[str, Any]:
    """Return the declared types, or none if they cannot be resolved, so that the arguments are plain values."""
    try:
        return get_type_hints(cls.__init__ if isinstance(cls, type) else cls, include_extras=True)
    except Exception:  # a name that exists only for type checkers, or any error of a user's code
        return {}


def _one_of(kinds: Sequence[Any], value: Any, where: str, table: Table) -> Any:
    problems = []
    for kind in kinds:
        try:
            return built(kind, value, where, table)
        except Mistyped as error:
            if kind is not type(None):
                problems.append(str(error))
    raise Mistyped(problems[0] if len(problems) == 1 else f"{where}: no type fits {_shown(value)}")


def _factory(signature: Sequence[Any], value: Any, where: str, table: Table) -> Callable[..., Any]:
    """Return a class with all of its arguments but the first, such as an optimizer without its parameters."""
    wanted = signature[1]
    if not isinstance(wanted, type):
        raise Mistyped(f"{where}: no value in a message can be a {wanted}")
    cls, arguments = _entry(wanted, value, where, table)
    return partial(cls, **_arguments(cls, arguments, where, table, skipped=1))


def _entry(kind: type, value: Any, where: str, table: Table) -> tuple[type, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("class_path"), str) or not value.keys() <= SPEC:
        raise Mistyped(f"{where}: expected class_path (and init_args) of a {kind.__name__}, found {_shown(value)}")
    arguments = [value.get(key) or {} for key in ("init_args", "dict_kwargs")]
    if not all(isinstance(each, dict) for each in arguments):
        raise Mistyped(f"{where}: expected arguments by name, found {_shown(arguments)}")
    return table.get(value["class_path"], kind, where), arguments[0] | arguments[1]


def _simple(kind: Any, value: Any, where: str) -> Any:
    if kind in (None, type(None)):
        fits = value is None
    elif kind is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST**8
        value = float(value) if fits else value
    else:
        fits = type(value) is kind and (kind is not int or abs(value) < LARGEST)
    if not fits:
        raise Mistyped(f"{where}: expected {getattr(kind, '__name__', 'null')}, found {_shown(value)}")
    return value


def _sequence(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise Mistyped(f"{where}: expected a list, found {_shown(value)}")
    return value


def _plain(value: Any, where: str) -> Any:
    """Return a value without objects: numbers, strings, lists and maps of them."""
    if isinstance(value, dict):
        return {key: _plain(part, f"{where}.{key}") for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, f"{where}.{i}") for i, part in enumerate(value)]
    if value is None or isinstance(value, bool | str):
        return value
    return _simple(int if isinstance(value, int) else float, value, where)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
