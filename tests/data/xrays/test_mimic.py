"""MIMIC-CXR-JPG and CXR-LT: labels a study and an image, views, splits, packed and plain tables, and damaged files."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from edits import replace_in
from hospital_source import ready
from PIL import Image
from refusals import refused
from small_mimic import LABELS, METADATA, write_folder, write_long_tail

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data.labels import harmonised_names
from fedlit.data.partition import ByColumn, ByPatient
from fedlit.data.xrays.mimic import MIMICCXR, MIMICCXRLT
from fedlit.testing import check_data_module

HEART, EDEMA, FLUID = (MIMICCXR.labels.index(name) for name in ("Cardiomegaly", "Edema", "Pleural Effusion"))


def open_folder(root: Path, **kwargs) -> MIMICCXR:
    kwargs.setdefault("partition", ByPatient(2))
    return MIMICCXR(root, image_size=16, cache_dir=str(root / "cache"), **kwargs)


def open_long_tail(root: Path, labels_file: Path | list[Path], **kwargs) -> MIMICCXRLT:
    kwargs.setdefault("views", ("PA", "AP", "LATERAL", "none"))
    return MIMICCXRLT(
        root, labels_file=labels_file, image_size=16, cache_dir=str(root / "cache"), partition=ByPatient(2), **kwargs
    )


def plain(root: Path, kind: str) -> Path:
    return root / f"mimic-cxr-2.0.0-{kind}.csv"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A small download with packed tables, which nobody changes."""
    return write_folder(tmp_path_factory.mktemp("downloads") / "mimic")


# Reading


def test_it_keeps_the_contract_of_data_modules(whole, tmp_path):
    options = {"labeller": "negbio", "views": ["PA", "AP"], "image_size": 16}
    check_data_module(MIMICCXR, root=whole, cache_dir=tmp_path / "cache", **options)


