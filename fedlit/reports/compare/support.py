"""Evidence for each class: positive and negative images and patients, and the classes with enough of them."""

from dataclasses import dataclass

import numpy as np

from fedlit.core.errors import ConfigError
from fedlit.metrics.intervals import MIN_PATIENTS
from fedlit.metrics.support import few, independent
from fedlit.reports.compare.alignment import Shared
from fedlit.reports.compare.past_run import Notes

MINUS = "\u2212"


@dataclass(frozen=True, eq=False)
class Support:
    """Positives and negatives of every class, and which classes have intervals and tests."""

    n_pos: np.ndarray  # `[C]` images labelled positive.
    n_neg: np.ndarray  # `[C]` images labelled negative.
    patients_pos: np.ndarray | None  # `[C]` patients with a positive image; None if patients are unknown.
    patients_neg: np.ndarray | None  # `[C]` patients with a negative image; None if patients are unknown.
    judged: np.ndarray  # `[C]` bool, the classes with intervals and tests.
    averaged: np.ndarray  # `[C]` bool, the classes in the mean over classes.
    notes: Notes  # Classes without intervals and tests, and the reason.

    @classmethod
    def of(cls, shared: Shared) -> "Support":
        """Count the images and patients that all runs share.

        Raises:
            ConfigError: If there are fewer than two patients.
        """
        patients = shared.units
        if len(np.unique(patients)) < 2:
            raise ConfigError(
                "the runs share test images of a single patient, expected at least two; compare runs on more images"
            )
        images = [(shared.labels == value).sum(0) for value in (1, 0)]
        units = independent(shared.labels, patients)
        fewest, learned = np.minimum(*units), ~shared.unlearned
        judged = (fewest >= MIN_PATIENTS) & learned
        # If no class can be judged, the mean has no interval. Classes that were not learned are never in it.
        averaged = judged if judged.any() else (fewest > 0) & learned
        notes = _few(shared, *units, learned & (fewest > 0) & ~judged, bool(judged.any()))
        known = units if shared.patients is not None else (None, None)
        return cls(*images, *known, judged, averaged, notes)

    @property
    def independent(self) -> tuple[np.ndarray, np.ndarray]:
        """Return two `[C]`: the independent positives and negatives, as patients, or images if patients are unknown."""
        unknown = self.patients_pos is None or self.patients_neg is None
        return (self.n_pos, self.n_neg) if unknown else (self.patients_pos, self.patients_neg)

    @property
    def rarer(self) -> np.ndarray:
        """Return `[C]`, the images of the side, positive or negative, with fewer independent ones."""
        positives, negatives = self.independent
        return np.where(positives <= negatives, self.n_pos, self.n_neg)

    @property
    def macro_name(self) -> str:
        """Return ``macro``, or the number of classes in the mean if some are left out."""
        count, total = int(self.averaged.sum()), len(self.averaged)
        return "macro" if count == total else f"mean of {count} of {total} classes"

    @property
    def unit(self) -> str:
        """Return the unit of the counts in `text`."""
        return "images" if self.patients_pos is None else "images (patients)"

    def text(self, column: int) -> str:
        """Return the positives and negatives of a class, such as ``77+ (40) / 223− (120)``; patients in parentheses."""
        return f"{self.positives(column, '+')} / {self.negatives(column, MINUS)}"

    def positives(self, column: int, sign: str = "") -> str:
        """Return the positive images of a class, such as ``77 (40)``."""
        return _counted(self.n_pos, self.patients_pos, column, sign)

    def negatives(self, column: int, sign: str = "") -> str:
        """Return the negative images of a class, such as ``223 (120)``."""
        return _counted(self.n_neg, self.patients_neg, column, sign)

    def rows(self) -> list[tuple[int | bool | None, ...]]:
        """Return for each class the counts of images and patients, and whether it is in the mean over classes."""
        nothing = np.full(len(self.n_pos), None)
        counts = (self.n_pos, self.n_neg, self.patients_pos, self.patients_neg, self.averaged)
        columns = [(nothing if column is None else column).tolist() for column in counts]
        return list(zip(*columns, strict=True))


def _counted(images: np.ndarray, patients: np.ndarray | None, column: int, sign: str) -> str:
    return f"{images[column]:,}{sign}" + ("" if patients is None else f" ({patients[column]:,})")


def _few(shared: Shared, positive: np.ndarray, negative: np.ndarray, rare: np.ndarray, others: bool) -> Notes:
    """Note the classes with too few patients for an interval or a test."""
    if not rare.any():
        return []
    counts = zip(shared.classes, positive.tolist(), negative.tolist(), rare.tolist(), strict=True)
    named = few(MIN_PATIENTS, "images" if shared.patients is None else "patients", [c[:3] for c in counts if c[3]])
    mean = "these classes are not in the mean over classes" if others else "neither has the mean over classes"
    return [f"{named}. Intervals and tests of so few are wrong too often, so these AUROCs have none, and {mean}."]
