"""Test and validation images of a method: the logits of each of its runs, labels, patients and groups."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.special import logit

from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import ConfigError
from fedlit.predictions.table import AGAIN, FOLDER, GROUP, PROBABILITIES, SCORES, Predictions, read
from fedlit.reports.compare.alignment import image_ids, overlap_of, tested_on
from fedlit.reports.compare.past_run import Notes, PastRun

COLUMNS = {"client": "clients", "site": "sites"}
"""Columns of a file that group its images without being called ``group/...``."""

RANKING = ("AUCSaddle",)
"""Objectives whose scores are trained to rank only."""


@dataclass(frozen=True, eq=False)
class Images:
    """A set of N images with the logits of the R runs of a method.

    If runs have their own draws of the data, these are the images of all draws, and a run has scored those of its draw.
    """

    name: str  # Name of the set.
    file: Path  # File of the first run, for messages.
    classes: tuple[str, ...]  # Names of the C classes.
    logits: tuple[np.ndarray, ...]  # `[N, C]` float64 for each run; any value where the label is NaN.
    labels: np.ndarray  # `[N, C]` in {0, 1, NaN}.
    units: np.ndarray  # `[N]` patients, or numbers of images if patients are unknown.
    patients_known: bool
    groups: Mapping[str, np.ndarray]  # `[N]` str by kind of group, "" if unknown.
    round: tuple[int, ...]  # Number of rounds of each run's model.
    scored: tuple[np.ndarray, ...] = ()  # `[N]` bool for each run: the images of its draw; empty for all images.
    ids: np.ndarray | None = None  # `[N]`, equal for an image that is in several draws; None if there is one draw.
    overlap: float = 1.0  # Share of the images that two draws have in common.

    @property
    def by_run(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield for each run its `[N, C]` logits, and `[N]` bool, the images that it has scored."""
        everything = np.ones(len(self.labels), dtype=bool)
        return zip(self.logits, self.scored or (everything,) * len(self.logits), strict=True)

    @property
    def draws(self) -> int:
        """Return the number of draws of the data."""
        return len({rows.tobytes() for rows in self.scored}) or 1

    @property
    def text(self) -> str:
        """Return the numbers of images, patients and draws."""
        counts = [f"{len(np.unique(self.numbers)):,} images"]
        counts += [f"{len(np.unique(self.units)):,} patients"] * self.patients_known
        return ", ".join(counts) + f", in {self.draws} draws of the data" * (self.draws > 1)

    @cached_property
    def numbers(self) -> np.ndarray:
        """Return `[N]`, the number of each image; images in several draws have the same number."""
        return np.arange(len(self.labels)) if self.ids is None else np.unique(self.ids, return_inverse=True)[1]


def read_images(runs: Sequence[PastRun], parts: Sequence[Predictions], files: Sequence[Path], notes: Notes) -> Images:
    """Join the predictions of runs for one set of images, from these files; each draw of the data has its own images.

    Raises:
        ConfigError: The runs differ in groups or classes, or those of one draw in images, labels or patients.
    """
    _check_alike(parts, files)
    members = {run.draw: [i for i, other in enumerate(runs) if other.draw == run.draw] for run in runs}
    if len(members) > 1 and _are_equal(parts, files):
        members = {(): list(range(len(parts)))}
    tables, logits = [], {}
    for numbers in members.values():
        first = numbers[0]
        for i in numbers:
            rows = _rows(parts[first], parts[i], files[first], files[i])
            logits[i] = _logits(parts[i], files[i])[rows]
        tables.append(parts[first])
    known = not any((table.patients == "").any() for table in tables)
    if not known:
        notes.append(
            f"{files[0]}: column patient: some are unknown, so images are counted instead of patients and taken as "
            "independent; intervals may be too narrow."
        )
    groups = {name: np.concatenate([table.groups[name] for table in tables]) for name in parts[0].groups}
    groups |= {name: np.concatenate([getattr(table, field) for table in tables]) for name, field in COLUMNS.items()}
    joined = Images(
        name=parts[0].name,
        file=files[0],
        classes=parts[0].classes,
        logits=tuple(logits[i] for i in range(len(parts))),
        labels=torch.cat([table.labels for table in tables]).numpy().astype(np.float64),
        units=tables[0].patients if known else np.arange(len(tables[0])),
        patients_known=known,
        groups=groups,
        round=tuple(part.round for part in parts),
    )
    return joined if len(members) == 1 else _of_draws(joined, tables, list(members.values()))


