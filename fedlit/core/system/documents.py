"""YAML and JSON of users and strangers: read in one way everywhere, and refused if it cannot mean what it says.

A YAML text is read once: its `Document` has the content and the lines of keys and values.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml
from yaml.composer import Composer
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.resolver import Resolver

from fedlit.core.errors import ConfigError
from fedlit.core.system import lookalikes

Scanner = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Source of the events of a text; libyaml is ten times as fast as Python."""


class Loader(Composer, SafeConstructor, Resolver):
    """A loader of YAML 1.2's words: ``NO``, ``1:30``, ``007`` and dates are texts, and ``1e-3`` is a number.

    Composes the events of `_checked`, so that nothing is built of a text that is refused.
    """

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        for base in (Composer, SafeConstructor, Resolver):
            base.__init__(self)
        self._events, self._next = events, None

    def peek_event(self) -> yaml.Event:
        """Return the next event, which stays the next."""
        self._next = self._next or next(self._events)
        return self._next

    def get_event(self) -> yaml.Event:
        """Return the next event."""
        event, self._next = self.peek_event(), None
        return event

    def check_event(self, *kinds: type[yaml.Event]) -> bool:
        """Return whether the next event is of one of the kinds."""
        return isinstance(self.peek_event(), kinds)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the object of a node; errors of Python about a value, such as ``!!int x``, become PyYAML's."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            what = f"found {str(node.value)[:40]!r}, which is not of the type {node.tag.rpartition(':')[2]}"
            raise ConstructorError(None, None, what, node.start_mark) from error


# PyYAML follows YAML 1.1, by which yes, no, on and off are truth values, and 012 is ten.
WORDS = {
    "int": (r"[-+]?(0|[1-9][0-9_]*)|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
}
Loader.yaml_implicit_resolvers = {
    first: [(tag, words) for tag, words in resolvers if tag.rpartition(":")[2] not in (*WORDS, "timestamp")]
    for first, resolvers in Loader.yaml_implicit_resolvers.items()
}
for _name, (_words, _first) in WORDS.items():
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_words})$"), list(_first))

LARGEST = 100_000
"""Largest number of values of a document with all aliases expanded, unless they are written out. Configurations have
hundreds."""

DEEPEST = 100  # largest depth of nested mappings and lists

LINES_BEFORE = 3  # lines before an error that may contain its cause

TOO_DEEP = f"expected at most {DEEPEST} nested mappings or lists, found more"


class DocumentError(ConfigError, yaml.YAMLError):
    """A document that no command can use."""


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):
    """A dumper that quotes the texts that :func:`load` would refuse without quotes."""


class _Escaping(yaml.SafeDumper):
    """The same, without libyaml, which has no escape for file names that are not UTF-8."""


def _quoted(dumper: yaml.Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if lookalikes.mistaken(text) else None)


_Dumper.add_representer(str, _quoted)
_Escaping.add_representer(str, _quoted)


def dump(value: Any, **style: Any) -> str:
    """Return a value as YAML that :func:`parse` reads; ``style`` is that of ``yaml.dump``."""
    options = {"sort_keys": False, "allow_unicode": True} | style
    try:
        return yaml.dump(value, Dumper=_Dumper, **options)
    except UnicodeEncodeError:
        return yaml.dump(value, Dumper=_Escaping, **options)


@dataclass
class _Level:
    """A mapping or list that is being read."""

    mapping: bool
    path: tuple[str, ...]
    anchor: str | None
    size: int = 1
    key: str | None = None  # key of the next value; None if a key comes next
    lines: dict[str, int] = field(default_factory=dict)  # lines of the keys so far
    items: int = 0


@dataclass(frozen=True)
class Document:
    """A YAML text that has been read, and the name of its file, if it is of one."""

    text: str
    name: str
    root: yaml.Node | None  # None if the text is empty.

    def content(self) -> Any:
        """Return new objects with the content.

        Raises:
            DocumentError: The text asks for an object that YAML does not have.
        """
        try:
            return Loader(iter(())).construct_document(self.root) if self.root is not None else None
        except yaml.YAMLError as error:
            raise DocumentError(_described(error, self.name, self.text)) from error

    def entry(self, path: Sequence[str]) -> tuple[yaml.Node, yaml.Node] | None:
        """Return the nodes of a dotted key and of its value; ``init_args`` may be between its parts.

        A part of the key that is a number is the place in a list.
        """
        return _entry(self.root, path)

    def place(self, node: yaml.Node) -> str:
        """Return ``FILE, line N``."""
        return _place(self.name, node.start_mark.line + 1)


