"""Small copies of Dogs vs. Cats in the layouts of Kaggle and of Microsoft."""

from functools import cache
from io import BytesIO
from pathlib import Path

from PIL import Image

NUMBERS = range(40)


def write_kaggle(root: Path, numbers=NUMBERS) -> Path:
    """Cats are dark and dogs are bright, by their number; `test1/` has no labels."""
    (root / "train").mkdir(parents=True)
    (root / "test1").mkdir()
    (root / "test1" / "1.jpg").write_bytes(encoded(0))
    for number in numbers:
        (root / "train" / f"cat.{number}.jpg").write_bytes(encoded(number))
        (root / "train" / f"dog.{number}.jpg").write_bytes(encoded(200 + number))
    return root


def write_microsoft(root: Path, numbers=NUMBERS) -> Path:
    for animal, start in (("Cat", 0), ("Dog", 200)):
        folder = root / "PetImages" / animal
        folder.mkdir(parents=True)
        (folder / "Thumbs.db").write_bytes(b"no image")
        for number in numbers:
            (folder / f"{number}.jpg").write_bytes(encoded(start + number))
    return root


@cache
def encoded(value: int) -> bytes:
    file = BytesIO()
    Image.new("RGB", (12, 9), (value,) * 3).save(file, "JPEG")
    return file.getvalue()
