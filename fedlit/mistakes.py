"""Says what is wrong with a command line or a YAML file: which key, where it stands, what was meant."""

import difflib
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

NOISE = re.compile(
    r"(Does not validate against any of the (Union )?subtypes|Subtypes:|Errors?:|Given value type:"
    r"|Expected a <class 'NoneType'>|Cannot take a Union of no types|Not of type SeedList"
    r"|Expected a (config )?path but .* either not accessible or invalid)",
    re.IGNORECASE,
)
KEY = re.compile(r'Parser key "([^"]+)":?\s*')
OWNER = re.compile(r"Problem with given class_path '([^']+)':?")
EXPECTED = re.compile(r"Expected (?:an? )?((?:<class|typing\.|\w+\[|[a-z]+$).*?)(?:\. Got value: (.*))?$")
TRAINER = (
    "there is no Trainer here: federation.rounds and federation.schedule say how long to train, fabric.* where, "
    "federation.gradient_clip and data.batch_size how"
)
CLASSES = "; `fedlit list` shows what ships, and a class of your own is named with its module: my_project.MyAggregator"
UNKNOWN_OPTION = re.compile(
    r"(?:Subcommand '\w+' does not accept (?:option|nested key) '|unrecognized arguments: --)([\w.]+)", re.IGNORECASE
)
OPTION_KEY = re.compile(r"(?:seed|logger|ckpt_path|(?:fabric|data|model|federation)\.[\w.]*\w)\b")


@dataclass(frozen=True)
class Sources:
    """Where a configuration came from: the words of the command line, and the YAML files that they name."""

    argv: tuple[str, ...]

    @property
    def files(self) -> Iterator[Path]:
        """The files given by ``--config``, the last first, as it wins."""
        for i in reversed(range(len(self.argv))):
            flag, equals, value = self.argv[i].partition("=")
            if flag in ("-c", "--config"):
                yield Path(value if equals else self.argv[i + 1] if i + 1 < len(self.argv) else "")

    def where(self, key: str, value: str = "") -> str:
        """``FILE, line N`` or ``command line``; "" where neither is sure.

        Args:
            key: dotted, without ``init_args``.
            value: what stands at the key or below it, where the line of that is wanted.
        """
        entries = [(file, entry) for file in self.files if (entry := _find(_composed(file), key.split(".")))]
        if value:
            if any(value in (word.lstrip("-"), *re.split(r"[^\w]+", word)) for word in self.argv):
                return "command line"
            for file, entry in entries:
                for node in _scalars(entry[1]):
                    if node.value == value:
                        return f"{file}, line {node.start_mark.line + 1}"
        if any(re.split(r"[=+]", word)[0] == f"--{key}" for word in self.argv):
            return "command line"
        return next((f"{file}, line {entry[0].start_mark.line + 1}" for file, entry in entries), "")

    def syntax_error(self) -> str:
        """The first syntax error in the files, with its place."""
        for file in self.files:
            try:
                yaml.compose(file.read_text())
            except yaml.MarkedYAMLError as error:
                mark = error.problem_mark or error.context_mark
                return f"{file}, line {mark.line + 1}, column {mark.column + 1}: no valid YAML: {error.problem}"
            except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
                return f"{file}: {error}"
        return ""


@dataclass(frozen=True)
class SweepSources(Sources):
    """Where a run of a sweep came from: its base files, and the sections of the sweep's own file.

    Attributes:
        file: of the sweep, where it has one.
        case: of the run, or "".
    """

    file: Path | None = None
    case: str = ""

    def where(self, key: str, value: str = "") -> str:
        for entry, node in self._settings():
            lines = [
                n.start_mark.line
                for n in (entry, *_scalars(node))
                if value and value in (n.value, n.value.rpartition(".")[2])
            ]
            name = entry.value.rstrip("+").replace(".init_args", "")
            if lines or (not value and (key == name or key.startswith(f"{name}."))):
                return f"{self.file}, line {(lines or [entry.start_mark.line])[0] + 1}"
        return super().where(key, value)

    def _settings(self) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        """Keys and values of the sections that made the run, those that win first."""
        node = _composed(self.file) if self.file else None
        for section in (["grid"], ["cases", self.case], ["set"]):
            found = _find(node, section)
            yield from found[1].value if found and isinstance(found[1], yaml.MappingNode) else ()


@dataclass
class _Told:
    """What jsonargparse's report of a mistake says, less what it says about its own workings."""

    keys: list[str] = field(default_factory=list)
    owner: str = ""
    expected: list[str] = field(default_factory=list)
    found: str = ""
    reasons: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, message: str) -> "_Told":
        told = cls()
        for line in message.splitlines():
            line = line.strip().removeprefix("- ").removeprefix("Validation failed: ")
            if key := KEY.match(line):
                told.keys.append(key[1])
                line = line[key.end() :]
            if not line or NOISE.match(line):
                continue
            if owner := OWNER.match(line):
                told.owner = owner[1]
            elif line.startswith("Given value:"):
                told.found = told.found or line.removeprefix("Given value:").strip()
            elif expected := EXPECTED.match(line):
                told.expected.append(
                    re.sub(r"<class '([\w.]+)'>|(?:typing\.)?Literal\[(.*)\]|typing\.", r"\1\2", expected[1])
                )
                told.found = told.found or expected[2] or ""
            else:
                told.reasons.append(line)
        return told


