"""The command line: ``fedlit COMMAND``, where each command is a file in ``fedlit/commands/``."""

import os
import sys
import traceback
import warnings

from jsonargparse import Namespace
from rich.console import Console

import fedlit
from fedlit.commands import COMMANDS, predict
from fedlit.experiment import DEFAULT_CLASSES
from fedlit.mistakes import explain
from fedlit.parser import SUBCOMMANDS, Parser, complain, is_mistake


def main(argv: list[str] | None = None) -> None:
    """Run a command and exit with its code.

    0 when all went well, 1 after an error, 2 after a mistake on the command line or in a YAML file, 128 + n after
    signal n.
    """
    # A console script does not have the working directory on its path; one's own aggregators live there.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    warnings.filterwarnings("ignore", module=r"(lightning|torchmetrics|jsonargparse).*")
    warnings.showwarning = _show_warning
    args, parser = parse(sys.argv[1:] if argv is None else argv)
    try:
        sys.exit(COMMANDS[args.subcommand].execute(args[args.subcommand], parser))
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if os.environ.get("FEDLIT_DEBUG") or not is_mistake(error):
            raise
        complain(explain(str(error), parser.sources) + _asked_by(error))
        sys.exit(1)


def parse(argv: list[str]) -> tuple[Namespace, Parser]:
    """Parse a command line; returns the values and the parser of its command."""
    parser = Parser(prog="fedlit", description=fedlit.__doc__, version=fedlit.__version__)
    commands = parser.add_subcommands(**SUBCOMMANDS)
    parsers = {name: command.parser() for name, command in COMMANDS.items()}
    folder = argv[:1] == ["predict"] and predict.of_a_folder(argv)
    if folder:
        parsers["predict"] = predict.folder_parser()
    for name, subparser in parsers.items():
        commands.add_subcommand(name, subparser, help=COMMANDS[name].DESCRIPTION)
    names = (*COMMANDS, *(name for each in parsers.values() for name in each.nested))
    for each in (parser, *parsers.values()):
        each.introduce(tuple(argv), names)
    federated = argv[:1] and argv[0] in ("fit", "test", "predict", "export") and not folder
    args = parser.parse_args([*argv[:1], *(DEFAULT_CLASSES if federated else ()), *argv[1:]])
    return args, parsers[args.subcommand]


def _asked_by(error: Exception) -> str:
    """The line of a module that asked for its Trainer, which the error itself does not name."""
    if not isinstance(error, AttributeError):
        return ""
    asked = traceback.extract_tb(error.__traceback__)[-2]
    return f" ({asked.filename}, line {asked.lineno})"


def _show_warning(message: Warning | str, category: type[Warning], *place: object) -> None:
    Console(stderr=True).print(f"warning: {message}", style="yellow", highlight=False, markup=False, soft_wrap=True)
