"""Dogs vs. Cats in both of its layouts: what is positive, what is for the test, what is refused."""

import re
from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from small_catvsdog import encoded, write_kaggle, write_microsoft

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data import IID, CATvsDOG


def opened(root: Path, **kwargs) -> CATvsDOG:
    return CATvsDOG(root, image_size=8, cache_dir=str(root / "cache"), **{"partition": IID(4)} | kwargs)


LAYOUTS = pytest.mark.parametrize("write", [write_kaggle, write_microsoft])


@LAYOUTS
def test_cats_are_positive_and_every_fifth_number_is_for_the_test(tmp_path, write):
    records = opened(write(tmp_path, range(20))).records()
    assert len(records.names) == 40
    numbers = np.array([int(re.search(r"\d+", name)[0]) for name in records.names])
    cats = np.array(["cat" in name.lower() for name in records.names])
    np.testing.assert_array_equal(records.labels[:, 0], cats)
    np.testing.assert_array_equal(records.splits == "test", numbers % 5 == 4)
    brightness = records.store[range(40)].float().mean((1, 2, 3)).numpy()
    np.testing.assert_allclose(brightness, numbers + np.where(cats, 0, 200), atol=2)


@LAYOUTS
def test_a_removed_image_moves_no_other(tmp_path, write):
    def splits(root: Path) -> dict[str, str]:
        records = opened(root).records()
        return dict(zip(records.names.tolist(), (records.splits == "test").tolist(), strict=True))

    whole = splits(write(tmp_path / "whole", range(12)))
    fewer = splits(write(tmp_path / "fewer", [number for number in range(12) if number != 6]))
    assert len(whole) - len(fewer) == 2
    assert fewer.items() <= whole.items()


def test_training_positives_are_dropped_and_the_test_is_balanced(tmp_path):
    data = opened(write_kaggle(tmp_path), imratio=0.2)
    data.setup()
    counts = data.counts().groupby("split")[["positives", "negatives"]].sum()
    assert counts.loc["test"].tolist() == [8, 8]
    assert len(data.clients) == 4
    train = data.counts().query("split == 'train'")
    assert (train["positives"] == (train["negatives"] / 4).round().clip(lower=1)).all()
    assert counts.loc["train", "negatives"] + counts.loc["val", "negatives"] == 32


def test_another_folder_says_what_was_expected(tmp_path):
    (tmp_path / "train.zip").write_bytes(b"")
    with refused(MissingFileError, "found 'train.zip'", "expected Kaggle's train/cat.0.jpg", "PetImages/"):
        opened(tmp_path).records()


@LAYOUTS
def test_a_strange_name_is_refused(tmp_path, write):
    write(tmp_path, range(5))
    folder = next(path for path in tmp_path.iterdir() if path.name in ("train", "PetImages"))
    (folder / "bird.3.jpg").write_bytes(encoded(0))
    with refused(DataError, folder.name, "1 images", "'bird.3.jpg'"):
        opened(tmp_path).records()


@pytest.mark.parametrize(
    ("numbers", "mistake"),
    [
        ([4, 9], (DataError, "training", "cat", "0, 1, 2, 3, 5", "among 2")),
        ([0, 1, 2], (DataError, "test", "cat", "4, 9, 14", "among 3")),
        ([], (DataError, "test", "cat", "among 0", "expected Kaggle's")),
    ],
)
def test_a_part_without_an_animal_is_refused(tmp_path, numbers, mistake):
    with refused(*mistake):
        opened(write_kaggle(tmp_path, numbers)).records()
