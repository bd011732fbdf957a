"""A small copy of MIMIC-CXR-JPG and of CXR-LT in their official layouts."""

import gzip
from pathlib import Path

from own_tables import encoded

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


def write_table(file: Path, columns: str, rows: list[dict[str, str]]) -> Path:
    lines = [columns, *(",".join(row.get(name, "") for name in columns.split(",")) for row in rows)]
    content = ("\n".join(lines) + "\n").encode()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
    return file


def write_folder(root: Path, packed: bool = True) -> Path:
    """A small download: 60 images of 20 patients with two studies each, of views PA, LATERAL, AP and none in turn."""
    root.mkdir(exist_ok=True)
    images: list[dict[str, str]] = []
    studies: dict[str, dict[str, str]] = {}
    for image in range(3 * PATIENTS):
        dicom, subject, study = ids(image)
        folder = root / "files" / f"p{subject[:2]}" / f"p{subject}" / f"s{study}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{dicom}.jpg").write_bytes(encoded(100 + image, kind="JPEG"))
        split = "test" if image >= 51 else "validate" if image >= 45 else "train"
        named = {"dicom_id": dicom, "subject_id": subject, "study_id": study, "split": split}
        images.append(named | {"ViewPosition": VIEWS[image % 4], "Rows": "3056"})
        if study not in studies:
            findings = FINDINGS[len(studies)] if len(studies) < len(FINDINGS) else {}
            studies[study] = named | findings
    labelled = list(studies.values())[::-1]  # in another order than the images
    certain = [{name: cell.replace("-1.0", "0.0") for name, cell in cells.items()} for cells in labelled]
    for kind, columns, rows in (
        ("metadata", METADATA, images),
        ("split", "dicom_id,study_id,subject_id,split", images),
        ("chexpert", LABELS, labelled),
        ("negbio", LABELS, certain),
    ):
        write_table(root / f"mimic-cxr-2.0.0-{kind}.csv{'.gz' * packed}", columns, rows)
    return root


def write_long_tail(path: Path, images: range = range(3 * PATIENTS)) -> Path:
    """Label file of CXR-LT: image 1 has a tortuous aorta and image 2 emphysema and effusion."""
    labels = (*MIMICCXRLT.labels, "No Finding")
    found = {1: {"Tortuous Aorta": "1"}, 2: {"Emphysema": "1", "Pleural Effusion": "1"}}
    columns = ("dicom_id", "subject_id", "study_id")
    rows = [
        dict(zip(columns, ids(image), strict=True)) | dict.fromkeys(labels, "0") | found.get(image, {})
        for image in images
    ]
    return write_table(path, ",".join((*columns, *labels)), rows)
