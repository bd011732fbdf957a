"""``fedlit export``."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from jsonargparse import Namespace

from fedlit.cli.commands import COMMANDS
from fedlit.core.checkpoints import checkpoint
from fedlit.experiment.options import composed, experiment_parser
from fedlit.experiment.parser import Parser
from fedlit.experiment.resumption import required_checkpoint
from fedlit.metrics.auroc import slug
from fedlit.predictions.export import check_described, export, owner
from fedlit.predictions.notes import foreign_code
from fedlit.tracking.run import run_of


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of an export: the keys of a YAML, the client, and the file."""
    options = experiment_parser(COMMANDS["export"])
    whose = "Client whose own model is written, if clients keep a part of the model. By default the federation's model."
    options.add_argument("--client", type=str | None, default=None, help=whose)
    file = "File for the model. By default model.safetensors or model-CLIENT.safetensors in the run directory."
    options.add_argument("--output", type=Path | None, default=None, help=file)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Write the model of a checkpoint, or a client's own model, to a file; return the exit code."""
    with composed(args, parser) as experiment:
        path, console = required_checkpoint(experiment), experiment.console
        directory = run_of(path)
        check_described(directory, experiment.config)
        experiment.federation.workers = 1  # nothing is computed
        session = experiment.session(directory)
        with closing(session.engine):
            holder = owner(session, args.client)
            default = "model.safetensors" if holder is None else f"model-{slug(holder)}.safetensors"
            file = args.output or directory / default
            if experiment.fabric.is_global_zero:
                names = [type(a).__name__ for a in experiment.federation.aggregators]
                export(session, checkpoint.load(path, session.layout, names), directory, holder, file)
        if args.client and holder is None:
            console.print(f"clients keep no part of the model: {args.client!r} has the federation's model")
        if unlearned := [name for name in session.classes if name not in session.learned(holder)]:
            console.print(f"ignore the scores of classes that the model has not learned: {', '.join(unlearned)}")
        if foreign := foreign_code(experiment.settings["model"]):
            console.print(
                f"the model uses {', '.join(foreign)}: `fedlit predict --model {file}` needs --trust, and must be able "
                "to import it"
            )
        console.print(f"model after round {checkpoint.rounds(path)}: {file}")
        return 0
