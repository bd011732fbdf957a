"""Small copies of SIIM-ISIC 2020 in the layouts of Kaggle and of the ISIC archive."""

from functools import cache
from io import BytesIO
from pathlib import Path

from PIL import Image

KAGGLE = "image_name,patient_id,sex,age_approx,anatom_site_general_challenge,diagnosis,benign_malignant,target"
SECOND = (
    "image_name,patient_id,lesion_id,sex,age_approx,anatom_site_general_challenge,diagnosis,benign_malignant,target"
)


def rows_of(images: list[tuple[int, int]], header: str = KAGGLE) -> list[str]:
    """A row for each (patient, target)."""
    lesion = "IL_1," if "lesion_id" in header else ""
    return [
        f"ISIC_{row:07d},IP_{patient:07d},{lesion}male,45.0,torso,unknown,{('benign', 'malignant')[target]},{target}"
        for row, (patient, target) in enumerate(images)
    ]


IMAGES = [(row // 3, int(row % 10 == 0)) for row in range(40)]


def write_folder(
    root: Path, file: str = "train.csv", folder: str = "jpeg/train", header: str = KAGGLE, images: int = len(IMAGES)
) -> Path:
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / file).write_text("\n".join([header, *rows_of(IMAGES, header)]) + "\n")
    for row in range(images):
        (root / folder / f"ISIC_{row:07d}.jpg").write_bytes(encoded(row))
    return root


@cache
def encoded(red: int) -> bytes:
    file = BytesIO()
    Image.new("RGB", (12, 9), (red, 100, 200)).save(file, "JPEG", quality=100)
    return file.getvalue()
