"""What a model said of every image of a test set, kept in a file: intervals and comparisons need no rerun."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv, parquet
from torch import Tensor
from torch.utils.data import Dataset

from fedlit import __version__
from fedlit.engines.base import Scores

if TYPE_CHECKING:
    from fedlit.session import Session

FOLDER = "predictions"
"""Of a run's directory and of its artifacts: a file a test set, scored by the model that ``result.json`` is about."""

KINDS = {"validation_step": "logit", "predict_step": "probability"}
"""What a module's steps return."""

COLUMNS = {"image": "images", "patient": "patients", "site": "sites", "client": "clients", "model": "models"}
"""What an image's row says beside ``score/<class>`` and ``label/<class>``, and where :class:`Predictions` has it."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """A test set and what was said of it: N images, C classes.

    Attributes:
        name: the test set, as in ``test/<set>/...``.
        round: completed rounds of the model.
        kind: what the scores are: ``logit`` or ``probability``.
        classes: names of the C classes.
        scores: [N, C] float32; NaN for classes that the model of the row has not learned.
        labels: [N, C] float32 in {0, 1, NaN}; NaN where nobody knows, and where the score is.
        images: image ids, [N] str; row numbers where the data have no names.
        patients: [N] str, "" where the data do not tell.
        sites: organisation, [N] str, "" likewise.
        clients: who holds the image, [N] str; "" for the server's.
        models: whose own model scored it, [N] str; "" for the federation's.
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

    def __len__(self) -> int:
        return len(self.images)


def collected(session: "Session", name: str, scores: Sequence[Scores], rounds: int) -> Predictions | None:
    """The scores of one test set beside what its data tell of each image; None where the module gives no scores.

    Args:
        name: of the test set.
        scores: of its views, by the session's model after ``rounds`` rounds.
    """
    scored = [s for s in scores if s.scores is not None]
    if not scored:
        return None
    values, columns = [], {field: [] for field in COLUMNS.values()}
    for s in scored:
        view, n, learned, dataset = s.view, s.examples, session.learned(s.view.client), session.dataset(s.view)
        values.append(s.scores.masked_fill(torch.tensor([c not in learned for c in session.classes]), torch.nan))
        columns["images"].append(_told(dataset, "names", lambda size: np.arange(size))[:n])
        for field in ("patients", "sites"):
            columns[field].append(_told(dataset, field, lambda size: np.full(size, ""))[:n])
        columns["clients"].append(np.full(n, view.holder or ""))
        columns["models"].append(np.full(n, view.client if view.client in session.personal else ""))
    return Predictions(
        name,
        rounds,
        KINDS[scored[0].view.method],
        tuple(session.classes),
        torch.cat(values).float(),
        torch.cat([s.labels for s in scored]).float(),
        **{field: np.concatenate(parts) for field, parts in columns.items()},
    )


def write(predictions: Predictions, path: Path) -> Path:
    """Write predictions to a ``.parquet`` file, or the table alone to a ``.csv`` file, whole or not at all.

    Columns: ``image``, ``patient``, ``site``, ``client``, ``model``, and per class ``score/<class>`` and
    ``label/<class>``. The Parquet file's metadata: ``fedlit``, ``set``, ``round``, ``kind``, and ``classes`` as JSON.

    Raises:
        ValueError: another suffix.
    """
    columns: dict[str, np.ndarray] = {column: getattr(predictions, field) for column, field in COLUMNS.items()}
    for kind in ("score", "label"):
        values = getattr(predictions, f"{kind}s").numpy()
        columns |= {f"{kind}/{name}": values[:, i] for i, name in enumerate(predictions.classes)}
    metadata = {
        "fedlit": __version__,
        "set": predictions.name,
        "round": str(predictions.round),
        "kind": predictions.kind,
        "classes": json.dumps(predictions.classes),
    }
    table = pa.table(columns).replace_schema_metadata(metadata)
    if path.suffix == ".parquet":
        _whole(path, lambda draft: parquet.write_table(table, draft))
    elif path.suffix == ".csv":
        _whole(path, lambda draft: csv.write_csv(table, draft))
    else:
        raise ValueError(f"{path}: expected a name that ends in .parquet or .csv")
    return path


def read(path: Path) -> Predictions:
    """The predictions in a ``.parquet`` file.

    Raises:
        ValueError: it holds no predictions of fedlit.
    """
    try:
        # As one file: pyarrow takes a folder such as lr=0.1 above it for a column otherwise.
        with parquet.ParquetFile(path) as file:
            table = file.read()
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path}: expected predictions as Parquet, found none: {error}") from error
    told = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    classes = tuple(json.loads(told.get("classes", "[]")))
    expected = [*COLUMNS, *(f"{kind}/{name}" for kind in ("score", "label") for name in classes)]
    if missing := [*({"set", "round", "kind", "classes"} - told.keys()), *(set(expected) - {*table.column_names})]:
        raise ValueError(
            f"{path}: expected predictions as `fedlit fit` and `fedlit test` write them, found no {min(missing)}"
        )
    values = {
        kind: torch.from_numpy(np.stack([table[f"{kind}/{name}"].to_numpy() for name in classes], axis=1))
        for kind in ("score", "label")
    }
    return Predictions(
        told["set"],
        int(told["round"]),
        told["kind"],
        classes,
        values["score"],
        values["label"],
        **{field: table[column].to_numpy().astype(str) for column, field in COLUMNS.items()},
    )


def _told(dataset: Dataset, field: str, otherwise: Callable[[int], np.ndarray]) -> np.ndarray:
    """A data set's own word on its rows, as str; somebody else's data set may mean something else by the name."""
    values = getattr(dataset, field, None)
    found = values is not None and np.ndim(values) == 1 and len(values) == len(dataset)
    return np.asarray(values if found else otherwise(len(dataset))).astype(str)


def _whole(path: Path, write_to: Callable[[Path], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_to(draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
