"""Label files that are not tables or contain impossible values, and folders that are not image folders."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.hostile import Refused, check_refused, each

HEADER = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position\n"
GOOD = HEADER + "".join(f"{n}.png,{'Mass' if n % 2 else 'No Finding'},0,{n},50,M,PA\n" for n in range(10))
FILE = "Data_Entry_2017_v2020.csv"


def table(what: str, content: str | bytes, *words: str) -> Refused:
    return Refused(what, "data check .", (FILE, *words), {FILE: content})


def changed(what: str, old: str, new: str, *words: str) -> Refused:
    assert old in GOOD
    return table(what, GOOD.replace(old, new), *words)


def root(what: str, command: str, *words: str, code: int = 1) -> Refused:
    return Refused(what, command, words, {"file": "text", "empty/.keep": "", FILE: GOOD}, code)


FIT = "fit --data NIHChestXray14 --model.backbone small_cnn --logger false --data.root "

INPUTS = [
    table("a web page", "<html><body>Sign in</body></html>", "expected a table, found a web page"),
    table("a zip file", b"PK\x03\x04" + bytes(200), "found bytes that are not text"),
    changed("a column twice", "Follow-up #", "Finding Labels",
        "the header repeats the columns 'Finding Labels'"),
    changed("a column twice with blanks", "Follow-up #", " Patient ID ",
        "the header repeats the columns 'Patient ID'"),
    table("the header twice", GOOD + HEADER, "line 12: unknown label 'Finding Labels'"),
    changed("a label that is NaN", "No Finding", "NaN", "line 2: column 'Finding Labels' is empty (5 such lines)"),
    changed("a patient that is NaN", ",0,3,", ",0,NaN,", "line 5: column 'Patient ID' is empty (1 such lines)"),
    table("an image that is missing", GOOD + "77.png,Mass,0,3,50,M,PA\n", "1 of 11 images are missing", "77.png",
        "line 12"),
    changed("an image above the folder", "3.png", "../../3.png", "expected names of images in .", "'../../3.png'"),
    changed("an image by its whole path", "3.png", "/etc/hostname", "expected names of images in .",
        "leads to /etc/hostname"),
    root("a folder that is not there", "data check gone", "gone: no such folder", code=2),
    root("a folder that is a file", "data check file", "file: a file, not a folder", code=2),
    root("a folder without a data set", "data check empty", "empty looks like none of the data sets", code=2),
    root("a device for a folder", "data check /dev/null", "/dev/null: no such folder", code=2),
    root("a source that there is not", "data check . --source NHI", "NHI", "NIH", code=2),
    root("a root that is not there", FIT + "gone",
        "gone: no such folder; expected the official layout of NIH ChestX-ray14"),
    root("a root that is a file", FIT + "file", "file: a file, not a folder; expected the official layout"),
    root("a root without its files", FIT + "empty", "empty: found", "expected the official layout"),
]  # fmt: skip


@pytest.fixture
def place(folder: Path) -> Path:
    Path("images").mkdir()
    for n in range(10):
        Image.fromarray(np.full((8, 8), n, dtype=np.uint8)).save(f"images/{n}.png")
    return folder


@each(INPUTS)
def test_it_is_refused_in_words(given: Refused, place: Path, fedlit_cli):
    check_refused(given, fedlit_cli)