def _of_draws(images: Images, tables: Sequence[Predictions], members: Sequence[list[int]]) -> Images:
    """Return the images of all draws, given the runs of each; equal patients and images of two draws are the same."""
    overlap = overlap_of([tested_on(table) for table in tables])
    ends = np.cumsum([0, *map(len, tables)])
    rows = [np.arange(start, stop) for start, stop in pairwise(ends)]
    scored, logits = {}, {}
    for numbers, here in zip(members, rows, strict=True):
        for i in numbers:
            scored[i], logits[i] = np.isin(np.arange(ends[-1]), here), np.full(images.labels.shape, np.nan)
            logits[i][here] = images.logits[i]
    ids = image_ids([str(images.file)] * len(tables), tables)
    units = [table.patients if images.patients_known else index for table, index in zip(tables, ids, strict=True)]
    prefix = ["" if overlap else f"{draw}/" for draw in range(len(tables))]
    ids, units = (
        np.concatenate(
            [np.char.add(start, np.asarray(each).astype(str)) for start, each in zip(prefix, of, strict=True)]
        )
        for of in (ids, units)
    )
    count = range(len(images.logits))
    return replace(
        images,
        logits=tuple(logits[i] for i in count),
        units=units,
        scored=tuple(scored[i] for i in count),
        ids=ids,
        overlap=overlap,
    )


def _check_alike(parts: Sequence[Predictions], files: Sequence[Path]) -> None:
    """Check that the files of all runs have the same classes and columns."""
    for part, other in zip(parts, files, strict=True):
        if part.classes != parts[0].classes:
            raise ConfigError(f"{other}: expected the classes of {files[0]}, found others; evaluate runs of one method")
        if different := sorted(part.groups.keys() ^ parts[0].groups.keys()):
            lacking = files[0] if different[0] in part.groups else other
            raise ConfigError(
                f"{lacking}: expected the column {GROUP}{different[0]}, which other runs have, found none; {AGAIN}"
            )


def _are_equal(parts: Sequence[Predictions], files: Sequence[Path]) -> bool:
    """Return True if all runs have the same images, with equal labels, patients and groups."""
    try:
        for part, file in zip(parts, files, strict=True):
            _rows(parts[0], part, files[0], file)
    except ConfigError:
        return False
    return True


def _rows(first: Predictions, part: Predictions, file: Path, other: Path) -> np.ndarray:
    """Return the rows of the images of the first run in those of another run.

    Raises:
        ConfigError: The runs have different images, or different labels, patients or groups of an image.
    """
    advice = "the runs have the same seeds of the data; evaluate each of them on its own"
    keys, theirs = _keys(first, file), _keys(part, other)
    rows = theirs.get_indexer(keys)
    if len(theirs) != len(keys) or (rows < 0).any():
        absent = first.images[rows < 0] if (rows < 0).any() else part.images[keys.get_indexer(theirs) < 0]
        raise ConfigError(
            f"{other}: column image: expected the {len(keys):,} images of {file}, found {len(theirs):,}, and only one "
            f"of the files has {str(absent[0])!r}; {advice}"
        )
    found = _columns(part)
    for column, values in _columns(first).items():
        if not np.array_equal(found[column][rows], values, equal_nan=values.dtype.kind == "f"):
            raise ConfigError(
                f"{other}: column {column}: expected the values of {file}, found others for the same images; {advice}"
            )
    return rows


