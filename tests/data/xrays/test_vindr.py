"""VinDr-CXR: three readings an image and their votes, both label files, and image formats."""

import csv
from pathlib import Path

import edits
import numpy as np
import pytest
from dicom_files import write_dicom
from hospital_source import ready
from PIL import Image
from refusals import refused
from small_vindr import LABELS, TEST, TRAIN, image_id, write_folder

from fedlit.core.errors import DataError
from fedlit.data.partition import ByPatient
from fedlit.data.xrays.vindr import VinDrCXR
from fedlit.testing import check_data_module


def open_folder(root: Path, **kwargs) -> VinDrCXR:
    kwargs.setdefault("partition", ByPatient(2))
    return VinDrCXR(root, image_size=16, cache_dir=str(root / "cache"), **kwargs)


def replace_in(root: Path, folder: str, old: str, new: str) -> None:
    edits.replace_in(root / "annotations" / f"image_labels_{folder}.csv", old, new)


def positives(records, row: int) -> set[str]:
    return {records.classes[column] for column in np.flatnonzero(records.labels[row])}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A small download, which nobody changes."""
    return write_folder(tmp_path_factory.mktemp("downloads") / "vindr")


# Reading


def test_it_keeps_the_contract_of_data_modules(whole, tmp_path):
    names = {"Fracture": {"any": ["Rib fracture", "Clavicle fracture"]}, "Enlarged heart": "Cardiomegaly"}
    check_data_module(VinDrCXR, root=whole, image_size=16, vote="any", names=names, cache_dir=tmp_path / "cache")


def test_both_files_are_read(whole):
    data = open_folder(whole)
    assert VinDrCXR.recognises(whole)
    records = data.records()
    assert data.classes == records.classes == VinDrCXR.labels == tuple(LABELS[:-1])
    assert records.names.tolist() == [image_id(index) for index in range(TRAIN + TEST)]
    assert records.patients.tolist() == records.names.tolist()
    assert records.splits.tolist() == ["train_val"] * TRAIN + ["test"] * TEST
    assert records.labels.shape == (36, 27)
    assert [positives(records, row) for row in (0, 1, 2)] == [set(), {"Edema", "Rib fracture"}, {"Other diseases"}]
    assert positives(records, TRAIN + 2) == {"Other diseases", "Nodule/Mass"}
    assert set(np.unique(records.labels)) == {0, 1}
    assert records.table.iloc[[0, 1, TRAIN]].to_numpy().tolist() == [
        [image_id(0), "train", "R10|R8|R9"],
        [image_id(1), "train", "R10|R11|R9"],
        [image_id(TRAIN), "test", "consensus"],
    ]
    assert len(data.notes) == 1
    assert data.notes[0].startswith("VinDr releases no patient ids: each image counts as a patient of its own")
    with Image.open(whole / "test" / f"{image_id(TRAIN)}.png") as image:
        expected = np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(records.store[TRAIN].numpy()[0], expected)


@pytest.mark.parametrize(
    ("vote", "expected"), [("any", {"Cardiomegaly", "Edema", "Rib fracture"}), ("unanimous", {"Rib fracture"})]
)
def test_votes(whole, vote, expected):
    records = open_folder(whole, vote=vote).records()
    assert positives(records, 1) == expected
    # The consensus of the test set is no vote.
    assert positives(records, TRAIN + 1) == {"Cardiomegaly", "Edema", "Rib fracture"}


def test_other_numbers_of_readers_are_counted(tmp_path):
    path = write_folder(tmp_path) / "annotations" / "image_labels_train.csv"
    lines = path.read_text().splitlines()
    # The third reading of image 1 goes: two of two see an edema, one of two a cardiomegaly, which is no majority.
    assert lines[1 + 2 * TRAIN + 1].startswith(image_id(1))
    path.write_text("\n".join(lines[: 1 + 2 * TRAIN + 1] + lines[1 + 2 * TRAIN + 2 :]))
    data = open_folder(tmp_path)
    assert positives(data.records(), 1) == {"Edema", "Rib fracture"}
    assert data.notes[1] == "1 of 24 training images of VinDr have another number of readers than 3: 2 to 3"
    assert positives(open_folder(tmp_path, vote="unanimous").records(), 1) == {"Edema", "Rib fracture"}


def test_a_blank_reading_does_not_vote(tmp_path):
    path = write_folder(tmp_path) / "annotations" / "image_labels_train.csv"
    rows = list(csv.reader(path.open(newline="")))
    edema, rib = rows[0].index("Edema"), rows[0].index("Rib fracture")
    for row in rows:
        if row[0] == image_id(1):
            row[rib] = ""
            row[edema] = "" if row[edema] == "0" else row[edema]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    reading = open_folder(tmp_path, vote="unanimous").read()
    assert reading.labels[1, LABELS.index("Edema")] == 1
    assert np.isnan(reading.labels[1, LABELS.index("Rib fracture")])
    assert np.isnan(reading.labels).sum() == 1


def test_dicom_as_released_and_jpeg(tmp_path):
    assert len(open_folder(write_folder(tmp_path / "jpeg", suffix=".jpeg")).read_within().files) == 36
    root, options = write_folder(tmp_path / "dicom"), {"parts": ("test",)}
    for path in (root / "test").iterdir():
        window = {"WindowCenter": 2040, "WindowWidth": 4080, "VOILUTFunction": "LINEAR_EXACT", "BitsStored": 12}
        write_dicom(path.with_suffix(".dicom"), np.asarray(Image.open(path), np.uint16) * 16, "MONOCHROME1", **window)
    plain = open_folder(root, **options).records().store
    for path in (root / "test").glob("*.png"):
        path.unlink()
    inverted = open_folder(root, **options).records().store
    assert np.abs(255 - plain[0].numpy().astype(int) - inverted[0].numpy()).max() <= 1


def test_harmonised_names(whole):
    data = open_folder(whole, names="harmonised", classes=["Fracture", "Edema", "Nodule/Mass"], vote="any")
    np.testing.assert_array_equal(data.records().labels[:3], [[0, 0, 0], [1, 1, 0], [0, 0, 1]])


def test_official_and_own_splits(whole):
    data = ready(open_folder(whole))
    assert data.assignment["split"].value_counts().to_dict() == {"train": 21, "test": 12, "val": 3}
    own = ready(open_folder(whole, official_split=False))
    assert own.assignment["split"].value_counts()["test"] == 7


# What bad input gets


def test_an_image_in_both_files_is_refused(tmp_path):
    replace_in(write_folder(tmp_path), "test", image_id(25), image_id(3))
    with refused(DataError, "annotations: 1 images", f"'{image_id(3)}'"):
        open_folder(tmp_path).records()


@pytest.mark.parametrize("chosen", [True, False])
def test_the_training_images_alone(whole, tmp_path, chosen):
    root = whole if chosen else write_folder(tmp_path)
    if not chosen:
        (root / "annotations" / "image_labels_test.csv").unlink()
    reading = open_folder(root, **{"parts": ("train",)} if chosen else {}).read()
    assert reading.names.tolist() == [image_id(index) for index in range(TRAIN)]
    assert reading.splits is None
    assert reading.notes[1] == "only image_labels_train.csv is there: the images are divided by data.split"
