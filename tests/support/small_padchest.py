"""A small copy of PadChest in its official layout."""

import csv
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

HEADER = (
    ",ImageID,ImageDir,StudyDate_DICOM,StudyID,PatientID,PatientBirth,PatientSex_DICOM,ViewPosition_DICOM,Projection,"
    "MethodProjection,Pediatric,Modality_DICOM,Manufacturer_DICOM,PhotometricInterpretation_DICOM,"
    "PixelRepresentation_DICOM,PixelAspectRatio_DICOM,SpatialResolution_DICOM,BitsStored_DICOM,WindowCenter_DICOM,"
    "WindowWidth_DICOM,Rows_DICOM,Columns_DICOM,XRayTubeCurrent_DICOM,Exposure_DICOM,ExposureInuAs_DICOM,ExposureTime,"
    "RelativeXRayExposure_DICOM,ReportID,Report,MethodLabel,Labels,Localizations,LabelsLocalizationsBySentence,"
    "labelCUIS,LocalizationsCUIS"
)
COLUMNS = HEADER.split(",")
FILE = "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"
# What a PatientID looks like: a float would lose most of its digits.
PATIENT = "8398604886942923316379882356814609"
LABELS = (
    "['normal']",
    "['cardiomegaly', ' pleural effusion', '']",
    "['pseudonodule', 'hydropneumothorax']",
    "['multiple nodules', 'pulmonary mass', 'mastectomy']",
    "",
    "['vertebral fracture', 'dual chamber device', 'Loculated Pleural Effusion']",
)
VIEWS = ("PA", "AP", "AP_horizontal", "L", "COSTAL")


@cache
def encoded(seed: int) -> bytes:
    """A picture of noise that uses 12 of its 16 bits, as released."""
    pixels = np.random.default_rng(seed).integers(0, 4096, (24, 24), dtype=np.uint16)
    pixels[0, 0] = 4095
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_folder(root: Path, flat: bool = False, patients: int = 30) -> Path:
    """A small download with 2 images for each patient: frontal ones, then a lateral and a costal one."""
    root.mkdir(parents=True, exist_ok=True)
    rows = []
    for index in range(2 * patients + 2):
        name = f"2168401113669640{index:04d}_0{index % 2}-101-007.png"
        folder = root if flat else root / str(index % 3)
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(encoded(index))
        row = dict.fromkeys(COLUMNS, "x") | {
            "": index,
            "ImageID": name,
            "ImageDir": index % 3,
            "PatientID": f"{PATIENT}{index // 2:02d}",
            "PatientBirth": 1930 + index // 2,
            "Projection": VIEWS[index % 3 if index < 2 * patients else index - 2 * patients + 3],
            "Manufacturer_DICOM": "ImagingDynamicsCompanyLtd" if index // 2 % 2 else "PhilipsMedicalSystems",
            "Report": "sin hallazgos , sin cambios",
            "MethodLabel": "Physician" if index % 4 == 0 else "RNN_model",
            "Labels": LABELS[index % len(LABELS)],
        }
        rows.append(row)
    with (root / FILE).open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return root
