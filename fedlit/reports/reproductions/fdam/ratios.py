"""The report of Table 6: the share of positives of each finding in the available data, as ChestXray-IH reads them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedlit import data
from fedlit.core.errors import ConfigError
from fedlit.data.labels import UNCERTAIN, decided
from fedlit.data.xrays.base import ChestXrays
from fedlit.reports.reproductions.document import Scale
from fedlit.reports.reproductions.published import grid
from fedlit.reports.reproductions.report import Report
from fedlit.reports.reproductions.sources import organisations


@dataclass(frozen=True)
class RatiosReport:
    """A table of sources by findings; labels are read, and no image is opened."""

    config: Path  # YAML file of the federation whose sources are read.
    folders: dict[str, str]  # Folder of each source below ``--root``.
    published: dict[str, list[float]]  # The paper's shares of positives of each source, in the order of the classes.
    within: float  # Largest difference that rounding and versions of the data explain.
    root: Path | None  # Folder of the data.

    def make(self, runs: pd.DataFrame, scale: Scale) -> Report:
        """Make the report of the available sources; there are no runs.

        Raises:
            ConfigError: None of them exists.
        """
        keys = organisations(self.config)
        rows = []
        for source, folder in self.folders.items():
            if (self.root / folder).is_dir():
                rows += self._rows(source, keys["sources"][source], self.root / folder, keys["classes"])
        if not rows:
            raise ConfigError(
                f"--root {self.root}: expected one or more of {', '.join(self.folders.values())}, found none"
            )
        table = pd.DataFrame(rows, columns=["source", "images", "class", "ours", "published"])
        table["difference"] = table["ours"] - table["published"]
        return Report(self._text(table), {"ratios": table})

    def _rows(self, source: str, keys: dict[str, Any], root: Path, classes: list[str]) -> list[tuple]:
        reader = getattr(data, keys["class_path"])(root=root, **keys.get("init_args", {}))
        images, shares = _shares(reader, classes)
        pairs = zip(classes, self.published[source], strict=True)
        return [(source, images, name, shares[name], published) for name, published in pairs]

    def _text(self, table: pd.DataFrame) -> str:
        classes, shown, far = list(dict.fromkeys(table["class"])), [], []
        for source, of_source in table.groupby("source", sort=False):
            cells = []
            for row in of_source.itertuples():
                wrong = not abs(row.difference) <= self.within
                far += [f"{source}, {row[3]} ({row.ours:.3f}, published {row.published:.3f})"] if wrong else []
                cells.append(f"**{row.ours:.3f}**" if wrong else f"{row.ours:.3f}")
            shown.append([source, f"{of_source['images'].iloc[0]:,}", *cells])
        absent = [source for source in self.folders if source not in set(table["source"])]
        lines = [
            *grid(["source", "images", *classes], shown),
            "",
            f"Share of positives among the images with a label, under the settings of {self.config.name}; bold if it "
            f"differs by more than {self.within:g} from the paper's.",
        ]
        lines += [f"Not as published, so another policy or other files: {'; '.join(far)}."] if far else []
        lines += [f"Not below --root: {', '.join(absent)}."] if absent else []
        return "\n".join([*lines, ""])


def _shares(reader: ChestXrays, classes: list[str]) -> tuple[int, dict[str, float]]:
    """Return the number of images, with repeated images counted again, and the share of positives by class."""
    reading = reader.read_within()
    labels = decided(reading.labels, np.isnan(reading.labels), reader.blank)
    labels = decided(labels, reading.labels == UNCERTAIN, reader.uncertain)
    again = [np.flatnonzero(labels[:, reader.labels.index(label)] == 1) for label in getattr(reader, "upsample", ())]
    labels = labels[np.concatenate([np.arange(len(labels)), *again])]
    shares = {}
    for name in classes:
        origin = reader.origins.get(name)
        columns = [] if origin is None else [reader.labels.index(label) for label in origin.labels]
        shares[name] = float(np.nanmean(origin.of(labels[:, columns]))) if origin is not None else float("nan")
    return len(labels), shares
