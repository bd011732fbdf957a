"""A small copy of CheXpert in its official layout."""

from itertools import count
from pathlib import Path

from own_tables import encoded

HEADER = (
    "Path,Sex,Age,Frontal/Lateral,AP/PA,No Finding,Enlarged Cardiomediastinum,Cardiomegaly,Lung Opacity,Lung Lesion,"
    "Edema,Consolidation,Pneumonia,Atelectasis,Pneumothorax,Pleural Effusion,Pleural Other,Fracture,Support Devices"
)
COLUMNS = HEADER.split(",")
# What the first patients of train.csv have; the others have nothing.
FINDINGS = (
    {"Cardiomegaly": "1.0", "Edema": "-1.0", "Pleural Effusion": "0.0"},
    {"No Finding": "1.0"},
    {"Cardiomegaly": "-1.0", "Edema": "1.0", "Pleural Effusion": "-1.0"},
)


def line(path: str, findings: dict[str, str], view: str = "Frontal") -> str:
    """A row of train.csv."""
    cells = {"Path": path, "Sex": "Female", "Age": "68", "Frontal/Lateral": view, "AP/PA": "AP" * (view == "Frontal")}
    return ",".join((cells | findings).get(column, "") for column in COLUMNS)


def write_folder(
    root: Path, prefix: str = "CheXpert-v1.0-small/", inside: bool = False, test: bool = False, patients: int = 20
) -> Path:
    """A small download: a frontal and a lateral image for each patient in train, a frontal one in valid and test."""
    drawn = (encoded(number, kind="JPEG") for number in count())
    base = root / prefix if inside else root
    rows = {"train": [HEADER], "valid": [HEADER], "test": [",".join([COLUMNS[0], *COLUMNS[5:]])]}
    numbers = {"train": range(1, patients + 1), "valid": range(64541, 64546), "test": range(64741, 64746)}
    for split in ("train", "valid", "test") if test else ("train", "valid"):
        for number in numbers[split]:
            folder = f"{split}/patient{number:05d}/study1"
            (base / folder).mkdir(parents=True)
            frontal = f"{folder}/view1_frontal.jpg"
            (base / frontal).write_bytes(next(drawn))
            if split == "test":
                rows[split].append(",".join([prefix + frontal, "0", *["1.0"] * 13]))
                continue
            findings = FINDINGS[number - 1] if number <= len(FINDINGS) else {}
            rows[split].append(line(prefix + frontal, findings))
            if split == "train":
                lateral = f"{folder}/view2_lateral.jpg"
                (base / lateral).write_bytes(next(drawn))
                rows[split].append(line(prefix + lateral, findings, "Lateral"))
    root.mkdir(exist_ok=True)
    (root / "train.csv").write_text("\n".join(rows["train"]) + "\n")
    (root / "valid.csv").write_text("\n".join(rows["valid"]))
    if test:
        (root / "test_labels.csv").write_text("\n".join(rows["test"]))
    return root
