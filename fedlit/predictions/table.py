"""Tables of predictions: the scores of a model for every image of a test set, for later comparisons."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedlit import __version__
from fedlit.core.errors import DataError
from fedlit.core.system import documents
from fedlit.core.system.files import whole
from fedlit.data.clients import groups_of
from fedlit.data.pictures.pixels import not_a_file

if TYPE_CHECKING:
    import pyarrow as pa

    from fedlit.federation.engines.scores import Scores
    from fedlit.federation.session import Session

FOLDER = "predictions"
"""Folder in a run's directory and among its artifacts, with one file per test set, scored by the tested model."""

PROBABILITIES = "probabilities"
"""Folder in a run's directory to which ``fedlit predict`` writes."""

KINDS = {"validation_step": "logit", "predict_step": "probability"}
"""Kind of score that each step of a module returns."""

SCORES = "score"
"""Kind of the scores in a CSV file, which does not say if they are logits or probabilities."""

AGAIN = "`fedlit test --output FOLDER` writes them again"

COLUMNS = {"image": "images", "patient": "patients", "site": "sites", "client": "clients", "model": "models"}
"""Columns of a file with a fixed name, and their attributes of `Predictions`."""

SCORE, LABEL, GROUP = "score/", "label/", "group/"
"""Prefixes of the columns of classes and of groups, such as ``score/Edema`` and ``group/sex``."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """A test set and the scores of its N images for C classes.

    Attributes:
        name: Name of the test set, as in ``test/<set>/...``.
        round: Number of completed rounds of the model.
        kind: Kind of the scores: ``logit``, ``probability``, or ``score`` if it is not known.
        classes: Names of the C classes.
        scores: [N, C] float32; NaN for classes that the model of the row has not learned.
        labels: [N, C] float32 in {0, 1, NaN}; NaN if the label is unknown or the score is NaN.
        images: Image ids, [N] str, or row numbers if the data have no names.
        patients: Patients, [N] str, "" if unknown.
        sites: Organisations, [N] str, "" if unknown.
        clients: Clients that hold the images, [N] str, "" for images of the server.
        models: Clients whose own models scored the images, [N] str, "" for the federation's model.
        trained_positives: Number of positive training images of each class at all clients, C numbers; None if unknown.
        groups: A map from names such as ``sex`` to the group of each image, [N] str, "" if unknown.
    """

    name: str
    round: int
    kind: str
    classes: tuple[str, ...]
    scores: Tensor
    labels: Tensor
    images: np.ndarray
    patients: np.ndarray
    sites: np.ndarray
    clients: np.ndarray
    models: np.ndarray
    trained_positives: tuple[int, ...] | None = None
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows: np.ndarray | Sequence[int]) -> Predictions:
        """Return the predictions of some rows: a mask, or indices [M] in the new order."""
        rows = np.asarray(rows)
        columns = ("scores", "labels", *COLUMNS.values())
        groups = {name: values[rows] for name, values in self.groups.items()}
        return replace(self, groups=groups, **{name: getattr(self, name)[rows] for name in columns})


def collected(session: Session, name: str, scores: Sequence[Scores], rounds: int) -> Predictions | None:
    """Join the scores of one test set's views, after so many rounds, with its data; None if there are no scores."""
    scored = [s for s in scores if s.scores is not None]
    if not scored:
        return None
    values, columns = [], {name: [] for name in COLUMNS.values()}
    datasets = [session.program.dataset(s.view) for s in scored]
    groups = {group: [] for dataset in datasets for group in groups_of(dataset)}
    for s, dataset in zip(scored, datasets, strict=True):
        view, n, learned, blank = s.view, s.examples, session.learned(s.view.client), np.full(len(dataset), "")
        values.append(s.scores.masked_fill(torch.tensor([c not in learned for c in session.classes]), torch.nan))
        columns["images"].append(_row_texts(getattr(dataset, "names", None), np.arange(len(dataset)))[:n])
        for column in ("patients", "sites"):
            columns[column].append(_row_texts(getattr(dataset, column, None), blank)[:n])
        for group, parts in groups.items():
            parts.append(_row_texts(groups_of(dataset).get(group), blank)[:n])
        columns["clients"].append(np.full(n, view.holder or ""))
        columns["models"].append(np.full(n, view.client if view.client in session.personal else ""))
    return Predictions(
        name,
        rounds,
        KINDS[scored[0].view.method],
        tuple(session.classes),
        torch.cat(values).float(),
        torch.cat([s.labels for s in scored]).float(),
        **{column: np.concatenate(parts) for column, parts in columns.items()},
        trained_positives=_trained_positives(session),
        groups={group: np.concatenate(parts) for group, parts in groups.items()},
    )


