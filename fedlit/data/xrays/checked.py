"""The result of the check of a folder of X-rays."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pandas as pd

from fedlit.data.labels import UNCERTAIN, harmonised_names
from fedlit.data.pictures.store import Thumbs
from fedlit.data.xrays.base import ChestXrays
from fedlit.data.xrays.pictures import Picture
from fedlit.data.xrays.reading import Reading

SHOWN = 5
"""Number of places that are listed for each problem; the others are counted."""

LEAK = (
    "a patient in two splits or at two sites leaks; RSNA Pneumonia and SIIM Pneumothorax images are NIH images. "
    "Remove one of each"
)


@dataclass(frozen=True)
class Problem:
    """A sentence about a mistake, and the places where it occurs; ``all_shown`` if each of them needs a hand."""

    text: str
    places: Sequence[str] = ()
    all_shown: bool = False


@dataclass
class Check:
    """The result of the check of a folder.

    Attributes:
        reader: The reader of the data set.
        decoded: True if the images were decoded, not only opened.
        reading: The content of the label files; None if they cannot be read.
        pictures: The image file of each image of the reading; None if a file is missing.
        thumbs: Thumbnails of the images, if they were decoded.
        problems: Mistakes.
        remarks: Facts that are not mistakes but good to know.
        images: Number of images by client and split, as ``fit`` divides them; None if it could not.
        positives: Number of positives of each class by client and split, NaN where no image is labelled for the class.
    """

    reader: ChestXrays
    decoded: bool = False
    reading: Reading | None = None
    pictures: list[Picture | None] = field(default_factory=list)
    thumbs: Thumbs | None = None
    problems: list[Problem] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    images: pd.DataFrame | None = None
    positives: pd.DataFrame | None = None

    @property
    def opened(self) -> list[Picture]:
        """The image files whose header could be read."""
        return [picture for picture in self.pictures if picture is not None and picture.format]

    def add_leak(self, problem: Problem) -> None:
        """Add copies of images as a problem, or as a remark if the arguments allow copies."""
        if self.reader.duplicates == "allow":
            self.remarks += ["; ".join([problem.text, *problem.places[:SHOWN]])]
        else:
            self.problems.append(problem)

    def groups(self) -> pd.DataFrame:
        """Return the numbers of images and patients by group and value, and by site; "" is an unknown group."""
        reading = self.reading
        sites = np.full(len(reading.names), self.reader.source) if reading.sites is None else reading.sites
        rows = pd.DataFrame({"site": sites, "patient": reading.patients})
        parts = {
            name: rows.groupby([pd.Series(values, name="value"), "site"])["patient"].agg(["size", "nunique"])
            for name, values in reading.groups.items()
        }
        counts = pd.concat(parts, names=["group"]).rename(columns={"size": "images", "nunique": "patients"})
        return counts.unstack("site", fill_value=0).swaplevel(axis=1)

    def labels(self) -> pd.DataFrame:
        """Return one row for each label of the source: numbers of images by value, and the prevalence.

        The column ``harmonised`` is the class of ``fedlit list labels`` that the label is, or is a part of, or "" if
        there is no such class. The column ``prevalence`` is the share of positives among all images.
        """
        names, values = _harmonised(self.reader.source), self.reading.labels
        masks = {"positives": values == 1, "negatives": values == 0, "uncertain": values == UNCERTAIN}
        counts = {name: mask.sum(axis=0) for name, mask in (masks | {"blank": np.isnan(values)}).items()}
        harmonised = [names.get(label, "") for label in self.reader.labels]
        prevalence = counts["positives"] / max(len(values), 1)
        columns = {"harmonised": harmonised, **counts, "prevalence": prevalence}
        return pd.DataFrame(columns, index=pd.Index(self.reader.labels, name="label"))


def _harmonised(source: str) -> dict[str, str]:
    """Return the harmonised name of each label of a source that has one."""
    names: dict[str, str] = {}
    for name, of in harmonised_names(source).items():
        names |= dict.fromkeys([of] if isinstance(of, str) else chain.from_iterable(of.values()), name)
    return names
