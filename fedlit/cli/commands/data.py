"""``fedlit data check`` and ``fedlit data cache``."""

from argparse import ArgumentError
from collections.abc import Sequence
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
"""Names of the chest X-ray data sets that can be checked."""

Reader = TypeVar("Reader")


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of both commands."""
    options = Parser(description=COMMANDS["data"])
    options.nested = {"check": _check_parser(), "cache": _cache_parser()}
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Check folders of images, or manage the cache; return the exit code."""
    return _cache(args.cache) if args.subcommand == "cache" else _check(args.check)


def _check(args: Namespace) -> int:
    roots = [Path(root).expanduser() for root in args.roots]
    if absent := [str(root) for root in roots if not root.exists()]:
        complain(f"{', '.join(absent)}: no such folder")
        return 2

    if args.classes:
        args.set = {"classes": args.classes, **args.set}
    with uncollected():
        from fedlit.cli.check_report import report, report_problems
        from fedlit.cli.tables import wide_console
        from fedlit.data.xrays.check import check_folder, compare_folders

        console, checks = wide_console(), []
        try:
            for reader in [_reader(root, args) for root in roots]:
                checks.append(check_folder(reader, args.decode, Path(args.pairs)))
                report(checks[-1], console)
        except ConfigError as error:
            complain(error)
            return 2
    shared = compare_folders(checks, Path(args.pairs))
    report_problems(shared, console)
    return 1 if shared or any(each.problems for each in checks) else 0


def _check_parser() -> Parser:
    description = (
        "Summarise folders of chest X-rays, or a table of your own images, and report problems with file and line."
    )
    parser = Parser(description=description, epilog=CHECK)
    folder = "Folder of a downloaded data set, or a table of your own images. Several are compared with each other."
    parser.add_argument("roots", metavar="ROOT", nargs="+", type=str, help=folder)
    images = "Folder of the images that a table lists. By default the folder of the table."
    parser.add_argument("--root", type=str | None, default=None, help=images)
    named = "Name of the data set, if the folder does not show it."
    parser.add_argument("--source", choices=SOURCES, default=None, help=named)
    parser.add_argument(
        "--decode", action="store_true", help="Decode every image, which takes longer and finds more. See below."
    )
    pairs = "PNG file for pairs of near-duplicate images. The name of the data set is appended to its stem."
    parser.add_argument("--pairs", type=str, default="pairs.png", help=pairs)
    named = (
        "Classes of a federation, as its lead has named them. For a table, the proposed YAML lists those that it lacks."
    )
    parser.add_argument("--classes", nargs="+", type=str, default=[], help=named)
    arguments = "Arguments of the data set, as in data.init_args: --set '{official_split: false}'."
    parser.add_argument("--set", type=dict[str, Any], default={}, help=arguments)
    return parser


def _cache_parser() -> Parser:
    description = (
        "List the cache of decoded images with sizes, last uses and the runs that used them, or remove entries."
    )
    parser = Parser(description=description, epilog=CACHE)
    place = "Folder of the cache. By default $XDG_CACHE_HOME/fedlit or ~/.cache/fedlit."
    parser.add_argument("--cache_dir", type=str | None, default=None, help=place)
    which = "Entries to remove: names or their beginnings, `unfinished`, or `all`."
    parser.add_argument("--remove", nargs="+", type=str, default=[], help=which)
    days = "Remove only entries unused for this many days."
    parser.add_argument("--older", type=float, default=0, help=days)
    return parser


def _cache(args: Namespace) -> int:
    from fedlit.cli.tables import cache_table, wide_console
    from fedlit.data.pictures import cache

    folder, console = cache.cache_folder(args.cache_dir), wide_console()
    entries = cache.entries(folder)
    if not args.remove:
        cache_table(folder, entries, console)
        return 0
    try:
        asked = cache.select(entries, args.remove, args.older)
    except ValueError as error:
        complain(error)
        return 2
    removed = [entry for entry in asked if cache.remove(entry)]
    size = decimal(sum(entry.size for entry in removed))
    console.print(f"removed {len(removed)} of {len(entries)} entries from {folder}: {size}")
    for entry in asked:
        if entry not in removed:
            console.print(f"kept {entry.name}: in use by another process", style="yellow")
    return 0


def _reader(root: Path, args: Namespace) -> Any:
    """Make the reader of a folder, or of a table."""
    from fedlit.data.table_formats import is_table
    from fedlit.data.xrays.check import recognise

    if root.is_file() and is_table(root):
        return _of_table(root, args)
    return _open(recognise(root, args.source), {"root": root}, args.set)


def _of_table(path: Path, args: Namespace) -> Any:
    """Print the proposed YAML of a table, in which ``--set`` overrides arguments, and make its reader."""
    from fedlit.data.own.image_table import ImageTable
    from fedlit.data.own.proposal import propose

    try:
        proposal = propose(path, None if args.root is None else Path(args.root).expanduser(), args.set)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    print(proposal.document(path.name.partition(".")[0]) + "\n", flush=True)
    return _open(ImageTable, proposal.arguments, args.set)


def _open(kind: type[Reader], arguments: dict[str, Any], overrides: dict[str, Any]) -> Reader:
    """Make the reader of a folder; the values of ``--set`` are parsed as in a YAML, for which PyTorch is imported."""
    if not overrides:
        try:
            return kind(**arguments)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    parser = Parser(exit_on_error=False)
    parser.add_class_arguments(kind)
    try:
        plain = {**arguments, **overrides, "root": str(arguments["root"])}
        return kind(**parser.instantiate(parser.parse_object(plain)).as_dict())
    except (ArgumentError, ValueError) as error:
        raise ConfigError(f"--set: {explain(error, Sources(()), parser.get_defaults().as_dict())}") from error
