"""NIH ChestX-ray14 in the layout of its official download.

Wang et al., "ChestX-ray8: Hospital-scale Chest X-ray Database and Benchmarks on Weakly-Supervised
Classification and Localization of Common Thorax Diseases", CVPR 2017,
https://nihcc.app.box.com/v/ChestXray-NIHCC.
"""

import os
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import pandas as pd

from fedlit.data.federated import FederatedDataModule
from fedlit.data.images import decode_images
from fedlit.data.partition import ByPatient, Partition
from fedlit.data.records import Records, listed

CLASSES = (
    "Atelectasis",
    "Cardiomegaly",
    "Effusion",
    "Infiltration",
    "Mass",
    "Nodule",
    "Pneumonia",
    "Pneumothorax",
    "Consolidation",
    "Edema",
    "Emphysema",
    "Fibrosis",
    "Pleural_Thickening",
    "Hernia",
)
NO_FINDING = "No Finding"
LABEL_FILES = ("Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv")
SPLIT_LISTS = {"train_val": "train_val_list.txt", "test": "test_list.txt"}
LAYOUT = (
    f"expected the official layout of NIH ChestX-ray14: {LABEL_FILES[0]} or {LABEL_FILES[1]}, the images "
    "in images/ or in images_001/images/ to images_012/images/, and optionally train_val_list.txt with "
    "test_list.txt"
)
# A CSV reader splits the brackets of the official header at their commas.
_COLUMNS = {
    "OriginalImage[Width": "OriginalImage[Width]",
    "Height]": "OriginalImage[Height]",
    "OriginalImagePixelSpacing[x": "OriginalImagePixelSpacing[x]",
    "y]": "OriginalImagePixelSpacing[y]",
    "Patient Sex": "Patient Gender",
}
_NEEDED = ("Image Index", "Finding Labels", "Patient ID")


class NIHChestXray14(FederatedDataModule):
    """NIH ChestX-ray14: 112,120 frontal chest X-rays of 30,805 patients with 14 findings.

    Both versions of the label file are read. "No Finding" is a zero for every class. All images are of one
    hospital; clients come from the partition. For `ByColumn` the columns are those of the label file, with
    `OriginalImage[Width]`, `OriginalImage[Height]`, `OriginalImagePixelSpacing[x]` and `[y]` apart, and
    `Patient Gender` also where the file says `Patient Sex`.

    Args:
        root: The folder with the label file `Data_Entry_2017_v2020.csv` (or `Data_Entry_2017.csv`) and the
            images in `images/` or in `images_001/images/` to `images_012/images/`. There is no default.
        classes: Some of the 14 findings, in this order; all of them by default. Others are not labelled.
        official_split: Use `train_val_list.txt` and `test_list.txt` where the folder has them. Without them
            patients are divided by `split`.
        partition: Which client a record belongs to; by default patients are dealt to four clients.
    """

    def __init__(
        self,
        root: Path | None = None,
        classes: list[str] | None = None,
        official_split: bool = True,
        partition: Partition | None = None,
        **kwargs,
    ):
        super().__init__(ByPatient(4) if partition is None else partition, **kwargs)
        if root is None:
            raise ValueError(f"data.root is missing: {LAYOUT}")
        self.root = Path(root).expanduser()
        self.official_split = official_split
        self._classes = CLASSES if classes is None else _checked_classes(classes)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self._classes

    def records(self) -> Records:
        """Reads the label file and the split lists, finds the images and decodes them into the cache.

        Raises:
            FileNotFoundError: The folder, its label file, one of the two split lists or images are missing.
            ValueError: The label file or a split list has something that does not belong there.
        """
        table, file, lines = _read_labels(self.root)
        labels = _parse_findings(table["Finding Labels"], file, lines)
        names = table["Image Index"].to_numpy(dtype=str)
        splits = _read_splits(self.root, names, file) if self.official_split else None
        images = decode_images(_find_images(self.root, names, file), self.image_size, cache_dir=self.cache_dir)
        return Records(
            store=images,
            names=names,
            labels=labels[:, [CLASSES.index(label) for label in self.classes]],
            classes=self.classes,
            patients=table["Patient ID"].to_numpy(dtype=str),
            sites=np.full(len(names), "NIH"),
            site_classes={},
            splits=splits,
            table=table,
        )


def _checked_classes(classes: Sequence[str]) -> tuple[str, ...]:
    for label in classes:
        if label not in CLASSES:
            raise ValueError(f"data.classes: unknown class {label!r}{_near(label)}")
    if not classes or len(set(classes)) != len(classes):
        raise ValueError(f"data.classes: expected one or more different classes, found {list(classes)}")
    return tuple(classes)


def _near(label: str) -> str:
    folded = {known.casefold(): known for known in (*CLASSES, NO_FINDING)}
    near = [folded[match] for match in get_close_matches(label.casefold(), folded, n=3, cutoff=0.6)]
    return f"; near names are {', '.join(near)}" if near else f"; labels are {', '.join((*CLASSES, NO_FINDING))}"


