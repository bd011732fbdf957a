"""The base class of readers of chest X-ray data sets."""

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd

from fedlit.core.errors import DataError, MissingFileError
from fedlit.core.ranges import Within
from fedlit.data.federated import FederatedDataModule
from fedlit.data.folders import home, other_than_expected
from fedlit.data.groups import GroupColumn, group_columns
from fedlit.data.labels import (
    UNCERTAIN,
    Names,
    Origin,
    Policy,
    checked_classes,
    checked_policy,
    decided,
    harmonised_names,
    origins,
    similar_names,
)
from fedlit.data.partition import ByPatient, Partition
from fedlit.data.pictures.decoding import Damaged, decode_images
from fedlit.data.pictures.duplicates import Duplicates
from fedlit.data.pictures.pixels import DEPTH, Resize, open_picture
from fedlit.data.pictures.store import ImageStore, StoreView
from fedlit.data.records import LeftOut, Records, listed
from fedlit.data.spelling import located
from fedlit.data.tables import LabelTable
from fedlit.data.xrays.reading import Reading

DARK = 64
"""Number of images that are searched for the brightest pixel."""


class ChestXrays(FederatedDataModule):
    """A chest X-ray data set of one organisation.

    A reader implements ``read()``, which returns the content of its label files. This class handles the names of
    labels, the policies for uncertain and blank labels, and missing images in the same way for all readers.

    Args:
        root: The folder of the download, or one a few levels above it, or its folder of images. There is no default.
        classes: The classes to use, in this order; by default all of them.
        unlabelled: Those of the classes that these images are not labelled for, such as a finding that this hospital
            does not report but other hospitals of a federation do. Their labels are hidden, and the source need not
            have them.
        names: Names of the classes: ``source`` for those of the data set, ``harmonised`` for those of the command
            ``fedlit list labels``, or a map from each class to a label of the source, or to several labels with a rule
            (``{any: [...]}`` or ``{all: [...]}``).
        uncertain: Meaning of an uncertain label: ``ignore`` (no loss, no metric), ``zeros``, ``ones``, or a map from
            labels of the source to these words, with ``default`` for the others.
        blank: Meaning of a label that is neither positive, negative nor uncertain: ``ignore`` (no loss, no metric),
            ``zeros``, ``ones``, or a map from labels of the source to these words, with ``default`` for the others.
        missing: Rule for missing image files: ``refuse`` is an error, ``drop`` leaves the images out with a warning.
        damaged: Rule for image files that cannot be decoded, ``refuse`` or ``drop``; by default ``refuse``. Images that
            are left out are listed in ``left_out.csv`` of a run.
        depth: Number of bits that the data set uses of pixels with more than 8, from 9 to 16, by default 16: a 16-bit
            PNG may hold 12 bits. DICOM files declare it themselves.
        resize: Resizing of images that are not square: ``squeeze`` (the default) changes their shape, ``pad`` adds
            black borders.
        official_split: Use the official split of the data set if it has one. If false, patients are divided in the
            fractions of ``split``.
        partition: The rule that gives each record to a client; by default ``ByPatient`` with four clients.
        groups: Groups of images that predictions list, so that a model can be evaluated by them: those that the data
            set gives, such as ``[sex, age, view]``, or columns of its table, or a map from names to columns (``{sex:
            Gender}``). They change no training.
        bands: Ascending edges of the bands of a group of numbers. By default ages, in years, have ``{age: [18, 40,
            65]}``. An edge belongs to the band above it.
        **kwargs: Further arguments of FederatedDataModule.

    Attributes:
        source: Name of the organisation, and of its column in the table of harmonised labels.
        labels: The labels of the source, as spelled there.
        layout: A description of the content of the folder, for messages.
        views: The views that are read, if a reader offers a choice.
        group_columns: Columns of the groups that the source gives, by name.
        needs: Patterns of files; a folder with a file that matches one of them is recognised as this data set.
        channels: Number of channels that are kept of an image: 1 is grey, 3 is RGB.
        duplicates: Rule for equal images of two patients; None if a run does not search for them before it trains.
    """

    source: str = ""
    labels: tuple[str, ...] = ()
    layout: str = ""
    views: tuple[str, ...] = ()
    group_columns: Mapping[str, str] = {}
    needs: tuple[str, ...] = ()
    channels: int = 1
    duplicates: Duplicates | None = None

    def __init__(
        self,
        root: Path | None = None,
        classes: list[str] | None = None,
        unlabelled: list[str] | None = None,
        names: Literal["source", "harmonised"] | Names = "source",
        uncertain: Policy | dict[str, Policy] = "zeros",
        blank: Policy | dict[str, Policy] = "zeros",
        missing: Literal["refuse", "drop"] = "refuse",
        damaged: Damaged | None = None,
        depth: Annotated[int, Within("[9, 16]")] | None = None,
        resize: Resize | None = None,
        official_split: bool = True,
        partition: Partition | None = None,
        groups: list[str] | dict[str, str] | None = None,
        bands: dict[str, list[float]] | None = None,
        **kwargs,
    ):
        super().__init__(ByPatient(4) if partition is None else partition, **kwargs)
        if root is None:
            raise DataError(f"data.root is missing: {self.layout}")
        damaged, depth = damaged or "refuse", DEPTH if depth is None else depth
        self.resize: Resize = resize or "squeeze"
        self.given_root = Path(root).expanduser()
        self.root = home(self.given_root, self.lies_in)
        self.missing, self.damaged, self.depth, self.official_split = missing, damaged, depth, official_split
        self.groups = group_columns(groups, bands, self.group_columns)
        self.uncertain = checked_policy(uncertain, self.labels, "data.uncertain")
        self.blank = checked_policy(blank, self.labels, "data.blank")
        self.origins: dict[str, Origin] = origins(self._named(names), self.labels, "data.names")
        known = list(dict.fromkeys([*self.origins, *(unlabelled or ())]))
        advice = "; a class that these images are not labelled for goes into data.unlabelled too"
        # Not by the setter, which imports PyTorch: that takes seconds, and reading labels does not need it.
        self._own_classes = checked_classes(known if classes is None else classes, known, advice=advice)
        self.unlabelled = checked_classes(unlabelled, self.classes, "data.unlabelled") if unlabelled else ()
        if len(self.unlabelled) == len(self.classes):
            raise DataError("data.unlabelled: expected some of the classes, found all")

    @classmethod
    def recognises(cls, root: Path) -> bool:
        """Return True if a folder looks like this data set."""
        return any(any(root.glob(pattern)) for pattern in cls.needs)

    @classmethod
    def lies_in(cls, root: Path) -> bool:
        """Return True if a folder is the one that ``read()`` expects, even if it could be of several data sets."""
        return cls.recognises(root)

    def read(self) -> Reading:
        """Read the label files and locate each image, without opening any image.

        Raises:
            FileNotFoundError: The folder or one of its label files is missing.
            ValueError: A label file has unexpected content; the message names file, line and column.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement read()")

    def records(self) -> Records:
        """Read the label files, decide on uncertain and blank labels, and decode the images into the cache."""
        if not self.root.is_dir():
            reason = "a file, not a folder" if self.root.is_file() else "no such folder"
            raise MissingFileError(f"{self.root}: {reason}; {self.layout}")
        if other := other_than_expected(self.root):
            raise MissingFileError(other)
        self.left_out = []
        reading, store = self._decoded(self._present(self.read_within()))
        self.notes = reading.notes
        return self.described(reading, store)

    def described(self, reading: Reading, store: ImageStore | StoreView | Sequence[str]) -> Records:
        """Return the records of a reading after applying the policies; ``store`` may be a list of files."""
        labels = decided(reading.labels, np.isnan(reading.labels), self.blank)
        self._decided = labels = decided(labels, reading.labels == UNCERTAIN, self.uncertain)
        classes = np.full((len(labels), len(self.classes)), np.nan, dtype=np.float32)
        labelled = tuple(name for name in self.classes if name not in self.unlabelled)
        for name in labelled:
            of = [self.labels.index(label) for label in self.origins[name].labels]
            classes[:, self.classes.index(name)] = self.origins[name].of(labels[:, of])
        sites = np.full(len(reading.names), self.source) if reading.sites is None else reading.sites
        return Records(
            store=store,
            names=reading.names,
            labels=classes,
            classes=self.classes,
            patients=reading.patients,
            sites=sites,
            site_classes=dict.fromkeys(np.unique(sites).tolist(), labelled) if self.unlabelled else {},
            splits=reading.splits if self.official_split else None,
            table=reading.table,
            groups=reading.groups,
        )

    def group_cells(self, group: GroupColumn, reading: Reading) -> tuple[pd.Series, Path]:
        """Return the cells of a group's column, [N], and their file; a reader overrides it to combine columns.

        Raises:
            DataError: There is no such column.
        """
        if group.column in reading.table:
            return reading.table[group.column], reading.source
        given = f"{', '.join(self.group_columns)} or " if self.group_columns else ""
        raise DataError(
            f"data.groups: {reading.source}: expected {given}a column, found {group.column!r}; "
            f"{similar_names(group.column, [*self.group_columns, *map(str, reading.table)])}"
        )

    def read_within(self) -> Reading:
        """Read the label files, and check that all images are in the data set's folder.

        Raises:
            DataError: The name of an image leads out of the folder.
        """
        reading, root = self.read(), os.path.join(self.root, "")
        folder = reading.source if reading.source.is_dir() else reading.source.parent
        packed = [file for file in sorted(folder.glob("*.csv.gz")) if file.with_suffix("").is_file()]
        reading.notes += [f"{file.name} is next to {file.stem}: only one of them was read" for file in packed]
        reading.files, reading.there = located(reading.files)
        places = np.char.add("image ", reading.names) if reading.lines is None else reading.lines
        for group in self.groups:
            reading.groups[group.name], notes = group.read(*self.group_cells(group, reading), places)
            reading.notes += [f"{self.source}: {note}" for note in notes]
        if self.root != self.given_root:
            reading.notes.insert(0, f"{self.source} was found in {self.root}, not in {self.given_root} itself")
        outside = [_leads_out(file, root) for file in reading.files]
        if any(outside):
            row = outside.index(True)
            raise DataError(
                f"{reading.source}: expected names of images in {self.root}, found {str(reading.names[row])!r}, which "
                f"leads to {reading.files[row]} ({sum(outside)} such names)"
            )
        return reading

    def _present(self, reading: Reading) -> Reading:
        """Return the reading with only the images that exist."""
        if (here := reading.there).all():
            return reading
        absent = reading.names[~here]
        if self.missing == "refuse" or not here.any():
            raise MissingFileError(
                f"{len(absent)} of {len(here)} images in {reading.source} are missing, the first are "
                f"{listed(absent, 3)}; searched {listed(dict.fromkeys(map(os.path.dirname, reading.files)), 3)}. "
                "Add them, remove their rows, or set data.missing to drop."
            )
        return self._without(reading, dict.fromkeys(np.flatnonzero(~here).tolist(), "missing"), "are missing")

    def _decoded(self, reading: Reading) -> tuple[Reading, ImageStore | StoreView]:
        """Return the reading with only the images that can be decoded, and the decoded images."""
        options = {"cache_dir": self.cache_dir, "depth": self.depth, "damaged": self.damaged, "resize": self.resize}
        store = decode_images(reading.files, self.image_size, self.channels, **options)
        damaged = store.damaged
        self.warn_of_dark(store, reading.files)
        blank = np.setdiff1d(np.flatnonzero(store.hashes()[:, 0] == 0), list(damaged))
        if len(blank):
            which = f"the first are {listed(reading.names[blank], 3)}"
            reading.notes.append(f"{len(blank)} of {len(reading.names)} images of {self.source} show nothing, {which}")
        if not damaged:
            return reading, store
        kept = np.setdiff1d(np.arange(len(reading.names)), list(damaged))
        return self._without(reading, damaged, "are damaged"), StoreView([store], kept)

    def warn_of_dark(self, store: ImageStore | np.ndarray, files: Sequence[str]) -> None:
        """Warn if a sample of a store is so dark that its pixels seem to have fewer bits than ``depth``."""
        rows = np.unique(np.linspace(0, len(store) - 1, min(len(store), DARK)).astype(int))
        brightest = int(store[rows].max())
        if 0 < brightest < 128 and _is_deep(files[int(rows[-1])]):
            bits = int(np.ceil(np.log2((brightest - 0.5) / 255 * 2**self.depth)))
            warnings.warn(
                f"the brightest pixel of {len(rows)} images of {self.source} is {brightest} of 255: if only {bits} of "
                f"their 16 bits are used, set data.depth to {bits}",
                stacklevel=5,
            )

    def _without(self, reading: Reading, reasons: dict[int, str], what: str) -> Reading:
        """Return a reading without some rows, which are listed, counted in a note, and reported by a warning."""
        names = reading.names[list(reasons)]
        self.left_out += [
            LeftOut(str(name), str(reading.files[row]), reason)
            for name, (row, reason) in zip(names, reasons.items(), strict=True)
        ]
        reading.notes.append(f"{len(reasons)} of {len(reading.names)} images of {self.source} {what} and left out")
        warnings.warn(f"{reading.notes[-1]}; the first are {listed(names, 3)}", stacklevel=6)
        return reading.where(~np.isin(np.arange(len(reading.names)), list(reasons)))

    def _of_views(
        self, table: LabelTable, column: str, usual: Sequence[str], notes: list[str], views: Sequence[str] | None = None
    ) -> LabelTable:
        """Return the images with one of the chosen views in a column, and note the number of images with other views.

        An empty cell is the view ``none``. A copy may lack a usual view; any other view that it lacks is an error.
        """
        views = self.views if views is None else views
        cells = table.rows[column]
        view = cells.astype(object).where(cells.notna(), "none").astype(str).str.strip()
        counts = view.value_counts().sort_index()
        for name in views:
            if name not in counts and name not in usual:
                hint = similar_names(name, list(dict.fromkeys([*usual, *counts.index])))
                raise DataError(f"data.views: no image in {table.path} has {column} {name!r}; {hint}")
        kept = view.isin(views).to_numpy()
        others = ", ".join(f"{count} {name}" for name, count in counts.items() if name not in views)
        if not kept.any():
            wanted = " or ".join(views)
            raise DataError(f"data.views: no image in {table.path} has {column} {wanted}, but {others}")
        if others:
            number = f"{(~kept).sum()} of {len(kept)} images of {self.source}"
            notes.append(f"{number} are of other views, left out: {others}")
        return table.where(kept)

    def _named(self, names: str | Names) -> Names:
        if isinstance(names, dict):
            return names
        return harmonised_names(self.source) if names == "harmonised" else {label: label for label in self.labels}


def _is_deep(file: str) -> bool:
    """Return True if an image file can be opened and has more than 8 bits, without declaring how many are used."""
    try:
        with open_picture(file) as image:
            return image.mode.startswith("I")
    except (OSError, ValueError):
        return False


def _leads_out(file: str, root: str) -> bool:
    inside = file.startswith(root) and ".." not in file
    return not inside and not os.path.abspath(file).startswith(os.path.join(os.path.abspath(root), ""))


def refuse(table: LabelTable, column: str, wrong: np.ndarray, expected: str) -> None:
    """Raise a ValueError that names file, line and column if a cell of the column is wrong, [N] bool."""
    if wrong.any():
        cell = table.rows[column][wrong].iloc[0]
        raise DataError(
            f"{table.at(wrong)}: column {column!r}: expected {expected}, found {cell!r} ({wrong.sum()} such lines)"
        )


def refuse_shared(values: pd.Series, where: str | Path, what: str) -> None:
    """Raise a ValueError if a value is in two label files."""
    twice = values[values.duplicated()]
    if len(twice):
        raise DataError(f"{where}: {len(twice)} {what}, the first are {listed(twice, 3)}. Keep one row each")
