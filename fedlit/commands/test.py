"""``fedlit test``."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from jsonargparse import Namespace
from rich.console import Console

from fedlit import checkpoint
from fedlit.data.schemes import by_sharing
from fedlit.engines.base import Scores
from fedlit.evaluation import pooled_metrics
from fedlit.experiment import Experiment, composed, experiment_parser
from fedlit.metrics.auroc import slug
from fedlit.parser import Parser
from fedlit.predictions import FOLDER, collected, write
from fedlit.progress import auroc_table, sets_table
from fedlit.run import config_difference, run_of
from fedlit.session import Session

DESCRIPTION = "Evaluate a checkpoint on the test sets."

SETS_ABREAST = 6
"""Test sets in one table on the terminal."""


def parser() -> Parser:
    """The keys of a YAML, and where the predictions go."""
    options = experiment_parser(DESCRIPTION)
    kept = (
        "folder of the predictions; by default, for a run's best model as it was tested, predictions/ in its directory"
    )
    options.add_argument("--output", type=Path | None, default=None, help=kept)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Test; returns the exit code."""
    with composed(args, parser) as experiment:
        return run_test(experiment, args.output)


def run_test(experiment: Experiment, output: Path | None) -> int:
    """Evaluate a checkpoint on the test sets, and keep the predictions."""
    path, console = experiment.required_checkpoint(), experiment.console()
    session = experiment.session(run_of(path))
    try:
        server, rounds, _ = session.restore(path)
        sets = session.evaluate_sets(server, "test")
        print_results(test_metrics(session, sets, None), f"{path} (after {rounds} rounds)", console)
        folder = output or (run_of(path) / FOLDER if _tested_by_fit(experiment, path) else None)
        if folder is None:
            console.print(
                f"predictions are not kept: {run_of(path) / FOLDER} is for the run's best model under its own "
                "configuration; --output FOLDER keeps these"
            )
        elif keep(session, sets, rounds, folder):
            console.print(f"predictions: {folder}")
        return 0
    finally:
        session.engine.close()


def test_metrics(session: Session, sets: dict[str, list[Scores]], directory: Path | None) -> dict[str, float]:
    """``test/<set>/...`` of every test set and organisation; with a directory, ROC curves are drawn there."""
    metrics: dict[str, float] = {}
    for name, scores in session.with_sites(sets).items():
        metrics |= pooled_metrics(scores, session.classes, f"test/{slug(name)}", by_sharing(session.schemes))
        if directory and scores[0].scores is not None and name in ("federation", *session.data.test_sets):
            from fedlit.reports.figures import roc_figure  # matplotlib takes a second to import

            together = [torch.cat([getattr(s, part) for s in scores]) for part in ("scores", "labels")]
            figure = roc_figure(*together, session.classes, f"Test set: {name}")
            figure.savefig(directory / f"roc_{slug(name)}.png", dpi=150)
    return metrics


def print_results(metrics: Mapping[str, float], title: str, console: Console) -> None:
    """AUROC per class and test set; of a single set with its support."""
    sets = [key.split("/")[1] for key in metrics if key.startswith("test/") and key.endswith("/auroc_macro")]
    if len(sets) == 1:
        console.print(auroc_table(metrics, f"test/{sets[0]}", f"AUROC on test set {sets[0]!r}, {title}"))
    for start in range(0, len(sets) * (len(sets) > 1), SETS_ABREAST):
        console.print(sets_table(metrics, sets[start : start + SETS_ABREAST], f"AUROC by test set, {title}"))


def keep(session: Session, sets: Mapping[str, Sequence[Scores]], rounds: int, folder: Path) -> list[Path]:
    """Write the predictions of each test set that the module scores per class; returns the files."""
    if not session.fabric.is_global_zero:
        return []
    found = [collected(session, name, scores, rounds) for name, scores in sets.items()]
    return [write(each, folder / f"{slug(each.name)}.parquet") for each in found if each is not None]


def _tested_by_fit(experiment: Experiment, path: Path) -> bool:
    """Whether a test of a checkpoint is the one that ends its run, in all that gives other numbers."""
    run, folder = run_of(path), path.parent
    if experiment.fast_dev_run or folder != run / "checkpoints" or not (run / "config.yaml").exists():
        return False
    best = checkpoint.find(folder, "best") or checkpoint.find(folder, "last")
    return path == best and not config_difference(run, experiment.config)
