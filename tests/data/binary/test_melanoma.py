"""SIIM-ISIC 2020 in its layouts: labels, patients, and every error that its label file can have."""

from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from small_melanoma import IMAGES, KAGGLE, SECOND, write_folder

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data import Melanoma


def opened(root: Path, **kwargs) -> Melanoma:
    return Melanoma(root, image_size=8, cache_dir=str(root / "cache"), **kwargs)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A small download from Kaggle, which nobody changes."""
    return write_folder(tmp_path_factory.mktemp("downloads"))


def test_the_images_and_labels_of_kaggle(whole):
    data = opened(whole)
    records = data.records()
    assert data.classes == records.classes == ("Melanoma",)
    assert records.labels[:, 0].tolist() == [target for _, target in IMAGES]
    assert records.patients.tolist() == [f"IP_{patient:07d}" for patient, _ in IMAGES]
    assert records.names[7] == "ISIC_0000007"
    assert records.splits is None
    pixels = records.store[range(40)].float().mean((2, 3)).numpy()
    np.testing.assert_allclose(pixels, [[row, 100, 200] for row in range(40)], atol=4)


@pytest.mark.parametrize(
    ("file", "folder", "header"),
    [
        ("ISIC_2020_Training_GroundTruth.csv", "train", KAGGLE),
        ("ISIC_2020_Training_GroundTruth_v2.csv", "ISIC_2020_Training_JPEG/train", SECOND),
        ("ISIC_2020_Training_GroundTruth_v2.csv", ".", SECOND),
    ],
)
def test_other_downloads_read_the_same(whole, tmp_path, file, folder, header):
    found, kaggles = (opened(root).records() for root in (write_folder(tmp_path, file, folder, header), whole))
    assert (found.store[range(40)] == kaggles.store[range(40)]).all()
    assert (found.labels == kaggles.labels).all()
    assert (found.patients == kaggles.patients).all()
    assert ("lesion_id" in found.table) == (header == SECOND)


def test_kaggles_dicom_folder_is_not_taken_for_that_of_its_jpegs(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "ISIC_0000000.dcm").write_bytes(b"")
    assert len(opened(tmp_path).records().store) == 40


def test_nothing_is_dropped_and_images_are_rgb_for_the_model(whole):
    data = opened(whole)
    data.setup()
    assert (len(data.assignment), len(data.clients), data.counts()["positives"].sum()) == (40, 4, 4)
    assert data.clients["client-01"].train[0][0].shape == (3, 8, 8)


# What is refused


def test_a_missing_image_is_expected_in_the_first_folder(tmp_path):
    with refused(MissingFileError, "2 of 40", "jpeg/train/ISIC_0000038.jpg"):
        opened(write_folder(tmp_path, images=38)).records()


def test_another_folder_says_what_was_expected(tmp_path):
    expected = "train.csv, ISIC_2020_Training_GroundTruth_v2.csv or"
    with refused(MissingFileError, "gone", "no such folder", expected):
        opened(tmp_path / "gone").records()
    (tmp_path / "test.csv").write_text("")
    with refused(MissingFileError, "'test.csv'", expected):
        opened(tmp_path).records()
    with refused(DataError, expected):
        Melanoma()
