"""Fed-Heart-Disease: the four hospitals of UCI's Heart Disease data, as FLamby reads, splits and normalises them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fedlit.core.errors import DataError, MissingFileError
from fedlit.core.messages import ClientData
from fedlit.data.federated import POOLED, FederatedDataModule
from fedlit.data.records import contents

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = 14
LACKING = [10, 11, 12]
"""Columns that are mostly empty in some hospitals: slope, number of vessels, thallium scan."""

PLAIN = [0, 1, 3, 4, 5, 7, 8, 9]
CATEGORIES = {2: (1, 2, 3, 4), 6: (0, 1, 2)}
"""Values of the type of chest pain and of the ECG at rest; the first value has no column."""

POOLED_TEST = "pooled-test"
TRAIN, SEED = 0.66, 43


class LabelledRows(TensorDataset):
    """Rows of a table with their labels.

    Args:
        features: [n, D] float32.
        labels: [n, C] float32 in {0, 1, NaN}.
        names: Unique ids of the rows, [n] str.
        sites: Hospital of each row, [n] str.
    """

    def __init__(self, features: Tensor, labels: Tensor, names: np.ndarray, sites: np.ndarray) -> None:
        super().__init__(features, labels)
        self.features, self.labels, self.names, self.sites = features, labels, names, sites
        self.patients = names

    batch = TensorDataset.__getitem__


class FedHeartDisease(FederatedDataModule):
    """740 patients of four hospitals, 13 numbers of each, and whether they have a heart disease. One class.

    Janosi, Steinbrunn, Pfisterer and Detrano, "Heart Disease", UCI Machine Learning Repository 1988,
    https://archive.ics.uci.edu/dataset/45/heart+disease. The folder of the unpacked download has, among others:

    ::

        processed.cleveland.data      14 columns without a header: 63.0,1.0,1.0,145.0,233.0,1.0,...,0
        processed.hungarian.data      "?" is an unknown value
        processed.switzerland.data
        processed.va.data

    The result equals FLamby's Fed-Heart-Disease (Ogier du Terrail et al., NeurIPS 2022, arXiv:2210.04620, code at
    https://github.com/owkin/FLamby, commit edacf54). Three columns and then all rows with "?" are dropped, two columns
    become columns of 0 and 1 for all values except the first, and any degree of disease is positive. A third of each
    hospital's rows are its test set, drawn by scikit-learn with seed 43, and stratified if both labels occur more than
    twice. There is no validation set, so the last model is used.

    Every hospital normalises its rows by mean and standard deviation of its own training rows. The server's test set
    ``pooled-test`` has all test rows, normalised by mean and standard deviation of all training rows.

    Args:
        root: The folder of the files. There is no default, and nothing is downloaded.
        pooled: Give all training rows to one client named ``pooled``, normalised together. The test sets of the
            hospitals are then the server's, and remain normalised by their own training rows, as in FLamby.
        batch_size: Number of rows in a training batch of one client, at least 1.
        eval_batch_size: Number of rows in a batch of test and prediction, at least 1.
    """

    classes = ("Heart disease",)
    layout = f"expected processed.HOSPITAL.data for {', '.join(HOSPITALS)}, as UCI's download has them"

    def __init__(
        self, root: Path | None = None, pooled: bool = False, batch_size: int = 4, eval_batch_size: int = 128
    ) -> None:
        super().__init__(None, pooled=pooled, batch_size=batch_size, eval_batch_size=eval_batch_size)
        if root is None:
            raise DataError(f"data.root is missing: {self.layout}")
        self.root = Path(root).expanduser()

    def setup(self, stage: str | None = None) -> None:
        """Read the files and fill ``clients`` and ``test_sets``; a second call changes nothing.

        Raises:
            FileNotFoundError: A hospital has no file.
            ValueError: A cell is not a number, or has a value that is missing in UCI's description.
        """
        if self.clients:
            return
        hospitals = {name: _read(self._file(name), name) for name in HOSPITALS}
        train, self.test_sets[POOLED_TEST] = _normalised(hospitals)
        if self.pooled:
            self.clients[POOLED] = ClientData(POOLED, self.classes, train, None, None)
        for name, rows in hospitals.items():
            train, test = _normalised({name: rows})
            if self.pooled:
                self.test_sets[name] = test
            else:
                self.clients[name] = ClientData(name, self.classes, train, None, test)

    def _file(self, hospital: str) -> Path:
        file = self.root / f"processed.{hospital}.data"
        if not file.is_file():
            found = contents(self.root)
            raise MissingFileError(f"{file}: no such file; found {found}; {self.layout}. fedlit downloads nothing")
        return file


_Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""The rows of a hospital: raw features [n, 13], labels [n, 1], ids [n], and a mask of the training rows, [n] bool."""


