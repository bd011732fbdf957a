"""The reports: means over seeds, and for Tables 2 and 6 the images and shares of positives of the available data."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedlit import data
from fedlit.core.errors import ConfigError
from fedlit.data.labels import UNCERTAIN, decided
from fedlit.data.xrays.base import ChestXrays
from fedlit.reports.reproductions.heterogeneity import organisations, sources_there
from fedlit.reports.reproductions.means import means
from fedlit.reports.reproductions.published import grid, read_paper
from fedlit.reports.reproductions.report import Report

__all__ = ["counts", "means", "ratios"]


def published(title: str) -> list[list[str]]:
    """Return the cells of a published table, one row per source in the order of the configuration."""
    return [list(row) for row in read_paper(Path(__file__).parent).tables[title].rows]


def absent(folders: dict[str, Any], found: pd.Series) -> list[str]:
    """Return a sentence on the sources that do not exist, if any."""
    missing = [name for name in folders if name not in set(found)]
    return [f"Not below --root: {', '.join(missing)}."] if missing else []


def counts(runs: pd.DataFrame, config: Path, root: Path | None, folders: dict[str, dict[str, str]]) -> Report:
    """Make Table 2, the number of images of each available source.

    Args:
        runs: None, as nothing is trained.
        config: YAML file of the federation.
        root: Folder of the data.
        folders: Paths below ``--root`` by source and argument of its reader.
    """
    theirs = dict(zip(folders, (int(row[2].replace(",", "")) for row in published("Table 2")), strict=True))
    there = list(sources_there(config, folders, root))
    rows = [(source.name, len(source.labels), theirs[source.name]) for source in there]
    table = pd.DataFrame(rows, columns=["source", "images", "published"])
    shown = [[name, f"{ours:,}", f"{other:,}", f"{ours - other:+,}"] for name, ours, other in rows]
    said = (
        "Images that the settings of the other tables read. The paper counts all images of its data sets, lateral ones "
        "too; these settings read only frontal ones."
    )
    notes = [f"- {source.name}: {note}" for source in there for note in source.notes]
    lines = [*grid(["source", "images", "published", "difference"], shown), "", said]
    lines += [*absent(folders, table["source"]), *(["", *notes] if notes else []), ""]
    return Report("\n".join(lines), {"counts": table})


def ratios(runs: pd.DataFrame, config: Path, root: Path | None, folders: dict[str, str], within: float) -> Report:
    """Make Table 6, the share of positives of each finding, by available source.

    Args:
        runs: None, as nothing is trained.
        config: YAML file of the federation whose sources are read.
        root: Folder of the data.
        folders: Folder of each source below ``--root``.
        within: Largest difference that rounding and versions of the data explain.

    Raises:
        ConfigError: None of them exists.
    """
    keys, rows = organisations(config), []
    classes = keys["classes"]
    for (source, folder), (_, *theirs) in zip(folders.items(), published("Table 6"), strict=True):
        if (root / folder).is_dir():
            written = keys["sources"][source]
            reader = getattr(data, written["class_path"])(root=root / folder, **written.get("init_args", {}))
            images, ours = shares(reader, classes)
            rows += [(source, images, c, ours[c], float(p)) for c, p in zip(classes, theirs, strict=True)]
    if not rows:
        raise ConfigError(f"--root {root}: expected one or more of {', '.join(folders.values())}, found none")
    table = pd.DataFrame(rows, columns=["source", "images", "class", "ours", "published"])
    table["difference"] = table["ours"] - table["published"]
    shown, far = [], []
    for source, of_source in table.groupby("source", sort=False):
        cells = []
        for row in of_source.itertuples():
            wrong = not abs(row.difference) <= within
            far += [f"{source}, {row[3]} ({row.ours:.3f}, published {row.published:.3f})"] if wrong else []
            cells.append(f"**{row.ours:.3f}**" if wrong else f"{row.ours:.3f}")
        shown.append([source, f"{of_source['images'].iloc[0]:,}", *cells])
    said = (
        f"Share of positives among the images with a label, under the settings of {config.name}; bold if it differs "
        f"by more than {within:g} from the paper's."
    )
    lines = [*grid(["source", "images", *classes], shown), "", said]
    lines += [f"Not as published, so another policy or other files: {'; '.join(far)}."] if far else []
    return Report("\n".join([*lines, *absent(folders, table["source"]), ""]), {"ratios": table})


def shares(reader: ChestXrays, classes: list[str]) -> tuple[int, dict[str, float]]:
    """Return the number of images, with repeated images counted again, and the share of positives by class."""
    reading = reader.read_within()
    labels = decided(reading.labels, np.isnan(reading.labels), reader.blank)
    labels = decided(labels, reading.labels == UNCERTAIN, reader.uncertain)
    again = [np.flatnonzero(labels[:, reader.labels.index(label)] == 1) for label in getattr(reader, "upsample", ())]
    labels = labels[np.concatenate([np.arange(len(labels)), *again])]
    found = {}
    for name in classes:
        origin = reader.origins.get(name)
        columns = [] if origin is None else [reader.labels.index(label) for label in origin.labels]
        found[name] = float(np.nanmean(origin.of(labels[:, columns]))) if origin is not None else float("nan")
    return len(labels), found
