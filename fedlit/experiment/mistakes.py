"""Explanations of mistakes on the command line or in a YAML file: the key, its place, the reason and similar names.

The reason is jsonargparse's own text, from which key and value are read: its errors do not have them as attributes, an
option's value is checked by its action and not by a method of the parser, and the error of a union has only that of its
first type as a cause. A release with other texts fails in ``tests/cli/test_cli_mistakes.py``.
"""

import difflib
import re
import traceback
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from fedlit.core.errors import ConfigError, DataError, TrainingError
from fedlit.core.system import documents
from fedlit.experiment.choices import mistaken, takers_of

KEY = re.compile(r'Parser key "([^"]+)"')
of_classes: list[Exception] = []
"""Errors of the parsers of classes. That of a key which takes several kinds of class has another one as its cause."""

OWN_KEY = re.compile(
    r"(?:(?:fabric|data|model|federation|logger|callbacks|phases)\.[\w.]*\w\b|(?:seed|logger|ckpt_path|run_dir|name|experiment)(?=:))"
)
"""Beginning of fedlit's own errors about an option."""

OF_A_CLASS = re.compile(r"(\w+)\.(\w+)((?:\[[^]]*\])*)(?=: expected )")
"""Beginning of its errors about an argument of a class."""

LONGEST = 300
"""Largest number of characters of a reason; longer ones contain a whole configuration."""

VERBATIM = ("fedlit.", "lightning.")
"""Packages whose errors need no further reason."""

TRAINER = (
    "; there is no Trainer here: set federation.rounds and federation.schedule, fabric.*, federation.gradient_clip and "
    "data.batch_size instead"
)
CLASSES = "; `fedlit list` shows the built-in classes; name your own class with its module: my_project.MyAggregator"


@dataclass(frozen=True)
class Sources:
    """The command line and the YAML files of a configuration."""

    argv: tuple[str, ...]  # Words of the command line, with the names of YAML files.

    @property
    def files(self) -> Iterator[Path]:
        """The files of ``--config``, the last first, because it overrides the others."""
        for i in reversed(range(len(self.argv))):
            flag, equals, value = self.argv[i].partition("=")
            if flag in ("-c", "--config") and (equals or i + 1 < len(self.argv)):
                yield Path(value if equals else self.argv[i + 1])

    @property
    def parts(self) -> list[Path]:
        """The words that name YAML files, among them those of one section, as in ``--data FILE``."""
        words = [Path(word.partition("=")[2] or word) for word in self.argv]
        return [file for file in words if file.suffix in (".yaml", ".yml")]

    def where(self, key: str, words: Sequence[str] = ()) -> str:
        """Return the place of a dotted key as ``FILE, line N`` or ``command line``, or "" if it is unknown.

        With ``words``, return the place of the first of them that is at the key or below it. The key has no
        ``init_args``.
        """
        path = key.split(".")
        paths = [path[:length] for length in range(len(path), 0, -1)] if words else [path]
        read = [document for document in map(_document, self.files) if document]
        entries = [(document, entry) for p in paths for document in read if (entry := document.entry(p))]
        for word in words:
            if any(word in (option.lstrip("-"), *re.split(r"[^\w]+", option)) for option in self.argv):
                return "command line"
            for document, entry in entries:
                for node in documents.scalars(entry[1]):
                    if node.value == word:
                        return document.place(node)
        if any(re.match(rf"--{re.escape(key)}(\.|[=+]|$)", option) for option in self.argv):
            return "command line"
        return next((document.place(entry[0]) for document, entry in entries), "")

    def argument(self, cls: str, argument: str) -> tuple[str, str]:
        """Return the dotted key of an argument of a class, and its place as of :meth:`where`; "" if it is unknown."""
        if cls == "Federation":
            return f"federation.{argument}", self.where(f"federation.{argument}")
        for option in self.argv:
            key = re.split(r"[=+]", option)[0].lstrip("-")
            if option.startswith("--") and key.endswith(f".{argument}"):
                return key, "command line"
        for document in filter(None, map(_document, self.files)):
            for path, node in _objects(document.root, ()):
                if path[-2:] == (cls, argument):
                    return ".".join((*path[:-2], argument)), document.place(node)
        return argument, ""

    def absent(self) -> str:
        """Return ``--config: there is no file ...`` of the first one that is not there, or ""."""
        for file in self.files:
            if not file.exists():
                there = (str(file.with_name(each.name)) for each in file.parent.glob("*"))
                return f"--config: there is no file {file}{near(str(file), there)}"
        return ""

    def problem(self) -> Exception | None:
        """Return the first error of reading the files, or None if all can be read."""
        try:
            for file in self.files:
                if file.exists():
                    documents.load_mapping(file)
            for file in self.parts:
                if file.is_file():
                    documents.load(file)
        except (OSError, documents.DocumentError) as error:
            return error
        return None


