"""A custom table and a folder of images, described by arguments."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from fedlit.core.errors import DataError
from fedlit.data.labels import UNCERTAIN, Names, Policy, harmonised, letters, similar_names
from fedlit.data.own.cells import (
    Meaning,
    findings_in,
    joined_labels,
    listed_rows,
    read_findings,
    read_labels,
    read_splits,
    reader_of,
    refuse_totals,
    split_words,
)
from fedlit.data.own.image_paths import columns_of, paths_of
from fedlit.data.partition import ByOrganisation, ByPatient, Partition
from fedlit.data.patients import is_unnamed
from fedlit.data.pictures.cache import cache_folder
from fedlit.data.pictures.duplicates import Duplicates, notes_of_copies
from fedlit.data.records import Records, listed
from fedlit.data.spelling import SUFFIXES, FolderListing, stem_of
from fedlit.data.tables import LabelTable, read_any_table, refuse_empty, typed
from fedlit.data.xrays.base import ChestXrays, refuse
from fedlit.data.xrays.reading import Reading

Rows = Literal["one", "any", "vote"]

ROUNDED = r"\d(?:[.,]\d+)?[eE]\+\d+"
"""A number as spreadsheets show it if its column is too narrow, such as 1.23E+11."""


class ImageTable(ChestXrays):
    """Your own images: a table with one row per image, and a folder with the images.

    The table may be CSV, TSV, Parquet, or a spreadsheet that pandas can read. Delimiter, encoding and decimal sign are
    detected, and listed in the notes of a run. ``fedlit data check TABLE --root FOLDER`` proposes the arguments.
    Uncertain and blank labels are ignored by default, because their meaning is unknown. For ``ByColumn`` the columns
    are those of the table.

    Args:
        table: The table. There is no default.
        root: The folder with the images; by default that of the table.
        image: The column with the path of each image below ``root``, or a pattern of columns such as
            ``{StudyUID}/{View}.dcm``. A path may lack its suffix, and ``{StudyUID}/*`` is the only image of a folder.
        patient: The column with the patient; by default each image is a patient of its own. Equal ids are one patient,
            also at different sites.
        sheet: The sheet of a spreadsheet; by default the first.
        encoding: The encoding of a CSV, such as ``gb18030``, ``shift_jis`` or ``cp1251``; by default UTF-8 or, if only
            single letters need it, Windows-1252.
        site: The column with the hospital. Each hospital is then a client, unless a partition says otherwise.
        sites: A map from cells of that column to other names of hospitals, to rename or merge them: ``{St. Mary:
            Marys}``.
        split: The column with the official split: train, val, test or train_val.
        splits: A map from other words in that column to these, such as ``{holdout: test}``.
        test: A file with the ids of the test set, one patient or image per line. All others are for training and
            validation, unless ``split`` says otherwise.
        rows: What rows of one image mean: ``one`` allows a single row for each image; with ``any``, a label is positive
            if one of the rows is, as in tables with a row for each box; with ``vote`` it is what most of the rows say,
            as in tables with a row for each reader, and uncertain if they are even.
        labels: The columns of labels, or the findings that the column ``findings`` may name.
        findings: The column with a list of findings, instead of columns of labels. Named findings are positive, all
            others are negative, and an empty cell is blank. "No Finding" and "normal" are not findings.
        separator: The separator of two findings.
        values: A map from spellings in the cells to ``positive``, ``negative``, ``uncertain`` or ``blank``, in addition
            to 1, 0, -1, yes, no, true, false, positive, negative, uncertain and an empty cell. For ``findings``, words
            that mean that there is no finding (``negative``), or that nothing is known (``blank``). A column may have a
            separate map, with spellings or ranges of numbers: ``{ja: positive, Age: {'>= 18': positive, '< 18':
            negative}}``.
        uncertain: Meaning of an uncertain label: ``ignore`` (no loss, no metric), ``zeros``, ``ones``, or a map from
            labels to these words, with ``default`` for the others.
        blank: Meaning of a label that is neither positive, negative nor uncertain, in the same words.
        views: A map from columns to the values whose rows are read; the notes of a run count the others. An empty cell
            is the value ``none``.
        names: Names of the classes: ``source`` for those of the table, ``harmonised`` for those of ``fedlit list
            labels`` if a label is known there, or a map from each class to a label, or to several with a rule (``{any:
            [...]}`` or ``{all: [...]}``).
        colour: Keep the images in colour; by default they become grey.
        duplicates: Rule for an image of two patients, also recompressed or resized: ``refuse`` is an error, ``allow`` a
            warning.
        partition: The rule that gives each record to a client; by default ``ByOrganisation`` if there is a ``site``,
            else ``ByPatient`` with four clients.
        **kwargs: Further arguments of ChestXrays.
    """

    source = "table"
    layout = "expected the folder of the images"

    def __init__(
        self,
        table: Path | None = None,
        root: Path | None = None,
        image: str | None = None,
        patient: str | None = None,
        site: str | None = None,
        split: str | None = None,
        splits: dict[str, str] | None = None,
        test: Path | None = None,
        labels: list[str] | None = None,
        findings: str | None = None,
        separator: str = "|",
        values: dict[str, Meaning | dict[str, Meaning]] | None = None,
        uncertain: Policy | dict[str, Policy] = "ignore",
        blank: Policy | dict[str, Policy] = "ignore",
        views: dict[str, list[str]] | None = None,
        names: Literal["source", "harmonised"] | Names = "source",
        colour: bool = False,
        sheet: str | None = None,
        sites: dict[str, str] | None = None,
        duplicates: Duplicates = "refuse",
        partition: Partition | None = None,
        encoding: str | None = None,
        rows: Rows = "one",
        **kwargs,
    ):
        example = "`fedlit data check TABLE --root FOLDER` proposes it"
        if table is None or not image:
            raise DataError(f"data.{'table' if table is None else 'image'} is missing; {example}")
        if not labels and not findings:
            raise DataError(f"data.labels is missing: name columns, or set data.findings; {example}")
        if splits and not split:
            raise DataError("data.splits: expected the column of these words in data.split, found none")
        self.split_words = split_words(splits or {})
        self.test_list = None if test is None else Path(test).expanduser()
        self.file, self.sheet, self.renamed = Path(table).expanduser(), sheet, sites or {}
        self.encoding, self.rows = encoding, rows
        self.source = self.file.name.partition(".")[0]
        self.image, self.patient, self.site, self.split_column = image, patient, site, split
        self.findings, self.separator = findings, separator
        self.values = {str(word): meaning for word, meaning in (values or {}).items()}
        maps = {name: self.values.pop(str(name)) for name, of in (values or {}).items() if isinstance(of, Mapping)}
        self.column_values = {name: {str(word): meaning for word, meaning in of.items()} for name, of in maps.items()}
        self.filters = {column: [str(value) for value in cells] for column, cells in (views or {}).items()}
        self.labels = (
            tuple(labels) if labels else findings_in(self._checked(findings), findings, separator, self.values)
        )
        self._check_values()
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise DataError(f"data.labels: expected one or more labels, all different, found {listed(self.labels)}")
        if partition is None:
            partition = ByOrganisation() if site else ByPatient(4)
        folder = self.file.parent if root is None else root
        super().__init__(folder, names=names, uncertain=uncertain, blank=blank, partition=partition, **kwargs)
        if test is not None and not self.official_split:
            raise DataError("data.test: a list of the test set is a part of the official split; remove official_split")
        self.colour, self.channels, self.duplicates = colour, 3 if colour else 1, duplicates

    @classmethod
    def lies_in(cls, root: Path) -> bool:
        """Return True, because any folder may hold custom images."""
        return True

    def records(self) -> Records:
        """Read the table, decode the images, and search for images that belong to two patients."""
        records = super().records()
        self.notes += notes_of_copies(cache_folder(self.cache_dir), self.duplicates, [self.source], [records])
        return records

    def read(self) -> Reading:
        """Read the table; no image is opened."""
        table, format_note = self._read_table
        used = [self.patient, self.site, self.split_column, self.findings, *self.filters, *columns_of(self.image)]
        for column in used:
            self._checked(column)
        for column in () if self.findings else self.labels:
            self._checked(
                column, "; a class that these images are not labelled for goes into data.unlabelled, not data.labels"
            )
        refuse_totals(table)
        notes = [format_note]
        everywhere = set(table.rows[self.site]) if self.site else set()
        table = self._of_filters(table, notes)
        for column in (self.patient, self.site, self.split_column):
            if column and not (column == self.split_column and "" in self.split_words):
                refuse_empty(table, column)
        for column in filter(None, (self.patient, *columns_of(self.image))):
            rounded = table.rows[column].str.fullmatch(ROUNDED).to_numpy()
            refuse(table, column, rounded, "an id with all of its digits, which a spreadsheet has rounded")
        for column in filter(None, (self.patient, self.site)):
            refuse(table, column, is_unnamed(table.rows[column].to_numpy()), "a name, or remove the line")
        paths = self._paths(table)
        if self.findings:
            labels = read_findings(table, self.findings, self.separator, self.labels, self.values)
        else:
            labels = read_labels(table, self.labels, self.values, self.column_values)
        if self.rows != "one":
            table, paths, labels = self._joined(table, paths, labels, notes)
        patients = table.rows[self.patient].to_numpy(dtype=str) if self.patient else paths
        reading = Reading(
            files=[self.root / path for path in paths],
            names=paths,
            patients=patients,
            labels=labels,
            source=self.file,
            splits=self._splits(table, paths, patients, notes),
            table=typed(table.rows),
            notes=notes,
            sites=self._sites(table) if self.site else None,
            lines=np.array([f"{table.unit} {line}" for line in table.lines.tolist()]),
            lost_sites=tuple(sorted(everywhere - set(table.rows[self.site]) - {""})) if self.site else (),
        )
        notes += self._remarks(reading)
        return reading

    @cached_property
    def _read_table(self) -> tuple[LabelTable, str]:
        return read_any_table(self.file, self.sheet, self.encoding)

    def _checked(self, column: str | None, advice: str = "") -> LabelTable:
        """Return the table after checking that it has a column; the error ends with the advice."""
        table, _ = self._read_table
        if column is not None and column not in table.rows:
            columns = list(table.rows)
            raise DataError(
                f"{table.path}: expected a column {column!r}, found {listed(columns, 40)}; "
                f"{similar_names(column, columns)}{advice}"
            )
        return table

    def _check_values(self) -> None:
        wrong = [word for word, meaning in self.values.items() if meaning not in ("negative", "blank")] or [
            *self.column_values
        ]
        if self.findings and wrong:
            raise DataError(
                f"data.values: with data.findings a word is negative (no finding) or blank, found {wrong[0]!r}"
            )
        for column, spellings in self.column_values.items():
            if column not in self.labels:
                hint = similar_names(column, self.labels)
                raise DataError(f"data.values: {column!r} is no column of data.labels; {hint}")
            reader_of(self.values, spellings, column)
        if ranges := [word for word in self.values if word.lstrip().startswith(("<", ">"))]:
            raise DataError(
                f"data.values: the range {ranges[0]!r} needs its column: "
                f"{{COLUMN: {{'{ranges[0]}': {self.values[ranges[0]]}}}}}"
            )

    def _paths(self, table: LabelTable) -> np.ndarray:
        """Return the path of each row's image below the folder, [N] str; with ``rows: one`` each is in one row."""
        for column in columns_of(self.image):
            refuse_empty(table, column)
        paths = [self._only_image(p) if p.endswith("/*") else p for p in paths_of(self.image, table.rows)]
        repeated = pd.Series(paths).duplicated(keep=False).to_numpy()
        if repeated.any() and self.rows == "one":
            name = paths[int(np.argmax(repeated))]
            lines = [str(table.lines[row]) for row, path in enumerate(paths) if path == name]
            raise DataError(
                f"{table.path}: image {name!r} is on {table.unit}s {', '.join(lines)} ({repeated.sum()} such). "
                "Keep one of them, add a column to data.image that distinguishes them, or set data.rows to any or vote"
            )
        return np.array(paths, dtype=str)

    def _joined(
        self, table: LabelTable, paths: np.ndarray, labels: np.ndarray, notes: list[str]
    ) -> tuple[LabelTable, np.ndarray, np.ndarray]:
        """Return the first row, the path and the labels of each image, of rows about its boxes or by its readers.

        Raises:
            DataError: Rows of one image name several patients, sites or splits.
        """
        of_row, names = pd.factorize(paths)
        first = np.unique(of_row, return_index=True)[1]
        for column in filter(None, (self.patient, self.site, self.split_column)):
            cells = table.rows[column].to_numpy()
            differs = cells != cells[first[of_row]]
            refuse(table, column, differs, f"that of the image's first row ({self.rows} of the rows of an image)")
        if len(names) < len(paths):
            rule = "positive if one of them is" if self.rows == "any" else "what most of them say"
            notes.append(f"{len(paths):,} rows are of {len(names):,} images of {self.source}: a label is {rule}")
        is_first = np.isin(np.arange(len(paths)), first)
        return table.where(is_first), np.array(names, dtype=str), joined_labels(labels, of_row, self.rows)

    def _only_image(self, path: str) -> str:
        """Return the path of the only image in a folder, given ``FOLDER/*``, or that if there is not exactly one."""
        folder = self.root / path[:-2]
        images = [name for name in FolderListing(str(folder)).names if name.lower().endswith(SUFFIXES)]
        return f"{path[:-1]}{images[0]}" if len(images) == 1 else path

    def _splits(
        self, table: LabelTable, paths: np.ndarray, patients: np.ndarray, notes: list[str]
    ) -> np.ndarray | None:
        splits = read_splits(table, self.split_column, self.split_words) if self.split_column else None
        if self.test_list is None:
            return splits
        stems = np.array(list(map(stem_of, paths.tolist())))
        held = listed_rows(self.test_list, self.file.name, (patients, paths, stems))
        if splits is None:
            return np.where(held, "test", "train_val")
        if moved := int((held & (splits != "test")).sum()):
            by = f"{self.test_list.name}, and another split by {self.split_column!r}"
            notes.append(f"{moved} images of {self.source} are test by {by}")
        return np.where(held, "test", splits)

    def _sites(self, table: LabelTable) -> np.ndarray:
        cells = table.rows[self.site]
        if unknown := [name for name in self.renamed if name not in set(cells)]:
            hint = similar_names(unknown[0], sorted(set(cells)))
            raise DataError(f"data.sites: no row of {self.file.name} has {unknown[0]!r}; {hint}")
        return cells.replace(self.renamed).to_numpy(dtype=str)

    def _of_filters(self, table: LabelTable, notes: list[str]) -> LabelTable:
        for column, values in self.filters.items():
            if not values:
                raise DataError(f"data.views: {column!r}: expected values to read, found none")
            table.rows[column] = table.rows[column].where(table.rows[column] != "", None)
            table = self._of_views(table, column, (), notes, values)
        return table

    def _remarks(self, reading: Reading) -> list[str]:
        remarks, cells = [], reading.labels.size
        for name, mask in (("uncertain", reading.labels == UNCERTAIN), ("blank", np.isnan(reading.labels))):
            if mask.any():
                policy = ", ".join(sorted(set(getattr(self, name).values())))
                remarks.append(
                    f"{mask.sum():,} of {cells:,} labels of {self.source} are {name}: {policy} (data.{name})"
                )
        if not self.patient:
            remarks.append(f"{self.source} names no patients: each image counts as one (data.patient)")
        elif reading.sites is not None:
            pairs = pd.DataFrame({"patient": reading.patients, "site": reading.sites}).drop_duplicates()
            if several := int(pairs["patient"].duplicated().sum()):
                remarks.append(
                    f"{several} patients of {self.source} are at more than one site, and in one split (equal ids)"
                )
        return remarks

    def _named(self, names: str | Names) -> Names:
        if names != "harmonised":
            return super()._named(names)
        known = _harmonised_spellings()
        named = {known.get(letters(label), label): label for label in self.labels}
        if len(named) < len(self.labels):
            lost = next(label for label in self.labels if label not in named.values())
            raise DataError(
                f"data.names: {lost!r} and another label are both {known[letters(lost)]!r}; set data.names to a map "
                "with a rule that makes them one class"
            )
        return named


def _harmonised_spellings() -> dict[str, str]:
    """Return the harmonised name of every label of a finding in a data set, and of the harmonised names themselves."""
    names: dict[str, str] = {}
    for name, labels in harmonised().items():
        for label in labels.values():
            if isinstance(label, str):
                names.setdefault(letters(label), name)
    return names | {letters(name): name for name in harmonised()}