def explain(message: str, sources: Sources, options: Iterable[str] = (), classes: Iterable[str] = ()) -> str:
    """A mistake in one's own words: the key and its place, what was found, what was expected or near.

    Args:
        message: of jsonargparse, or of an error that fedlit raised.
        sources: where the configuration came from.
        options: keys that exist, for near names.
        classes: short names that exist, for near names.
    """
    if "parsing config" in message and (problem := sources.syntax_error()):
        return problem
    told = _Told.read(message)
    key = ".".join(told.keys)
    if not any(NOISE.match(line.strip(" -")) or KEY.search(line) for line in message.splitlines()):
        text, value = _reworded(message.removeprefix("Validation failed: "), "", list(options), list(classes))
    elif told.reasons:
        texts = [_reworded(reason, told.owner, list(options), list(classes)) for reason in told.reasons]
        text, value = "\n".join(t for t, _ in texts), next((v for _, v in texts if v), "")
    elif told.expected:
        found = told.found if len(told.found) < 80 else told.found[:77] + "..."
        text, value = f"expected {' or '.join(dict.fromkeys(told.expected))}, found {found!r}", told.found
        if set(told.expected) == {"list"} and re.fullmatch(r"[\w.]+", found):
            typed = sources.where(key, value) == "command line"
            text += f"; write '[{found}]', or --{key}+={found}" if typed else f"; write [{found}]"
    else:
        text, value = message.strip(), ""
    if named := OPTION_KEY.match(text):  # it names its key itself, and that more closely than the parser does
        place = sources.where(named[0], value)
        return f"{named[0]} ({place}){text[named.end() :]}" if place else text
    place = sources.where(key or value, value)
    if not key:
        return f"{text} ({place})" if place else text
    return f"{key} ({place}): {text}" if place else f"{key}: {text}"


def near(word: str, names: Iterable[str]) -> str:
    """`` Did you mean ...?`` for names that look like a word, or ""."""
    found = difflib.get_close_matches(word, list(names), n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _reworded(reason: str, owner: str, options: Sequence[str], classes: Sequence[str]) -> tuple[str, str]:
    """A reason in fedlit's words, and the word of the configuration that it is about."""
    if match := re.match(r"Expected a dot import path string: (.*)", reason):
        return f"there is no class {match[1]!r}{near(match[1], classes) or CLASSES}", match[1]
    if match := re.match(r"module '([\w.]+)' has no attribute '(\w+)'", reason):
        return (
            f"module {match[1]!r} has no {match[2]!r}{near(match[2], dir(importlib.import_module(match[1])))}",
            match[2],
        )
    if match := re.search(r"No module named '([\w.]+)'", reason):
        return f"there is no module {match[1]!r} in the working directory or among the installed packages", match[1]
    if match := re.match(r"(?:Option|Key) '([\w.]+)' is not (?:accepted|expected)", reason):
        known = _arguments(owner) or list(options)
        hint = near(match[1], known) or (f"; it has {', '.join(known)}" if known else "")
        return f"{owner.rpartition('.')[2] or 'it'} has no argument {match[1]!r}{hint}", match[1]
    if match := UNKNOWN_OPTION.match(reason):
        name = match[1]
        hint = f"; {TRAINER}" if name.startswith("trainer") else near(name, options)
        return f"there is no option {name!r}{hint}", name
    if match := re.match(r"argument \w+: invalid choice: '(\w+)' \(choose from (.*)\)", reason):
        commands = re.findall(r"\w+", match[2])
        return (
            f"there is no command {match[1]!r}{near(match[1], commands) or ': expected ' + ', '.join(commands)}",
            match[1],
        )
    if match := re.match(r'the following arguments are required: (.*)|Key "(\w+)" is required', reason):
        name = owner.rpartition(".")[2]
        return f"{name + ' needs' if name else 'needed:'} {match[1] or match[2]}", ""
    return reason[0].lower() + reason[1:] if reason.startswith("File ") else reason, ""


def _arguments(class_path: str) -> list[str]:
    """Names that a class takes, those of its bases included where it passes them on."""
    module, _, name = class_path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return []
    names: dict[str, None] = {}
    for cls in found.__mro__[:-1]:
        parameters = inspect.signature(cls.__init__).parameters
        names |= {
            n: None for n, p in parameters.items() if n != "self" and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        }
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            break
    return list(names)


def _composed(file: Path) -> yaml.Node | None:
    try:
        return yaml.compose(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
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
