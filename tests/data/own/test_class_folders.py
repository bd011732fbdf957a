"""Images in a folder for each class."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from refusals import refused

from fedlit.data import ClassFolders


def write(root: Path, names: list[str]) -> Path:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / name)
    return root


FLAT = [f"{name}/person{n}_{n}.png" for name in ("NORMAL", "PNEUMONIA") for n in range(12)]
SPLIT = [
    f"{part}/{name}/person{part}{n}_1.jpeg"
    for part in ("train", "val", "test")
    for name in ("A", "B", "C")
    for n in range(4)
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


REFUSED = {
    "no root": (["A/1.png"], {"root": None}, ("class-folders-root-missing",)),
    "one class": (["A/1.png"], {}, ("class-folders-missing", "'A'")),
    "splits and classes": (["train/A/1.png", "B/1.png"], {}, ("split-and-class-folders",)),
    "no pattern": (FLAT, {"patient": "person("}, ("patient-pattern-invalid",)),
    "no group": (FLAT, {"patient": "person"}, ("patient-pattern-groups", "found 0")),
    "another name": (
        FLAT,
        {"patient": r"pers(\d+)"},
        ("patient-pattern-unmatched", "24 of 24", "'NORMAL/person0_0.png'"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(tmp_path, case):
    names, options, message = REFUSED[case]
    root = write(tmp_path / "x", names)
    with refused(*message):
        ClassFolders(**{"root": root, "image_size": 12} | options).read()


def test_empty_and_absent_folders(tmp_path):
    (write(tmp_path / "x", FLAT) / "EMPTY").mkdir()
    with refused("class-folder-without-images", "EMPTY", "an empty folder"):
        opened(tmp_path / "x")
    with refused("class-folders-root-invalid", "gone", "no such folder"):
        opened(tmp_path / "gone")
