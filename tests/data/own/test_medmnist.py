"""The files of MedMNIST: categories and several labels, grey and colour, sizes, and invalid files."""

from pathlib import Path

import numpy as np
from PIL import Image

from fedlit.data import MedMNIST, NIHChestXray14

SIZES = {"train": 40, "val": 8, "test": 12}


def write(file: Path, labels: int = 1, categories: int = 2, colour: bool = False, size: int = 28, **others) -> Path:
    rng, arrays = np.random.default_rng(0), {}
    for split, count in SIZES.items():
        arrays[f"{split}_images"] = rng.integers(0, 256, (count, size, size, *([3] * colour)), dtype=np.uint8)
        arrays[f"{split}_labels"] = rng.integers(0, categories, (count, labels)).astype(np.uint8)
    np.savez(file, **arrays | others)
    return file


def opened(file: Path, **options) -> MedMNIST:
    return MedMNIST(file, cache_dir=str(file.parent / "cache"), **options)


def joined(file: Path, what: str) -> np.ndarray:
    with np.load(file) as arrays:
        return np.concatenate([arrays[f"{split}_{what}"] for split in SIZES])


def test_chestmnist_has_the_labels_of_nih(tmp_path):
    file = write(tmp_path / "chestmnist.npz", labels=14)
    data = opened(file)
    records = data.records()
    assert data.classes == NIHChestXray14.labels
    np.testing.assert_array_equal(records.labels, joined(file, "labels"))
    np.testing.assert_array_equal(records.store[list(range(60))].numpy()[:, 0], joined(file, "images"))
    data.setup()
    assert data.assignment["split"].value_counts().to_dict() == SIZES
    assert data.clients["client-01"].train.batch([0])[0].shape == (1, 1, 28, 28)
    assert data.notes == [
        "chestmnist has no patient ids: each image counts as one patient, and the official split is kept"
    ]
    found = data.counts().groupby("class")["positives"].sum()
    assert found.to_dict() == dict(zip(data.classes, joined(file, "labels").sum(axis=0).tolist(), strict=True))


def test_each_category_is_a_class(tmp_path):
    file = write(tmp_path / "pathmnist_64.npz", categories=9, colour=True, size=64)
    data = opened(file, classes=["mucus", "adipose"])
    records = data.records()
    labels = joined(file, "labels")[:, 0]
    np.testing.assert_array_equal(records.labels, np.stack([labels == 4, labels == 0], axis=1))
    assert records.store.shape == (60, 3, 64, 64)
    assert (data.image_size, data.in_chans) == (64, 3)
    np.testing.assert_array_equal(records.store[59].numpy(), np.moveaxis(joined(file, "images")[59], -1, 0))
    data.setup()
    images, _ = data.clients["client-01"].train.batch(range(10))
    assert (images == images.min()).float().mean() < 0.25  # black borders of a crop, at most an eighth of each side


def test_names_of_ones_own_and_another_size(tmp_path):
    file = write(tmp_path / "mine.npz", categories=3)
    assert opened(file).classes == ("0", "1", "2")
    data = opened(file, labels=["a", "b", "c"], image_size=14, in_chans=3)
    assert data.classes == ("a", "b", "c")
    expected = Image.fromarray(joined(file, "images")[7]).resize((14, 14), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(data.records().store[7].numpy()[0], np.asarray(expected))
    data.setup()
    assert data.clients["client-01"].train.batch([0])[0].shape == (1, 3, 14, 14)
