"""The parser of every command, which explains mistakes."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, get_args

import yaml
from jsonargparse import ActionConfigFile, ArgumentError, ArgumentParser, Namespace, set_dumper, set_loader
from rich.console import Console

from fedlit.core.errors import CheckpointError, ConfigError, TrainingError
from fedlit.core.system import documents
from fedlit.experiment.helptexts import HelpFormatter
from fedlit.experiment.mistakes import Sources, custom_code, explain, home, of_classes
from fedlit.tracking.addresses import masked, showable


def _read(text: str) -> Any:
    """Parse a YAML file, or a value of the command line; ``KEY:`` and ``{KEY, KEY}`` are texts for jsonargparse."""
    value = documents.parse(text)
    if isinstance(value, dict) and value and all(each is None for each in value.values()):
        plain = text.strip()
        return text if [f"{key}:" for key in value] == [plain] or ":" not in plain else value
    return value


def _written(settings: Any) -> str:
    return documents.dump(masked(settings))


set_loader("yaml", _read, (yaml.YAMLError,))
set_dumper("yaml", _written)


class Parser(ArgumentParser):
    """A parser that explains mistakes instead of printing the usage."""

    sources = Sources(())  # Sources of the values.
    first_words: tuple[str, ...] = ()  # Words that precede those of the user.
    short_names: Callable[[], Sequence[str]] = staticmethod(tuple)  # Short names of classes.
    nested: "dict[str, Parser]" = {}  # Parsers of its own commands, by name.
    made: type | None = None  # Class that it makes, if it is the parser of one.

    def __init__(self, *args: Any, **options: Any) -> None:
        # Without abbreviations, by which --federation.round 3 would mean --federation.rounds.
        ours = {"prog": "fedlit", "formatter_class": HelpFormatter, "allow_abbrev": False}
        super().__init__(*args, **ours | options)

    def add_class_arguments(self, theclass: type, nested_key: str | None = None, *args: Any, **options: Any) -> Any:
        """Add the arguments of a class; without a key, it is what the parser makes."""
        self.made = theclass if nested_key is None else self.made
        return super().add_class_arguments(theclass, nested_key, *args, **options)

    def options(self) -> list[str]:
        """Return the dotted names of all options."""
        return [action.dest for action in self._actions]

    def introduce(self, argv: Sequence[str]) -> None:
        """Set the command line, and name the nested commands in the help."""
        self.sources = Sources(tuple(argv))
        if self.nested:
            help = "Each command has its own --help."
            named = {"title": "commands", "metavar": "COMMAND", "dest": "command"}
            commands = self.add_subcommands(**named, description=help, help=None)
            for name, parser in self.nested.items():
                commands.add_subcommand(name, parser, help=parser.description)

    def parse_args(self, args: Sequence[str] | None = None, *others: Any, **options: Any) -> Namespace:
        """Parse a command line; mistakes in the YAML files are reported before those in their values."""
        if problem := Sources(tuple(args or ())).problem():
            self.error(str(problem), problem)
        if any(isinstance(action, ActionConfigFile) for action in self._actions) and (gone := self.sources.absent()):
            self.error(gone)
        if not self.made:
            of_classes.clear()
        for word in args or ():
            if word[1:2].isalpha() and len(word) > 2 and f"-{word.partition('=')[0]}" in self._option_string_actions:
                self.error(f"{word}: expected two dashes, found one; write -{word}")
        parsed = super().parse_args(args, *others, **options)
        for section in self.groups:
            value = parsed.get(section, Namespace())
            if not isinstance(value, Namespace):  # jsonargparse accepts a list and null
                found = "nothing" if value is None else f"a {type(value).__name__}"
                self.error(f'Parser key "{section}": expected keys with values, found {found}')
        for key in ("logger", "phases", "run_dir", "tags"):
            if key in parsed and parsed[key] is None and self.get_default(key) is not None:
                self.error(f'Parser key "{key}": expected a value, found nothing')
        if not self.made:  # a class checks its own arguments
            self._check_ranges(parsed)
        return parsed

    def _check_ranges(self, parsed: Namespace) -> None:
        for action in self._actions:
            hint, value = getattr(action, "_typehint", None), parsed.get(action.dest)
            for within in (m for each in (hint, *get_args(hint)) for m in getattr(each, "__metadata__", ())):
                if "." not in action.dest and value is not None and (expected := within.fault(value)):
                    self.error(f"--{action.dest}: expected {expected}, found {value}{within.advice}")

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Explain a mistake and exit with code 2."""
        if not self.exit_on_error:  # mostly the parser of a class, whose error becomes the cause of ours
            try:
                super().error(message, ex)
            except ArgumentError as error:
                if self.made and getattr(self, "_inner_parser", False):  # not the file of a sweep
                    error.parser = self
                    of_classes.append(error)
                raise
        text = explain(ex, self.sources, {*self.options(), *self.nested}, self.short_names(), message)
        complain(f"{text}\n`{self.prog} --help` describes the options")
        sys.exit(2)


DELIBERATE: dict[type[Exception], tuple[str, ...]] = {
    ConfigError: ("",),
    CheckpointError: ("",),
    TrainingError: ("",),
    ValueError: ("fedlit.", "jsonargparse."),
    OSError: ("fedlit.",),
    NotImplementedError: ("fedlit.",),
    RuntimeError: ("fedlit.federation.engines.pool",),  # its text contains the traceback of a worker
}
"""Errors with advice for the user, and the modules that raise them."""


def is_mistake(error: Exception) -> bool:
    """Return whether an error is a mistake of the user with advice; other errors are shown with their traceback."""
    return bool(custom_code(error)) or any(
        isinstance(error, kind) and home(error).startswith(homes) for kind, homes in DELIBERATE.items()
    )


def complain(message: str | Exception) -> None:
    """Print an error without the credentials of addresses."""
    line = f"fedlit: error: {showable(str(message))}"
    Console(stderr=True).print(line, style="red", highlight=False, markup=False, soft_wrap=True)
