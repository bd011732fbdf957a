"""Label files with a mistake: each reader names file, line and column."""

from functools import cache, partial

import pytest
import small_chexpert
import small_isic
import small_melanoma
import small_mimic
import small_nih
import small_padchest
import small_vindr
from edits import replace_in
from refusals import refused
from small_padchest import PATIENT
from small_vindr import image_id

from fedlit.core.errors import DataError
from fedlit.data import MIMICCXR, CheXpert, FedISIC2019, Melanoma, NIHChestXray14, PadChest, VinDrCXR

WRITE = {
    NIHChestXray14: small_nih.write_folder,
    CheXpert: small_chexpert.write_folder,
    MIMICCXR: partial(small_mimic.write_folder, packed=False),
    PadChest: small_padchest.write_folder,
    VinDrCXR: small_vindr.write_folder,
    Melanoma: small_melanoma.write_folder,
    FedISIC2019: small_isic.write_folder,
}

FIRST = "CheXpert-v1.0-small/train/patient00001/study1/view1_frontal.jpg"
SECOND = "CheXpert-v1.0-small/train/patient00002/study1/view1_frontal.jpg"

MISTAKES = {
    (NIHChestXray14, "Data_Entry_2017_v2020.csv"): [
        ("Finding Labels", "Findings", (DataError, "'Finding Labels'")),
        ("Effusion|Mass", "Infiltrate", (DataError, "line 3", "'Infiltrate'")),
        ("Effusion|Mass", "No Finding|Mass", (DataError, "line 3", "'No Finding'")),
        ("00000002_000.png", "00000001_001.png", (DataError, "image '00000001_001.png'", "line", "3, 5")),
    ],
    (CheXpert, "train.csv"): [
        ("Frontal/Lateral", "View", (DataError, "'Frontal/Lateral'", "'Path', 'Sex'")),
        ("patient00001", "pat1", (DataError, "line 2", "column 'Path'")),
        (SECOND, FIRST, (DataError, "image 'train/patient00001/study1/view1_frontal.jpg'", "2, 4")),
        ("68,Frontal", "68,Oblique", (DataError, "line 2", "column 'Frontal/Lateral'", "'Oblique'")),
        ("-1.0", "u", (DataError, "line 2", "column 'Edema'", "1, 0, -1", "'u'")),
    ],
    (MIMICCXR, "mimic-cxr-2.0.0-metadata.csv"): [
        ("00000001-", "00000000-", (DataError, "image '00000000-02aa66ab'", "line", "2, 3")),
        ("10000032", "p10000032", (DataError, "line 2", "column 'subject_id'", "'p10000032'")),
        ("10000032", "10000033", (DataError, "line 2", "column 'subject_id'", "'10000032'", "'10000033'")),
    ],
    (MIMICCXR, "mimic-cxr-2.0.0-chexpert.csv"): [
        ("50414268", "50414267", (DataError, "study_id '50414267'", "40, 41")),
        ("-1.0", "2.0", (DataError, "line 39", "column 'Cardiomegaly'")),
    ],
    (MIMICCXR, "mimic-cxr-2.0.0-split.csv"): [
        ("validate", "val", (DataError, "line 47", "column 'split'", "'val'")),
        ("00000002-", "00000003-", (DataError, "image '00000003-02aa66ab'", "4, 5")),
        ("00000002-", "77777777-", (DataError, "metadata.csv, line 4")),
    ],
    (PadChest, small_padchest.FILE): [
        ("Labels,Localizations", "labels,Localizations", (DataError, "'Labels'")),
        ("'hydropneumothorax']", "'hydropneumothorax'", (DataError, "line 4", "'hydropneumothorax'\"")),
        ("['normal']", "normal", (DataError, "line 2", "'normal'")),
        ("['normal']", "{'normal': 1}", (DataError, "line 2")),
        (f"{PATIENT}00", "", (DataError, "line 2", "column 'PatientID'", "1 such lines")),
        ("96400002", "96400000", (DataError, "'21684011136696400000_00-101-007.png'", "line", "2, 4")),
    ],
    (VinDrCXR, "annotations/image_labels_train.csv"): [
        (",R8,0", ",R8,2", (DataError, "line 2: column 'Aortic enlargement'", "2")),
        (f"{image_id(0)},R9", f"{image_id(0)},R8", (DataError, f"{image_id(0)} of R8", "2, 26")),
    ],
    (VinDrCXR, "annotations/image_labels_test.csv"): [
        ("Other disease,", "Others,", (DataError, "'Other diseases'")),
        ("0,0,1\n", "0,-1,1\n", (DataError, "line 2: column 'Other diseases'", "-1")),
        (image_id(25), image_id(24), (DataError, f"'{image_id(24)}'", "lines 2, 3")),
    ],
    (Melanoma, "train.csv"): [
        ("benign,0", "benign,2", (DataError, "line 3: column 'target'", "'2'")),
        ("benign,0", "benign,", (DataError, "line 3: column 'target'", "(1 such")),
        ("benign,0", "benign,1", (DataError, "line 3", "is 1", "'benign'")),
        ("benign,0", ",0", (DataError, "line 3", "is 0", "'' (1 such")),
        ("IP_0000001", "", (DataError, "line 5: column 'patient_id'", "(1 such")),
        ("ISIC_0000004", "ISIC_0000009", (DataError, "'ISIC_0000009'", "6, 11")),
    ],
    (FedISIC2019, "train_test_split"): [
        (",1,1,train,", ",1,7,train,", (DataError, "line 3", "column 'center'", "'7'")),
        (",1,1,train,", ",1,,train,", (DataError, "line 3", "column 'center'", "1 lines")),
        (",1,1,train,", ",2,1,train,", (DataError, "line 3", "BCC", "1 such")),
        (",1,1,train,", ",8,1,train,", (DataError, "line 3", "column 'target'", "'8'")),
        (",1,1,train,", ",1,1,val,", (DataError, "line 3", "'val'")),
        ("ISIC_0000001", "ISIC_0000002", (DataError, "image 'ISIC_0000002'", "line", "3, 4")),
    ],
}
"""Changes of a label file: the first occurrence of a text, what replaces it, and the error."""

CASES = [(*where, *change) for where, changes in MISTAKES.items() for change in changes]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A function that returns a small download of a data set, whose label files are restored after each test."""
    return cache(lambda kind: WRITE[kind](tmp_path_factory.mktemp("whole")))


@pytest.mark.parametrize(("kind", "file", "old", "new", "mistake"), CASES)
def test_a_mistake_is_named_by_file_line_and_column(whole, kind, file, old, new, mistake):
    root = whole(kind)
    text = (root / file).read_bytes()
    replace_in(root / file, old, new)
    error, *names = mistake
    try:
        with refused(error, file, *names):
            kind(root, image_size=8, cache_dir=str(root / "cache")).records()
    finally:
        (root / file).write_bytes(text)