def test_packed_tables_are_read(whole):
    records = open_folder(whole).records()
    assert records.classes == MIMICCXR.labels == tuple(c for c in LABELS.split(",")[2:] if c != "No Finding")
    assert records.names[:3].tolist() == ["00000000-02aa66ab", "00000002-02aa66ab", "00000004-02aa66ab"]
    assert records.patients[:3].tolist() == ["10000032", "10000032", "10070032"]
    assert set(records.sites) == {"MIMIC"}
    assert records.table.columns.tolist() == METADATA.split(",")
    assert records.table["Rows"].unique().tolist() == [3056]
    file = whole / "files" / "p10" / "p10000032" / "s50414268" / "00000002-02aa66ab.jpg"
    expected = Image.open(file).resize((16, 16), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(records.store[1].numpy()[0], np.asarray(expected), atol=1)


def test_a_plain_table_next_to_the_packed_one_is_noted(tmp_path):
    root = write_folder(tmp_path)
    alone = MIMICCXR(root).read_within()
    for kind in ("chexpert", "split"):
        packed = root / f"mimic-cxr-2.0.0-{kind}.csv.gz"
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        said = f"{packed.name} is next to {packed.stem}: only one of them was read"
        reading = MIMICCXR(root).read_within()
        assert said in reading.notes
        np.testing.assert_array_equal(reading.labels, alone.labels)


def test_the_labels_of_a_study_hold_for_each_of_its_images(whole):
    reading = open_folder(whole, views=("PA", "LATERAL", "AP", "none")).read()
    nan = np.nan
    np.testing.assert_array_equal(
        reading.labels[:5][:, [HEART, EDEMA, FLUID]],
        [[1, -1, 0], [1, -1, 0], [nan, nan, nan], [-1, 1, -1], [-1, 1, -1]],
    )
    assert reading.labels.shape == (60, 13)
    assert reading.labels.dtype == np.float32
    negbio = open_folder(whole, labeller="negbio").read()
    np.testing.assert_array_equal(negbio.labels[:3][:, [HEART, EDEMA, FLUID]], [[1, 0, 0], [nan, nan, nan], [0, 1, 0]])


def test_views_are_chosen_and_the_others_counted_by_name(tmp_path):
    root = write_folder(tmp_path, packed=False)
    reading = open_folder(root).read()
    assert reading.notes == ["30 of 60 images of MIMIC are of other views, left out: 15 LATERAL, 15 none"]
    assert len(reading.names) == 30
    side = open_folder(root, views=["LATERAL"]).read()
    assert side.notes == ["45 of 60 images of MIMIC are of other views, left out: 15 AP, 15 PA, 15 none"]
    assert side.names[0] == "00000001-02aa66ab"
    assert len(side.files) == len(side.labels) == len(side.table) == len(side.splits) == 15
    with refused(DataError, "data.views"):
        open_folder(root, views=())
    with refused(DataError, "metadata.csv", "ViewPosition 'lateral'", "similar", "LATERAL"):
        open_folder(root, views=("PA", "lateral")).read()
    text = plain(root, "metadata").read_text()
    plain(root, "metadata").write_text(text.replace(",AP,", ",PA,"))
    assert len(open_folder(root).read().names) == 30
    with refused(DataError, "ViewPosition AP", "15 LATERAL, 30 PA, 15 none"):
        open_folder(root, views=("AP",)).read()


def test_the_official_split_calls_validation_val(whole):
    data = ready(open_folder(whole))
    records = data.assignment.set_index("image")["split"]
    assert {name: records[f"{name:08x}-02aa66ab"] for name in (44, 46, 52)} == {44: "train", 46: "val", 52: "test"}
    assert records.value_counts().to_dict() == {"train": 23, "test": 4, "val": 3}
    assert data.assignment.groupby("patient")["split"].nunique().max() == 1


def test_patients_are_divided_anew_on_request_without_the_split_file(tmp_path):
    root = write_folder(tmp_path)
    (root / "mimic-cxr-2.0.0-split.csv.gz").unlink()
    data = ready(open_folder(root, official_split=False, partition=ByColumn("ViewPosition")))
    assert list(data.clients) == ["AP", "PA"]
    assert data.assignment.groupby("patient")["split"].nunique().max() == 1
    with refused(MissingFileError, "mimic-cxr-2.0.0-split.csv.gz", "split.csv", "exp"):
        open_folder(root).read()


def test_studies_without_labels_and_labels_without_images_are_counted(tmp_path):
    root = write_folder(tmp_path, packed=False)
    replace_in(plain(root, "chexpert"), "10000032,50414267,", "99999999,59999999,")
    reading = open_folder(root).read()
    assert reading.notes[1:] == [
        "1 of 30 images of MIMIC have no row in mimic-cxr-2.0.0-chexpert.csv and are left out; study_id '50414267'",
        "1 of 40 rows in mimic-cxr-2.0.0-chexpert.csv have no image in mimic-cxr-2.0.0-metadata.csv",
    ]
    assert reading.names[0] == "00000002-02aa66ab"
    assert len(reading.names) == len(reading.labels) == 29


def test_long_tail_labels_are_those_of_an_image(whole, tmp_path):
    data = open_long_tail(whole, write_long_tail(tmp_path / "train.csv"), names="harmonised", official_split=False)
    assert set(data.classes) == set(harmonised_names("MIMIC-LT"))
    assert {*harmonised_names("NIH"), *harmonised_names("CheXpert")} < set(data.classes)
    records = data.records()
    positive = [{data.classes[column] for column in np.flatnonzero(row)} for row in records.labels[:4]]
    assert positive[2] == {"Emphysema", "Pleural Effusion"}
    assert positive[0] == positive[3] == set()
    assert set(records.sites) == {"MIMIC-LT"}
    own = open_long_tail(whole, tmp_path / "train.csv")
    assert len(own.classes) == 25
    assert own.read().labels[1, own.classes.index("Tortuous Aorta")] == 1


def test_several_long_tail_files_are_put_together(whole, tmp_path):
    files = [write_long_tail(tmp_path / "train.csv", range(30)), write_long_tail(tmp_path / "test.csv", range(33, 60))]
    data = ready(open_long_tail(whole, files))
    assert len(data.assignment) == 57
    assert data.notes == [
        "3 of 60 images of MIMIC-LT have no row in train.csv, test.csv and are left out; dicom_id "
        "'0000001e-02aa66ab', '0000001f-02aa66ab', '00000020-02aa66ab'"
    ]
    assert data.assignment["split"].value_counts().to_dict() == {"train": 42, "test": 9, "val": 6}


# What bad input gets


def test_long_tail_labels_that_do_not_fit_are_refused(whole, tmp_path):
    for missing in (None, []):
        with refused(DataError, "data.labels_file is missing"):
            MIMICCXRLT(tmp_path, labels_file=missing)
    one, two = write_long_tail(tmp_path / "one.csv", range(30)), write_long_tail(tmp_path / "two.csv", range(29, 60))
    with refused(DataError, "'0000001d-02aa66ab'"):
        open_long_tail(whole, [one, two]).read()
    replace_in(one, "50414267,0", "50414267,-1")
    with refused(DataError, "one.csv, line 2", "column 'Atelectasis'", "1, 0"):
        open_long_tail(whole, one).read()
    replace_in(two, "Tortuous Aorta", "Tortuous aorta")
    with refused(DataError, "two.csv", "'Tortuous Aorta'"):
        open_long_tail(whole, two).read()
    three = write_long_tail(tmp_path / "three.csv", range(60, 70))
    with refused(DataError, "three.csv", "dicom_id", "the 60", "metadata"):
        open_long_tail(whole, three).read()
    with refused(MissingFileError, "nowhere.csv"):
        open_long_tail(whole, tmp_path / "nowhere.csv").read()
