"""Test and validation images of a method: the logits of each of its runs, labels, patients and groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.special import logit

from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import ConfigError
from fedlit.predictions.table import AGAIN, FOLDER, GROUP, Predictions, read
from fedlit.reports.compare.past_run import Notes, PastRun

PROBABILITIES = "probabilities"
"""Folder in a run's directory to which ``fedlit predict`` writes."""

COLUMNS = {"client": "clients", "site": "sites"}
"""Columns of a file that group its images without being called ``group/...``."""

SOFTMAX, RANKING = ("SoftmaxFocalLoss",), ("AUCSaddle",)
"""Objectives whose predictions are a softmax, and those whose scores are trained to rank only."""


@dataclass(frozen=True, eq=False)
class Images:
    """A set of N images with the logits of the R runs of a method."""

    name: str  # Name of the set.
    file: Path  # File of the first run, for messages.
    classes: tuple[str, ...]  # Names of the C classes.
    logits: tuple[np.ndarray, ...]  # `[N, C]` float64 for each run; any value where the label is NaN.
    labels: np.ndarray  # `[N, C]` in {0, 1, NaN}.
    units: np.ndarray  # `[N]` patients, or numbers of images if patients are unknown.
    patients_known: bool
    groups: Mapping[str, np.ndarray]  # `[N]` str by kind of group, "" if unknown.
    round: tuple[int, ...]  # Number of rounds of each run's model.


def read_images(runs: Sequence[PastRun], files: Sequence[Path], objective: str, notes: Notes) -> Images:
    """Read the predictions of runs for one set of images.

    Raises:
        DataError: A file is damaged.
        ConfigError: The runs differ in images, labels, patients, groups or classes.
    """
    parts = [read(file) for file in files]
    first, file = parts[0], files[0]
    keys = [_keys(part, each) for part, each in zip(parts, files, strict=True)]
    logits = []
    for part, key, other in zip(parts, keys, files, strict=True):
        rows = key.get_indexer(keys[0])
        if len(key) != len(keys[0]) or (rows < 0).any():
            absent = first.images[rows < 0] if (rows < 0).any() else part.images[keys[0].get_indexer(key) < 0]
            raise ConfigError(
                f"{other}: column image: expected the {len(keys[0]):,} images of {file}, found {len(key):,}, and only "
                f"one of the files has {absent[0]!r}; evaluate runs on one draw of the data, with one data.seed",
                key="predictions-of-other-images",
            )
        if part.classes != first.classes:
            raise ConfigError(
                f"{other}: expected the classes of {file}, found others; evaluate runs of one method",
                key="predictions-of-other-classes",
            )
        theirs, ours = _columns(part), _columns(first)
        for column in dict.fromkeys([*ours, *theirs]):
            if column not in theirs or column not in ours:
                lacking = file if column in theirs else other
                raise ConfigError(
                    f"{lacking}: expected the column {column}, which other runs have, found none; {AGAIN}",
                    key="evaluate-column-missing",
                )
            if not np.array_equal(theirs[column][rows], ours[column], equal_nan=ours[column].dtype.kind == "f"):
                raise ConfigError(
                    f"{other}: column {column}: expected the values of {file}, found others for the same images; "
                    "evaluate runs on one draw of the data, with one data.seed",
                    key="predictions-of-other-values",
                )
        logits.append(_logits(part, other, objective)[rows])
    known = not (first.patients == "").any()
    if not known:
        notes.append(
            f"{file}: column patient: some are unknown, so images are counted instead of patients and taken as "
            "independent; intervals may be too narrow."
        )
    return Images(
        name=first.name,
        file=file,
        classes=first.classes,
        logits=tuple(logits),
        labels=first.labels.numpy().astype(np.float64),
        units=first.patients if known else np.arange(len(first)),
        patients_known=known,
        groups=dict(first.groups) | {name: getattr(first, attribute) for name, attribute in COLUMNS.items()},
        round=tuple(part.round for part in parts),
    )


