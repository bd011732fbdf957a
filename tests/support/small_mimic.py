"""A small copy of MIMIC-CXR-JPG and of CXR-LT in their official layouts."""

import gzip
from pathlib import Path

from xray_pictures import pictures

from fedlit.data.xrays.mimic import MIMICCXRLT

PATIENTS = 20
METADATA = (
    "dicom_id,subject_id,study_id,PerformedProcedureStepDescription,ViewPosition,Rows,Columns,StudyDate,StudyTime,"
    "ProcedureCodeSequence_CodeMeaning,ViewCodeSequence_CodeMeaning,PatientOrientationCodeSequence_CodeMeaning"
)
LABELS = (
    "subject_id,study_id,Atelectasis,Cardiomegaly,Consolidation,Edema,Enlarged Cardiomediastinum,Fracture,"
    "Lung Lesion,Lung Opacity,No Finding,Pleural Effusion,Pleural Other,Pneumonia,Pneumothorax,Support Devices"
)
# Of the first studies; the others have nothing.
FINDINGS = (
    {"Cardiomegaly": "1.0", "Edema": "-1.0", "Pleural Effusion": "0.0"},
    {"No Finding": "1.0"},
    {"Cardiomegaly": "-1.0", "Edema": "1.0", "Pleural Effusion": "-1.0"},
)
VIEWS = ("PA", "LATERAL", "AP", "")


def ids(image: int) -> tuple[str, str, str]:
    """Two patients in three have one study of two images; every third has two studies, the second of one image."""
    patient, number = divmod(image, 3)
    study = 2 * patient + (number == 2)
    return f"{image:08x}-02aa66ab", str(10000032 + 70000 * patient), str(50414267 + study)


def row(columns: str, cells: dict[str, str]) -> str:
    return ",".join(cells.get(column, "") for column in columns.split(","))


def write_table(root: Path, kind: str, lines: list[str], packed: bool = True) -> None:
    text = "\n".join(lines) + "\n"
    if packed:
        (root / f"mimic-cxr-2.0.0-{kind}.csv.gz").write_bytes(gzip.compress(text.encode()))
    else:
        (root / f"mimic-cxr-2.0.0-{kind}.csv").write_text(text)


def write_folder(root: Path, packed: bool = True) -> Path:
    """A small download: 60 images of 20 patients with two studies each, of views PA, LATERAL, AP and none in turn."""
    root.mkdir(exist_ok=True)
    tables = {"metadata": [METADATA], "split": ["dicom_id,study_id,subject_id,split"], "chexpert": [LABELS]}
    studies: dict[str, str] = {}
    for image, picture in enumerate(pictures(3 * PATIENTS)):
        dicom, subject, study = ids(image)
        folder = root / "files" / f"p{subject[:2]}" / f"p{subject}" / f"s{study}"
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / f"{dicom}.jpg", quality=95)
        split = "test" if image >= 51 else "validate" if image >= 45 else "train"
        view = VIEWS[image % 4]
        cells = {"dicom_id": dicom, "subject_id": subject, "study_id": study, "ViewPosition": view, "Rows": "3056"}
        tables["metadata"].append(row(METADATA, cells))
        tables["split"].append(f"{dicom},{study},{subject},{split}")
        if study not in studies:
            findings = FINDINGS[len(studies)] if len(studies) < len(FINDINGS) else {}
            studies[study] = row(LABELS, {"subject_id": subject, "study_id": study, **findings})
    # In another order than the images.
    tables["chexpert"] += list(studies.values())[::-1]
    tables["negbio"] = [line.replace("-1.0", "0.0") for line in tables["chexpert"]]
    for kind, lines in tables.items():
        write_table(root, kind, lines, packed)
    return root


def write_long_tail(path: Path, images: range = range(3 * PATIENTS)) -> Path:
    """Label file of CXR-LT: image 1 has a tortuous aorta and image 2 emphysema and effusion."""
    columns = ",".join(("dicom_id", "subject_id", "study_id", *MIMICCXRLT.labels, "No Finding"))
    zeros = dict.fromkeys((*MIMICCXRLT.labels, "No Finding"), "0")
    found = {1: {"Tortuous Aorta": "1"}, 2: {"Emphysema": "1", "Pleural Effusion": "1"}}
    lines = [columns]
    for image in images:
        named = dict(zip(("dicom_id", "subject_id", "study_id"), ids(image), strict=True))
        lines.append(row(columns, zeros | named | found.get(image, {})))
    path.write_text("\n".join(lines))
    return path
