"""YAML files of users: read in one way everywhere, and refused if they cannot mean what they say."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedlit.core.errors import ConfigError
from fedlit.core.system import lookalikes


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """A loader of YAML 1.2's words: ``NO``, ``1:30``, ``007`` and dates are texts, and ``1e-3`` is a number."""


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

DEEPEST = 100
"""Largest depth of nested mappings and lists."""

LINES_BEFORE = 3
"""Number of lines before an error that may contain its cause."""

TOO_DEEP = f"expected at most {DEEPEST} nested mappings or lists, found more"


class DocumentError(ConfigError, yaml.YAMLError):
    """A document that no command can use."""


class Dumper(yaml.SafeDumper):
    """A dumper that quotes the texts that :func:`load` would refuse without quotes."""


Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style='"' if lookalikes.mistaken(text) else None
    ),
)


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


def load(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        DocumentError: It is not UTF-8 or not YAML, or it is ambiguous; see :func:`check_text`.
    """
    return parse(text_of(path), str(path))


def parse(text: str, name: str = "") -> Any:
    """Return the content of a YAML text.

    Raises:
        DocumentError: It is not YAML, or it is ambiguous; see :func:`check_text`.
    """
    check_text(text, name)
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise DocumentError(_described(error, name, text)) from error


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


def check_text(text: str, name: str = "") -> None:
    """Refuse an ambiguous document, without building its content; messages begin with the ``name`` of its file.

    Raises:
        DocumentError: It is not YAML; a key occurs twice, which would drop the first; its anchors or nesting make it
            far larger than a configuration; or a word of a file has a blank or a quotation mark that is not YAML's.
    """
    try:
        problem = next(_problems(text, of_file=bool(name)), None)
    except yaml.YAMLError as error:
        raise DocumentError(_described(error, name, text)) from error
    if problem is not None:
        line, what = problem
        raise DocumentError(f"{_place(name, line)}: {what}")


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


def _problems(text: str, of_file: bool) -> Iterator[tuple[int, str]]:
    """Yield (line, problem) of a document as it is written, without expanding aliases."""
    levels: list[_Level] = []
    sizes: dict[str, int] = {}  # numbers of values behind anchors, with all aliases expanded
    words: dict[str, str] = {}  # single words behind anchors
    places: dict[tuple[str, ...], int] = {}  # lines of dotted keys
    documents = 0
    for number, event in enumerate(yaml.parse(text, Loader)):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            if any(level.anchor == event.anchor for level in levels):
                yield line, f"the anchor &{event.anchor} contains itself; write its content out"
            word, size, anchor = words.get(event.anchor), sizes.get(event.anchor, 1), None
        elif isinstance(event, yaml.ScalarEvent):
            word, size, anchor = event.value, 1, event.anchor
            if of_file and event.style in (None, "") and (sign := lookalikes.mistaken(word)):
                yield line, f"{word!r}: {lookalikes.described(sign)}"
            words |= {anchor: word} if anchor else {}
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            path = _below(levels[-1]) if levels else ()
            levels.append(_Level(isinstance(event, yaml.MappingStartEvent), path, event.anchor))
            if len(levels) > DEEPEST:
                yield line, TOO_DEEP
            continue
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            level = levels.pop()
            word, size, anchor = None, level.size, level.anchor
        else:
            documents += isinstance(event, yaml.DocumentStartEvent)
            if documents > 1:
                yield line, "expected one document, found a second document; use a file for each"
            continue
        if anchor:
            sizes[anchor] = size
        if not levels:
            continue
        level = levels[-1]
        level.size += size
        if level.size > max(LARGEST, 10 * number):
            yield line, f"its anchors expand to more than {level.size - 1:,} values; use fewer aliases"
        if not level.mapping:
            level.items += 1
        elif level.key is not None:
            level.key = None
        else:
            level.key = "" if word is None else word
            twice = _twice(level, line, places) if word not in (None, "<<") else None
            if twice is not None:
                yield line, f"the key {word!r} occurs twice, first in line {twice}; the later one would win: remove one"


def _twice(level: _Level, line: int, places: dict[tuple[str, ...], int]) -> int | None:
    """Return the line of an earlier occurrence of the level's key, with dots or nested, or None."""
    dotted = (*level.path, *level.key.split("."))
    earlier = level.lines.get(level.key, places.get(dotted))
    level.lines[level.key] = places[dotted] = line
    return earlier


def _below(level: _Level) -> tuple[str, ...]:
    """Return the dotted key of the next value in a level."""
    return (*level.path, *(level.key or "").split(".")) if level.mapping else (*level.path, f"[{level.items}]")


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
            for _ in yaml.parse("\n".join([*lines[:number], plain, *lines[number + 1 :]]), Loader):
                pass
        except yaml.YAMLError as other:
            if str(other) == str(error):
                continue
        return number, next(i for i, sign in enumerate(lines[number]) if sign in lookalikes.PLAIN)
    return None


def _place(name: str, line: int) -> str:
    return f"{name}, line {line}" if name else f"line {line}"