def test_images(runs: Sequence[PastRun], only: str | None, objective: str, notes: Notes) -> list[Images]:
    """Read the test sets that all runs have predictions of, or only the named one.

    Raises:
        ConfigError: There are none.
    """
    names = [name for name in runs[0].sets if all(name in run.sets for run in runs)]
    if missing := sorted({name for run in runs for name in run.sets} - set(names)):
        notes.append(f"Test sets without predictions of all runs are left out: {', '.join(missing)}.")
    chosen = [name for name in names if only in (None, name)]
    if not chosen:
        wanted = "predictions of a test set" if only is None else f"predictions of the test set {only!r}"
        others = f"those of {', '.join(names)}; choose one of them with --set" if names else "none"
        advice = "" if names else "; `fedlit test --output RUN/predictions` writes them"
        raise ConfigError(
            f"{runs[0].where}/{FOLDER}: expected {wanted}, found {others}{advice}", key="evaluate-no-predictions"
        )
    chosen.sort(key=lambda name: name != "federation")
    folders = [run.directory / FOLDER for run in runs]
    return [read_images(runs, [folder / f"{name}.parquet" for folder in folders], objective, notes) for name in chosen]


def validation_images(runs: Sequence[PastRun], objective: str, notes: Notes) -> Images:
    """Read the validation images of the clients, which ``fedlit predict --part val`` scores.

    Raises:
        ConfigError: A run has no such predictions.
    """
    files = [run.directory / PROBABILITIES / "federation_val.parquet" for run in runs]
    for run, file in zip(runs, files, strict=True):
        if not file.is_file():
            folder = run.directory / "checkpoints"
            best = checkpoint.find(folder, "best") or checkpoint.find(folder, "last") or "CHECKPOINT"
            raise ConfigError(
                f"{file}: expected predictions of validation images, on which a threshold is chosen, found no file; "
                f"`fedlit predict --config {run.directory}/config.yaml --ckpt_path {best} --part val` writes it",
                key="no-validation-predictions",
            )
    return read_images(runs, files, objective, notes)


def _keys(part: Predictions, file: Path) -> pd.MultiIndex:
    index = pd.MultiIndex.from_arrays([part.clients, part.sites, part.images])
    if not index.is_unique:
        twice = index[index.duplicated()][0][-1]
        raise ConfigError(
            f"{file}: column image: expected one name per image, found {twice!r} twice; leave it out",
            key="predictions-image-twice",
        )
    return index


def _columns(part: Predictions) -> dict[str, np.ndarray]:
    """Return the columns in which runs on the same images must agree."""
    columns = {"patient": part.patients} | {f"{GROUP}{name}": values for name, values in part.groups.items()}
    return columns | {f"label/{name}": part.labels[:, i].numpy() for i, name in enumerate(part.classes)}


def _logits(part: Predictions, file: Path, objective: str) -> np.ndarray:
    """Return `[N, C]` logits of the probabilities."""
    scores, labelled = part.scores.double(), ~part.labels.isnan()
    if part.kind == "logit" and objective in SOFTMAX:
        scores = torch.logit(scores.softmax(1))
    elif part.kind == "probability":
        outside = labelled & ~((scores >= 0) & (scores <= 1))
        if outside.any():
            name = part.classes[int(outside.any(0).nonzero()[0])]
            raise ConfigError(
                f"{file}: column score/{name}: expected probabilities, found others; write it again",
                key="predictions-not-probabilities",
            )
        scores = torch.from_numpy(logit(scores.numpy()))
    elif not torch.isfinite(scores[labelled]).all():
        name = part.classes[int((labelled & ~scores.isfinite()).any(0).nonzero()[0])]
        raise ConfigError(
            f"{file}: column score/{name}: expected finite scores, found others; leave the run out",
            key="predictions-not-finite",
        )
    return scores.clamp(-100, 100).numpy()
