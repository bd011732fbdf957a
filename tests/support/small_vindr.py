"""A small copy of VinDr-CXR in its official layout."""

import csv
from pathlib import Path

import numpy as np
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
    with (root / "annotations" / "image_labels_train.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image_id", "rad_id", *LABELS])
        for reader in range(3):
            for index in range(TRAIN):
                seen = SEEN[index % len(SEEN)]
                row = [int(seen.get(label, 0) > reader) for label in LABELS]
                writer.writerow([image_id(index), f"R{reader + 8 + index % 2}", *row])
    with (root / "annotations" / "image_labels_test.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image_id", *(label.replace("Other diseases", "Other disease") for label in LABELS)])
        for index in range(TRAIN, TRAIN + TEST):
            seen = SEEN[index % len(SEEN)]
            writer.writerow([image_id(index), *(int(label in seen) for label in LABELS)])
    return root
