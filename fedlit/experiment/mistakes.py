"""Say what is wrong with a command line or a YAML file: which key, where it stands, and which name was meant.

The reason is told in jsonargparse's own words. What is added is the place and the near names; a release with other words
changes the reason alone.
"""

import difflib
import importlib
import inspect
import re
import traceback
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import yaml

from fedlit.core.system import documents
from fedlit.experiment.choices import mistaken, takers_of

KEY = re.compile(r'Parser key "([^"]+)"')
OWNER = re.compile(r".*class_path '([\w.]+)'")
OF_A_UNION = re.compile(r"- (Problem with given class_path '[\w.]+':)\n +(.+)")
"""What is wrong with the class of a key that takes several kinds: the other kinds do not take the class at all."""

OWN_KEY = re.compile(r"(?:seed|logger|ckpt_path|(?:fabric|data|model|federation)\.[\w.]*\w)\b")
"""How an error that fedlit raises begins where it is about an option."""

LONGEST = 300
"""Letters of a reason; what is longer holds a whole configuration."""

VERBATIM = ("fedlit.", "lightning.")
"""Modules whose errors say all that there is to say."""

TRAINER = (
    "; there is no Trainer here: federation.rounds and federation.schedule say how long to train, fabric.* where, "
    "federation.gradient_clip and data.batch_size how"
)
CLASSES = "; `fedlit list` shows what ships, and a class of your own is named with its module: my_project.MyAggregator"


@dataclass(frozen=True)
class Sources:
    """Where a configuration came from."""

    argv: tuple[str, ...]  # Words of the command line; YAML files are among them.

    @property
    def files(self) -> Iterator[Path]:
        """The files given by ``--config``, the last first, as it wins."""
        for i in reversed(range(len(self.argv))):
            flag, equals, value = self.argv[i].partition("=")
            if flag in ("-c", "--config") and (equals or i + 1 < len(self.argv)):
                yield Path(value if equals else self.argv[i + 1])

    def where(self, key: str, words: Sequence[str] = ()) -> str:
        """Return ``FILE, line N`` or ``command line``, and "" where neither is sure.

        Args:
            key: Dotted key without ``init_args``.
            words: Words that may stand at the key or below it; the line of the first that does is wanted.
        """
        path = key.split(".")
        paths = [path[:length] for length in range(len(path), 0, -1)] if words else [path]
        entries = [(file, entry) for p in paths for file in self.files if (entry := _find(_composed(file), p))]
        for word in words:
            if any(word in (given.lstrip("-"), *re.split(r"[^\w]+", given)) for given in self.argv):
                return "command line"
            for file, entry in entries:
                for node in _scalars(entry[1]):
                    if node.value == word:
                        return f"{file}, line {node.start_mark.line + 1}"
        if any(re.split(r"[=+]", given)[0] == f"--{key}" for given in self.argv):
            return "command line"
        return next((f"{file}, line {entry[0].start_mark.line + 1}" for file, entry in entries), "")

    def problem(self) -> str:
        """Return the first reason, with its place, why one of the files cannot be read; "" where all can."""
        words = [Path(word.partition("=")[2] or word) for word in self.argv]
        parts = [file for file in words if file.suffix in (".yaml", ".yml")]  # of one section, as in --data FILE
        try:
            for file in self.files:
                if file.exists():
                    documents.load_mapping(file)
            for file in parts:
                if file.is_file():
                    documents.load(file)
        except (OSError, documents.DocumentError) as error:
            return str(error)
        return ""


@dataclass(frozen=True)
class SweepSources(Sources):
    """Where a run of a sweep came from: its base files, and the sections of the sweep's own file."""

    file: Path | None = None  # File of the sweep, where it has one.
    case: str = ""  # Case of the run, or "".

    def where(self, key: str, words: Sequence[str] = ()) -> str:
        """Look in the sections of the sweep first."""
        settings = list(self._settings())
        for word in words:
            for node in (n for entry, value in settings for n in (entry, *_scalars(value))):
                if word in (node.value, node.value.rpartition(".")[2]):
                    return f"{self.file}, line {node.start_mark.line + 1}"
        for entry, _ in settings if not words else ():
            name = entry.value.rstrip("+").replace(".init_args", "")
            if key == name or key.startswith(f"{name}."):
                return f"{self.file}, line {entry.start_mark.line + 1}"
        return super().where(key, words)

    def _settings(self) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        """Keys and values of the sections that made the run, those that win first."""
        node = _composed(self.file) if self.file else None
        for section in (["grid"], ["cases", self.case], ["set"]):
            entry = _find(node, section)
            yield from entry[1].value if entry and isinstance(entry[1], yaml.MappingNode) else ()