_READ: dict[str, Document] = {}  # the newest documents by their texts, as other libraries read a text again
KEPT = 1000  # largest number of them; words of a command line are most


def read(text: str, name: str = "") -> Document:
    """Read a YAML text; messages begin with the ``name`` of its file.

    Raises:
        DocumentError: It is not YAML; a key occurs twice, which would drop the first; its anchors or nesting make it
            far larger than a configuration; or a word of a file has a blank or a quotation mark that is not YAML's.
    """
    known = _READ.get(text)
    if known is not None and name in ("", known.name):
        return known
    try:
        document = Document(text, name, Loader(_checked(text, name)).get_single_node())
    except (yaml.YAMLError, UnicodeEncodeError) as error:  # a word of the command line may have single bytes
        raise error if isinstance(error, DocumentError) else DocumentError(_described(error, name, text)) from error
    _READ[text] = document
    for oldest in list(_READ)[:-KEPT]:
        _READ.pop(oldest, None)
    return document


def parse(text: str, name: str = "") -> Any:
    """Return the content of a YAML text; raises like :func:`read`."""
    return read(text, name).content()


def read_file(path: Path) -> Document:
    """Read a YAML file.

    Raises:
        DocumentError: It is not UTF-8; or see :func:`read`.
    """
    return read(text_of(path), str(path))


def load(path: Path) -> Any:
    """Return the content of a YAML file; raises like :func:`read_file`."""
    return read_file(path).content()


