"""PadChest: its label file with all columns, words in labels, views, and 16-bit images."""

import gzip
from pathlib import Path

import edits
import numpy as np
import pytest
from PIL import Image
from refusals import refused
from small_padchest import COLUMNS, FILE, LABELS, PATIENT, write_folder

from fedlit.core.errors import DataError
from fedlit.data.partition import ByPatient
from fedlit.data.xrays.padchest import PadChest
from fedlit.testing import check_data_module

POSITIVE = (
    set(),
    {"cardiomegaly", "pleural effusion"},
    set(),
    {"nodule", "mass"},
    None,
    {"fracture", "device", "pleural effusion"},
)
NAN = np.nan


def open_folder(root: Path, **kwargs) -> PadChest:
    kwargs = {"partition": ByPatient(2), "depth": 12} | kwargs
    return PadChest(root, image_size=16, cache_dir=str(root / "cache"), **kwargs)


def replace_in(root: Path, old: str, new: str) -> None:
    edits.replace_in(root / FILE, old, new)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A small download, which nobody changes."""
    return write_folder(tmp_path_factory.mktemp("downloads") / "padchest")


# Reading


def test_it_keeps_the_contract_of_data_modules(whole, tmp_path):
    options = {"findings": ["mass", "pleural effusion"], "blank": {"mass": "zeros", "default": "ignore"}, "depth": 12}
    check_data_module(PadChest, root=whole, views=["PA", "AP"], image_size=16, cache_dir=tmp_path / "cache", **options)


@pytest.mark.parametrize("flat", [False, True])
def test_layouts_read_the_same(tmp_path, flat):
    write_folder(tmp_path, flat=flat, patients=9)
    if flat:
        (tmp_path / f"{FILE}.gz").write_bytes(gzip.compress((tmp_path / FILE).read_bytes()))
        (tmp_path / FILE).unlink()
    assert PadChest.recognises(tmp_path)
    data = open_folder(tmp_path)
    records = data.records()
    assert data.classes == records.classes == PadChest.labels
    assert records.table.columns.tolist() == COLUMNS[1:]
    assert records.names[0] == "21684011136696400000_00-101-007.png"
    assert records.patients[:3].tolist() == [f"{PATIENT}00", f"{PATIENT}00", f"{PATIENT}01"]
    assert records.splits is None
    assert records.labels.shape == (18, 17)
    for row, positive in zip(records.labels, POSITIVE, strict=False):
        if positive is None:
            assert np.isnan(row).all()
        else:
            assert {name for name, value in zip(data.classes, row, strict=True) if value} == positive
    assert data.notes == [
        "2 of 20 images of PadChest are of other views, left out: 1 COSTAL, 1 L",
        "3 of 18 images of PadChest have no labels: all phrases are blank",
    ]
    deep = np.asarray(Image.open(next(tmp_path.rglob(str(records.names[0])))))
    assert deep.dtype == np.uint16
    eight = Image.fromarray(np.round(deep.astype(np.float32) * (255 / 4095)).astype(np.uint8))
    expected = np.asarray(eight.resize((16, 16), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(records.store[0].numpy()[0], expected)


def test_an_unpacked_label_file_wins_and_two_are_refused(tmp_path):
    write_folder(tmp_path, patients=5)
    (tmp_path / f"{FILE}.gz").write_bytes(b"not even an archive")
    assert open_folder(tmp_path).read().source == tmp_path / FILE
    (tmp_path / "PADCHEST_mine.csv").touch()
    with refused(DataError, FILE, "'PADCHEST_mine.csv'"):
        open_folder(tmp_path).records()


def test_what_counts_as_no_label(tmp_path):
    write_folder(tmp_path, patients=5)
    now = LABELS[0]
    for labels, blank in (("[]", 1), ("['']", 1), ("\"[' ', 'normal']\"", 0), ("NaN", 1), ("['exclude']", 1)):
        replace_in(tmp_path, now, labels)
        assert np.isnan(open_folder(tmp_path).read().labels[0]).all() == blank
        now = labels


def test_reports_that_leave_open_what_there_is_not(tmp_path):
    write_folder(tmp_path, patients=5)
    words = {1: "exclude", 2: "unchanged", 3: "Suboptimal study"}
    for row, word in words.items():
        replace_in(tmp_path, LABELS[row], f"['{word}', 'cardiomegaly']")
    data = open_folder(tmp_path)
    heart, labels = data.classes.index("cardiomegaly"), data.records().labels
    zeros = open_folder(tmp_path, blank="zeros").records().labels
    for row in words:
        assert labels[row, heart] == 1
        assert np.isnan(np.delete(labels[row], heart)).all()
        assert (zeros[row].sum(), np.isnan(zeros[row]).any()) == (1, False)
    said = "3 of 10 images of PadChest are labelled exclude or unchanged or suboptimal study: blank for all"
    assert said in data.notes[-1]


def test_air_under_the_skin_is_no_emphysema_unless_asked(tmp_path):
    replace_in(write_folder(tmp_path, patients=5), LABELS[1], "['Subcutaneous emphysema']")
    replace_in(tmp_path, LABELS[2], "['subcutaneous emphysema', 'bullous emphysema']")
    data = open_folder(tmp_path, classes=["emphysema"])
    np.testing.assert_array_equal(data.records().labels[:3], [[0], [0], [1]])
    asked = ["emphysema", "subcutaneous emphysema"]
    both = open_folder(tmp_path, findings=asked, names={"Emphysema": {"any": asked}})
    np.testing.assert_array_equal(both.records().labels[:3], [[0], [1], [1]])


def test_views_are_a_choice(tmp_path):
    write_folder(tmp_path)
    reading = open_folder(tmp_path, views=("L", "PA")).read()
    assert sorted(reading.table["Projection"].unique()) == ["L", "PA"]
    said = "41 of 62 images of PadChest are of other views, left out: 20 AP, 20 AP_horizontal, 1 COSTAL"
    assert reading.notes[0] == said
    replace_in(tmp_path, "AP_horizontal", "")
    note = open_folder(tmp_path).read().notes[0]
    assert note == "3 of 62 images of PadChest are of other views, left out: 1 COSTAL, 1 L, 1 none"
    assert len(open_folder(tmp_path, views=("none",)).read().names) == 1
    with refused(DataError, "csv", "Projection 'AP horizontal'"):
        open_folder(tmp_path, views=("AP horizontal",)).read()
    with refused(DataError, "'PA'"):
        open_folder(tmp_path, views=())


def test_images_that_a_physician_labelled(tmp_path):
    reading = open_folder(write_folder(tmp_path), physician_only=True).read()
    assert set(reading.table["MethodLabel"]) == {"Physician"}
    assert len(reading.names) == 15
    assert reading.notes[1] == "45 of 60 images of PadChest are not labelled by a physician, left out"
    assert reading.notes[2] == "5 of 15 images of PadChest have no labels: all phrases are blank"
    (tmp_path / FILE).write_text((tmp_path / FILE).read_text().replace("Physician", "physicist"))
    with refused(DataError, "'Physician'", "found 'physicist', 'RNN_model'"):
        open_folder(tmp_path, physician_only=True).read()


def test_phrases_of_ones_own(whole):
    data = open_folder(whole, names="harmonised", classes=["Support Devices", "Pleural Effusion"])
    np.testing.assert_array_equal(data.records().labels[:6], [[0, 0], [0, 1], [0, 0], [0, 0], [NAN] * 2, [1, 1]])
    data = open_folder(whole, findings=["Pseudonodule", "chamber  device"])
    assert data.classes == ("Pseudonodule", "chamber device")
    np.testing.assert_array_equal(data.records().labels[:6], [[0, 0], [0, 0], [1, 0], [0, 0], [NAN] * 2, [0, 1]])
    named = open_folder(whole, findings=["mass", "nodule"], names={"Lesion": {"any": ["mass", "nodule"]}})
    assert named.records().labels[3].tolist() == [1]
    for findings in ([], ["mass", "Mass"], ["mass", " "]):
        with refused(DataError, "data.findings"):
            open_folder(whole, findings=findings)
