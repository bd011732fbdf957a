"""Repeated and empty parts of an official folder are noted."""

import gzip
import shutil

import pytest
import small_mimic
import small_nih
from refusals import refused

from fedlit.data import MIMICCXR, NIHChestXray14


def test_two_files_of_one_name_in_two_folders(tmp_path):
    root = small_nih.write_folder(tmp_path, layout="twelve")
    (root / "images_002" / "images").mkdir(exist_ok=True)
    shutil.copy(root / "images_001/images/00000001_000.png", root / "images_002/images/00000001_000.png")
    (note,) = NIHChestXray14(root).read().notes
    assert note == "1 images have several files, the first are '00000001_000': one file of each is read"


def test_two_label_files(tmp_path):
    """Which is read counts only where they disagree: in how many rows, and where first."""
    root = small_nih.write_folder(tmp_path)
    old, new = root / "Data_Entry_2017.csv", root / "Data_Entry_2017_v2020.csv"
    said = "Data_Entry_2017.csv is next to Data_Entry_2017_v2020.csv, and was not read: "
    lines = new.read_text(encoding="utf-8-sig").splitlines()
    old.write_text("\n".join([lines[0], *(line.replace("Effusion|Mass", "Mass|Effusion") for line in lines[:0:-1])]))
    (note,) = NIHChestXray14(root).read_within().notes
    assert note == f"{said}both have the same content"
    lines[3] = lines[3].replace("Hernia,2,1,", "Edema,2,1,")
    lines[4] = lines[4].replace(",0,2,", ",0,7,")
    old.write_text("\n".join(lines[:-1]))
    (note,) = NIHChestXray14(root).read_within().notes
    assert note == (
        f"{said}1 images are in only one of them; 2 of 59 images have other findings or patients there, the first is "
        "'00000001_002.png' (Hernia of patient 1 here, Edema of patient 1 there)"
    )
    old.write_text("Image Index\n1.png\n")
    (note,) = NIHChestXray14(root).read_within().notes
    assert note.startswith(f"{said}{old}: expected a column 'Finding Labels'")


def test_a_table_and_the_packed_one(tmp_path):
    root = small_mimic.write_folder(tmp_path)
    for kind in ("chexpert", "split"):
        packed = root / f"mimic-cxr-2.0.0-{kind}.csv.gz"
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    notes = MIMICCXR(root).read_within().notes
    for kind in ("chexpert", "split"):
        name = f"mimic-cxr-2.0.0-{kind}.csv"
        assert f"{name}.gz is next to {name}: only one of them was read" in notes
    nih = small_nih.write_folder(tmp_path / "nih")
    (nih / "Data_Entry_2017_v2020.csv.gz").write_bytes(gzip.compress((nih / "Data_Entry_2017_v2020.csv").read_bytes()))
    assert len(NIHChestXray14(nih).read_within().notes) == 1


@pytest.mark.parametrize("name", ["test_list.txt", "train_val_list.txt"])
def test_an_empty_list(tmp_path, name):
    root = small_nih.write_folder(tmp_path, lists=True)
    (root / name).write_text("\n\n")
    with refused("nih-split-list-empty", name):
        NIHChestXray14(root).read()
