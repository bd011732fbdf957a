"""The parser behind every command: mistakes are answered in the user's own words."""

import sys
import traceback
from typing import Any, NoReturn

from jsonargparse import ArgumentParser
from rich.console import Console

from fedlit.choices import short_names
from fedlit.errors import CheckpointError, ConfigError, TrainingError
from fedlit.helptexts import HelpFormatter
from fedlit.mistakes import Sources, explain

SUBCOMMANDS = {"title": "commands", "metavar": "COMMAND", "description": "each has its own --help", "help": None}


class Parser(ArgumentParser):
    """Explains mistakes instead of printing its usage.

    Attributes:
        sources: where the values came from.
        commands: that there are.
        nested: parsers of commands of its own, by name.
    """

    sources = Sources(())
    commands: tuple[str, ...] = ()
    nested: "dict[str, Parser]" = {}

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

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # a parser within the parser, whose error becomes a part of ours
            super().error(message, ex)
        options = {
            action.dest
            for parser in (self, getattr(ex, "subcommand_parser", None))
            if parser
            for action in parser._actions
        }
        command = [word for word in self.sources.argv[:2] if word in self.commands]
        tip = f"`{' '.join(('fedlit', *command))} --help` describes the options"
        complain(explain(message, self.sources, options, short_names()) + "\n" + tip)
        sys.exit(2)


DELIBERATE: dict[type[Exception], tuple[str, ...]] = {
    ConfigError: ("",),
    CheckpointError: ("",),
    TrainingError: ("",),
    ValueError: ("fedlit.", "jsonargparse."),
    OSError: ("fedlit.",),
    NotImplementedError: ("fedlit.",),
    RuntimeError: ("fedlit.engines.pool",),  # the text holds a worker's own traceback
    AttributeError: ("lightning.pytorch.core.module",),  # a module asks for its Trainer
}
"""Errors that say what the user can do, by the modules that raise them so."""


def is_mistake(error: Exception) -> bool:
    """Whether an error is the user's to mend and says how; any other is shown with its traceback."""
    module = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    return any(isinstance(error, kind) and module.startswith(homes) for kind, homes in DELIBERATE.items())


def complain(text: str) -> None:
    """Tell the user what is wrong."""
    Console(stderr=True).print(f"fedlit: error: {text}", style="red", highlight=False, markup=False, soft_wrap=True)
