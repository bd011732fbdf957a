"""The parser behind every command, which explains mistakes."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace, get_loader, set_loader
from rich.console import Console
from yaml import YAMLError

from fedlit.core.errors import CheckpointError, ConfigError, TrainingError
from fedlit.core.system import documents
from fedlit.experiment.helptexts import HelpFormatter
from fedlit.experiment.mistakes import Sources, explain, home
from fedlit.tracking.addresses import marked, without_credentials

SUBCOMMANDS = {
    "title": "commands",
    "metavar": "COMMAND",
    "description": "Each command has its own --help.",
    "help": None,
}

_read = get_loader("yaml")


def _checked(text: str) -> Any:
    """Read a YAML, or a value on the command line, that means what it says."""
    documents.check_text(text)
    return _read(text)


set_loader("yaml", _checked, (YAMLError,))


class Parser(ArgumentParser):
    """Explain mistakes instead of printing the usage."""

    sources = Sources(())  # Where the values came from.
    commands: tuple[str, ...] = ()  # Names of all commands.
    first_words: tuple[str, ...] = ()  # Words of the command itself, before those of the user.
    short_names: Callable[[], Sequence[str]] = staticmethod(tuple)  # What a class may be called.
    nested: "dict[str, Parser]" = {}  # Parsers of commands of its own, by name.

    def __init__(self, *args: Any, **options: Any) -> None:
        # An abbreviated option is a mistake: --federation.round 3 would be taken for --federation.rounds.
        super().__init__(*args, **{"formatter_class": HelpFormatter, "allow_abbrev": False, **options})

    def introduce(self, argv: tuple[str, ...], commands: tuple[str, ...]) -> None:
        """Tell it the whole command line, and add the commands of its own; called once it is itself in its place."""
        self.sources, self.commands = Sources(argv), commands
        nested = self.add_subcommands(**SUBCOMMANDS) if self.nested else None
        for name, parser in self.nested.items():
            nested.add_subcommand(name, parser, help=parser.description)
            parser.introduce(argv, commands)

    def dump(self, *args: Any, **options: Any) -> str:
        """Give a configuration as text, with a mark in the place of every credential in an address."""
        return marked(super().dump(*args, **options))

    def parse_args(self, args: Sequence[str] | None = None, *others: Any, **options: Any) -> Namespace:
        """Parse a command line, whose YAML files are looked at first: what is wrong with one is told as it is."""
        if problem := Sources(tuple(args or ())).problem():
            self.error(problem)
        parsed = super().parse_args(args, *others, **options)
        for section in self.groups:
            value = parsed.get(section, Namespace())
            if not isinstance(value, Namespace):  # jsonargparse lets a list and null pass
                found = "nothing" if value is None else f"a {type(value).__name__}"
                self.error(f'Parser key "{section}": expected keys with values, found {found}')
        return parsed

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong and exit with code 2."""
        if not self.exit_on_error:  # a parser within the parser, whose error becomes a part of ours
            super().error(message, ex)
        parsers = [each for each in (self, getattr(ex, "subcommand_parser", None)) if each is not None]
        options = {action.dest for parser in parsers for action in parser._actions}
        command = [word for word in self.sources.argv[:2] if word in self.commands]
        tip = f"`{' '.join(('fedlit', *command))} --help` describes the options"
        classes = [name for parser in parsers for name in parser.short_names()]
        complain(explain(ex, self.sources, {*options, *self.commands}, classes, message) + "\n" + tip)
        sys.exit(2)


DELIBERATE: dict[type[Exception], tuple[str, ...]] = {
    ConfigError: ("",),
    CheckpointError: ("",),
    TrainingError: ("",),
    ValueError: ("fedlit.", "jsonargparse."),
    OSError: ("fedlit.",),
    NotImplementedError: ("fedlit.",),
    RuntimeError: ("fedlit.federation.engines.pool",),  # the text holds a worker's own traceback
    AttributeError: ("lightning.pytorch.core.module",),  # a module asks for its Trainer
}
"""Errors that say what the user can do, by the modules that raise them so."""


def is_mistake(error: Exception) -> bool:
    """Return whether an error is the user's to mend and says how; any other is shown with its traceback."""
    return any(isinstance(error, kind) and home(error).startswith(homes) for kind, homes in DELIBERATE.items())


def complain(text: str) -> None:
    """Tell the user what is wrong, without the credentials of an address."""
    told = f"fedlit: error: {without_credentials(text)}"
    Console(stderr=True).print(told, style="red", highlight=False, markup=False, soft_wrap=True)
