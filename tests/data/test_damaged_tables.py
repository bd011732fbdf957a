"""Label files with a mistake: each reader names file, line and column."""

from functools import partial

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
        ("Finding Labels", "Findings", ("label-file-column-missing", "'Finding Labels'")),
        ("Effusion|Mass", "Infiltrate", ("nih-label-unknown", "line 3", "'Infiltrate'")),
        ("Effusion|Mass", "No Finding|Mass", ("nih-no-finding-with-findings", "line 3", "'No Finding'")),
        ("Effusion|Mass", "", ("label-file-cell-empty", "line 3", "column 'Finding Labels'", "1 such lines")),
        ("00000002_000.png", "00000001_001.png", ("label-file-row-twice", "image '00000001_001.png'", "line", "3, 5")),
    ],
    (CheXpert, "train.csv"): [
        ("Frontal/Lateral", "View", ("label-file-column-missing", "'Frontal/Lateral'", "'Path', 'Sex'")),
        ("patient00001", "pat1", ("xray-cell-unexpected", "line 2", "column 'Path'")),
        (FIRST, "", ("label-file-cell-empty", "line 2", "column 'Path'")),
        (SECOND, FIRST, ("label-file-row-twice", "image 'train/patient00001/study1/view1_frontal.jpg'", "2, 4")),
        ("68,Frontal", "68,Oblique", ("xray-cell-unexpected", "line 2", "column 'Frontal/Lateral'", "'Oblique'")),
        ("-1.0", "u", ("label-file-cell-invalid", "line 2", "column 'Edema'", "1, 0, -1", "'u'")),
    ],
    (MIMICCXR, "mimic-cxr-2.0.0-metadata.csv"): [
        ("ViewPosition", "View", ("label-file-column-missing", "'ViewPosition'")),
        ("00000001-02aa66ab", "", ("label-file-cell-empty", "line 3", "column 'dicom_id'")),
        ("00000001-", "00000000-", ("label-file-row-twice", "image '00000000-02aa66ab'", "line", "2, 3")),
        ("10000032", "p10000032", ("xray-cell-unexpected", "line 2", "column 'subject_id'", "'p10000032'")),
        ("10000032", "10000033", ("xray-cell-unexpected", "line 2", "column 'subject_id'", "'10000032'", "'10000033'")),
    ],
    (MIMICCXR, "mimic-cxr-2.0.0-chexpert.csv"): [
        ("Edema", "Oedema", ("label-file-column-missing", "'Edema'")),
        ("50414268", "50414267", ("label-file-row-twice", "study_id '50414267'", "40, 41")),
        ("-1.0", "2.0", ("label-file-cell-invalid", "line 39", "column 'Cardiomegaly'")),
    ],
    (MIMICCXR, "mimic-cxr-2.0.0-split.csv"): [
        ("validate", "val", ("xray-cell-unexpected", "line 47", "column 'split'", "'val'")),
        ("00000002-", "00000003-", ("label-file-row-twice", "image '00000003-02aa66ab'", "4, 5")),
        ("00000002-", "77777777-", ("mimic-image-without-split", "metadata.csv, line 4")),
    ],
    (PadChest, small_padchest.FILE): [
        ("Labels,Localizations", "labels,Localizations", ("label-file-column-missing", "'Labels'")),
        ("'hydropneumothorax']", "'hydropneumothorax'", ("padchest-labels-cell", "line 4", "'hydropneumothorax'\"")),
        ("['normal']", "normal", ("padchest-labels-cell", "line 2", "'normal'")),
        ("['normal']", "['normal', 3]", ("padchest-labels-cell", "line 2")),
        ("['normal']", "{'normal': 1}", ("padchest-labels-cell", "line 2")),
        (f"{PATIENT}00", "", ("label-file-cell-empty", "line 2", "column 'PatientID'", "1 such lines")),
        ("96400002", "96400000", ("label-file-row-twice", "'21684011136696400000_00-101-007.png'", "line", "2, 4")),
    ],
    (VinDrCXR, "annotations/image_labels_train.csv"): [
        ("rad_id", "reader", ("label-file-column-missing", "'rad_id'")),
        (",R8,0", ",R8,2", ("label-file-cell-invalid", "line 2: column 'Aortic enlargement'", "2")),
        (",R8,", ",,", ("label-file-cell-empty", "line 2: column 'rad_id'")),
        (f"{image_id(0)},R9", f"{image_id(0)},R8", ("label-file-row-twice", f"{image_id(0)} of R8", "2, 26")),
    ],
    (VinDrCXR, "annotations/image_labels_test.csv"): [
        ("Other disease,", "Others,", ("label-file-column-missing", "'Other diseases'")),
        ("0,0,1\n", "0,-1,1\n", ("label-file-cell-invalid", "line 2: column 'Other diseases'", "-1")),
        (image_id(25), image_id(24), ("label-file-row-twice", f"'{image_id(24)}'", "lines 2, 3")),
    ],
    (Melanoma, "train.csv"): [
        ("benign,0", "benign,2", ("label-file-cell-invalid", "line 3: column 'target'", "'2'")),
        ("benign,0", "benign,", ("melanoma-target-empty", "line 3: column 'target'", "(1 such")),
        ("benign,0", "benign,1", ("melanoma-columns-disagree", "line 3", "is 1", "'benign'")),
        ("benign,0", ",0", ("melanoma-columns-disagree", "line 3", "is 0", "'nan' (1 such")),
        ("IP_0000001", "", ("label-file-cell-empty", "line 5: column 'patient_id'", "(1 such")),
        ("ISIC_0000004", "", ("label-file-cell-empty", "line 6: column 'image_name'")),
        ("ISIC_0000004", "ISIC_0000009", ("label-file-row-twice", "'ISIC_0000009'", "6, 11")),
        ("target", "label", ("label-file-column-missing", "'target'", "'label'")),
    ],
    (FedISIC2019, "train_test_split"): [
        (",1,1,train,", ",1,7,train,", ("label-file-cell-invalid", "line 3", "column 'center'", "'7'")),
        (",1,1,train,", ",1,,train,", ("isic-cell-empty", "line 3", "column 'center'", "1 lines")),
        (",1,1,train,", ",2,1,train,", ("isic-target-disagrees", "line 3", "BCC", "1 such")),
        (",1,1,train,", ",8,1,train,", ("label-file-cell-invalid", "line 3", "column 'target'", "'8'")),
        (",1,1,train,", ",1,1,val,", ("isic-fold-unknown", "line 3", "'val'")),
        ("ISIC_0000001", "ISIC_0000002", ("label-file-row-twice", "image 'ISIC_0000002'", "line", "3, 4")),
    ],
}
"""Changes of a label file: the first occurrence of a text, what replaces it, and the error."""

CASES = [(*where, *change) for where, changes in MISTAKES.items() for change in changes]


@pytest.mark.parametrize(("kind", "file", "old", "new", "mistake"), CASES)
def test_a_mistake_is_named_by_file_line_and_column(tmp_path, kind, file, old, new, mistake):
    root = WRITE[kind](tmp_path)
    replace_in(root / file, old, new)
    key, *names = mistake
    with refused(key, file, *names):
        kind(root, image_size=8, cache_dir=str(tmp_path / "cache")).records()
