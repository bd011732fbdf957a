"""``fedlit predict``."""

from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from jsonargparse import Namespace
from rich.console import Console
from rich.progress import Progress

from fedlit.cli.commands import COMMANDS
from fedlit.core.errors import ConfigError
from fedlit.experiment.helptexts import STORE
from fedlit.experiment.options import composed, experiment_parser
from fedlit.experiment.parser import Parser, complain
from fedlit.experiment.resumption import required_checkpoint
from fedlit.federation.evaluation import evaluate_sets
from fedlit.metrics.auroc import slug
from fedlit.predictions.scoring import image_files, load_scorer, names_a_model, score_files, write_scores
from fedlit.predictions.table import PROBABILITIES, collected, write
from fedlit.tracking.addresses import store_address
from fedlit.tracking.run import run_of

IMAGES = (
    "Write the probabilities that a trained model gives to every image (PNG, JPEG, DICOM) of a folder and its "
    "subfolders to a CSV file. For the images of a run's own data see `fedlit predict --help`."
)


def parser(argv: Sequence[str]) -> Parser:
    """Make the options: the keys of a YAML, or a trained model and a folder of images."""
    words = [word for given in argv for word in given.split("=", 1)]
    if any(flag == "--model" and names_a_model(word) for flag, word in pairwise(words)):  # a trained one, not a class
        return _folder_parser()
    options = experiment_parser(
        f"{COMMANDS['predict']} For the images of a folder see `fedlit predict --model runs:/ID --help`."
    )
    part = "Part of the data whose images are scored."
    options.add_argument("--part", choices=("train", "val", "test"), default="test", help=part)
    folder = "Folder for the files, one per set of images. By default probabilities/ in the run directory."
    options.add_argument("--output", type=Path | None, default=None, help=folder)
    options.add_argument("--format", choices=("parquet", "csv"), default="parquet", help="Format of the files.")
    return options


def _folder_parser() -> Parser:
    options = Parser(description=IMAGES)
    model = (
        "Trained model: runs:/ID (the best of an MLflow run), models:/NAME/VERSION, a folder or a .safetensors file."
    )
    options.add_argument("--model", type=str, required=True, help=model)
    options.add_argument("folder", metavar="FOLDER", type=Path, help="Folder of the images.")
    scores = "CSV file for the probabilities: image and score/CLASS, as `fedlit compare` reads them."
    options.add_argument("--output", type=Path, default=Path("scores.csv"), help=scores)
    options.add_argument("--tracking_uri", type=str | None, default=None, help=STORE)
    options.add_argument("--accelerator", type=str, default="auto", help="Device: auto, cpu, cuda or mps.")
    trust = "Allow the model to run code from outside of fedlit, torch.nn and torch.optim, such as your own module."
    options.add_argument("--trust", action="store_true", help=trust)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Write the probabilities of a checkpoint for a part of the data, one file per set of images; return the exit code.

    With a trained model, score the images of a folder.
    """
    if "folder" in args:
        return _score_folder(args)
    with composed(args, parser) as experiment:
        path, console = required_checkpoint(experiment), experiment.console
        session = experiment.session(run_of(path))
        with closing(session.engine):
            server, rounds, _ = session.restore(path)
            folder = args.output or run_of(path) / PROBABILITIES
            for name, scores in evaluate_sets(session, server, args.part, "predict_step").items():
                table = collected(session, name, scores, rounds)
                if table is None:
                    raise ConfigError(
                        f"predict: expected classes and a predict_step that returns a tensor [B, C], found a "
                        f"{type(session.module).__name__} without; add them, or see `fedlit list` for models that have "
                        "them"
                    )
                if session.fabric.is_global_zero:
                    file = write(table, folder / f"{slug(name)}_{args.part}.{args.format}")
                    console.print(f"{len(table)} images: {file}")
        return 0


def _score_folder(args: Namespace) -> int:
    """Score the images of a folder; return 1 if some cannot be read, whose rows stay empty."""
    if args.output.is_dir():
        raise ConfigError(
            f"--output: expected a file such as {args.output / 'scores.csv'}, found the folder {args.output}"
        )
    files = image_files(args.folder)
    scorer = load_scorer(args.model, store_address(args.tracking_uri), args.accelerator, args.trust)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"Scoring {len(files):,} images", total=len(files))
        scores, unreadable = score_files(scorer, files, lambda done: bar.advance(task, done))
    write_scores(args.output, args.folder, files, scores, scorer.classes)
    if unlearned := scorer.unlearned:
        console.print(f"no scores for classes that the model has not learned: {', '.join(unlearned)}")
    console.print(f"{len(files)} images: {args.output}")
    if not unreadable:
        return 0
    shown = "".join(f"\n  {file}: {reason}" for file, reason in sorted(unreadable.items())[:5])
    complain(f"{len(unreadable)} of {len(files)} images cannot be read; their rows have no scores:{shown}")
    return 1
