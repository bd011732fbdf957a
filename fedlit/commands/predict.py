"""``fedlit predict``."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from jsonargparse import Namespace
from rich.console import Console
from rich.progress import Progress

from fedlit.errors import ConfigError
from fedlit.experiment import Experiment, composed, experiment_parser
from fedlit.metrics.auroc import slug
from fedlit.parser import Parser, complain
from fedlit.predictions import collected, write
from fedlit.run import run_of
from fedlit.scoring import image_files, load, names_a_model, score_files, write_scores

DESCRIPTION = "Write a checkpoint's probabilities for every image to Parquet or CSV files."
IMAGES = (
    "Write the probabilities of a trained model for every image (PNG, JPEG, DICOM) of a folder and its subfolders to a "
    "CSV file. Without --model runs:/ID, models:/NAME/VERSION, a folder or a .safetensors file, it is a run's "
    "configuration that says the model and the images: see `fedlit predict --help`."
)


def parser() -> Parser:
    """The keys of a YAML, and what is written where."""
    options = experiment_parser(f"{DESCRIPTION} Of images in a folder: see `fedlit predict --model runs:/ID --help`.")
    options.add_argument("--part", choices=("train", "val", "test"), default="test", help="of every client")
    folder = "folder of the files, one a set; by default probabilities/ in the run directory"
    options.add_argument("--output", type=Path | None, default=None, help=folder)
    options.add_argument("--format", choices=("parquet", "csv"), default="parquet", help="of the files")
    return options


def of_a_folder(argv: Sequence[str]) -> bool:
    """Whether a command line names a trained model, and not the class of one."""
    words = [word for given in argv for word in given.split("=", 1)]
    return any(flag == "--model" and names_a_model(word) for flag, word in pairwise(words))


def folder_parser() -> Parser:
    """A model, a folder, and what is written where."""
    options = Parser(description=IMAGES)
    model = "runs:/ID (the best model of an MLflow run), models:/NAME/VERSION, a folder or a .safetensors file"
    options.add_argument("--model", type=str, required=True, help=model)
    options.add_argument("folder", metavar="FOLDER", type=Path, help="of the images")
    options.add_argument("--output", type=Path, default=Path("scores.csv"), help="a row an image, a column a class")
    options.add_argument("--tracking_uri", type=str, default="sqlite:///mlflow.db", help="of MLflow")
    options.add_argument("--accelerator", type=str, default="auto", help="auto, cpu, cuda or mps")
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Predict; returns the exit code."""
    if "folder" in args:
        return run_folder(args.model, args.folder, args.output, args.tracking_uri, args.accelerator)
    with composed(args, parser) as experiment:
        return run_predict(experiment, args.part, args.output, args.format)


def run_folder(model: str, folder: Path, output: Path, tracking_uri: str, accelerator: str) -> int:
    """Score the images of a folder; 1 where some cannot be read, whose rows are empty."""
    if output.is_dir():
        raise ConfigError(f"--output: expected a file such as {output / 'scores.csv'}, found the folder {output}")
    files = image_files(folder)
    scorer = load(model, tracking_uri, accelerator)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"Scoring {len(files):,} images", total=len(files))
        scores, unreadable = score_files(scorer, files, lambda done: bar.advance(task, done))
    write_scores(output, folder, files, scores, scorer.classes)
    if unlearned := scorer.unlearned:
        console.print(f"not learned, so that there are no scores: {', '.join(unlearned)}")
    console.print(f"{len(files)} images: {output}")
    if not unreadable:
        return 0
    shown = "".join(f"\n  {file}: {reason}" for file, reason in sorted(unreadable.items())[:5])
    complain(f"{len(unreadable)} of {len(files)} images cannot be read, their rows hold no scores:{shown}")
    return 1


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