def scalars(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    """Yield all scalars below a node, including keys, in the order of the text."""
    if isinstance(node, yaml.ScalarNode):
        yield node
        return
    for child in node.value if node is not None else ():
        for part in child if isinstance(child, tuple) else (child,):
            yield from scalars(part)


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON text whose maps have each key once, and whose numbers are finite.

    Raises:
        ValueError: It is anything else.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for key, value in pairs:
            if key in content:
                raise ValueError(f"the key {key[:40]!r} occurs twice")
            content[key] = value
        return content

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def text_of(path: Path) -> str:
    """Read a text file.

    Raises:
        DocumentError: It is not UTF-8.
    """
    content = path.read_bytes()
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DocumentError(f"{path}: expected UTF-8, found UTF-16; save the file as UTF-8")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DocumentError(
            f"{path}, line {line}: expected UTF-8, found the byte 0x{content[error.start]:02x}; save the file as UTF-8"
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DocumentError(f"{path}, line {line}: expected text, found a NUL; remove it")
    return text


def load_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file of keys and values.

    Raises:
        DocumentError: It is empty, a list or a word; or see :func:`load`.
    """
    if path.is_dir():
        raise DocumentError(f"{path}: expected a YAML file, found a folder")
    content = load(path)
    if not isinstance(content, dict) or not content:
        found = {type(None): "nothing", dict: "nothing", list: "a list", str: f"the text {str(content)[:40]!r}"}
        raise DocumentError(f"{path}: expected keys and values, found {found.get(type(content), repr(content))}")
    return content


class _Check:
    """A check of a text as it is written, event by event, without expanding aliases."""

    def __init__(self, name: str) -> None:
        self._name, self._events, self._documents = name, 0, 0
        self._levels: list[_Level] = []
        self._sizes: dict[str, int] = {}  # numbers of values behind anchors, with all aliases expanded
        self._words: dict[str, str] = {}  # single words behind anchors
        self._places: dict[tuple[str, ...], int] = {}  # lines of dotted keys

    def see(self, event: yaml.Event) -> None:
        """Refuse the next event if the text is ambiguous, or much larger than it looks."""
        self._events += 1
        line, levels = event.start_mark.line + 1, self._levels
        if isinstance(event, yaml.AliasEvent):
            if any(level.anchor == event.anchor for level in levels):
                self._refuse(line, f"the anchor &{event.anchor} contains itself; write its content out")
            self._count(line, self._words.get(event.anchor), self._sizes.get(event.anchor, 1), None)
        elif isinstance(event, yaml.ScalarEvent):
            if self._name and event.style in (None, "") and (sign := lookalikes.mistaken(event.value)):
                self._refuse(line, f"{event.value!r}: {lookalikes.described(sign)}")
            self._words |= {event.anchor: event.value} if event.anchor else {}
            self._count(line, event.value, 1, event.anchor)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            path = _below(levels[-1]) if levels else ()
            levels.append(_Level(isinstance(event, yaml.MappingStartEvent), path, event.anchor))
            if len(levels) > DEEPEST:
                self._refuse(line, TOO_DEEP)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            level = levels.pop()
            self._count(line, None, level.size, level.anchor)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                self._refuse(line, "expected one document, found a second document; use a file for each")

    def _count(self, line: int, word: str | None, size: int, anchor: str | None) -> None:
        """Count a key or a value that has ended; ``word`` is its text if it is a single one."""
        if anchor:
            self._sizes[anchor] = size
        if not self._levels:
            return
        level = self._levels[-1]
        level.size += size
        if level.size > max(LARGEST, 10 * self._events):
            self._refuse(line, f"its anchors expand to more than {level.size - 1:,} values; use fewer aliases")
        if not level.mapping:
            level.items += 1
        elif level.key is not None:
            level.key = None
        else:
            level.key = "" if word is None else word
            dotted = (*level.path, *level.key.split("."))
            if word in (None, "<<"):
                return
            first = level.lines.get(word, self._places.get(dotted))
            if first is not None:
                twice = f"the key {word!r} occurs twice, first in line {first}; the later one would win: remove one"
                self._refuse(line, twice)
            level.lines[word] = self._places[dotted] = line

    def _refuse(self, line: int, what: str) -> NoReturn:
        raise DocumentError(f"{_place(self._name, line)}: {what}")


def _checked(text: str, name: str) -> Iterator[yaml.Event]:
    """Yield the events of a text up to its first problem."""
    check = _Check(name)
    for event in yaml.parse(text, Scanner):
        check.see(event)
        yield event


def _below(level: _Level) -> tuple[str, ...]:
    return (*level.path, *(level.key or "").split(".")) if level.mapping else (*level.path, f"[{level.items}]")


def _entry(node: yaml.Node | None, path: Sequence[str]) -> tuple[yaml.Node, yaml.Node] | None:
    if isinstance(node, yaml.SequenceNode) and path[0].isdecimal() and int(path[0]) < len(node.value):
        item = node.value[int(path[0])]
        return _entry(item, path[1:]) if len(path) > 1 else (item, item)
    if not isinstance(node, yaml.MappingNode):
        return None
    for key, value in reversed(node.value):  # what a merge key adds comes first, once the content was asked for
        if key.value == path[0]:
            return _entry(value, path[1:]) if len(path) > 1 else (key, value)
    return next((_entry(value, path) for key, value in node.value if key.value == "init_args"), None)


def _described(error: yaml.YAMLError, name: str, text: str) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark is None:
        return f"{name}: expected valid YAML: {what}" if name else f"expected valid YAML: {what}"
    if "nesting depth" in what:  # PyYAML 6.0.4 and later have their own limit, and read ahead
        return f"{_place(name, mark.line + 1)}: {TOO_DEEP}"
    lines = text.split("\n")
    line, column = mark.line, mark.column
    if line >= len(lines):  # the text ends inside a value
        line, column = len(lines) - 1, len(lines[-1])
    if lines[line][column:].startswith("\t"):
        what = "found a tab; indent with spaces"
    elif place := _lookalike(error, lines, line):
        line, column = place
        return f"{_place(name, line + 1)}, column {column + 1}: {lookalikes.described(lines[line][column])}"
    return f"{_place(name, line + 1)}, column {column + 1}: expected valid YAML: {what}"


def _lookalike(error: yaml.YAMLError, lines: Sequence[str], line: int) -> tuple[int, int] | None:
    """Return line and column of a character that only looks like YAML's and causes an error in or below its line."""
    begun = getattr(error, "context_mark", None)  # where a quotation mark without an end is
    for number in (*range(line, max(line - LINES_BEFORE, 0) - 1, -1), *([min(begun.line, line)] if begun else ())):
        plain = lookalikes.plain(lines[number])
        if plain == lines[number]:
            continue
        try:
            for _ in yaml.parse("\n".join([*lines[:number], plain, *lines[number + 1 :]]), Scanner):
                pass
        except yaml.YAMLError as other:
            if str(other) == str(error):
                continue
        return number, next(i for i, sign in enumerate(lines[number]) if sign in lookalikes.PLAIN)
    return None


def _place(name: str, line: int) -> str:
    return f"{name}, line {line}" if name else f"line {line}"
