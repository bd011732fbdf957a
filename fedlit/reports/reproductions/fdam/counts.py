"""The report of Table 2: the number of images of each available data set."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fedlit.reports.reproductions.document import Scale
from fedlit.reports.reproductions.published import grid
from fedlit.reports.reproductions.report import Report
from fedlit.reports.reproductions.sources import sources_there


@dataclass(frozen=True)
class CountsReport:
    """A table of data sets; labels are read, and no image is opened."""

    config: Path  # YAML file of the federation.
    root: Path | None  # Folder of the data.
    folders: dict[str, dict[str, str]]  # Paths below ``--root`` by data set and argument of its reader.
    published: dict[str, int]  # The paper's number of images of each data set.

    def make(self, runs: pd.DataFrame, scale: Scale) -> Report:
        """Make the report of the available data sets; there are no runs."""
        rows, notes = [], []
        for source in sources_there(self.config, self.folders, self.root):
            rows.append((source.name, len(source.labels), self.published[source.name]))
            notes += [f"- {source.name}: {note}" for note in source.notes]
        table = pd.DataFrame(rows, columns=["source", "images", "published"])
        shown = [[name, f"{ours:,}", f"{theirs:,}", f"{ours - theirs:+,}"] for name, ours, theirs in rows]
        absent = [name for name in self.folders if name not in set(table["source"])]
        lines = [*grid(["source", "images", "published", "difference"], shown), ""]
        lines += [
            "Images that the settings of the other tables read. The paper counts all images of its data sets, "
            "lateral ones too; these settings read only frontal ones."
        ]
        lines += [f"Not below --root: {', '.join(absent)}."] if absent else []
        return Report("\n".join([*lines, *(["", *notes] if notes else []), ""]), {"counts": table})
