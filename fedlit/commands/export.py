"""``fedlit export``."""

from pathlib import Path

from jsonargparse import Namespace

from fedlit import checkpoint
from fedlit.experiment import Experiment, composed, experiment_parser
from fedlit.export import check_described, export, owner
from fedlit.metrics.auroc import slug
from fedlit.parser import Parser
from fedlit.run import run_of

DESCRIPTION = "Write a checkpoint's model to one .safetensors file, to be used elsewhere."


def parser() -> Parser:
    """The keys of a YAML, and what is written where."""
    options = experiment_parser(DESCRIPTION)
    whose = "whose own model, where clients keep a part of it; by default the federation's"
    options.add_argument("--client", type=str | None, default=None, help=whose)
    file = "the file; by default model.safetensors or model-CLIENT.safetensors in the run directory"
    options.add_argument("--output", type=Path | None, default=None, help=file)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Export; returns the exit code."""
    with composed(args, parser) as experiment:
        return run_export(experiment, args.client, args.output)


def run_export(experiment: Experiment, client: str | None, output: Path | None) -> int:
    """Write the model of a checkpoint, or a client's own, to a file."""
    path, console = experiment.required_checkpoint(), experiment.console()
    directory = run_of(path)
    check_described(directory, experiment.config)
    experiment.federation.workers = 1  # nothing is computed
    session = experiment.session(directory)
    try:
        whose = owner(session, client)
        file = output or directory / ("model.safetensors" if whose is None else f"model-{slug(whose)}.safetensors")
        if experiment.fabric.is_global_zero:
            names = [type(a).__name__ for a in experiment.federation.aggregators]
            export(session, checkpoint.load(path, session.layout, names), directory, whose, file)
        if client and whose is None:
            console.print(f"clients keep no part of the model: {client!r} has the federation's")
        if unknown := [name for name in session.classes if name not in session.learned(whose)]:
            console.print(f"not learned, so that their scores say nothing: {', '.join(unknown)}")
        console.print(f"model after {checkpoint.rounds(path)} rounds: {file}")
        return 0
    finally:
        session.engine.close()
