"""CheXpert: path prefixes, policies for uncertain and blank labels, views, official split, and damaged files."""

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


def open_folder(root: Path, **kwargs) -> CheXpert:
    kwargs.setdefault("partition", ByPatient(2))
    return CheXpert(root, image_size=16, cache_dir=str(root / "cache"), **kwargs)


# Reading


def test_it_keeps_the_contract_of_data_modules(tmp_path):
    policy = {"Edema": "ones", "default": "ignore"}
    options = {
        "root": write_folder(tmp_path / "chex"),
        "uncertain": policy,
        "views": ["frontal", "lateral"],
        "image_size": 16,
    }
    check_data_module(CheXpert, **options, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("prefix", ["CheXpert-v1.0-small/", "CheXpert-v1.0/", "renamed/", ""])
@pytest.mark.parametrize("inside", [False, True])
def test_the_prefix_of_paths_is_no_part_of_the_folder(tmp_path, prefix, inside):
    root = write_folder(tmp_path / "chex", prefix, inside)
    data = open_folder(root)
    records = data.records()
    assert records.names[:2].tolist() == [
        "train/patient00001/study1/view1_frontal.jpg",
        "train/patient00002/study1/view1_frontal.jpg",
    ]
    assert records.patients[:2].tolist() == ["patient00001", "patient00002"]
    assert records.names[-1] == "valid/patient64545/study1/view1_frontal.jpg"
    assert len(records.names) == 25
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
    with refused(DataError, "train"):
        open_folder(root, parts=("train",), official_split=True)
    with refused(MissingFileError, "valid.csv"):
        open_folder(root, parts=("val",)).read()


def test_labels_are_read_as_they_stand(tmp_path):
    reading = open_folder(write_folder(tmp_path)).read()
    nan = np.nan
    np.testing.assert_array_equal(
        reading.labels[:4][:, [HEART, EDEMA, FLUID]], [[1, -1, 0], [nan, nan, nan], [-1, 1, -1], [nan, nan, nan]]
    )
    assert reading.labels.dtype == np.float32
    assert CheXpert.labels == tuple(COLUMNS[6:])


@pytest.mark.parametrize(
    ("uncertain", "blank", "expected"),
    [
        ("zeros", "zeros", [[1, 0, 0], [0, 0, 0], [0, 1, 0]]),
        ("ones", "zeros", [[1, 1, 0], [0, 0, 0], [1, 1, 1]]),
        ("ignore", "zeros", [[1, np.nan, 0], [0, 0, 0], [np.nan, 1, np.nan]]),
        ("zeros", "ignore", [[1, 0, 0], [np.nan, np.nan, np.nan], [0, 1, 0]]),
        ({"Edema": "ones", "default": "zeros"}, "zeros", [[1, 1, 0], [0, 0, 0], [0, 1, 0]]),
        (
            {"Edema": "ones", "default": "ignore"},
            {"Edema": "ignore", "default": "zeros"},
            [[1, 1, 0], [0, np.nan, 0], [np.nan, 1, np.nan]],
        ),
    ],
)
def test_policies_decide_on_uncertain_and_blank_labels(tmp_path, uncertain, blank, expected):
    data = open_folder(write_folder(tmp_path), uncertain=uncertain, blank=blank)
    np.testing.assert_array_equal(data.records().labels[:3][:, [HEART, EDEMA, FLUID]], expected)


def test_harmonised_names_and_some_classes(tmp_path):
    root = write_folder(tmp_path)
    data = open_folder(root, names="harmonised")
    assert sorted(data.classes) == sorted(CheXpert.labels)
    some = open_folder(root, names="harmonised", classes=["Pleural Effusion", "Cardiomegaly"], uncertain="ones")
    assert some.classes == ("Pleural Effusion", "Cardiomegaly")
    np.testing.assert_array_equal(some.records().labels[:3], [[0, 1], [0, 0], [1, 1]])


def test_views_are_chosen_and_the_others_counted(tmp_path):
    root = write_folder(tmp_path)
    data = ready(open_folder(root))
    assert data.notes == ["20 of 45 images of CheXpert are lateral and left out"]
    assert data.assignment["image"].str.endswith("frontal.jpg").all()
    side = open_folder(root, views=["lateral"]).read()
    assert side.notes == ["25 of 45 images of CheXpert are frontal and left out"]
    assert side.names[0] == "train/patient00001/study1/view2_lateral.jpg"
    assert len(side.files) == len(side.labels) == len(side.table) == 20
    both = open_folder(root, views=("frontal", "lateral")).read()
    assert both.notes == []
    assert len(both.names) == 45


def test_patients_are_divided_anew_by_default(tmp_path):
    data = ready(open_folder(write_folder(tmp_path, test=True), views=("frontal", "lateral")))
    assert len(data.assignment) == 50
    assert data.assignment.groupby("patient")["split"].nunique().max() == 1
    official = data.assignment["image"].str.split("/").str[0].replace({"valid": "val"})
    assert (official != data.assignment["split"]).any()


def test_the_official_split_on_request(tmp_path):
    data = ready(open_folder(write_folder(tmp_path, test=True), official_split=True))
    official = data.assignment["image"].str.split("/").str[0].replace({"valid": "val"})
    assert (official == data.assignment["split"]).all()
    assert data.assignment["split"].value_counts().to_dict() == {"train": 20, "val": 5, "test": 5}
    assert (data.records().labels[-5:] == 1).all()
    (tmp_path / "test_labels.csv").unlink()
    data = ready(open_folder(tmp_path, official_split=True))
    assert all(client.test is None for client in data.clients.values())


# What bad input gets


def test_wrong_arguments_are_refused(tmp_path):
    with refused(DataError, "views", "frontal", "lateral"):
        open_folder(tmp_path, views=())


def test_label_files_that_are_needed_are_named(tmp_path):
    write_folder(tmp_path / "CheXpert-v1.0-small")
    root = tmp_path / "CheXpert-v1.0-small"
    (root / "valid.csv").unlink()
    assert len(open_folder(root).read().names) == 20
    with refused(MissingFileError, "small", "valid.csv"):
        open_folder(root, official_split=True).records()
    (root / "train.csv").unlink()
    with refused(MissingFileError, "train.csv"):
        open_folder(root).read()


def test_an_image_in_two_files_is_refused(tmp_path):
    root = write_folder(tmp_path)
    replace_in(root / "valid.csv", "CheXpert-v1.0-small/valid/patient64541", "other/train/patient00001")
    with refused(DataError, "train/patient00001/study1/view1"):
        open_folder(root).read()


def test_no_image_of_the_views_is_refused(tmp_path):
    root = write_folder(tmp_path)
    text = (root / "train.csv").read_text().splitlines()
    (root / "train.csv").write_text("\n".join(row for row in text if "lateral" not in row))
    with refused(DataError, "lateral", "among 25"):
        open_folder(root, views=["lateral"]).read()


# Positives that are there once more


def many(root: Path) -> Path:
    """Forty patients, every fourth with a large heart, every fifth with a consolidation."""
    write_folder(root, patients=25)
    lines = (root / "train.csv").read_text().splitlines()
    for number in range(1, len(lines)):
        patient = int(lines[number].partition("patient")[2][:5])
        view = "Lateral" if "lateral" in lines[number] else "Frontal"
        findings = {"Cardiomegaly": f"{patient % 4 == 0:d}.0", "Consolidation": f"{patient % 5 == 0:d}.0"}
        lines[number] = line(lines[number].partition(",")[0], findings, view)
    (root / "train.csv").write_text("\n".join(lines) + "\n")
    return root


def test_positives_are_there_once_more_where_they_are_trained_on(tmp_path):
    chosen = {"classes": ["Cardiomegaly", "Consolidation"], "seed": 3}
    plain, data = (
        open_folder(many(tmp_path), **chosen),
        open_folder(tmp_path, upsample=["Cardiomegaly", "Consolidation"], **chosen),
    )
    plain.setup(), data.setup()
    assert "that are repeated: 6 of Cardiomegaly, 5 of Consolidation" in data.notes[-1]
    rows = data.assignment
    assert rows["image"].is_unique
    assert rows.groupby("patient")["split"].nunique().max() == 1
    copies = rows[rows["image"].str.contains("#again-for-")]
    assert set(copies["split"]) == {"train"}
    originals = rows[~rows["image"].str.contains("#")]
    assert sorted(originals["image"]) == sorted(plain.assignment["image"])
    trained = originals[originals["split"] == "train"]["patient"].str[-5:].astype(int)
    trained = trained[trained <= 25]
    hearts, lungs = (trained % 4 == 0).sum(), (trained % 5 == 0).sum()
    assert len(copies) == hearts + lungs
    both = (trained % 20 == 0).sum()
    counted = data.counts()
    found = counted[counted["split"] == "train"].groupby("class")["positives"].sum()
    assert found.to_dict() == {"Cardiomegaly": 2 * hearts + both, "Consolidation": 2 * lungs + both}
    client = next(c for c in data.clients.values() if any("#" in name for name in c.train.names))
    at = next(n for n, name in enumerate(client.train.names) if "#" in name)
    original = next(
        n for n, name in enumerate(data.records().names) if name == client.train.names[at].partition("#")[0]
    )
    np.testing.assert_array_equal(client.train.take([at])[0][0].numpy(), data.records().store[original].numpy())


def test_copies_under_organisations_are_trained_on_too_and_in_no_test(tmp_path):
    def organisation():
        return open_folder(
            many(tmp_path) if not (tmp_path / "train.csv").exists() else tmp_path, upsample=["Cardiomegaly"]
        )

    data = ready(Organisations({"A": organisation()}, image_size=16, cache_dir=str(tmp_path / "cache")))
    copies = data.assignment[data.assignment["image"].str.contains("#again-for-Cardiomegaly")]
    assert len(copies) > 0
    assert set(copies["split"]) == {"train"}
    options = {"image_size": 16, "duplicates": "allow", "cache_dir": str(tmp_path / "cache")}
    other = ready(Organisations({"B": small_phantom()}, {"A": organisation()}, **options))
    assert len(other.test_sets["A"]) == 30
    assert not any("#" in name for name in other.test_sets["A"].names)


def test_an_unknown_label_to_upsample_is_refused(tmp_path):
    with refused(DataError, "data.upsample", "'Heart'"):
        open_folder(tmp_path, upsample=["Heart"])
