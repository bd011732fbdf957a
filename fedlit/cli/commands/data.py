"""``fedlit data check`` and ``fedlit data cache``."""

from argparse import ArgumentError
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from jsonargparse import Namespace
from rich.filesize import decimal

from fedlit.cli.commands import COMMANDS
from fedlit.core.errors import ConfigError
from fedlit.core.system.imports import uncollected
from fedlit.experiment.helptexts import CACHE, CHECK
from fedlit.experiment.mistakes import Sources, explain
from fedlit.experiment.parser import Parser, complain

SOURCES = ("MIMIC", "MIMIC-LT", "CheXpert", "NIH", "PadChest", "VinDr")
"""Names of the data sets that can be looked at."""

Reader = TypeVar("Reader")


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of looks at data."""
    options = Parser(description=COMMANDS["data"])
    options.nested = {"check": _check_parser(), "cache": _cache_parser()}
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Look at folders of images, or at the cache, and return the exit code."""
    return _cache(args.cache) if args.subcommand == "cache" else _check(args.check)


def _check(args: Namespace) -> int:
    """Look at folders of images, compare them, and return the exit code."""
    roots = [Path(root).expanduser() for root in args.roots]
    if absent := [str(root) for root in roots if not root.exists()]:
        complain(f"{', '.join(absent)}: no such folder")
        return 2

    if args.classes:
        args.set = {"classes": args.classes, **args.set}
    with uncollected(), _ahead(roots, args.decode) as ahead:
        from fedlit.cli.check_report import report, report_problems
        from fedlit.cli.tables import wide_console
        from fedlit.data.xrays.check import check_folder, compare_folders

        console, checks = wide_console(), []
        try:
            for reader in [_reader(root, args) for root in roots]:
                checks.append(check_folder(reader, args.decode, Path(args.pairs), ahead))
                report(checks[-1], console)
        except ConfigError as error:
            complain(str(error))
            return 2
    shared = compare_folders(checks, Path(args.pairs))
    report_problems(shared, console)
    return 1 if shared or any(each.problems for each in checks) else 0


def _ahead(roots: Sequence[Path], decode: bool) -> AbstractContextManager:
    """Let other processes look at the images of folders already, while this one reads the label files."""
    from fedlit.data.xrays.ahead import Ahead, is_worth_it

    folders = [str(root) for root in roots if root.is_dir()]
    return Ahead(folders) if not decode and is_worth_it(folders) else nullcontext()


def _check_parser() -> Parser:
    description = (
        "Say what folders of chest X-rays hold, or a table of your own, and what is wrong there, with file and line."
    )
    parser = Parser(description=description, epilog=CHECK)
    folder = "Folder of a download, or a table of your own images, for which a YAML is proposed. Several are compared."
    parser.add_argument("roots", metavar="ROOT", nargs="+", type=str, help=folder)
    images = "Folder of the images that a table names; by default that of the table."
    parser.add_argument("--root", type=str | None, default=None, help=images)
    named = "Name of the data set, where a folder does not show it."
    parser.add_argument("--source", choices=SOURCES, default=None, help=named)
    parser.add_argument("--decode", action="store_true", help="Decode every image. See below.")
    pairs = "PNG file for pairs of alike pictures; the name of the data set is put behind its stem."
    parser.add_argument("--pairs", type=str, default="pairs.png", help=pairs)
    named = "Classes that a federation trains for, as its lead has named them; for a table, what it lacks of them is proposed too."
    parser.add_argument("--classes", nargs="+", type=str, default=[], help=named)
    given = "Arguments of the data set, as in data.init_args: --set '{official_split: false}'."
    parser.add_argument("--set", type=dict[str, Any], default={}, help=given)
    return parser


def _cache_parser() -> Parser:
    description = (
        "List the decoded images in the cache: what they are, size, last use, and the runs that used them; remove some."
    )
    parser = Parser(description=description, epilog=CACHE)
    place = "Folder of the cache; by default $XDG_CACHE_HOME/fedlit or ~/.cache/fedlit."
    parser.add_argument("--cache_dir", type=str | None, default=None, help=place)
    which = "What to remove: names or how they begin, `unfinished`, or `all`."
    parser.add_argument("--remove", nargs="+", type=str, default=[], help=which)
    days = "Days for which what is removed has not been used."
    parser.add_argument("--older", type=float, default=0, help=days)
    return parser


def _cache(args: Namespace) -> int:
    """List the cache, or remove a part of it, and return the exit code."""
    from fedlit.cli.tables import cache_table, wide_console
    from fedlit.data.pictures import cached
    from fedlit.data.pictures.store import cache_folder

    folder, console = cache_folder(args.cache_dir), wide_console()
    found = cached.entries(folder)
    if not args.remove:
        cache_table(folder, found, console)
        return 0
    try:
        asked = cached.select(found, args.remove, args.older)
    except ValueError as error:
        complain(str(error))
        return 2
    gone = [entry for entry in asked if cached.remove(entry)]
    console.print(f"removed {len(gone)} of {len(found)} from {folder}: {decimal(sum(entry.size for entry in gone))}")
    for entry in asked:
        if entry not in gone:
            console.print(f"{entry.name} stays: a process is at work on it", style="yellow")
    return 0


def _reader(root: Path, args: Namespace) -> Any:
    """Make the reader of a folder, or of a table."""
    from fedlit.data.own.table_formats import is_table
    from fedlit.data.xrays.check import recognise

    if root.is_file() and is_table(root):
        return _of_table(root, args)
    return _open(recognise(root, args.source), {"root": root}, args.set)


def _of_table(path: Path, args: Namespace) -> Any:
    """Print the YAML that is proposed for a table, with what ``--set`` says in its place, and make its reader.

    Raises:
        ConfigError: The table cannot be read, or does not name the images.
    """
    from fedlit.data.own.image_table import ImageTable
    from fedlit.data.own.proposal import propose

    try:
        found = propose(path, None if args.root is None else Path(args.root).expanduser(), args.set)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    print(found.document(path.name.partition(".")[0]) + "\n", flush=True)
    return _open(ImageTable, found.arguments, args.set)


def _open(kind: type[Reader], arguments: dict[str, Any], given: dict[str, Any]) -> Reader:
    """Make the reader of a folder; what ``--set`` gives is read as in a YAML, by types that take PyTorch."""
    if not given:
        try:
            return kind(**arguments)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    parser = Parser(exit_on_error=False)
    parser.add_class_arguments(kind)
    try:
        plain = {**arguments, **given, "root": str(arguments["root"])}
        return kind(**parser.instantiate(parser.parse_object(plain)).as_dict())
    except (ArgumentError, ValueError) as error:
        raise ConfigError(f"--set: {explain(error, Sources(()), parser.get_defaults().as_dict())}") from error
