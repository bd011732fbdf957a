"""``fedlit data check``."""

from argparse import ArgumentError
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from fedlit.data.check import check, compare, readers, recognise
from fedlit.data.check_report import report, report_console, report_problems
from fedlit.data.xrays import ChestXrays
from fedlit.errors import ConfigError
from fedlit.helptexts import CHECK
from fedlit.mistakes import Sources, explain
from fedlit.parser import Parser, complain

DESCRIPTION = "Look at data before training on it."


def parser() -> Parser:
    """The options of looks at data."""
    options = Parser(description=DESCRIPTION)
    options.nested = {"check": _check_parser()}
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Look at folders of chest X-rays and compare them; returns the exit code."""
    args, console = args.check, report_console()
    try:
        roots = [Path(root).expanduser() for root in args.roots]
        opened = [_open(recognise(root, args.source), root, args.set) for root in roots]
        checks = []
        for reader in opened:
            checks.append(check(reader, args.decode))
            report(checks[-1], console)
    except ConfigError as error:
        complain(str(error))
        return 2
    shared = compare(checks)
    report_problems(shared, console)
    return 1 if shared or any(found.problems for found in checks) else 0


def _check_parser() -> Parser:
    """The options of a look at data."""
    description = "Say what folders of chest X-rays hold, and what is wrong with them, with file and line."
    parser = Parser(description=description, epilog=CHECK)
    parser.add_argument("roots", metavar="ROOT", nargs="+", type=str, help="folder of a download; several are compared")
    named = "the data set, where a folder does not show it"
    parser.add_argument("--source", choices=tuple(readers()), default=None, help=named)
    parser.add_argument("--decode", action="store_true", help="decode every image, see below")
    given = "arguments of the data set, as data.init_args: --set '{official_split: false}'"
    parser.add_argument("--set", type=dict[str, Any], default={}, help=given)
    return parser


def _open(kind: type[ChestXrays], root: Path, options: dict[str, Any]) -> ChestXrays:
    """The reader of a folder, made as that of a YAML would be."""
    parser = Parser(exit_on_error=False)
    parser.add_class_arguments(kind)
    try:
        return kind(**parser.instantiate(parser.parse_object({**options, "root": str(root)})).as_dict())
    except (ArgumentError, ValueError) as error:
        raise ConfigError(f"--set: {explain(str(error), Sources(()), parser.get_defaults().as_dict())}") from error
