"""NIH ChestX-ray14 in the layout of its official download.

Wang et al., "ChestX-ray8: Hospital-scale Chest X-ray Database and Benchmarks on Weakly-Supervised Classification and
Localization of Common Thorax Diseases", CVPR 2017, https://nihcc.app.box.com/v/ChestXray-NIHCC.
"""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data.labels import similar_names
from fedlit.data.patients import keys
from fedlit.data.records import contents, listed
from fedlit.data.spelling import stem_of
from fedlit.data.tables import LabelTable, read_table, refuse_repeats
from fedlit.data.xrays.base import ChestXrays
from fedlit.data.xrays.reading import Reading

NO_FINDING = "No Finding"
LABEL_FILES = ("Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv")
PACKED = tuple(f"{name}.gz" for name in LABEL_FILES)
SPLIT_LISTS = {"train_val": "train_val_list.txt", "test": "test_list.txt"}
# A CSV reader splits the brackets of the official header at their commas.
_COLUMNS = {
    "OriginalImage[Width": "OriginalImage[Width]", "Height]": "OriginalImage[Height]", "Patient Sex": "Patient Gender",
    "OriginalImagePixelSpacing[x": "OriginalImagePixelSpacing[x]", "y]": "OriginalImagePixelSpacing[y]",
}  # fmt: skip
_NEEDED = ("Image Index", "Finding Labels", "Patient ID")


class NIHChestXray14(ChestXrays):
    """NIH ChestX-ray14: 112,120 frontal chest X-rays of 30,805 patients with 14 findings.

    Both versions of the label file are read. "No Finding" is a zero for every class, and no label is blank or
    uncertain. All images are of one hospital; clients come from the partition. For ``ByColumn`` the columns are those
    of the label file, with ``OriginalImage[Width]``, ``OriginalImage[Height]``, ``OriginalImagePixelSpacing[x]`` and
    ``OriginalImagePixelSpacing[y]`` as separate columns, and ``Patient Gender`` even if the file has ``Patient Sex``.
    The official split is that of ``train_val_list.txt`` and ``test_list.txt``.

    Args:
        root: The folder with the label file ``Data_Entry_2017_v2020.csv`` (or ``Data_Entry_2017.csv``; also
            ``.csv.gz``) and the images in ``images/`` or in ``images_001/images/`` to ``images_012/images/``. There is
            no default.
        **kwargs: Further arguments of ChestXrays.
    """

    source = "NIH"
    labels = (
        "Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia", "Pneumothorax",
        "Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening", "Hernia",
    )  # fmt: skip
    layout = (
        f"expected the official layout of NIH ChestX-ray14: {LABEL_FILES[0]} or {LABEL_FILES[1]}, the images in "
        "images/ or in images_001/images/ to images_012/images/, and optionally train_val_list.txt with test_list.txt"
    )
    group_columns = {"sex": "Patient Gender", "age": "Patient Age", "view": "View Position"}
    needs = (*LABEL_FILES, *PACKED)

    def __init__(self, root: Path | None = None, **kwargs):
        super().__init__(root, **kwargs)

    def read(self) -> Reading:
        """Read the label file and the official lists; no image is opened."""
        file, *others = [self.root / name for name in self.needs if (self.root / name).is_file()] or [None]
        if file is None:
            raise MissingFileError(f"{self.root}: found {contents(self.root)}; {self.layout}")
        table = read_table(file, _NEEDED, _NEEDED, _COLUMNS)
        refuse_repeats(table, "Image Index")
        names = table.rows["Image Index"].to_numpy(dtype=str)
        notes = [_compared(table, other) for other in others if other.stem != file.name]
        return Reading(
            files=_image_files(self.root, names, self.layout, notes),
            names=names,
            patients=table.rows["Patient ID"].to_numpy(dtype=str),
            labels=_parse_findings(table, self.labels),
            source=file,
            splits=_read_splits(self.root, names, file) if self.official_split else None,
            table=table.rows,
            notes=notes,
        )


def _compared(table: LabelTable, other: Path) -> str:
    """Return a note about the differences between another label file and the one that is read."""
    note = f"{other.name} is next to {table.path.name}, and was not read: "
    try:
        here, there = (_facts(rows) for rows in (table.rows, read_table(other, _NEEDED, _NEEDED, _COLUMNS).rows))
    except ValueError as error:
        return f"{note}{error}"
    both = here.index.intersection(there.index)
    single, different = len(here) + len(there) - 2 * len(both), both[here[both] != there[both]]
    parts = [f"{single} images are in only one of them"] * bool(single)
    if len(different):
        first = different[0]
        parts.append(
            f"{len(different)} of {len(both)} images have other findings or patients there, the first is {first!r} "
            f"({here[first]} here, {there[first]} there)"
        )
    return note + ("; ".join(parts) or "both have the same content")


