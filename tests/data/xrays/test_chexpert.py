"""CheXpert: path prefixes, policies for uncertain and blank labels, views, official split, and repeated positives."""

from pathlib import Path

import numpy as np
import pytest
from edits import replace_in
from hospital_source import ready
from PIL import Image
from refusals import refused
from small_chexpert import COLUMNS, line, write_folder
from two_organisations import small_phantom

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data import Organisations
from fedlit.data.partition import ByPatient
from fedlit.data.xrays.chexpert import CheXpert
from fedlit.testing import check_data_module

EDEMA, HEART, FLUID = (CheXpert.labels.index(name) for name in ("Edema", "Cardiomegaly", "Pleural Effusion"))
NAN = np.nan


def open_folder(root: Path, **kwargs) -> CheXpert:
    return CheXpert(root, image_size=16, cache_dir=str(root / "cache"), **{"partition": ByPatient(2)} | kwargs)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A small download with its test set, which nobody changes."""
    return write_folder(tmp_path_factory.mktemp("downloads") / "chexpert", test=True)


# Reading


def test_it_keeps_the_contract_of_data_modules(tmp_path):
    root = write_folder(tmp_path / "chexpert", patients=8)
    options = {"uncertain": {"Edema": "ones", "default": "ignore"}, "views": ["frontal", "lateral"], "image_size": 16}
    check_data_module(CheXpert, root=root, cache_dir=tmp_path / "cache", **options)


@pytest.mark.parametrize(("prefix", "inside"), [("CheXpert-v1.0-small/", False), ("renamed/", True), ("", False)])
def test_the_prefix_of_paths_is_no_part_of_the_folder(tmp_path, prefix, inside):
    root = write_folder(tmp_path / "chex", prefix, inside, patients=5)
    records = open_folder(root).records()
    assert records.names[[0, 1, -1]].tolist() == [
        "train/patient00001/study1/view1_frontal.jpg",
        "train/patient00002/study1/view1_frontal.jpg",
        "valid/patient64545/study1/view1_frontal.jpg",
    ]
    assert records.patients[:2].tolist() == ["patient00001", "patient00002"]
    assert len(records.names) == 10
    assert records.splits is None
    assert records.table.columns.tolist() == COLUMNS
    assert set(records.sites) == {"CheXpert"}
    file = next(root.glob("**/patient00002/study1/view1_frontal.jpg"))
    expected = Image.open(file).resize((16, 16), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(records.store[1].numpy()[0], np.asarray(expected), atol=1)


def test_label_files_that_are_not_asked_for_are_not_read(tmp_path):
    root = write_folder(tmp_path / "chex", test=True)
    found = {
        parts: open_folder(root, parts=parts).read().names.tolist() for parts in (("train",), ("train", "test"), None)
    }
    assert len(found["train",]) == 20
    assert all(name.startswith("train/") for name in found["train",])
    assert {name.split("/")[0] for name in found["train", "test"]} == {"train", "test"}
    assert {name.split("/")[0] for name in found[None]} == {"train", "valid", "test"}
    (root / "valid.csv").unlink()
    assert open_folder(root, parts=("train",)).read().names.tolist() == found["train",]
    assert len(open_folder(root).read().names) == 25
    with refused(DataError, "train"):
        open_folder(root, parts=("train",), official_split=True)
    for options in ({"parts": ("val",)}, {"official_split": True}):
        with refused(MissingFileError, "valid.csv"):
            open_folder(root, **options).read()
    (root / "train.csv").unlink()
    with refused(MissingFileError, "train.csv"):
        open_folder(root).read()


@pytest.mark.parametrize(
    ("uncertain", "blank", "expected"),
    [
        ("zeros", "zeros", [[1, 0, 0], [0, 0, 0], [0, 1, 0]]),
        ("ones", "ignore", [[1, 1, 0], [NAN, NAN, NAN], [1, 1, 1]]),
        (
            {"Edema": "ones", "default": "ignore"},
            {"Edema": "ignore", "default": "zeros"},
            [[1, 1, 0], [0, NAN, 0], [NAN, 1, NAN]],
        ),
    ],
)
def test_policies_decide_on_uncertain_and_blank_labels(whole, uncertain, blank, expected):
    data = open_folder(whole, uncertain=uncertain, blank=blank, parts=("train",))
    as_they_stand = [[1, -1, 0], [NAN, NAN, NAN], [-1, 1, -1]]
    np.testing.assert_array_equal(data.read().labels[:3][:, [HEART, EDEMA, FLUID]], as_they_stand)
    np.testing.assert_array_equal(data.records().labels[:3][:, [HEART, EDEMA, FLUID]], expected)


def test_views_are_chosen_and_the_others_counted(whole):
    frontal, side, both = (open_folder(whole, views=v) for v in (("frontal",), ["lateral"], ("frontal", "lateral")))
    reading = frontal.read()
    assert reading.notes == ["20 of 50 images of CheXpert are lateral and left out"]
    assert all(name.endswith("frontal.jpg") for name in reading.names)
    reading = side.read()
    assert reading.notes == ["30 of 50 images of CheXpert are frontal and left out"]
    assert reading.names[0] == "train/patient00001/study1/view2_lateral.jpg"
    assert len(reading.files) == len(reading.labels) == len(reading.table) == 20
    assert both.read().notes == []
    assert len(both.read().names) == 50


def test_patients_are_divided_anew_unless_the_official_split_is_asked_for(whole, tmp_path):
    own, kept = (ready(open_folder(whole, official_split=official)) for official in (False, True))
    assert own.assignment.groupby("patient")["split"].nunique().max() == 1
    for data in (own, kept):
        official = data.assignment["image"].str.split("/").str[0].replace({"valid": "val"})
        assert (official == data.assignment["split"]).all() == (data is kept)
    assert kept.assignment["split"].value_counts().to_dict() == {"train": 20, "val": 5, "test": 5}
    assert (kept.records().labels[-5:] == 1).all()
    root = write_folder(tmp_path)
    assert all(client.test is None for client in ready(open_folder(root, official_split=True)).clients.values())


def test_images_that_do_not_fit_are_refused(tmp_path):
    root = write_folder(tmp_path)
    with refused(DataError, "views", "frontal", "lateral"):
        open_folder(root, views=())
    with refused(DataError, "data.upsample", "'Heart'"):
        open_folder(root, upsample=["Heart"])
    text = (root / "train.csv").read_text().splitlines()
    (root / "train.csv").write_text("\n".join(row for row in text if "lateral" not in row))
    with refused(DataError, "lateral", "among 25"):
        open_folder(root, views=["lateral"]).read()
    replace_in(root / "valid.csv", "CheXpert-v1.0-small/valid/patient64541", "other/train/patient00001")
    with refused(DataError, "train/patient00001/study1/view1"):
        open_folder(root).read()


# Positives that are there once more


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """Twenty-five patients, every fourth with a large heart, every fifth with a consolidation."""
    root = write_folder(tmp_path_factory.mktemp("many"), patients=25)
    lines = (root / "train.csv").read_text().splitlines()
    for number in range(1, len(lines)):
        patient = int(lines[number].partition("patient")[2][:5])
        view = "Lateral" if "lateral" in lines[number] else "Frontal"
        findings = {"Cardiomegaly": f"{patient % 4 == 0:d}.0", "Consolidation": f"{patient % 5 == 0:d}.0"}
        lines[number] = line(lines[number].partition(",")[0], findings, view)
    (root / "train.csv").write_text("\n".join(lines) + "\n")
    return root


def test_positives_are_there_once_more_where_they_are_trained_on(many):
    classes = ["Cardiomegaly", "Consolidation"]
    plain = ready(open_folder(many, classes=classes, seed=3))
    data = ready(open_folder(many, classes=classes, seed=3, upsample=classes))
    assert "that are repeated: 6 of Cardiomegaly, 5 of Consolidation" in data.notes[-1]
    rows = data.assignment
    assert rows["image"].is_unique
    assert rows.groupby("patient")["split"].nunique().max() == 1
    copies, originals = (rows[rows["image"].str.contains("#again-for-") == again] for again in (True, False))
    assert set(copies["split"]) == {"train"}
    assert sorted(originals["image"]) == sorted(plain.assignment["image"])
    trained = originals[originals["split"] == "train"]["patient"].str[-5:].astype(int)
    trained = trained[trained <= 25]
    hearts, lungs, both = ((trained % n == 0).sum() for n in (4, 5, 20))
    assert len(copies) == hearts + lungs
    found = data.counts().query("split == 'train'").groupby("class")["positives"].sum()
    assert found.to_dict() == {"Cardiomegaly": 2 * hearts + both, "Consolidation": 2 * lungs + both}
    client = next(c for c in data.clients.values() if any("#" in name for name in c.train.names))
    at = next(n for n, name in enumerate(client.train.names) if "#" in name)
    original = data.records().names.tolist().index(client.train.names[at].partition("#")[0])
    np.testing.assert_array_equal(client.train.take([at])[0][0].numpy(), data.records().store[original].numpy())


def test_copies_under_organisations_are_trained_on_too_and_in_no_test(many, tmp_path):
    options = {"image_size": 16, "duplicates": "allow", "cache_dir": str(tmp_path / "cache")}
    data = ready(Organisations({"A": open_folder(many, upsample=["Cardiomegaly"])}, **options))
    copies = data.assignment[data.assignment["image"].str.contains("#again-for-Cardiomegaly")]
    assert len(copies) > 0
    assert set(copies["split"]) == {"train"}
    other = Organisations({"B": small_phantom()}, {"A": open_folder(many, upsample=["Cardiomegaly"])}, **options)
    assert len(ready(other).test_sets["A"]) == 30
    assert not any("#" in name for name in other.test_sets["A"].names)
