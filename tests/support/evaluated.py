"""Predictions with planted gaps between groups, and evaluations of runs that have them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from past_runs import config, scored, write_run
from scipy.special import expit

from fedlit.predictions.table import Predictions, write
from fedlit.reports.compare.runs import load_runs
from fedlit.reports.evaluation.evaluation import Evaluation, EvaluationOptions, evaluate_runs
from fedlit.reports.evaluation.points import Point

CLASSES = ("Effusion", "Nodule")


def drawn(data: int, seed: int = 0, images: int = 1200, kind: str = "logit") -> Predictions:
    """Images of three clients; Nodule is fainter in women, and west has higher scores."""
    rng, own = np.random.default_rng(data), np.random.default_rng((data, seed))
    labels = (rng.random((images, 2)) < 0.25).astype(np.float32)
    sex, client = rng.choice(["F", "M"], size=images), rng.choice(["north", "south", "west"], size=images)
    faint = np.where((sex == "F")[:, None], [1.0, 0.2], 1.0)
    scores = 2 * labels * faint + rng.normal(size=labels.shape) + 0.2 * own.normal(size=labels.shape) - 1.5
    scores += 0.8 * (client == "west")[:, None]
    scores = scores if kind == "logit" else expit(scores)
    people = np.array([f"p{n:04d}" for n in range(images)])
    return scored(scores, labels, CLASSES, kind=kind, patients=people, clients=client, groups={"sex": sex})


def run_of(
    folder: Path,
    found: Predictions,
    seed: int = 0,
    validation: Predictions | None = None,
    draw: int | None = None,
    **model: str,
) -> Path:
    """A run with predictions of its test set, and of validation images; ``draw`` is the seed of its data."""
    data = {} if draw is None else {"data": {"class_path": "Drawn", "init_args": {"seed": draw}}}
    run = write_run(folder, found, config(("FedAvg",), seed, **model) | data)
    if validation is not None:
        write(validation, run / "probabilities" / "federation_val.parquet")
    return run


def evaluated(*folders: Path, points: Sequence[object] = (), draws: int = 100, **options: object) -> Evaluation:
    """The evaluation of runs."""
    loaded, notes = load_runs([str(folder) for folder in folders], None, {}, "", Path())
    return evaluate_runs(
        loaded, EvaluationOptions(points=tuple(map(Point.read, points)), draws=draws, **options), notes
    )


def where(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    """The rows with these values; ``name`` is the class."""
    for column, value in values.items():
        table = table[table["class" if column == "name" else column] == value]
    return table
