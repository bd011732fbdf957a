"""Results of the test of a model: metrics of every test set, ROC curves, and predictions."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from fedlit.federation.engines.scores import Scores
from fedlit.federation.evaluation import pooled_metrics, with_sites
from fedlit.federation.session import Session
from fedlit.metrics.auroc import slug
from fedlit.predictions.table import collected, write


def test_metrics(session: Session, sets: dict[str, list[Scores]], directory: Path | None) -> dict[str, float]:
    """Return ``test/<set>/...`` of every test set and organisation; draw ROC curves into ``directory``, if not None."""
    metrics: dict[str, float] = {}
    for name, scores in with_sites(session, sets).items():
        prefix = f"test/{slug(name)}"
        metrics |= pooled_metrics(scores, session.classes, prefix, session.everyone.schemes, apart=True)
        metrics |= images_ranked(metrics, prefix)
        if directory and all(s.scores is not None for s in scores) and name in ("federation", *session.data.test_sets):
            from fedlit.tracking.figures import roc_figure  # matplotlib takes a second to import

            together = [torch.cat([getattr(s, part) for s in scores]) for part in ("scores", "labels")]
            figure = roc_figure(*together, session.classes, f"Test set: {name}")
            figure.canvas.print_png(directory / f"roc_{slug(name)}.png")
    return metrics


def images_ranked(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Return ``{prefix}/auroc_images``, the number of images that the AUROC of a class ranks, averaged over classes."""
    start = f"{prefix}/auroc/"
    names = [key.removeprefix(start) for key, value in metrics.items() if key.startswith(start) and value == value]
    counts = [metrics[f"{prefix}/n_pos/{name}"] + metrics[f"{prefix}/n_neg/{name}"] for name in names]
    return {f"{prefix}/auroc_images": sum(counts) / len(counts)} if counts else {}


def write_predictions(session: Session, sets: Mapping[str, Sequence[Scores]], rounds: int, folder: Path) -> list[Path]:
    """Write the predictions of each test set that the module scores per class; return the files.

    A set is left out if a site does not send its scores, because a part could be mistaken for the whole.
    """
    if not session.fabric.is_global_zero:
        return []
    whole = {name: scores for name, scores in sets.items() if all(s.tally is None for s in scores)}
    tables = [collected(session, name, scores, rounds) for name, scores in whole.items()]
    return [write(table, folder / f"{slug(table.name)}.parquet") for table in tables if table is not None]
