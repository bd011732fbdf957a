"""The entry point of the command line: parse, run one command, and exit with its code."""

import atexit
import os
import re
import sys
import traceback
import warnings
from contextlib import suppress

from jsonargparse import Namespace
from rich.console import Console

import fedlit
from fedlit.cli.commands import COMMANDS, command
from fedlit.core.errors import Submitted
from fedlit.core.system.imports import uncollected
from fedlit.core.system.output import lasting_output
from fedlit.core.system.shipped import with_shipped
from fedlit.experiment.mistakes import explain
from fedlit.experiment.parser import Parser, complain, is_mistake
from fedlit.federation.interrupts import unwinding_on_signals
from fedlit.tracking.addresses import showable


def run() -> None:
    """Run `main`, and end the process as soon as it is done.

    Python's own shutdown takes seconds and prints complaints of some libraries. The function that ends the process is
    registered first, so that it is called after all others.
    """
    code = 1

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # the reader has gone
                stream.flush()
        if not _is_watched():
            os._exit(code)

    atexit.register(end)
    try:
        main()
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
        raise


def _is_watched() -> bool:
    tools = getattr(sys, "monitoring", None)  # from Python 3.12 on
    return bool(sys.getprofile() or sys.gettrace() or (tools and any(map(tools.get_tool, range(6)))))


def main(argv: list[str] | None = None) -> None:
    """Run a command and exit with its code.

    The code is 0 on success, 1 after an error, 2 after a mistake on the command line or in a YAML file, and 128 + n
    after signal n.
    """
    # The path of a console script lacks the working directory, where the user's own classes are.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    warnings.filterwarnings("ignore", module=r"(lightning|torchmetrics|jsonargparse).*")
    warnings.showwarning = _show_warning
    argv = with_shipped(sys.argv[1:] if argv is None else argv)
    _greet(argv)
    try:
        with uncollected():
            args, parser = parse(argv)
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        with unwinding_on_signals(), lasting_output():
            code = command(argv[0]).execute(args, parser)
    except KeyboardInterrupt:
        sys.exit(130)
    except Submitted as told:
        print(told)
        code = 0
    except SystemExit as stopped:
        if stopped.code:
            raise
        where = traceback.extract_tb(stopped.__traceback__)[-1]
        place = f"{where.name} ({where.filename}, line {where.lineno})"
        complain(f"{place} called sys.exit({stopped.code!r}) before the end")
        sys.exit(1)
    except Exception as error:
        if os.environ.get("FEDLIT_DEBUG") or not is_mistake(error):
            raise
        complain(explain(error, parser.sources))
        sys.exit(1)
    sys.exit(code)


def parse(argv: list[str]) -> tuple[Namespace, Parser]:
    """Parse a command line by the parser of its command alone; return the values and the parser."""
    if argv and argv[0] in COMMANDS:  # importing the files of all commands would take seconds
        parser, names = command(argv[0]).parser(argv), argv[:1]
        if argv[1:] and argv[1] in parser.nested:
            parser, names = parser.nested[argv[1]], argv[:2]
    else:
        parser, names = Parser(description=fedlit.__doc__, version=fedlit.__version__), []
        parser.nested = {name: Parser(description=description) for name, description in COMMANDS.items()}
    parser.prog = " ".join(("fedlit", *names))
    parser.introduce(argv)
    args = parser.parse_args([*parser.first_words, *argv[len(names) :]])
    if names[1:]:
        args = Namespace(subcommand=names[1], **{names[1]: args})
    return args, parser


def _greet(argv: list[str]) -> None:
    """Print a line before PyTorch is imported, which takes seconds; of several ranks only the first prints it."""
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
    options = [word.partition("=")[0] for word in argv]
    prints_only = any(o in ("-h", "--print_config") or re.fullmatch(r"--([\w.]+\.)?help", o) for o in options)
    if argv[:1] == ["fit"] and not prints_only and rank == "0" and "torch" not in sys.modules:
        print(f"fedlit {fedlit.__version__}: loading PyTorch", flush=True)


def _show_warning(message: Warning | str, category: type[Warning], *place: object) -> None:
    Console(stderr=True).print(
        f"warning: {showable(str(message))}", style="yellow", highlight=False, markup=False, soft_wrap=True
    )
