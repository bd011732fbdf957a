"""Runs that have ended, written by hand: directories as ``fedlit fit`` leaves them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import yaml

from fedlit.predictions.table import COLUMNS, Predictions, write
from fedlit.reports.compare.alignment import share_by_draw
from fedlit.reports.compare.methods import grouped
from fedlit.reports.compare.past_run import PastRun
from fedlit.reports.compare.statistics import Statistics, statistics
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.run import Result

CLASSES = ("Effusion", "Mass", "Nodule")


def predictions(
    strength: float, seed: int = 0, images: int = 120, classes: Sequence[str] = CLASSES, per_patient: int = 1
) -> Predictions:
    """A test set on which a larger strength gives larger AUROCs; labels and half of the noise are always the same."""
    rng, own = np.random.default_rng(7), np.random.default_rng(seed + 1)
    labels = (rng.random((images, len(classes))) < 0.3).astype(np.float32)
    scores = strength * labels + rng.normal(size=labels.shape) + 0.5 * own.normal(size=labels.shape)
    names = np.array([f"i{n:04d}" for n in range(images)])
    people = np.array([f"p{n // per_patient:04d}" for n in range(images)])
    return scored(scores, labels, classes, images=names, patients=people)


def scored(scores: object, labels: object, classes: Sequence[str], **fields: object) -> Predictions:
    """Predictions of N images from arrays [N, C]; without other fields images are numbered and columns are blank."""
    usual = {"name": "federation", "round": 3, "kind": "logit", "trained_positives": (100,) * len(classes)}
    usual |= dict.fromkeys(COLUMNS.values(), np.full(len(labels), "")) | {"images": np.arange(len(labels)).astype(str)}
    numbers = {"scores": torch.as_tensor(scores).float(), "labels": torch.as_tensor(labels).float()}
    return Predictions(classes=tuple(classes), **usual | numbers | fields)


def config(aggregators: Sequence[str] = ("FedAvg",), seed: int = 0, rounds: int = 3, **model: object) -> dict:
    """A resolved configuration, less what does not matter here."""
    listed = [{"class_path": f"fedlit.aggregators.{name}", "init_args": {"weights": None}} for name in aggregators]
    return {
        "seed": seed,
        "experiment": "written",
        "name": None,
        "tags": {},
        "run_dir": "runs",
        "model": {"class_path": "fedlit.models.ImageClassifier", "init_args": {"objective": None, **model}},
        "federation": {"aggregators": listed, "rounds": rounds, "workers": 1 + seed},
    }


def write_run(
    directory: Path,
    found: Predictions | None,
    settings: Mapping[str, object],
    metrics: Mapping[str, Sequence[float]] | None = None,
    finished: bool = True,
    client_weights: str = "",
) -> Path:
    """A run directory with predictions, configuration and metrics by round."""
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(yaml.safe_dump(dict(settings)))
    if found is not None:
        write(found, directory / "predictions" / f"{found.name}.parquet")
    file = MetricsFile(directory / "metrics.csv")
    curves = {"val/auroc_macro": (0.6, 0.7, 0.75), "bytes/up": (1e6,) * 3, "bytes/down": (1e6,) * 3}
    curves |= {"round/steps": (20,) * 3, "round/clients": (2,) * 3, "drift/client_drift": (0.3, 0.2, 0.1)}
    for key, values in (curves if metrics is None else metrics).items():
        for step, value in enumerate(values, start=1):
            file.append({key: value}, step)
    file.close()
    if finished:
        Result(3, 3, 1.0, client_weights=client_weights).write(directory)
    return directory


def past_run(aggregator: str, seed: int, drawn: bool = False) -> PastRun:
    settings, draw = {"federation.aggregators.0": aggregator}, (("data.init_args.seed", seed),) * drawn
    return PastRun(f"{aggregator}-{seed}", "run", seed, "", {}, settings, Path(), draw)


def compared(found: dict[tuple[str, int], Predictions], drawn: bool = False, **options: object) -> Statistics:
    """Statistics of predictions by aggregator and seed, which may have drawn the data; the first is the baseline."""
    methods = grouped([past_run(*key, drawn) for key in found])
    runs = [(method.name, run.seed) for method in methods for run in method.runs]
    draws = [run.draw for method in methods for run in method.runs]
    shared = share_by_draw([str(run) for run in runs], [found[run] for run in runs], draws)
    return statistics(methods, methods[0], shared, **options)
