"""Images in a folder for each class."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from refusals import refused

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data import ClassFolders
from fedlit.data.xrays.check import check_folder, recognise


def write(root: Path, names: list[str]) -> Path:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / name)
    return root


FLAT = [f"{name}/person{n}_{n}.png" for name in ("NORMAL", "PNEUMONIA") for n in range(12)]
SPLIT = [
    f"{part}/{name}/person{part}{n}_1.jpeg" for part in ("train", "val", "test") for name in "ABC" for n in range(4)
]


def opened(root: Path, **options) -> ClassFolders:
    return ClassFolders(root, image_size=12, cache_dir=str(root.parent / "cache"), **options)


def test_a_folder_is_a_class(tmp_path):
    data = opened(write(tmp_path / "xrays", FLAT))
    records = data.records()
    assert data.classes == ("NORMAL", "PNEUMONIA")
    np.testing.assert_array_equal(records.labels, [[1, 0]] * 12 + [[0, 1]] * 12)
    assert records.names.tolist() == sorted(FLAT)
    assert records.splits is None
    assert data.notes == [
        "xrays: 12 NORMAL, 12 PNEUMONIA",
        "xrays names no patients: each image counts as one (data.patient)",
    ]
    first = np.asarray(Image.open(tmp_path / "xrays" / records.names[0]))
    np.testing.assert_array_equal(records.store[0].numpy(), np.moveaxis(first, -1, 0))
    data.setup()
    counted = data.counts().groupby("class")[["positives", "negatives"]].sum()
    assert counted.values.tolist() == [[12, 12], [12, 12]]


def test_folders_of_splits_patients_and_grey(tmp_path):
    data = opened(write(tmp_path / "x", SPLIT), patient=r"person([a-z]+\d)", classes=["B"], colour=False, in_chans=1)
    data.setup()
    table = data.assignment
    assert table["split"].value_counts().to_dict() == {"train": 12, "val": 12, "test": 12}
    assert sorted(table["patient"].unique())[:2] == ["test0", "test1"]
    assert data.classes == ("B",)
    assert data.clients["client-01"].train.batch([0])[0].shape == (1, 1, 12, 12)
    assert data.records().table["class"].value_counts().to_dict() == {"A": 12, "B": 12, "C": 12}


def test_subfolders_of_a_class_and_damage(tmp_path):
    root = write(tmp_path / "x", [*FLAT, "NORMAL/deep/a.png"])
    (root / "NORMAL" / "notes.txt").write_text("no image")
    (root / "PNEUMONIA" / "person3_3.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match="1 of 25 images of folders are damaged and left out"):
        records = opened(root, damaged="drop").records()
    assert records.labels.sum(axis=0).tolist() == [13, 11]
    assert "NORMAL/deep/a.png" in records.names
    assert sorted(records.table["folder"].unique()) == ["", "deep"]


@pytest.mark.parametrize(
    "masks",
    [
        ["COVID/masks/1.png", "Normal/masks/2.png"],
        ["COVID/Lung Masks/1.png"],
        ["NORMAL/person1_1_mask.png", "PNEUMONIA/person2_2-segmentation.png"],
    ],
)
def test_masks_are_no_pictures(tmp_path, masks):
    pictures = FLAT if "person" in masks[0] else ["COVID/images/1.png", "Normal/images/2.png", "Normal/images/3.png"]
    data = opened(write(tmp_path / "x", [*pictures, *masks]))
    reading = data.read()
    assert sorted(reading.names) == sorted(pictures)
    assert any(note.startswith(f"{len(masks)} files of masks are left out") for note in reading.notes)


def test_a_class_may_be_called_mask_and_an_empty_one_is_named(tmp_path):
    assert opened(write(tmp_path / "x", ["mask/1.png", "no_mask/2.png"])).read().names.size == 2
    (tmp_path / "x" / "EMPTY").mkdir()
    with refused(MissingFileError, "EMPTY", "an empty folder"):
        opened(tmp_path / "x")


@pytest.mark.parametrize("names", [["train/A/a.png", "train/B/b.png", "test/A/c.png", "test/B/d.png"], FLAT[:13]])
def test_equal_pictures_are_an_error_in_words_of_folders_without_patients(tmp_path, names):
    root = write(tmp_path / "x", names)
    (root / names[-1]).write_bytes((root / names[0]).read_bytes())
    with refused(DataError, "are equal to others", names[0], names[-1]):
        opened(root).records()
    with pytest.warns(UserWarning, match="are equal to others"):
        opened(root, duplicates="allow").records()


def test_a_check_opens_folders_of_classes(tmp_path):
    root = write(tmp_path / "x", FLAT)
    assert recognise(root) is ClassFolders
    assert check_folder(opened(root)).problems == []
    (root / FLAT[-1]).write_bytes((root / FLAT[0]).read_bytes())
    problem, *_ = check_folder(opened(root), True, tmp_path / "pairs.png").problems
    assert problem.text.startswith("1 images are equal to others")
    assert FLAT[-1] in problem.places[0]
    assert "(patient " not in problem.places[0]
