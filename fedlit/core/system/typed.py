"""Values out of JSON, checked by pydantic against declared types; classes come from a table, never by import.

Everything that crosses a boundary is built here: the fields of every message, and the model, algorithms and schedule of
a configuration. A class is an entry of the receiver's own table (:mod:`fedlit.sites.plan`); no string is ever
imported.
"""

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from functools import cache, partial, reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import (
    AllowInfNan,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    PlainValidator,
    Strict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import CoreSchema, core_schema

from fedlit.core.errors import FedlitError
from fedlit.core.ranges import Within

STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)

BOUNDED = {int: Annotated[int, Within(f"(-{2**63}, {2**63})")], float: Annotated[float, Within("(-1e150, 1e150)")]}
"""Numbers that fit into 64 bits, also where they are summed up."""

EXPECTED = {
    "int_type": "a whole number", "float_type": "a number", "finite_number": "a finite number",
    "string_type": "a text", "bool_type": "true or false", "none_required": "null", "list_type": "a list",
    "tuple_type": "a list", "dict_type": "a map", "is_instance_of": "no path, which is never sent",
}  # fmt: skip
"""What was expected, by pydantic's types of errors."""

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

    def get(self, name: str, kind: type, where: str = "") -> type:
        """Return a class for a place; ``where`` begins the message.

        Raises:
            Mistyped: It is not in the table, or of another kind than the place takes.
        """
        cls = self.classes.get(name)
        if cls is None:
            raise Mistyped(f"{where}{_shown(name)} is not in the table of classes")
        if not issubclass(cls, kind) or self._base(cls) is not self._base(kind):
            raise Mistyped(f"{where}expected a {kind.__name__}, found {_shown(name)}")
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
    with _at(where):
        return _adapter(kind).validate_python(value, context=table)


def made(cls: Callable[..., Kind], arguments: Any, where: str, table: Table = NO_CLASSES) -> Kind:
    """Call a class with checked arguments by name, from JSON; see :func:`built`.

    Raises:
        Mistyped: An argument is unknown, missing or of another type, or the class refuses it.
    """
    with _at(where):
        return _called(cls, arguments, table)


def class_paths(value: Any) -> list[str]:
    """List the classes that a configuration names, each once, in their order."""
    paths: list[str] = []
    if isinstance(value, dict) and isinstance(value.get("class_path"), str):
        paths.append(value["class_path"])
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        paths += class_paths(part)
    return list(dict.fromkeys(paths))


@cache
def _adapter(kind: Any) -> TypeAdapter:
    return TypeAdapter(_of_json(kind), config=STRICT)


