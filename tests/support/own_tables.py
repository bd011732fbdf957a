"""Custom tables with different images, as users write them; their data module, and their check."""

from collections.abc import Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from fedlit.data import ImageTable
from fedlit.data.own.proposal import Proposal, propose
from fedlit.data.xrays.check import check_folder
from fedlit.data.xrays.checked import Check


def picture(seed: int, size: int = 32) -> Image.Image:
    """A picture of noise, unlike any other."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size), dtype=np.uint8))


@cache
def encoded(seed: int, size: int = 32, kind: str = "PNG", mode: str = "L") -> bytes:
    """A file of such a picture, encoded once for all tests that write it."""
    file = BytesIO()
    picture(seed, size).convert(mode).save(file, kind, quality=95)
    return file.getvalue()


def write_pictures(folder: Path, count: int = 12, size: int = 16) -> list[Path]:
    """Write pictures of noise, ``000.png`` and so on, and return their files."""
    folder.mkdir(exist_ok=True)
    files = [folder / f"{n:03d}.png" for n in range(count)]
    for n, file in enumerate(files):
        file.write_bytes(encoded(n, size))
    return files


def people(count: int = 40, **columns: Sequence[str]) -> dict[str, list[str]]:
    """Columns of a table with a row an image and two images a patient."""
    plain = {
        "file": [f"{n}.png" for n in range(count)],
        "patient": [f"p{n // 2}" for n in range(count)],
        "Edema": [str(n // 2 % 2) for n in range(count)],
    }
    return plain | {name: list(cells) for name, cells in columns.items()}


def write_table(
    root: Path,
    columns: Mapping[str, Sequence[str]],
    pictures: Mapping[int, Image.Image] | None = None,
    name: str = "ours.csv",
    file: str = "file",
) -> Path:
    """Write a table and a picture for each row; ``pictures`` says which rows have one of their own."""
    root.mkdir(parents=True, exist_ok=True)
    for row, path in enumerate(columns[file]):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if row in (pictures or {}):
            pictures[row].save(root / path)
        else:
            (root / path).write_bytes(encoded(row))
    return write_columns(root / name, columns)


def write_columns(file: Path, columns: Mapping[str, Sequence[str]]) -> Path:
    """Write only a table."""
    lines = [",".join(columns), *(",".join(row) for row in zip(*columns.values(), strict=True))]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def opened(table: Path, **options: object) -> ImageTable:
    """Return the data module of a table of ``people``; its cache is next to the table."""
    given = {"image": "file", "patient": "patient", "labels": ["Edema"], "image_size": 16}
    return ImageTable(table, **given | {"cache_dir": str(table.parent / "cache")} | options)


def examined(table: Path, **known: object) -> tuple[Proposal, Check]:
    """Return the proposal for a table, given some of its arguments, and the check of the images as proposed."""
    proposal = propose(table, known=known)
    return proposal, check_folder(ImageTable(**proposal.arguments))