@dataclass(frozen=True)
class SweepSources(Sources):
    """The sources of a run of a sweep: its base files, and sections of the sweep's own file."""

    file: Path | None = None  # File of the sweep, if there is one.
    case: str = ""  # Case of the run, or "".

    def where(self, key: str, words: Sequence[str] = ()) -> str:
        """Return the place of a key, searching the sections of the sweep first."""
        settings = list(self._settings())
        for word in words:
            for document, node in ((d, n) for d, entry, value in settings for n in (entry, *documents.scalars(value))):
                if word in (node.value, node.value.rpartition(".")[2]):
                    return document.place(node)
        for document, entry, _ in settings if not words else ():
            name = entry.value.rstrip("+").replace(".init_args", "")
            if key == name or key.startswith(f"{name}."):
                return document.place(entry)
        return super().where(key, words)

    def _settings(self) -> Iterator[tuple[documents.Document, yaml.ScalarNode, yaml.Node]]:
        """Yield documents, and keys and values of the sections that made the run, the overriding ones first."""
        for section in (["grid"], ["cases", self.case, "ranges"], ["ranges"], ["cases", self.case], ["set"]):
            for document in filter(None, map(_document, files_of(self.file))):
                entry = document.entry(section)
                pairs = entry[1].value if entry and isinstance(entry[1], yaml.MappingNode) else ()
                yield from ((document, *pair) for pair in pairs)


def files_of(file: Path | None) -> Iterator[Path]:
    """Yield the file of a plan, and the files on which it is based; later bases come first, as they override."""
    if file is None:
        return
    yield file
    document = _document(file)
    base = document.entry(["base"]) if document else None
    names = [] if base is None else base[1].value if isinstance(base[1], yaml.SequenceNode) else [base[1]]
    for name in reversed(names):
        yield from files_of(file.parent / name.value)


def explain(
    error: Exception | None, sources: Sources, options: Iterable[str] = (), classes: Iterable[str] = (), text: str = ""
) -> str:
    """Return the reason of an error, or of a ``text`` without one, with the key, its place and similar names.

    The causes of an error describe the same mistake in more detail. Similar names are existing keys (``options``) or
    short names (``classes``).
    """
    chain = list(_chain(error))
    if any(isinstance(each, yaml.YAMLError) for each in chain) and (problem := sources.problem()):
        return str(problem)
    if chain and "subclass of" in str(chain[-1]) and of_classes:  # the first kind does not accept the class at all
        chain += _chain(of_classes[-1])
    if chain and (place := custom_code(chain[-1])):
        return f"{place}: {chain[-1]}"
    if chain and home(chain[-1]).startswith(VERBATIM) and not isinstance(chain[-1], AttributeError):
        text = str(chain[-1])
        if own_key := OWN_KEY.match(text):  # the key with which an error of fedlit begins
            key, place = own_key[0], sources.where(own_key[0])
        elif own_key := OF_A_CLASS.match(text):
            key, place = sources.argument(own_key[1], own_key[2])
            key += own_key[3]
        return f"{key} ({place}){text[own_key.end() :]}" if own_key and place else text
    texts = list(dict.fromkeys([*filter(None, [text]), *map(str, chain)]))
    keys, owner = [], None  # the parser of the class that lacks an argument
    for each, message in [(None, text), *((each, str(each)) for each in chain)]:
        if match := KEY.match(message):
            keys, owner = [*keys, match[1]], None
        else:
            owner = getattr(each, "parser", owner)
    key = ".".join(keys[:1] + [inner for outer, inner in pairwise(keys) if inner != outer])
    reason = re.sub(r"<class '([\w.]+)'>", r"\1", KEY.sub("", texts[-1], count=1).strip(": \n"))
    reason = re.sub(r'^Unable to load config "(.*)"$', r"expected keys with values, found '\1'", reason)
    reason = re.sub(r"^Group '(.*)' does not accept option '(.*)'$", r"Option '\1.\2' is not accepted", reason)
    reason = reason.partition("\nSubclass types expect one of:")[0]
    words = re.findall(r"[\w.]+", reason.rpartition(": ")[2])[:1] if ": " in reason else []
    words += reversed(re.findall(r"'([\w.]+)'", reason))
    place = sources.where(key, words) if key else sources.where(next(iter(words), ""))
    if "import path" in reason and (other := mistaken(reason.rpartition(": ")[2], key)):
        return f"{key} ({place}): {other}" if place else f"{key}: {other}"
    match chain[-1:]:
        case [AttributeError(obj=module)]:
            options, owner = dir(module), None
        case [ModuleNotFoundError(name=name)] if gone := [file for file in sources.parts if file.stem == name]:
            reason = f"there is no file {gone[0]}"
        case [ModuleNotFoundError(name=name)]:
            reason += f"; start fedlit in the folder that holds {name.partition('.')[0]}, or install it"
    hint = _hint(reason, words, owner, [*options], [*classes], f"--{key}+=" if place == "command line" else "")
    reason = f"{reason[:LONGEST]}..." if len(reason) > LONGEST else reason
    signs = ((sign, unicodedata.name(sign, "")) for sign in reason if ord(sign) > 127)  # that only resemble one
    foreign = [f"; its {sign!r} is the character {name}" for sign, name in signs if name and "LATIN" not in name]
    hint += "".join(foreign[:1])
    if owner:
        reason = f"{owner.made.__name__}: {reason}"
    if not key:
        return f"{reason}{hint}" + (f" ({place})" if place else "")
    return f"{key} ({place}): {reason}{hint}" if place else f"{key}: {reason}{hint}"


