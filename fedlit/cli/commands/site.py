"""``fedlit site init``, ``check``, ``ledger``, ``model`` and ``audit``."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from rich.console import Console

from fedlit.cli.commands import COMMANDS
from fedlit.cli.commands.audit import EPILOG, add_options, report
from fedlit.cli.tables import wide_console
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.system import documents
from fedlit.experiment.parser import Parser, complain
from fedlit.sites.connection import kit_of
from fedlit.sites.folders import ROLES, MemberFolder
from fedlit.sites.ledger import LINES, read_ledger
from fedlit.sites.messages import printable

PATH = "Folder from `fedlit site init`, a site's own file, such as fedlit-site.yaml, or a site's folder of states."


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of ``fedlit site``."""
    options = Parser(description=COMMANDS["site"])
    parsers = {
        "init": _init_parser, "check": _check_parser, "ledger": _ledger_parser, "model": _model_parser,
        "audit": _audit_parser,
    }  # fmt: skip
    options.nested = {name: made() for name, made in parsers.items()}
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Run a subcommand: write or check a folder, show a ledger, copy or audit a model; return the exit status."""
    commands = {"init": _init, "check": _check, "ledger": _ledger, "model": _model, "audit": _audit}
    expected = (ConfigError, TrainingError if args.subcommand == "check" else OSError)
    try:
        commands[args.subcommand](args[args.subcommand])
    except expected as error:
        complain(error)
        return 1
    return 0


def _init(args: Namespace) -> None:
    options = dict(args.items())
    folder = MemberFolder(path=options.pop("folder"), **options)
    for file in folder.write():
        print(f"wrote {file}")
    print(f"the next steps are in {folder.path / 'STEPS.txt'}")


def _check(args: Namespace) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for line in _checks(args.path, args.config):
        console.print(line)


def _ledger(args: Namespace) -> None:
    from fedlit.cli.ledger_report import report, write_csv

    state, settings = _state(args.path)
    policy = settings.get("policy")
    rule = policy.get("privacy") if isinstance(policy, dict) else None
    lines = list(read_ledger(state))
    if args.csv is not None:
        write_csv(lines, args.csv)
    if rule is not None:
        from fedlit.core.system.typed import made
        from fedlit.sites.budget import PrivacyRule  # with PyTorch, which takes seconds

        rule = made(PrivacyRule, rule, f"{args.path}: policy.privacy")
    report(lines, state, wide_console(), rule)


def _model(args: Namespace) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    state, _ = _state(args.path)
    from fedlit.sites.storage import download_model  # with PyTorch, which takes seconds

    file, notes = download_model(state, args.run, args.client, args.output)
    whose = f", own model of client {notes['client']!r}" if "client" in notes else ""
    console.print(printable(f"model after round {notes['round']} of run {notes['run']}{whose}: {file}"))
    pairs = zip(notes["classes"], notes["learned"], strict=True)
    if unknown := [name for name, learned in pairs if not learned]:
        console.print(printable(f"ignore the scores of classes that the model has not learned: {', '.join(unknown)}"))
    console.print(f"to use it: fedlit predict --model {file} FOLDER")


def _audit(args: Namespace) -> None:
    from fedlit.sites.audit import site_images  # with PyTorch, which takes seconds
    from fedlit.sites.own_data import read_settings

    file = args.path / "local" / "fedlit-site.yaml" if args.path.is_dir() else args.path
    if not file.is_file():
        raise ConfigError(
            f"{args.path}: expected the folder of a site, with local/fedlit-site.yaml, or that file, which names the "
            "site's data, found none; check the path"
        )
    settings = read_settings(file)
    run, weights, images = site_images(settings, args.run)
    folder = args.output or Path(f"audit-{run[:8]}")
    report(images, args, folder, f"run {run}, the model that came to site {settings.name}", weights)


def _state(path: Path) -> tuple[Path, dict[str, Any]]:
    """Return a site's folder of states and its file's settings; the path may be that folder, without settings."""
    if (path / LINES).is_file():
        return path, {}
    file = path / "local" / "fedlit-site.yaml" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"{path}: expected the folder of a site, with local/fedlit-site.yaml, or that file, found "
            f"{'a folder without it' if path.is_dir() else 'no such folder or file'}; check the path"
        )
    settings = documents.load(file)
    if not isinstance(settings, dict) or not isinstance(settings.get("state"), str):
        raise ConfigError(f"{file}: state: expected the path of the site's folder of states, found none")
    return Path(settings["state"]), settings


def _checks(path: Path, config: Path | None) -> Iterator[str]:
    """Check the folder of a site or of a lead, or only a site's own file; yield a line for each check that passed."""
    kit, file = (kit_of(path), path / "local" / "fedlit-site.yaml") if path.is_dir() else (None, path)
    if kit and kit.role == "lead":
        yield from kit.checks()
        yield f"ready to lead{kit.unless}"
        return
    if not file.is_file():
        found = "a folder with neither" if path.is_dir() else "no such folder or file"
        raise ConfigError(
            f"{path}: expected the folder of a site, with local/fedlit-site.yaml, or that of a lead, with "
            f"startup/fed_admin.json, found {found}; `fedlit site init` writes one, and its STEPS.txt explains how to "
            "get a certificate"
        )
    if config is not None and not config.is_file():
        raise ConfigError(f"--config: expected a file, found none at {config}")

    from fedlit.sites.checking import check  # with PyTorch, which takes seconds
    from fedlit.sites.own_data import read_settings
    from fedlit.sites.policy import PolicyError

    settings = read_settings(file)
    if kit:
        yield from kit.checks(settings.name)
    try:
        yield from check(settings, config)
    except PolicyError as error:
        raise ConfigError(str(error)) from error
    unseen = "; the server was not checked: there is no certificate in startup/ yet" if path.is_dir() else ""
    yield f"ready to join{kit.unless if kit else unseen}"


