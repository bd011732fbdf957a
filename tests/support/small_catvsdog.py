"""Small copies of Dogs vs. Cats in the layouts of Kaggle and of Microsoft."""

from pathlib import Path

from PIL import Image

NUMBERS = range(40)


def write_kaggle(root: Path, numbers=NUMBERS) -> Path:
    """Cats are dark and dogs are bright, by their number; `test1/` has no labels."""
    (root / "train").mkdir(parents=True)
    (root / "test1").mkdir()
    picture(0).save(root / "test1" / "1.jpg")
    for number in numbers:
        picture(number).save(root / "train" / f"cat.{number}.jpg")
        picture(200 + number).save(root / "train" / f"dog.{number}.jpg")
    return root


def write_microsoft(root: Path, numbers=NUMBERS) -> Path:
    for animal, start in (("Cat", 0), ("Dog", 200)):
        folder = root / "PetImages" / animal
        folder.mkdir(parents=True)
        (folder / "Thumbs.db").write_bytes(b"no image")
        for number in numbers:
            picture(start + number).save(folder / f"{number}.jpg")
    return root


def picture(value: int) -> Image.Image:
    return Image.new("RGB", (12, 9), (value,) * 3)