def explain(
    error: Exception | None, sources: Sources, options: Iterable[str] = (), classes: Iterable[str] = (), text: str = ""
) -> str:
    """Return the reason of an error with the key, its place and near names.

    Args:
        error: Error of jsonargparse or of fedlit. The errors that caused it are the same mistake, ever closer to it.
        sources: Where the configuration came from.
        options: Keys that exist, for near names.
        classes: Short names that exist, for near names.
        text: Text of the error where there is none but that.
    """
    chain = list(_chain(error))
    if any(isinstance(each, yaml.YAMLError) for each in chain) and (problem := sources.problem()):
        return problem
    if chain and home(chain[-1]).startswith(VERBATIM):
        return _located(str(chain[-1]), sources)
    texts = list(dict.fromkeys([*filter(None, [text]), *map(str, chain)]))
    if "subclass of" in texts[-1] and (match := next(filter(None, map(OF_A_UNION.search, texts)), None)):
        texts += match.groups()
    keys, owner = [], ""  # of the class whose argument the key is not, but should be
    for each in texts:
        if match := KEY.match(each):
            keys, owner = [*keys, match[1]], ""
        elif match := OWNER.match(each):
            owner = match[1]
    key = ".".join(keys[:1] + [inner for outer, inner in pairwise(keys) if inner != outer])
    reason = re.sub(r"<class '([\w.]+)'>", r"\1", KEY.sub("", texts[-1], count=1).strip(": \n"))
    reason = re.sub(r'^Unable to load config "(.*)"$', r"expected keys with values, found '\1'", reason)
    reason = reason.partition("\nSubclass types expect one of:")[0]
    words = re.findall(r"[\w.]+", reason.rpartition(": ")[2])[:1] if ": " in reason else []
    words += reversed(re.findall(r"'([\w.]+)'", reason))
    place = sources.where(key, words) if key else sources.where(next(iter(words), ""))
    if "import path" in reason and (other := mistaken(reason.rpartition(": ")[2], key)):
        return f"{key} ({place}): {other}" if place else f"{key}: {other}"
    hint = _hint(reason, words, owner, [*options], [*classes], f"--{key}+=" if place == "command line" else "")
    reason = f"{reason[:LONGEST]}..." if len(reason) > LONGEST else reason
    hint += _foreign(reason)
    if owner:
        reason = f"{owner.rpartition('.')[2]}: {reason}"
    if not key:
        return f"{reason}{hint}" + (f" ({place})" if place else "")
    return f"{key} ({place}): {reason}{hint}" if place else f"{key}: {reason}{hint}"


def home(error: BaseException) -> str:
    """Return the name of the module that raised an error, or ""."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return frames[-1][0].f_globals.get("__name__", "") if frames else ""


def near(word: str, names: Iterable[str]) -> str:
    """Return ``; did you mean ...?`` for names that look like a word, or ""."""
    folded: dict[str, str] = {}
    for name in names:
        folded.setdefault(name.casefold(), name)
    alike = [folded[name] for name in difflib.get_close_matches(word.casefold(), folded, n=3, cutoff=0.7)]
    return f"; did you mean {' or '.join(alike)}?" if alike else ""


def _hint(reason: str, words: Sequence[str], owner: str, options: list[str], classes: list[str], adds: str) -> str:
    """What the user may have meant; "" where nothing is near."""
    if takers := takers_of(owner, words):
        return takers
    members = _members(owner)
    names = members or (classes if "import path" in reason else [*options, *classes])
    for word in words:
        if word.startswith("trainer."):
            return TRAINER
        if word not in names and (hint := near(word, names)):
            return hint
    if "import path" in reason:
        return CLASSES
    if "a list" in reason and words and re.fullmatch(r"[\w.]+", reason.rpartition(": ")[2]):
        return f"; write '[{words[0]}]', or {adds}{words[0]}" if adds else f"; write [{words[0]}]"
    return f"; it has {', '.join(members)}" if members and not set(words) <= set(members) else ""


def _foreign(reason: str) -> str:
    """Name the first sign that looks like one of the keyboard and is another; "" where there is none."""
    named = ((sign, unicodedata.name(sign, "")) for sign in reason if ord(sign) > 127)
    return next((f"; its {sign!r} is the sign {name}" for sign, name in named if name and "LATIN" not in name), "")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that caused it, up to one that says all."""
    while error is not None:
        yield error
        error = None if home(error).startswith(VERBATIM) else error.__cause__


def _located(text: str, sources: Sources) -> str:
    """An error of fedlit's own, with the place of the key that it begins with."""
    key = OWN_KEY.match(text)
    place = sources.where(key[0]) if key else ""
    return f"{key[0]} ({place}){text[key.end() :]}" if place else text


def _members(path: str) -> list[str]:
    """Arguments of a class, those of its bases included where it passes them on; names in a module without the class."""
    module, _, name = path.rpartition(".")
    try:
        home = importlib.import_module(module)
    except (ImportError, ValueError):
        return []
    if not hasattr(home, name):
        return dir(home)
    names: dict[str, None] = {}
    for cls in getattr(home, name).__mro__[:-1]:
        parameters = inspect.signature(cls.__init__).parameters
        several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        names |= {n: None for n, p in parameters.items() if n != "self" and p.kind not in several}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            break
    return list(names)


def _composed(file: Path) -> yaml.Node | None:
    try:
        text = documents.text_of(file)
        documents.check_text(text)
        return yaml.compose(text, documents.Loader)
    except (OSError, yaml.YAMLError):
        return None


def _find(node: yaml.Node | None, path: Sequence[str]) -> tuple[yaml.Node, yaml.Node] | None:
    """The nodes of a dotted key and of its value; ``init_args`` may stand between its parts."""
    if not isinstance(node, yaml.MappingNode):
        return None
    for key, value in node.value:
        if key.value == path[0]:
            return _find(value, path[1:]) if len(path) > 1 else (key, value)
    return next((_find(value, path) for key, value in node.value if key.value == "init_args"), None)


def _scalars(node: yaml.Node) -> Iterator[yaml.ScalarNode]:
    """Everything below a node that is a word, keys included."""
    if isinstance(node, yaml.ScalarNode):
        yield node
        return
    for child in node.value:
        for part in child if isinstance(child, tuple) else (child,):
            yield from _scalars(part)
