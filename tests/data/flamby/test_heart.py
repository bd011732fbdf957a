"""Fed-Heart-Disease: FLamby's rows, split and normalisation on files in UCI's layout, and results on the real data."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hospital_source import ready
from refusals import refused, table
from sklearn.model_selection import train_test_split
from small_heart import SIZES, lines_of, write_folder

import fedlit
from fedlit.aggregators import FedAvg, Scaffold
from fedlit.core.errors import DataError, MissingFileError
from fedlit.data import FedHeartDisease
from fedlit.models import LogisticRegression
from fedlit.predictions.table import read
from fedlit.schedules import ConstantSchedule

REAL = Path(os.environ.get("FEDLIT_HEART", Path(__file__).parents[4] / "shared" / "data" / "heart-disease"))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> FedHeartDisease:
    """All hospitals, which no test changes."""
    return ready(FedHeartDisease(write_folder(tmp_path_factory.mktemp("heart"))))


def by_hand(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features [n, 13] in float64, labels, and which rows are trained on."""
    cells = pd.DataFrame([line.split(",") for line in lines_of(name)]).drop(columns=[10, 11, 12])
    cells = cells[(cells != "?").all(axis=1)].astype(float).reset_index(drop=True)
    positive = (cells.pop(13) > 0).to_numpy()
    assert (len(cells), positive.sum()) == SIZES[name]
    features = pd.get_dummies(cells, columns=[2, 6], drop_first=True).to_numpy(float)
    stratify = positive if name != "switzerland" else None  # its negatives are too few
    train, _ = train_test_split(
        range(len(cells)), train_size=0.66, test_size=0.34, random_state=43, shuffle=True, stratify=stratify
    )
    return features, positive, np.isin(np.arange(len(cells)), train)


def normalised(features: np.ndarray, training: np.ndarray) -> np.ndarray:
    return (features - features[training].mean(0)) / (features[training].std(0, ddof=1) + 1e-9)


def test_each_hospital_is_a_client_normalised_by_its_own_training_rows(data):
    assert list(data.clients) == [*SIZES]
    for name, client in data.clients.items():
        features, positive, training = by_hand(name)
        assert client.val is None
        for part, rows in ((client.train, training), (client.test, ~training)):
            torch.testing.assert_close(
                part.features.double(), torch.tensor(normalised(features, training)[rows]), atol=1e-4, rtol=1e-4
            )
            assert part.labels[:, 0].tolist() == positive[rows].tolist()
            assert part.sites.tolist() == [name] * rows.sum()
    assert data.counts()["positives"].sum() == sum(positives for _, positives in SIZES.values())


def test_the_pooled_test_set_is_normalised_by_all_training_rows(data):
    made = [by_hand(name) for name in SIZES]
    features, positive, training = (np.concatenate(parts) for parts in zip(*made, strict=True))
    part = data.test_sets["pooled-test"]
    torch.testing.assert_close(
        part.features.double(), torch.tensor(normalised(features, training)[~training]), atol=1e-4, rtol=1e-4
    )
    assert part.labels[:, 0].tolist() == positive[~training].tolist()


def test_pooled_data_are_one_client_and_the_hospitals_tests_stay_as_they_are(data):
    pooled = ready(FedHeartDisease(data.root, pooled=True))
    (client,) = pooled.clients.values()
    assert len(client.train) == sum(len(each.train) for each in data.clients.values())
    assert client.test is None
    for name in SIZES:
        assert torch.equal(pooled.test_sets[name].features, data.clients[name].test.features)
    assert torch.equal(pooled.test_sets["pooled-test"].features, data.test_sets["pooled-test"].features)
    torch.testing.assert_close(client.train.features.mean(0), torch.zeros(13), atol=1e-5, rtol=0)


def test_a_row_is_called_by_its_line_and_a_batch_has_rows_and_labels(data):
    names = [*data.clients["va"].train.names, *data.clients["va"].test.names]
    assert sorted(names) == [f"va-{line:04d}" for line in range(1, 18) if line != 4]
    features, labels = data.clients["va"].train.batch(torch.tensor([1, 0]))
    assert (features.shape, labels.shape) == ((2, 13), (2, 1))
    assert torch.equal(data.clients["va"].train[0][0], features[1])


def heart(*lines: str, more: bool = False):
    """Read a folder in which the first hospital's file has these lines, or these after its own."""
    before = lines_of("cleveland") if more else ()
    return lambda folder: FedHeartDisease(write_folder(folder, cleveland=[*before, *lines])).setup()


@table([
    ("a word", heart("63,1,1,x,233,1,2,150,0,2.3,3,0,6,0", more=True), DataError, "cleveland.data, line 32",
        "column 4", "'x'"),
    ("an unknown kind of pain", heart("63,1,5,145,233,1,2,150,0,2.3,3,0,6,0", more=True), DataError, "line 32",
        "column 3", "found 5"),
    ("an unknown kind of curve", heart("63,1,1,145,233,1,9,150,0,2.3,3,0,6,0", more=True), DataError, "line 32",
        "column 7", "found 9"),
    ("a cell too many", heart("63,1,1,145,233,1,2,150,0,2.3,3,0,6,0,7", more=True), DataError, "expected 14"),
    ("an empty file", heart(""), DataError, "expected 14"),
    ("other cells", heart("1;2;3"), DataError, "expected 14", "found 1"),
    ("too few rows", heart(*lines_of("cleveland")[:3]), DataError, "cleveland.data", "found 3"),
    ("no root", lambda _: FedHeartDisease(), DataError, "data.root is missing"),
    ("an empty folder", lambda folder: FedHeartDisease(folder).setup(), MissingFileError, "processed.cleveland.data",
        "an empty folder"),
    ("no folder", lambda folder: FedHeartDisease(folder / "gone").setup(), MissingFileError, "no such folder"),
])  # fmt: skip
def test_it_is_refused(provoke, kind, names, tmp_path):
    with refused(kind, *names):
        provoke(tmp_path)


@pytest.mark.skipif(
    not REAL.is_dir(), reason="UCI's Heart Disease is not in ../shared/data/heart-disease or FEDLIT_HEART"
)
@pytest.mark.parametrize(
    ("start", "aggregator", "published"),
    [
        (42, FedAvg(), (0.7596, 0.6966, 0.6875, 0.6222)),
        (42, Scaffold(), (0.7500, 0.6966, 0.6875, 0.6222)),
        (44, FedAvg(), (0.7404, 0.7528, 0.5000, 0.5778)),
    ],
)  # fmt: skip
def test_from_the_benchmarks_weights_its_numbers_come_out(start, aggregator, published, tmp_path):
    """One patient more or less, as the order of batches is another."""
    data = ready(FedHeartDisease(REAL))
    sizes = {name: (len(client.train), len(client.test)) for name, client in data.clients.items()}
    assert sizes == {"cleveland": (199, 104), "hungarian": (172, 89), "switzerland": (30, 16), "va": (85, 45)}
    model = LogisticRegression(13, data.classes, optimizer=lambda p: torch.optim.SGD(p, lr=0.001), start=start)
    schedule = ConstantSchedule(100, "steps")
    fitted = fedlit.fit(
        model, data, aggregators=[aggregator], rounds=15, schedule=schedule, workers=1, eval_every=15, run_dir=tmp_path
    )
    found = read(fitted.directory / "predictions" / "federation.parquet")
    right = ((found.scores > 0) == (found.labels == 1))[:, 0].numpy()
    for name, value in zip(sizes, published, strict=True):
        assert right[found.sites == name].mean() == pytest.approx(value, abs=1.01 / sizes[name][1])
