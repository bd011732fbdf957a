"""What all runs were tested on: the same images, the same labels, the same classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from fedlit.errors import ConfigError
from fedlit.predictions import Predictions
from fedlit.reports.compare.runs import Notes

KEYS = (("images",), ("sites", "images"), ("clients", "sites", "images"))
"""What says which image a row is about, the first that no run repeats."""


@dataclass(frozen=True, eq=False)
class Shared:
    """The images and classes that all runs were tested on.

    Attributes:
        classes: names of the C classes.
        labels: [N, C] float32 in {0, 1, NaN}; NaN unless all runs know the label.
        patients: [N] str, or None where the patient of an image is unknown.
        scores: [N, C] of each run; 0 where the label is NaN.
        notes: what was left out.
    """

    classes: tuple[str, ...]
    labels: np.ndarray
    patients: np.ndarray | None
    scores: tuple[np.ndarray, ...]
    notes: Notes

    @property
    def clustered(self) -> bool:
        """Whether a patient has several images, so that images are not independent."""
        return self.patients is not None and len(set(self.patients.tolist())) < len(self.patients)


def share(names: Sequence[str], found: Sequence[Predictions]) -> Shared:
    """Bring the predictions of runs to what they share, in one order.

    Args:
        names: of the runs, for messages.
        found: their predictions of one test set.

    Raises:
        ConfigError: they share no image or no class, or image ids repeat.
    """
    notes: Notes = []
    ids = _ids(names, found)
    common = ids[0]
    for own in ids[1:]:
        common = common.intersection(own, sort=False)
    if not len(common):
        raise ConfigError(_nothing_shared(names, ids))
    rows = [own.get_indexer(common) for own in ids]
    classes = _classes(names, found, notes)
    columns = [[p.classes.index(name) for name in classes] for p in found]
    labels = [p.labels.numpy()[r][:, c] for p, r, c in zip(found, rows, columns, strict=True)]
    patients = [p.patients[r] for p, r in zip(found, rows, strict=True)]

    same = np.ones(len(common), dtype=bool)
    for values, whose in zip(labels[1:], patients[1:], strict=True):
        contradiction = np.nan_to_num(np.abs(values - labels[0])).any(1)
        same &= ~contradiction & (whose == patients[0])
    if not same.any():
        raise ConfigError(
            "all images that the runs share by id have other labels or patients in some of them: these are different "
            "images with the same names. Compare runs on the same data"
        )
    for name, own in zip(names, ids, strict=True):
        if len(own) > len(common):
            notes.append(f"{len(own) - len(common):,} of the {len(own):,} test images of {name}: not in all runs.")
    if not same.all():
        notes.append(f"{(~same).sum():,} images whose labels or patient differ between runs.")
    known = ~np.isnan(np.stack([values[same] for values in labels]))
    partly = known.any(0) & ~known.all(0)
    if partly.any():
        told = ", ".join(f"{name} {n:,}" for name, n in zip(classes, partly.sum(0), strict=True) if n)
        notes.append(f"labels that only some runs know or score: {told}.")
    together = np.where(known.all(0), labels[0][same], np.nan).astype(np.float32)
    labelled = ~np.isnan(together).all(0)
    if not labelled.any():
        raise ConfigError("the runs share no label: no image has a label and a score of one class in all of them")
    if not labelled.all():
        without = [name for name, has in zip(classes, labelled, strict=True) if not has]
        notes.append(f"{', '.join(without)}: no image that is labelled and scored in all runs.")
    together = together[:, labelled]
    scores = tuple(
        np.where(np.isnan(together), 0, p.scores.numpy()[r][:, c][same][:, labelled])
        for p, r, c in zip(found, rows, columns, strict=True)
    )
    for name, values in zip(names, scores, strict=True):
        if not np.isfinite(values).all():
            raise ConfigError(f"{name}: expected finite scores, found some that are not; leave the run out")
    whose = patients[0][same]
    unknown = (whose == "").any()
    if unknown:
        notes.append("patients are unknown: images count as independent, so intervals may be too narrow.")
    kept = tuple(name for name, has in zip(classes, labelled, strict=True) if has)
    return Shared(kept, together, None if unknown else whose, scores, notes)


def _ids(names: Sequence[str], found: Sequence[Predictions]) -> list[pd.Index]:
    for key in KEYS:
        ids = [_joined([getattr(p, field) for field in key]) for p in found]
        if all(own.is_unique for own in ids):
            return ids
    name, own = next((n, p) for n, p, joined in zip(names, found, ids, strict=True) if not joined.is_unique)
    raise ConfigError(
        f"{name}: expected a name for each test image, found {_repeated(own.images)!r} twice: images cannot be paired "
        "with those of other runs"
    )


def _nothing_shared(names: Sequence[str], ids: Sequence[pd.Index]) -> str:
    hint = "runs are compared on the same images: leave some out, compare runs on the same data, or another --set"
    for (name, own), (other, theirs) in combinations(zip(names, ids, strict=True), 2):
        if not len(own.intersection(theirs)):
            return f"{name} and {other} share no image of the test set (one has {own[0]!r}, the other {theirs[0]!r}): {hint}"
    return f"no image of the test set is in all runs, though every two of them share some: {hint}"


def _repeated(values: np.ndarray) -> str:
    found, counts = np.unique(values, return_counts=True)
    return str(found[counts.argmax()])


def _joined(parts: Sequence[np.ndarray]) -> pd.Index:
    joined = parts[0]
    for part in parts[1:]:
        joined = np.char.add(np.char.add(joined, "/"), part)
    return pd.Index(joined.astype(object))


def _classes(names: Sequence[str], found: Sequence[Predictions], notes: Notes) -> list[str]:
    """Classes of which every run has a labelled and scored image, in the order of the first run."""
    known = []
    for p in found:
        there = (~p.labels.isnan() & ~p.scores.isnan()).any(0).tolist()
        known.append([name for name, has in zip(p.classes, there, strict=True) if has])
    every = list(dict.fromkeys(name for own in known for name in own))
    shared = [name for name in every if all(name in own for own in known)]
    if not shared:
        told = "; ".join(f"{name} has {', '.join(own) or 'none'}" for name, own in zip(names, known, strict=True))
        raise ConfigError(f"the runs share no class (names must be equal): {told}")
    for name in every:
        if lacking := [run for run, own in zip(names, known, strict=True) if name not in own]:
            notes.append(f"{name}: not labelled, or not learned, in {', '.join(lacking)}.")
    return shared