def write(predictions: Predictions, path: Path) -> Path:
    """Write predictions to a ``.parquet`` file, or without metadata to a ``.csv`` file, atomically.

    The columns are ``image``, ``patient``, ``site``, ``client``, ``model``, ``group/<name>`` for each kind of group,
    and ``score/<class>`` and ``label/<class>`` for each class. The metadata of a Parquet file are ``fedlit``, ``set``,
    ``round``, ``kind``, and as JSON ``classes`` and, if known, ``trained_positives``.

    Raises:
        DataError: The path has another suffix.
    """
    from pyarrow import csv, parquet, table

    columns: dict[str, np.ndarray] = {column: getattr(predictions, name) for column, name in COLUMNS.items()}
    columns |= {f"{GROUP}{name}": values for name, values in predictions.groups.items()}
    for kind in ("score", "label"):
        values = getattr(predictions, f"{kind}s").numpy()
        columns |= {f"{kind}/{name}": values[:, i] for i, name in enumerate(predictions.classes)}
    metadata = {"fedlit": __version__, "set": predictions.name, "round": str(predictions.round)}
    metadata |= {"kind": predictions.kind, "classes": json.dumps(predictions.classes)}
    if predictions.trained_positives is not None:
        metadata["trained_positives"] = json.dumps(predictions.trained_positives)
    written = table(columns).replace_schema_metadata(metadata)
    writers = {".parquet": parquet.write_table, ".csv": csv.write_csv}
    if path.suffix not in writers:
        raise DataError(f"{path}: expected a file name that ends in .parquet or .csv")
    with whole(path) as draft:
        writers[path.suffix](written, draft)
    return path


def read(path: Path) -> Predictions:
    """Read the predictions in a ``.parquet`` file.

    Raises:
        DataError: The file does not contain predictions of fedlit.
    """
    from pyarrow import ArrowException, parquet

    if reason := not_a_file(path):
        raise DataError(f"{path}: expected predictions as Parquet, found {reason}. {AGAIN}")
    try:
        # As one file, because pyarrow would read a parent folder such as lr=0.1 as a column.
        with parquet.ParquetFile(path) as file:
            table = file.read()
    except (ArrowException, OSError) as error:
        raise DataError(
            f"{path}: expected predictions as Parquet, found another or a damaged file: {error} {AGAIN}"
        ) from error
    metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    classes = tuple(_note(path, metadata, "classes", str) or ())
    expected = [*COLUMNS, *(f"{kind}/{name}" for kind in ("score", "label") for name in classes)]
    if missing := [*({"set", "round", "kind", "classes"} - metadata.keys()), *(set(expected) - {*table.column_names})]:
        raise DataError(
            f"{path}: expected predictions as `fedlit fit` and `fedlit test` write them, found no {min(missing)}"
        )
    if not len(table):
        raise DataError(f"{path}: expected the predictions of images, found none. {AGAIN}")
    values = {kind: torch.from_numpy(_numbers(path, table, kind, classes)) for kind in ("score", "label")}
    wrong = ~(values["label"].isnan() | (values["label"] == 0) | (values["label"] == 1))
    if wrong.any():
        raise DataError(f"{path}: expected labels 0, 1, NaN, found {values['label'][wrong][0]:g}. {AGAIN}")
    trained = _note(path, metadata, "trained_positives", int)
    if trained is not None and len(trained) != len(classes):
        raise DataError(
            f"{path}: expected {len(classes)} numbers as 'trained_positives', found {len(trained)}. {AGAIN}"
        )
    if not metadata["round"].isdecimal():
        raise DataError(f"{path}: expected a number 'round', found {metadata['round']!r}. {AGAIN}")
    return Predictions(
        metadata["set"],
        int(metadata["round"]),
        metadata["kind"],
        classes,
        values["score"],
        values["label"],
        **{name: _texts(table[column]) for column, name in COLUMNS.items()},
        trained_positives=None if trained is None else tuple(trained),
        groups={c.removeprefix(GROUP): _texts(table[c]) for c in table.column_names if c.startswith(GROUP)},
    )


def _note(path: Path, metadata: Mapping[str, str], name: str, kind: type) -> list | None:
    """Return a list in the metadata, or None if there is none of that name."""
    if name not in metadata:
        return None
    try:
        values = documents.parse_json(metadata[name])
    except ValueError:
        values = None
    if not isinstance(values, list) or not all(isinstance(each, kind) for each in values):
        raise DataError(f"{path}: expected a list {name!r}, found {metadata[name][:80]!r}. {AGAIN}")
    return values


def _numbers(path: Path, table: pa.Table, kind: str, classes: Sequence[str]) -> np.ndarray:
    """Return the columns of all classes, [N, C] float32."""
    try:
        columns = [table[f"{kind}/{name}"].to_numpy().astype(np.float32) for name in classes]
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{path}: expected numbers in the columns {kind}/..., found other values: {error}. {AGAIN}"
        ) from error
    return np.stack(columns, axis=1) if columns else np.empty((len(table), 0), dtype=np.float32)


def _texts(column: pa.ChunkedArray) -> np.ndarray:
    return column.cast("string").fill_null("").to_numpy().astype(str)


def _trained_positives(session: Session) -> tuple[int, ...] | None:
    """Return the number of positive training images of each class at the clients, or None if unknown."""
    if session.data.assignment is None:
        return None
    counts = session.data.counts()
    train = counts[counts["split"] == "train"]
    if train["positives"].isna().any():
        return None
    positives = train.groupby("class")["positives"].sum()
    return tuple(positives.reindex(list(session.classes)).astype(int).tolist())


def _row_texts(values: Sequence | None, default: np.ndarray) -> np.ndarray:
    """Return a field of a data set as str if it has one value per row, or else the default."""
    is_of_rows = values is not None and np.ndim(values) == 1 and len(values) == len(default)
    return np.asarray(values if is_of_rows else default).astype(str)
