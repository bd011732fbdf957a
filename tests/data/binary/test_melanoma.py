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


@pytest.mark.parametrize(
    ("file", "folder", "header"),
    [
        ("train.csv", "jpeg/train", KAGGLE),
        ("ISIC_2020_Training_GroundTruth.csv", "train", KAGGLE),
        ("ISIC_2020_Training_GroundTruth_v2.csv", "ISIC_2020_Training_JPEG/train", SECOND),
        ("ISIC_2020_Training_GroundTruth_v2.csv", ".", SECOND),
    ],
)
def test_both_downloads_are_read(tmp_path, file, folder, header):
    data = opened(write_folder(tmp_path, file, folder, header))
    records = data.records()
    assert data.classes == records.classes == ("Melanoma",)
    assert records.labels[:, 0].tolist() == [target for _, target in IMAGES]
    assert records.patients.tolist() == [f"IP_{patient:07d}" for patient, _ in IMAGES]
    assert records.names[7] == "ISIC_0000007"
    assert ("lesion_id" in records.table) == (header == SECOND)
    assert records.splits is None
    pixels = records.store[range(60)].float().mean((2, 3)).numpy()
    np.testing.assert_allclose(pixels, [[row, 100, 200] for row in range(60)], atol=4)


def test_kaggles_dicom_folder_is_not_taken_for_that_of_its_jpegs(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "ISIC_0000000.dcm").write_bytes(b"")
    assert len(opened(tmp_path).records().store) == 60


def test_nothing_is_dropped_and_images_are_rgb_for_the_model(tmp_path):
    data = opened(write_folder(tmp_path))
    data.setup()
    assert (len(data.assignment), len(data.clients), data.counts()["positives"].sum()) == (60, 4, 6)
    assert data.clients["client-01"].train[0][0].shape == (3, 8, 8)


# What is refused


def test_a_missing_image_is_expected_in_the_first_folder(tmp_path):
    with refused(MissingFileError, "2 of 60", "jpeg/train/ISIC_0000058.jpg"):
        opened(write_folder(tmp_path, images=58)).records()


def test_another_folder_says_what_was_expected(tmp_path):
    expected = "train.csv, ISIC_2020_Training_GroundTruth_v2.csv or"
    with refused(MissingFileError, "gone", "no such folder", expected):
        opened(tmp_path / "gone").records()
    (tmp_path / "test.csv").write_text("")
    with refused(MissingFileError, "'test.csv'", expected):
        opened(tmp_path).records()
    with refused(DataError, expected):
        Melanoma()