def _init_parser() -> Parser:
    description = (
        "Write the folder of a site, of the server or of a lead: a request for a certificate, commented rules for "
        "fedlit and NVFlare, a systemd unit, and the next steps in STEPS.txt. If one of these files exists, none is "
        "written."
    )
    parser = Parser(description=description)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="Folder to write.")
    name = "Name of the site, public name of the server's machine, or email address of the lead."
    parser.add_argument("--name", type=str, required=True, help=name)
    parser.add_argument("--org", type=str, required=True, help="The organisation, as one word.")
    parser.add_argument("--role", choices=ROLES, default="site", help="Role of the folder's owner.")
    parser.add_argument(
        "--project", type=str, default="fedlit", help="Name of the federation, the same for all members."
    )
    data = "Data of a site, as in a configuration: --data '{class_path: NIHChestXray14, init_args: {root: /data/nih}}'."
    parser.add_argument("--data", type=dict[str, Any] | None, default=None, help=data)
    share = "Which clients of the data belong to the site, such as `2 of 3`. By default all."
    parser.add_argument("--share", type=str | None, default=None, help=share)
    parser.add_argument("--port", type=int | None, default=None, help="Port of the server, by default 8002.")
    sites = "Names of the sites that take part in a lead's runs."
    parser.add_argument("--sites", nargs="+", type=str, default=[], help=sites)
    return parser


def _ledger_parser() -> Parser:
    description = (
        "Show what a site was asked and what has left it: who asked, when, how often, over how many examples, and "
        "how many bytes. Check that no line of the ledger was changed or removed. Only --csv writes a file."
    )
    parser = Parser(description=description)
    parser.add_argument("path", metavar="PATH", type=Path, help=PATH)
    parser.add_argument("--csv", type=Path | None, default=None, help="File for a table with one row per message.")
    return parser


def _model_parser() -> Parser:
    description = (
        "Copy the best model of a run that has ended to a .safetensors file for `fedlit predict --model`. If the "
        "site's client keeps a part of the model, as with FedBN, the file contains the client's part."
    )
    parser = Parser(description=description)
    parser.add_argument("path", metavar="PATH", type=Path, help=PATH)
    run = "The run, by the first characters of its id, as in `fedlit site ledger`. By default the newest with a model."
    parser.add_argument("run", metavar="RUN", type=str | None, nargs="?", default=None, help=run)
    client = "Client whose own model is copied, if several clients of the site keep a part of the model."
    parser.add_argument("--client", type=str | None, default=None, help=client)
    output = "File of the model, by default model-RUN.safetensors in the working directory."
    parser.add_argument("--output", type=Path | None, default=None, help=output)
    return parser


def _audit_parser() -> Parser:
    description = (
        "Report how well the model of a run that has ended tells the site's training patients from its validation and "
        "test patients, for example before the model or its results are published. Nothing is sent, and the ledger is "
        "not changed."
    )
    parser = Parser(description=description, epilog=EPILOG)
    path = "Folder from `fedlit site init`, or a site's own file, such as fedlit-site.yaml."
    parser.add_argument("path", metavar="PATH", type=Path, help=path)
    run = "The run, by the first characters of its id, as in `fedlit site ledger`. By default the newest with a model."
    parser.add_argument("run", metavar="RUN", type=str | None, nargs="?", default=None, help=run)
    output = "Folder for the report, by default audit-RUN in the working directory."
    parser.add_argument("--output", type=Path | None, default=None, help=output)
    add_options(parser)
    return parser


def _check_parser() -> Parser:
    description = (
        "Check a site before it joins a federation: its data, device, folder of states and policy, the server, and a "
        "short round with random weights. Nothing is kept, and nothing leaves the machine."
    )
    parser = Parser(description=description)
    path = (
        "Folder from `fedlit site init`, or a site's own file, such as fedlit-site.yaml. The server is checked if the "
        "folder has a certificate; in a lead's folder, only the server is checked."
    )
    parser.add_argument("path", metavar="PATH", type=Path, help=path)
    tried = (
        "A whole configuration to try, such as config.yaml in the directory of a run. Its code is imported only if the "
        "policy allows it. By default a small network."
    )
    parser.add_argument("--config", type=Path | None, default=None, help=tried)
    return parser
