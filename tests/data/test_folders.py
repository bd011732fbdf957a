"""Downloads one level off, in unusual folders, with packed tables and capital suffixes; and other data sets."""

import gzip
import os
import shutil

import pytest
import small_chexpert
import small_mimic
import small_nih
import small_padchest
from refusals import refused

from fedlit.core.errors import ConfigError, DataError, FedlitError, MissingFileError
from fedlit.data import MIMICCXR, MIMICCXRLT, CheXpert, NIHChestXray14, PadChest, VinDrCXR
from fedlit.data.folders import home
from fedlit.data.xrays.check import recognise

OFF = {
    "NIH, Box": (NIHChestXray14, small_nih.write_folder, "CXR8", "."),
    "CheXpert, its images": (CheXpert, small_chexpert.write_folder, "CheXpert-v1.0-small", "CheXpert-v1.0-small/train"),
    "MIMIC, its images": (MIMICCXR, small_mimic.write_folder, "mimic", "mimic/files"),
    "PadChest": (PadChest, small_padchest.write_folder, "BIMCV/PadChest", "."),
}  # fmt: skip


@pytest.mark.parametrize("case", OFF)
def test_a_level_too_high_or_too_low_is_found(tmp_path, case):
    kind, write, folder, named = OFF[case]
    (tmp_path / folder).parent.mkdir(parents=True, exist_ok=True)
    write(tmp_path / folder, **{} if kind is MIMICCXR else {"patients": 5})
    right, off = kind(tmp_path / folder).read_within(), kind(tmp_path / named).read_within()
    assert list(map(os.path.realpath, off.files)) == list(map(os.path.realpath, right.files))
    assert all(map(os.path.isfile, off.files))
    assert off.notes[0] == f"{kind.source} was found in {tmp_path / folder}, not in {tmp_path / named} itself"
    assert off.notes[1:] == right.notes
    assert recognise(tmp_path / named) is kind


def test_two_downloads_in_a_folder_are_named_and_an_empty_one_is_none(tmp_path):
    for name in ("one", "two"):
        small_nih.write_folder(tmp_path / name, patients=2)
    with refused(DataError, "one", "two"):
        NIHChestXray14(tmp_path)
    (tmp_path / "one" / "empty").mkdir()
    assert home(tmp_path / "one" / "empty", NIHChestXray14.lies_in) == tmp_path / "one" / "empty"


def test_the_search_ends_in_a_tree_of_patients(tmp_path, monkeypatch):
    looked = []
    for patient in range(60):
        (tmp_path / f"p{patient}" / "s1").mkdir(parents=True)
    assert home(tmp_path, lambda folder: looked.append(folder) or False) == tmp_path
    assert len(looked) <= 82


def test_the_long_tail_of_physionet(tmp_path):
    (tmp_path / "physionet.org/files/mimic-cxr-jpg").mkdir(parents=True)
    root = small_mimic.write_folder(tmp_path / "physionet.org/files/mimic-cxr-jpg/2.0.0")
    folder = tmp_path / "physionet.org/files/cxr-lt-iccv-workshop-cvamd/2.0.0/cxr-lt-2023"
    folder.mkdir(parents=True)
    for name, rows in (("train", range(40)), ("development", range(40, 50)), ("test", range(50, 60))):
        small_mimic.write_long_tail(folder / f"{name}.csv", rows)
    views = ("PA", "AP", "LATERAL", "none")
    one = MIMICCXRLT(tmp_path, labels_file=str(folder), views=views).read_within()
    several = MIMICCXRLT(
        root, labels_file=[str(folder / f"{n}.csv") for n in ("train", "development", "test")], views=views
    )
    assert len(one.names) == 60
    assert (one.labels == several.read().labels).all()
    lines = [line.split(",") for line in (folder / "train.csv").read_text().splitlines()]
    (folder / "train.csv").write_text("\n".join(",".join([line[0], *line[3:]]) for line in lines))  # no other ids
    again = MIMICCXRLT(root, labels_file=str(folder / "train.csv"), views=views).read()
    assert len(again.names) == 40
    with refused(MissingFileError, "train.csv, development.csv, test.csv", "name", "cxr-lt-2023"):
        MIMICCXRLT(root, labels_file=str(folder.parent))


def test_a_packed_label_file_and_capital_suffixes_of_nih(tmp_path):
    small_nih.write_folder(tmp_path, patients=5)
    expected = NIHChestXray14(tmp_path).read()
    (table,) = tmp_path.glob("Data_Entry*.csv")
    table.with_suffix(".csv.gz").write_bytes(gzip.compress(table.read_bytes()))
    table.unlink()
    for file in list((tmp_path / "images").iterdir())[::2]:
        file.rename(file.with_suffix(".PNG"))
    reading = NIHChestXray14(tmp_path).read_within()
    assert (reading.labels == expected.labels).all()
    assert all(map(os.path.isfile, reading.files))
    assert recognise(tmp_path) is NIHChestXray14


@pytest.mark.parametrize("flat", [False, True])
def test_padchest_in_a_folder_of_images(tmp_path, flat):
    root = small_padchest.write_folder(tmp_path, flat=flat, patients=6)
    (root / "images").mkdir()
    for entry in [entry for entry in root.iterdir() if entry.name not in ("images", small_padchest.FILE)]:
        shutil.move(entry, root / "images" / entry.name)
    files = PadChest(root).read_within().files
    assert len(files) == 12
    assert all(map(os.path.isfile, files))


def test_the_four_batches_of_chexpert(tmp_path):
    whole = small_chexpert.write_folder(tmp_path / "whole", prefix="CheXpert-v1.0/", patients=6)
    expected = CheXpert(whole).read()
    root = tmp_path / "chexpertchestxrays-u20210408"
    batches = [
        f"CheXpert-v1.0 batch {n} ({what})"
        for n, what in enumerate(("validate & csv", "train 1", "train 2", "train 3"), 1)
    ]
    for batch in batches:
        (root / batch).mkdir(parents=True)
    for name in ("train.csv", "valid.csv", "valid"):
        shutil.move(whole / name, root / batches[0] / name)
    for number, patient in enumerate(sorted((whole / "train").iterdir())):
        shutil.move(patient, root / batches[1 + number % 3] / patient.name)
    reading = CheXpert(root).read_within()
    assert reading.names.tolist() == expected.names.tolist()
    assert (reading.patients == expected.patients).all()
    assert all(map(os.path.isfile, reading.files))
    assert recognise(root) is CheXpert


KAGGLE = "image_id,class_name,class_id,rad_id,x_min,y_min,x_max,y_max\n"
KAGGLE += "50a418190bc3fb1ef1633bf9678929b3,No finding,14,R11,,,,\n"


def test_vinbigdata_is_recognised_as_what_it_is(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train.csv").write_text(KAGGLE)
    said = "is Kaggle's VinBigData, with boxes of 14 findings in train.csv, not VinDr-CXR"
    with refused(ConfigError, said):
        recognise(tmp_path)
    for kind in (VinDrCXR, CheXpert):
        with refused(MissingFileError, said):
            kind(tmp_path).records()


def test_another_train_csv_is_none_of_the_data_sets(tmp_path):
    (tmp_path / "train.csv").write_text("id,label\n1,2\n")
    for kind in (NIHChestXray14, CheXpert, MIMICCXR, PadChest, VinDrCXR):
        assert not kind.recognises(tmp_path)
        with refused(FedlitError, tmp_path):
            kind(tmp_path).records()
