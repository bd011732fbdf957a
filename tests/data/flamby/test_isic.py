"""Fed-ISIC2019: the literal layout of FLamby's split file and folders, and every error that the file can have."""

from pathlib import Path

import pytest
from refusals import refused
from small_isic import ROWS, write_folder

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data import FedISIC2019


def opened(root: Path, **kwargs) -> FedISIC2019:
    return FedISIC2019(root, image_size=8, cache_dir=str(root / "cache"), **kwargs)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A small download, which nobody changes."""
    return write_folder(tmp_path_factory.mktemp("downloads"))


def test_a_client_a_centre_with_the_folds_and_labels_of_the_file(whole):
    data = opened(whole)
    data.setup()
    centres = ["BCN", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK", "HAM_vienna_dias"]
    assert list(data.clients) == sorted(centres)
    for number, name in enumerate(centres):
        client = data.clients[name]
        assert client.val is None
        for part, fold in ((client.train, "train"), (client.test, "test")):
            rows = [row for row in ROWS if row[2] == number and row[3] == fold]
            assert part.names.tolist() == [f"ISIC_{row[0]:07d}" for row in rows]
            assert part.labels.argmax(1).tolist() == [row[1] for row in rows]
            assert (part.labels.sum(1) == 1).all()
    assert data.classes == ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")


@pytest.mark.parametrize("folder", ["ISIC_2019_Training_Input", "."])
def test_images_lie_in_another_folder(tmp_path, folder):
    assert len(opened(write_folder(tmp_path, folder)).records().store) == 60


def test_images_are_normalised_as_imagenets_unless_said_otherwise(whole):
    usual, grey = opened(whole), opened(whole, in_chans=1)
    assert (usual.mean, grey.mean, grey.std) == ([0.485, 0.456, 0.406], 0.449, 0.226)
    assert opened(whole, mean=0.5, std=[1.0, 2.0, 3.0]).std == [1.0, 2.0, 3.0]
    usual.setup()
    image, _ = usual.clients["BCN"].test[0]
    assert float(image[2, -1, -1]) == pytest.approx((200 / 255 - 0.406) / 0.225, abs=0.1)


def test_validation_images_come_from_those_to_train_on(whole):
    data = opened(whole, split=(0.75, 0.25, 0.0))
    data.setup()
    splits = data.assignment["split"].value_counts()
    assert splits["test"] == sum(row[3] == "test" for row in ROWS)
    assert splits["val"] == pytest.approx(12, abs=3)
    assert all(client.val is not None for client in data.clients.values())


def test_the_split_file_may_lie_elsewhere(tmp_path):
    root = write_folder(tmp_path / "images")
    (tmp_path / "flamby").mkdir()
    moved = (root / "train_test_split").rename(tmp_path / "flamby" / "train_test_split")
    assert len(opened(root, split_file=moved).records().names) == 60
    with refused(MissingFileError, "train_test_split", "images", "ISIC_2019"):
        opened(root).records()
    with refused(MissingFileError, "60 of 60", "absent"):
        opened(tmp_path / "absent", split_file=moved).records()
    moved.write_text(moved.read_text().replace(",1,1,train,", ",1,7,train,"))
    with refused(DataError, "line 3"):  # before the images, which may be elsewhere too
        opened(tmp_path / "absent", split_file=moved).records()


def test_missing_folders_are_told(tmp_path):
    with refused(MissingFileError, "no such folder", "expected FLamby's train_test_split"):
        opened(tmp_path / "gone").records()
    with refused(DataError, "expected FLamby's train_test_split"):
        FedISIC2019()