def _facts(rows: pd.DataFrame) -> pd.Series:
    """Return findings and patient of each image as one text, by name."""
    findings = rows["Finding Labels"].map(lambda cell: "|".join(sorted(part.strip() for part in cell.split("|"))))
    facts = pd.Series((findings + " of patient " + keys(rows["Patient ID"])).to_numpy(), rows["Image Index"])
    return facts[~facts.index.duplicated()]


def _parse_findings(table: LabelTable, findings: tuple[str, ...]) -> np.ndarray:
    """Return findings such as "Effusion|Mass" as zeros and ones, [N, 14] float32."""
    combinations, row_of = np.unique(table.rows["Finding Labels"].to_numpy(dtype=str), return_inverse=True)
    labels = np.zeros((len(combinations), len(findings)), dtype=np.float32)
    for row, combination in enumerate(combinations.tolist()):
        parts = [part.strip() for part in combination.split("|")]
        where = table.at(row_of == row)
        for label in parts:
            if label in findings:
                labels[row, findings.index(label)] = 1
            elif label != NO_FINDING:
                hint = similar_names(label, (*findings, NO_FINDING))
                raise DataError(f"{where}: unknown label {label!r} in {combination!r}; {hint}")
        if NO_FINDING in parts and len(parts) > 1:
            raise DataError(f"{where}: expected {NO_FINDING!r} or findings, found {combination!r}")
    return labels[row_of]


def _read_splits(root: Path, names: np.ndarray, label_file: Path) -> np.ndarray | None:
    """Return the official split of each image, [N] "train_val" or "test"; None if the folder has no lists."""
    lists = {split: root / name for split, name in SPLIT_LISTS.items()}
    missing = [path for path in lists.values() if not path.is_file()]
    if len(missing) == len(lists):
        return None
    if missing:
        reason = "is missing, although the other official list is there. Add it, or set official_split to false."
        raise MissingFileError(f"{missing[0]} {reason}")
    row_of = {name: row for row, name in enumerate(names.tolist())}
    splits = np.full(len(names), "", dtype="<U9")
    for split, path in lists.items():
        lines = enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1)
        line_of = {name: number for number, line in lines if (name := line.strip())}
        if not line_of:
            raise DataError(f"{path}: expected names of images, found none. Restore it, or set official_split to false")
        if unknown := [name for name in line_of if name not in row_of]:
            raise DataError(
                f"{path}, line {line_of[unknown[0]]}: {unknown[0]!r} is not in {label_file.name} ({len(unknown)} such "
                "names). Use the lists that belong to the label file, or set official_split to false."
            )
        rows = [row_of[name] for name in line_of]
        both = names[rows][splits[rows] != ""]
        if len(both):
            raise DataError(f"{path}: {len(both)} images are in both lists, the first are {listed(both, 3)}")
        splits[rows] = split
    absent = names[splits == ""]
    if len(absent):
        raise DataError(
            f"{label_file}: {len(absent)} images are neither in {' nor in '.join(SPLIT_LISTS.values())}, "
            f"the first are {listed(absent, 3)}. Remove their rows, or set official_split to false."
        )
    return splits


def _image_files(root: Path, names: np.ndarray, layout: str, notes: list[str]) -> list[str]:
    """Return the path of each image, and note those in two folders; a missing image is expected in the first folder."""
    folders = [folder for folder in (root / "images", *sorted(root.glob("images_*/images"))) if folder.is_dir()]
    if not folders:
        raise MissingFileError(f"{root}: found no folder of images; {layout}")
    # By stem, because a suffix may be in capitals.
    there = [(stem_of(name), str(folder)) for folder in reversed(folders) for name in os.listdir(folder)]
    folder_of, first = dict(there), str(folders[0])
    if len(folder_of) < len(there):
        twice = [stem for stem, count in Counter(stem for stem, _ in there).items() if count > 1]
        notes.append(
            f"{len(twice)} images have several files, the first are {listed(twice, 3)}: one file of each is read"
        )
    return [os.path.join(folder_of.get(stem_of(name), first), name) for name in names.tolist()]