def _normalised(hospitals: Mapping[str, _Rows]) -> tuple[LabelledRows, LabelledRows]:
    """Return the training and the test rows of hospitals, normalised together by the training rows."""
    features, labels, names, training = map(np.concatenate, zip(*hospitals.values(), strict=True))
    sites = np.repeat([*hospitals], [len(rows[0]) for rows in hospitals.values()])
    trained = torch.from_numpy(features[training])
    mean, std = trained.mean(0), trained.std(0)

    def rows(mask: np.ndarray) -> LabelledRows:
        scaled = (torch.from_numpy(features[mask]) - mean) / (std + 1e-9)
        return LabelledRows(scaled, torch.from_numpy(labels[mask]), names[mask], sites[mask])

    return rows(training), rows(~training)


def _read(file: Path, name: str) -> _Rows:
    table = _numbers(file).drop(columns=LACKING)
    table = table[table.notna().all(axis=1)]
    dummies = []
    for column, values in CATEGORIES.items():
        if len(unknown := table.index[~table[column].isin(values)]):
            raise DataError(
                f"{file}, line {unknown[0] + 1}: column {column + 1}: expected one of {', '.join(map(str, values))}, "
                f"found {table[column][unknown[0]]:g} ({len(unknown)} such lines)"
            )
        dummies += [(table[column] == value).to_numpy() for value in values[1:]]
    features = np.column_stack([table[PLAIN].to_numpy(), *dummies]).astype(np.float32)
    positive = (table[COLUMNS - 1] != 0).to_numpy()
    names = np.array([f"{name}-{line + 1:04d}" for line in table.index])
    return features, positive.astype(np.float32)[:, None], names, _training(file, positive)


def _numbers(file: Path) -> pd.DataFrame:
    """Read all cells; the index counts lines from 0, and "?" is NaN."""
    try:
        table = pd.read_csv(file, header=None, dtype=str, skip_blank_lines=False)
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: expected {COLUMNS} columns separated by commas, found: {error}") from None
    if table.shape[1] != COLUMNS:
        raise DataError(f"{file}: expected {COLUMNS} comma-separated columns, found {table.shape[1]}")
    table = table[table.notna().any(axis=1)]  # a blank line at the end
    texts = table.apply(lambda column: column.str.strip())
    numbers = texts.apply(pd.to_numeric, errors="coerce")
    wrong = (numbers.isna() & texts.notna() & (texts != "?")).to_numpy()
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise DataError(
            f"{file}, line {table.index[row] + 1}: column {column + 1}: expected a number or ?, found "
            f"{texts.iloc[row, column]!r} ({wrong.sum()} such cells)"
        )
    return numbers


def _training(file: Path, positive: np.ndarray) -> np.ndarray:
    """Return a mask of the training rows, [n] bool, drawn by scikit-learn as in FLamby."""
    from sklearn.model_selection import train_test_split  # takes a second to import

    if len(positive) < 4:
        raise DataError(f"{file}: expected at least 4 rows without ?, found {len(positive)}")
    both = min(positive.sum(), (~positive).sum()) > 2
    options = {"train_size": TRAIN, "test_size": 1.0 - TRAIN, "random_state": SEED}
    train, _ = train_test_split(np.arange(len(positive)), stratify=positive if both else None, **options)
    return np.isin(np.arange(len(positive)), train)