def custom_code(error: BaseException) -> str:
    """Return the place of an error that a custom class raises: ``Class.method (file, line N)``; else "".

    The error is a ValueError or a RuntimeError. A custom class is built on a class of fedlit, and is not part of
    fedlit. Errors of other packages that its method calls count as its own. Errors of fedlit's functions do not,
    because they already name the mistake; nor do errors of other classes, such as a LightningModule, because they need
    their traceback.
    """
    if not isinstance(error, ValueError) and type(error) is not RuntimeError:
        return ""
    inner = list(takewhile(lambda e: _package(e[0]) != "fedlit", reversed([*traceback.walk_tb(error.__traceback__)])))
    for frame, _ in inner:
        kind, package = type(frame.f_locals.get("self")), _package(frame)
        if _outermost(kind.__module__) == package and any(_outermost(b.__module__) == "fedlit" for b in kind.__mro__):
            raising, line = next(each for each in inner if _package(each[0]) == package)
            return f"{kind.__name__}.{frame.f_code.co_name} ({raising.f_code.co_filename}, line {line})"
    return ""


@contextmanager
def named_errors() -> Iterator[None]:
    """Context manager that puts the place before the message of an error that a custom class raises.

    Raises:
        ConfigError, DataError, TrainingError: In place of the same, of another ValueError, and of a RuntimeError.
    """
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if not (place := custom_code(error)):
            raise
        kind = next(k for k in (ConfigError, ValueError, RuntimeError) if isinstance(error, k))
        kind = {ValueError: DataError, RuntimeError: TrainingError}.get(kind, ConfigError)
        raise kind(f"{place}: {error}") from error


def home(error: BaseException) -> str:
    """Return the name of the module that raised an error, or ""."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return frames[-1][0].f_globals.get("__name__", "") if frames else ""


def near(word: str, names: Iterable[str]) -> str:
    """Return ``; did you mean ...?`` for names that resemble a word, or ""."""
    folded: dict[str, str] = {}
    for name in names:
        folded.setdefault(name.casefold(), name)
    similar = [folded[name] for name in difflib.get_close_matches(word.casefold(), folded, n=3, cutoff=0.7)]
    return f"; did you mean {' or '.join(similar)}?" if similar else ""


def _hint(
    reason: str, words: Sequence[str], owner: Any | None, options: list[str], classes: list[str], adds: str
) -> str:
    """Return a hint at the intended name or syntax, or ""."""
    if owner and (takers := takers_of(owner.made, words)):
        return takers
    members = [name for name in owner.options() if name.isidentifier() and name != "help"] if owner else []
    names = members or (classes if "import path" in reason else [*options, *classes])
    if "Literal[" in reason:
        words, names = words[:1], words[1:]
    for word in words:
        if word.startswith("trainer."):
            return TRAINER
        if "unrecognized" in reason and word.endswith((".yaml", ".yml")):
            return f"; write --config {word}"
        if word not in names and (hint := near(word, names)):
            return hint
    if "import path" in reason:
        return CLASSES
    if "a list" in reason and words and re.fullmatch(r"[\w.]+", reason.rpartition(": ")[2]):
        return f"; write '[{words[0]}]', or {adds}{words[0]}" if adds else f"; write [{words[0]}]"
    return f"; it has {', '.join(members)}" if members and not set(words) <= set(members) else ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, up to the first of `VERBATIM`."""
    while error is not None:
        yield error
        error = None if home(error).startswith(VERBATIM) else error.__cause__


def _document(file: Path) -> documents.Document | None:
    """Return a file's content, or None if it cannot be read, which is reported before all else."""
    try:
        return documents.read_file(file)
    except (OSError, documents.DocumentError):
        return None


def _objects(node: yaml.Node | None, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], yaml.Node]]:
    """Yield the keys of a document with their paths, where the name of its class stands before each argument."""
    for item in node.value if isinstance(node, yaml.SequenceNode) else ():
        yield from _objects(item, path)
    if isinstance(node, yaml.MappingNode):
        classes = [value.value.rpartition(".")[2] for key, value in node.value if key.value == "class_path"]
        for key, value in node.value:
            if key.value == "init_args":
                yield from _objects(value, (*path, *classes))
            else:
                yield (*path, *classes, key.value), key
                yield from _objects(value, (*path, key.value))


def _package(frame: FrameType) -> str:
    return _outermost(frame.f_globals.get("__name__", ""))


def _outermost(module: str) -> str:
    return module.partition(".")[0]