def _of_json(kind: Any) -> Any:
    """Return what pydantic reads in the place of a declared type, where JSON has no such type or a wider one."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in (Any, inspect.Parameter.empty) or isinstance(kind, str | TypeVar):
        return Annotated[Any, PlainValidator(_plain)]
    if origin is Annotated:
        unbounded = any(isinstance(each, AllowInfNan) for each in inner[1:])
        return kind if unbounded else Annotated[(_of_json(inner[0]), *inner[1:])]
    if origin in (Union, types.UnionType):
        some = [_of_json(each) for each in inner if each is not types.NoneType]
        value = Annotated[Any, _OneOf(tuple(some))] if len(some) > 1 else some[0]
        return value | None if types.NoneType in inner else value
    if origin is tuple or kind is tuple:
        parts = [each if each is Ellipsis else _of_json(each) for each in inner or (Any, ...)]
        return Annotated[tuple[tuple(parts)], Strict(False)]
    if origin in (list, Sequence, Iterable, Collection) or kind is list:
        return list[_of_json((inner or (Any,))[0])]
    if origin in (dict, Mapping) or kind is dict:
        keys, values = inner or (str, Any)
        return dict[_of_json(keys), _of_json(values)]
    if origin is Callable:
        return Annotated[Any, PlainValidator(partial(_factory, inner[1]))]
    if origin is Literal:  # pydantic alone takes true for 1
        return Annotated[kind, BeforeValidator(_adapter(reduce(or_, map(type, inner))).validate_python)]
    if kind in (None, types.NoneType, bool, str, *BOUNDED, Path):
        return BOUNDED.get(kind, kind)
    return Annotated[Any, PlainValidator(partial(_instance, kind))]


@dataclass(frozen=True)
class _OneOf:
    """Types of which the first one that fits is taken; one sentence if none does."""

    kinds: tuple[Any, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.union_schema(
            [handler.generate_schema(each) for each in self.kinds], mode="left_to_right",
            custom_error_type="no_type", custom_error_message="a value of one of the declared types",
        )  # fmt: skip


@dataclass(frozen=True)
class _Arguments:
    """Arguments of a class or function by name, except the first ones that are skipped."""

    cls: Callable
    skipped: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds, hints = inspect.Parameter, _hints(self.cls)
        parameters = list(inspect.signature(self.cls).parameters.values())[self.skipped :]
        fields = {
            p.name: core_schema.typed_dict_field(
                handler.generate_schema(_of_json(hints.get(p.name, Any))), required=p.default is kinds.empty
            )
            for p in parameters
            if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
        }
        extra = {"extra_behavior": "forbid"}
        if any(p.kind == kinds.VAR_KEYWORD for p in parameters):
            extra = {"extra_behavior": "allow", "extras_schema": handler.generate_schema(_of_json(Any))}
        strict = core_schema.CoreConfig(strict=True, allow_inf_nan=False)  # STRICT does not reach inside
        return core_schema.typed_dict_schema(fields, config=strict, **extra)


@cache
def _arguments(cls: Callable, skipped: int = 0) -> TypeAdapter:
    return TypeAdapter(Annotated[dict, _Arguments(cls, skipped)], config=STRICT)


def _hints(cls: Any) -> dict[str, Any]:
    """Return the declared types, or none if they cannot be resolved, so that the arguments are plain values."""
    try:
        return get_type_hints(cls.__init__ if isinstance(cls, type) else cls, include_extras=True)
    except Exception:  # a name that exists only for type checkers, or any error of a user's code
        return {}


def _called(cls: Callable[..., Kind], arguments: Any, table: Table) -> Kind:
    values = _arguments(cls).validate_python(arguments, context=table)
    try:
        return cls(**values)
    except (TypeError, ValueError, ArithmeticError, AttributeError, KeyError, RuntimeError) as error:
        raise Mistyped(str(error) or type(error).__name__) from error


def _instance(kind: type, value: Any, info: ValidationInfo) -> Any:
    if is_dataclass(kind) and not (isinstance(value, dict) and "class_path" in value):
        return _called(kind, value, info.context)
    return _called(*_entry(kind, value, info.context), info.context)


def _factory(kind: Any, value: Any, info: ValidationInfo) -> Callable[..., Any]:
    """Return a class with all of its arguments but the first, such as an optimizer without its parameters."""
    cls, arguments = _entry(kind, value, info.context)
    return partial(cls, **_arguments(cls, 1).validate_python(arguments, context=info.context))


def _entry(kind: Any, value: Any, table: Table) -> tuple[type, Any]:
    if not isinstance(kind, type):
        raise Mistyped(f"no value in a message can be a {kind}")
    if not isinstance(value, dict) or not isinstance(value.get("class_path"), str) or not value.keys() <= SPEC:
        raise Mistyped(f"expected class_path (and init_args) of a {kind.__name__}, found {_shown(value)}")
    arguments = [value.get(key) or {} for key in ("init_args", "dict_kwargs")]
    if not all(isinstance(each, dict) for each in arguments):
        raise Mistyped(f"expected arguments by name, found {_shown(arguments)}")
    return table.get(value["class_path"], kind), arguments[0] | arguments[1]


def _plain(value: Any) -> Any:
    """Return a value without objects: numbers, texts, lists and maps of them."""
    if type(value) not in (types.NoneType, bool, int, float, str, list, dict):
        raise Mistyped(f"expected a number, a text, a list or a map, found {_shown(value)}")
    return _adapter(type(value)).validate_python(value)


@contextmanager
def _at(where: str) -> Iterator[None]:
    """Turn a mistake into a sentence that names its place, which pydantic's error has as a list of keys."""
    try:
        yield
    except Mistyped as error:
        raise Mistyped(f"{where}: {error}".removeprefix(": ")) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what, key, context = first["type"], first["loc"][-1:], first.get("ctx", {})
        cause = context.get("error") or context.get("expected")
        if what == "too_long":
            cause = f"at most {context['max_length']} values"
        lacks = {"extra_forbidden": "has no", "missing": "needs"}.get(what)
        place = ".".join(map(str, [*[where] * bool(where), *first["loc"][: -1 if lacks else None]]))
        if lacks:
            missing = _shown(key[0]) if isinstance(key[0], str) else f"more than {key[0]} values"
            raise Mistyped(f"{place} {lacks} {missing}".strip()) from error
        expected = EXPECTED.get(what) or cause or first["msg"]
        sentence = cause if isinstance(cause, Mistyped) else f"expected {expected}, found {_shown(first['input'])}"
        raise Mistyped(f"{place.replace('.[key]', ': its keys')}: {sentence}".removeprefix(": ")) from error


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
