"""``fedlit predict``."""

from pathlib import Path

from jsonargparse import Namespace

from fedlit.errors import ConfigError
from fedlit.experiment import Experiment, composed, experiment_parser
from fedlit.metrics.auroc import slug
from fedlit.parser import Parser
from fedlit.predictions import collected, write
from fedlit.run import run_of

DESCRIPTION = "Write a checkpoint's probabilities for every image to Parquet or CSV files."


def parser() -> Parser:
    """The keys of a YAML, and what is written where."""
    options = experiment_parser(DESCRIPTION)
    options.add_argument("--part", choices=("train", "val", "test"), default="test", help="of every client")
    folder = "folder of the files, one a set; by default probabilities/ in the run directory"
    options.add_argument("--output", type=Path | None, default=None, help=folder)
    options.add_argument("--format", choices=("parquet", "csv"), default="parquet", help="of the files")
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Predict; returns the exit code."""
    with composed(args, parser) as experiment:
        return run_predict(experiment, args.part, args.output, args.format)


def run_predict(experiment: Experiment, part: str, output: Path | None, format: str) -> int:
    """Write the probabilities of a checkpoint for every image of a part of the data, one file a set."""
    path, console = experiment.required_checkpoint(), experiment.console()
    session = experiment.session(run_of(path))
    try:
        server, rounds, _ = session.restore(path)
        folder = output or run_of(path) / "probabilities"
        for name, scores in session.evaluate_sets(server, part, "predict_step").items():
            found = collected(session, name, scores, rounds)
            if found is None:
                raise ConfigError(
                    "the module declares no classes, or its predict_step returns no [B, C] tensor: "
                    "there is nothing to write per class"
                )
            if session.fabric.is_global_zero:
                file = write(found, folder / f"{slug(name)}_{part}.{format}")
                console.print(f"{len(found)} images: {file}")
        return 0
    finally:
        session.engine.close()
