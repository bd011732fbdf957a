"""A small copy of VinDr-CXR in its official layout."""

from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

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
    rng = np.random.default_rng(0)
    for folder in ("annotations", "train", "test"):
        (root / folder).mkdir(parents=True)
    for index in range(TRAIN + TEST):
        path = root / ("train" if index < TRAIN else "test") / f"{image_id(index)}{suffix}"
        Image.fromarray(rng.integers(0, 256, (24, 24), dtype=np.uint8)).save(path)
    readings = [
        {"image_id": image_id(index), "rad_id": f"R{reader + 8 + index % 2}"}
        | {label: int(SEEN[index % len(SEEN)].get(label, 0) > reader) for label in LABELS}
        for reader in range(3)
        for index in range(TRAIN)
    ]
    consensus = [
        {"image_id": image_id(index)} | {label: int(label in SEEN[index % len(SEEN)]) for label in LABELS}
        for index in range(TRAIN, TRAIN + TEST)
    ]
    pd.DataFrame(readings).to_csv(root / "annotations" / "image_labels_train.csv", index=False)
    test = pd.DataFrame(consensus).rename(columns={"Other diseases": "Other disease"})
    test.to_csv(root / "annotations" / "image_labels_test.csv", index=False)
    return root
