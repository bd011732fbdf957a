"""A small copy of VinDr-CXR in its official layout."""

from pathlib import Path

from own_tables import encoded

HEADER = (
    "Aortic enlargement,Atelectasis,Calcification,Cardiomegaly,Clavicle fracture,Consolidation,Edema,Emphysema,"
    "Enlarged PA,ILD,Infiltration,Lung Opacity,Lung cavity,Lung cyst,Mediastinal shift,Nodule/Mass,Pleural effusion,"
    "Pleural thickening,Pneumothorax,Pulmonary fibrosis,Rib fracture,Other lesion,COPD,Lung tumor,Pneumonia,"
    "Tuberculosis,Other diseases,No finding"
)
LABELS = HEADER.split(",")
# How many of three radiologists see it.
SEEN = ({"No finding": 3}, {"Cardiomegaly": 1, "Edema": 2, "Rib fracture": 3}, {"Other diseases": 2, "Nodule/Mass": 1})
TRAIN, TEST = 24, 12


def image_id(index: int) -> str:
    return f"{index:032x}"


def write_folder(root: Path, suffix: str = ".png") -> Path:
    """A small download: three separate rows for each training image, and one for each test image."""
    for folder in ("annotations", "train", "test"):
        (root / folder).mkdir(parents=True)
    for index in range(TRAIN + TEST):
        file = root / ("train" if index < TRAIN else "test") / f"{image_id(index)}{suffix}"
        file.write_bytes(encoded(2000 + index, 24, "PNG" if suffix == ".png" else "JPEG"))
    readings = [
        [image_id(index), f"R{reader + 8 + index % 2}"]
        + [str(int(SEEN[index % len(SEEN)].get(label, 0) > reader)) for label in LABELS]
        for reader in range(3)
        for index in range(TRAIN)
    ]
    consensus = [
        [image_id(index), *(str(int(label in SEEN[index % len(SEEN)])) for label in LABELS)]
        for index in range(TRAIN, TRAIN + TEST)
    ]
    header = HEADER.replace("Other diseases", "Other disease")
    tables = {"train": [f"image_id,rad_id,{HEADER}", *map(",".join, readings)]}
    tables["test"] = [f"image_id,{header}", *map(",".join, consensus)]
    for part, lines in tables.items():
        (root / "annotations" / f"image_labels_{part}.csv").write_text("\n".join(lines) + "\n")
    return root