def test_images(runs: Sequence[PastRun], only: str | None, notes: Notes) -> list[Images]:
    """Read the test sets that all runs have predictions of, or only the named one; a file has a single set.

    Raises:
        ConfigError: There are none, or they have no labels.
    """
    if any(run.table is not None for run in runs):
        return [_of_files(runs, notes)]
    names = [name for name in runs[0].sets if all(name in run.sets for run in runs)]
    if missing := sorted({name for run in runs for name in run.sets} - set(names)):
        notes.append(f"Test sets without predictions of all runs are left out: {', '.join(missing)}.")
    chosen = [name for name in names if only in (None, name)]
    if not chosen:
        wanted = "predictions of a test set" if only is None else f"predictions of the test set {only!r}"
        others = f"those of {', '.join(names)}; choose one of them with --set" if names else "none"
        advice = "" if names else "; `fedlit test --output RUN/predictions` writes them"
        raise ConfigError(f"{runs[0].where}/{FOLDER}: expected {wanted}, found {others}{advice}")
    chosen.sort(key=lambda name: name != "federation")
    sets = [[run.directory / FOLDER / f"{name}.parquet" for run in runs] for name in chosen]
    return [read_images(runs, [*map(read, files)], files, notes) for files in sets]


def _of_files(runs: Sequence[PastRun], notes: Notes) -> Images:
    tables, files = [run.table for run in runs], [run.directory for run in runs]
    for table, file in zip(tables, files, strict=True):
        if table.labels.isnan().all():
            raise ConfigError(f"{file}: expected a column label/CLASS with 0 and 1, found none; add it")
        if table.kind == SCORES and not _are_probabilities(table):
            notes.append(f"{file}: scores are not between 0 and 1, so they are taken as logits.")
    return read_images(runs, tables, files, notes)


def validation_images(runs: Sequence[PastRun], notes: Notes) -> Images:
    """Read the validation images of the clients, which ``fedlit predict --part val`` scores.

    Raises:
        ConfigError: A run has no such predictions.
    """
    files = [run.directory / PROBABILITIES / "federation_val.parquet" for run in runs]
    for run, file in zip(runs, files, strict=True):
        if run.table is not None:
            raise ConfigError(
                f"{run.where}: expected a run directory, because thresholds are chosen on its validation images, found "
                "a file of predictions; name the run, or leave --threshold out"
            )
        if not file.is_file():
            folder = run.directory / "checkpoints"
            best = checkpoint.find(folder, "best") or checkpoint.find(folder, "last") or "CHECKPOINT"
            raise ConfigError(
                f"{file}: expected predictions of validation images, on which a threshold is chosen, found no file; "
                f"`fedlit predict --config {run.directory}/config.yaml --ckpt_path {best} --part val` writes it"
            )
    return read_images(runs, [*map(read, files)], files, notes)


def _keys(part: Predictions, file: Path) -> pd.MultiIndex:
    index = pd.MultiIndex.from_arrays([part.clients, part.sites, part.images])
    if not index.is_unique:
        twice = str(index[index.duplicated()][0][-1])
        raise ConfigError(f"{file}: column image: expected one name per image, found {twice!r} twice; leave it out")
    return index


def _columns(part: Predictions) -> dict[str, np.ndarray]:
    columns = {"patient": part.patients} | {f"{GROUP}{name}": values for name, values in part.groups.items()}
    return columns | {f"label/{name}": part.labels[:, i].numpy() for i, name in enumerate(part.classes)}


def _logits(part: Predictions, file: Path) -> np.ndarray:
    """Return `[N, C]` logits of the probabilities."""
    scores, labelled = part.scores.double(), ~part.labels.isnan()
    if part.kind == "probability" or (part.kind == SCORES and _are_probabilities(part)):
        outside = labelled & ~((scores >= 0) & (scores <= 1))
        if outside.any():
            name = part.classes[int(outside.any(0).nonzero()[0])]
            raise ConfigError(f"{file}: column score/{name}: expected probabilities, found others; write it again")
        scores = torch.from_numpy(logit(scores.numpy()))
    elif not torch.isfinite(scores[labelled]).all():
        name = part.classes[int((labelled & ~scores.isfinite()).any(0).nonzero()[0])]
        raise ConfigError(f"{file}: column score/{name}: expected finite scores, found others; leave the run out")
    return scores.clamp(-100, 100).numpy()


def _are_probabilities(part: Predictions) -> bool:
    return bool(((part.scores >= 0) & (part.scores <= 1) | part.labels.isnan()).all())