def _read_labels(root: Path) -> tuple[pd.DataFrame, Path, np.ndarray]:
    """The label file as a table, its path, and the line number of each row."""
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; {LAYOUT}")
    file = next((root / name for name in LABEL_FILES if (root / name).is_file()), None)
    if file is None:
        found = sorted(path.name for path in root.iterdir())
        raise FileNotFoundError(f"{root}: found {listed(found) if found else 'an empty folder'}; {LAYOUT}")
    with warnings.catch_warnings():
        # Some copies end every line but the header with a comma; pandas warns that it drops the empty column.
        warnings.simplefilter("ignore", pd.errors.ParserWarning)
        table = pd.read_csv(
            file,
            dtype=dict.fromkeys(_NEEDED, str),
            index_col=False,
            encoding="utf-8-sig",
            skip_blank_lines=False,
            low_memory=False,
        )
    table.columns = [str(column).strip() for column in table.columns]
    found = [column for column in table.columns if not column.startswith("Unnamed:")]
    table = table[found].rename(columns=_COLUMNS)
    for column in _NEEDED:
        if column not in table.columns:
            raise ValueError(f"{file}: expected a column {column!r}, found {listed(found, limit=20)}")
    lines = np.arange(2, len(table) + 2)
    filled = table.notna().any(axis=1).to_numpy()
    table, lines = table[filled].reset_index(drop=True), lines[filled]
    for column in _NEEDED:
        empty = (table[column].isna() | (table[column].str.strip() == "")).to_numpy()
        if empty.any():
            raise ValueError(
                f"{file}, line {lines[empty][0]}: column {column!r} is empty ({empty.sum()} such lines). "
                "Fill it in, or remove the line."
            )
        table[column] = table[column].str.strip()
    repeated = table["Image Index"].duplicated(keep=False).to_numpy()
    if repeated.any():
        name = table["Image Index"][repeated].iloc[0]
        at = lines[(table["Image Index"] == name).to_numpy()]
        raise ValueError(f"{file}: image {name!r} is on lines {', '.join(map(str, at))}. Keep one of them.")
    return table, file, lines


def _parse_findings(findings: pd.Series, file: Path, lines: np.ndarray) -> np.ndarray:
    """Findings such as "Effusion|Mass" as float32 zeros and ones, [N, 14]."""
    combinations, row_of = np.unique(findings.to_numpy(dtype=str), return_inverse=True)
    labels = np.zeros((len(combinations), len(CLASSES)), dtype=np.float32)
    for row, combination in enumerate(combinations.tolist()):
        parts = [part.strip() for part in combination.split("|")]
        where = f"{file}, line {lines[np.argmax(row_of == row)]}"
        for label in parts:
            if label in CLASSES:
                labels[row, CLASSES.index(label)] = 1
            elif label != NO_FINDING:
                raise ValueError(f"{where}: unknown label {label!r} in {combination!r}{_near(label)}")
        if NO_FINDING in parts and len(parts) > 1:
            raise ValueError(f"{where}: expected {NO_FINDING!r} alone or findings, found {combination!r}")
    return labels[row_of]


def _read_splits(root: Path, names: np.ndarray, label_file: Path) -> np.ndarray | None:
    """The official split of each image, [N] "train_val" or "test"; None where the folder has no lists."""
    lists = {split: root / name for split, name in SPLIT_LISTS.items()}
    missing = [path for path in lists.values() if not path.is_file()]
    if len(missing) == len(lists):
        return None
    if missing:
        raise FileNotFoundError(
            f"{missing[0]} is missing, although the other official list is there. "
            "Add it, or set official_split to false."
        )
    row_of = {name: row for row, name in enumerate(names.tolist())}
    splits = np.full(len(names), "", dtype="<U9")
    for split, path in lists.items():
        listing = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
        unknown = [(number, name) for number, name in enumerate(listing, 1) if name and name not in row_of]
        if unknown:
            raise ValueError(
                f"{path}, line {unknown[0][0]}: {unknown[0][1]!r} is not in {label_file.name} "
                f"({len(unknown)} such lines). Use the lists that belong to the label file, "
                "or set official_split to false."
            )
        rows = [row_of[name] for name in listing if name]
        both = [names[row] for row in rows if splits[row] not in ("", split)]
        if both:
            raise ValueError(f"{path}: {len(both)} images are in both official lists, the first are {listed(both, 3)}")
        splits[rows] = split
    absent = names[splits == ""]
    if len(absent):
        raise ValueError(
            f"{label_file}: {len(absent)} images are neither in {' nor in '.join(SPLIT_LISTS.values())}, "
            f"the first are {listed(absent, 3)}. Remove their rows, or set official_split to false."
        )
    return splits


def _find_images(root: Path, names: np.ndarray, label_file: Path) -> list[Path]:
    folders = [folder for folder in (root / "images", *sorted(root.glob("images_*/images"))) if folder.is_dir()]
    if not folders:
        raise FileNotFoundError(f"{root}: found no folder of images; {LAYOUT}")
    path_of = {entry.name: entry.path for folder in reversed(folders) for entry in os.scandir(folder)}
    missing = [name for name in names.tolist() if name not in path_of]
    if missing:
        searched = ", ".join(str(folder) for folder in folders[:3]) + (", ..." if len(folders) > 3 else "")
        raise FileNotFoundError(
            f"{len(missing)} of {len(names)} images in {label_file} are missing, "
            f"the first are {listed(missing, 3)}; searched {searched}. Add them, or remove their rows."
        )
    return [Path(path_of[name]) for name in names.tolist()]
