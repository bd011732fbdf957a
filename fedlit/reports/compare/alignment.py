"""What all runs were tested on: the same images, the same labels, the same classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from fedlit.core.errors import ConfigError
from fedlit.predictions.table import Predictions
from fedlit.reports.compare.past_run import Notes

KEYS = (("images",), ("sites", "images"), ("clients", "sites", "images"))
"""What says which image a row is about, the first that no run repeats."""


@dataclass(frozen=True, eq=False)
class Shared:
    """The images and classes that all runs were tested on."""

    classes: tuple[str, ...]  # Names of the C classes.
    labels: np.ndarray  # `[N, C]` float32 in {0, 1, NaN}; NaN unless all runs know the label.
    patients: np.ndarray | None  # `[N]` str, or None where the patient of an image is unknown.
    scores: tuple[np.ndarray, ...]  # `[N, C]` of each run, or of its rows; 0 where the label is NaN.
    unlearned: np.ndarray  # `[C]` bool, whether a run had no positive image of the class to train on.
    notes: Notes  # What was left out.
    rows: tuple[slice, ...] = ()  # Rows of each run, where each draw of the data has its own test images; else all.
    overlap: float = 0.0  # Share of the test images that two draws have in common.

    def of_run(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return `[n, C]` scores and labels of a run, and `[n]` whom they are of."""
        rows = self.rows[number] if self.rows else slice(None)
        return self.scores[number], self.labels[rows], self.units[rows]

    @property
    def units(self) -> np.ndarray:
        """`[N]`, what is drawn and counted: the patient of each image, or each image where patients are unknown."""
        return np.arange(len(self.labels)) if self.patients is None else self.patients

    @property
    def clustered(self) -> bool:
        """Whether a patient has several images, so that images are not independent."""
        return self.patients is not None and len(set(self.patients.tolist())) < len(self.patients)


def share(names: Sequence[str], predictions: Sequence[Predictions]) -> Shared:
    """Bring the predictions of runs, of one test set, to what they share, in one order; names are for messages.

    Raises:
        ConfigError: If they share no image or no class, or image ids repeat.
    """
    notes: Notes = []
    ids = _ids(names, predictions)
    common = ids[0]
    for index in ids[1:]:
        common = common.intersection(index, sort=False)
    if not len(common):
        raise ConfigError(_nothing_shared(names, ids))
    rows = [index.get_indexer(common) for index in ids]
    classes = _classes(names, predictions, notes)
    columns = [[p.classes.index(name) for name in classes] for p in predictions]
    labels = [p.labels.numpy()[r][:, c] for p, r, c in zip(predictions, rows, columns, strict=True)]
    patients = [p.patients[r] for p, r in zip(predictions, rows, strict=True)]
    same = np.ones(len(common), dtype=bool)
    for values, persons in zip(labels[1:], patients[1:], strict=True):
        contradiction = np.nan_to_num(np.abs(values - labels[0])).any(1)
        same &= ~contradiction & (persons == patients[0])
    if not same.any():
        raise ConfigError(
            "all images that the runs share by id have other labels or patients in some of them: these are different "
            "images with the same names. Compare runs on the same data"
        )
    for name, index in zip(names, ids, strict=True):
        if len(index) > len(common):
            notes.append(f"{len(index) - len(common):,} of the {len(index):,} test images of {name}: not in all runs.")
    if not same.all():
        notes.append(f"{(~same).sum():,} images whose labels or patient differ between runs.")
    known = ~np.isnan(np.stack([values[same] for values in labels]))
    partly = known.any(0) & ~known.all(0)
    if partly.any():
        counts = ", ".join(f"{name} {n:,}" for name, n in zip(classes, partly.sum(0), strict=True) if n)
        notes.append(f"labels that only some runs know or score: {counts}.")
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
        for p, r, c in zip(predictions, rows, columns, strict=True)
    )
    for name, values in zip(names, scores, strict=True):
        if not np.isfinite(values).all():
            raise ConfigError(f"{name}: expected finite scores, found some that are not; leave the run out")
    persons = patients[0][same]
    unknown = (persons == "").any()
    if unknown:
        notes.append(
            "patients are unknown: images count as independent and are counted in their place, so intervals may be too "
            "narrow."
        )
    labelled_classes = tuple(name for name, has in zip(classes, labelled, strict=True) if has)
    unlearned = _unlearned(labelled_classes, names, predictions, notes)
    return Shared(labelled_classes, together, None if unknown else persons, scores, unlearned, notes)


def share_by_draw(names: Sequence[str], predictions: Sequence[Predictions], draws: Sequence[object]) -> Shared:
    """Bring runs to what they share, those of each draw of the data among themselves, unless all were tested on the same.

    The images of the draws stand one behind the other, and a patient of two draws counts as two.

    Raises:
        ConfigError: As `share`, of a draw; or the draws share no class.
    """
    members = {draw: [i for i, other in enumerate(draws) if other == draw] for draw in dict.fromkeys(draws)}
    tested = [_tested_on(predictions[numbers[0]]) for numbers in members.values()]
    if len(tested) < 2 or all(each == tested[0] for each in tested):
        return share(names, predictions)
    parts = [share([names[i] for i in ns], [predictions[i] for i in ns]) for ns in members.values()]
    classes = [name for name in parts[0].classes if all(name in part.classes for part in parts)]
    if not classes:
        raise ConfigError("the draws of the data share no class that is labelled and scored in all runs")
    columns = [[part.classes.index(name) for name in classes] for part in parts]
    known = all(part.patients is not None for part in parts)
    ends = np.cumsum([0, *(len(part.labels) for part in parts)]).tolist()
    scores, rows = {}, {}
    for number, (part, column, members_of) in enumerate(zip(parts, columns, members.values(), strict=True)):
        for i, values in zip(members_of, part.scores, strict=True):
            scores[i], rows[i] = values[:, column], slice(ends[number], ends[number + 1])
    notes = list(dict.fromkeys(note for part in parts for note in part.notes))
    common = [len(one.items() & other.items()) / min(len(one), len(other)) for one, other in combinations(tested, 2)]
    same = [all(one[key] == other[key] for key in one.keys() & other) for one, other in combinations(tested, 2)]
    return Shared(
        classes=tuple(classes),
        labels=np.concatenate([part.labels[:, column] for part, column in zip(parts, columns, strict=True)]),
        patients=np.concatenate([np.char.add(f"{n}/", part.patients) for n, part in enumerate(parts)])
        if known
        else None,
        scores=tuple(scores[i] for i in range(len(draws))),
        unlearned=np.any([part.unlearned[column] for part, column in zip(parts, columns, strict=True)], axis=0),
        notes=notes,
        rows=tuple(rows[i] for i in range(len(draws))),
        overlap=float(np.mean(common)) if all(same) else 0.0,
    )


def _tested_on(found: Predictions) -> dict[str, tuple[str, bytes]]:
    """Return patient and labels by image; what is drawn anew has the same names for other images."""
    labels = np.nan_to_num(found.labels.numpy(), nan=-1).astype(np.int8)
    return {
        name: (patient, row.tobytes())
        for name, patient, row in zip(found.images.tolist(), found.patients.tolist(), labels, strict=True)
    }


def _unlearned(
    classes: Sequence[str], names: Sequence[str], predictions: Sequence[Predictions], notes: Notes
) -> np.ndarray:
    """Return which classes a run had no positive image of to train on; a run that does not tell is taken to have had."""
    if silent := [name for name, p in zip(names, predictions, strict=True) if p.trained_positives is None]:
        notes.append(
            f"{', '.join(silent)}: the predictions do not tell how many positive images were trained on, so a class "
            "without any is not recognised there; `fedlit test --output RUN/predictions` writes them anew."
        )
    unlearned = np.zeros(len(classes), dtype=bool)
    for i, name in enumerate(classes):
        known = [(run, p) for run, p in zip(names, predictions, strict=True) if p.trained_positives is not None]
        without = [run for run, p in known if p.trained_positives[p.classes.index(name)] == 0]
        unlearned[i] = bool(without)
        if without:
            where = "any run" if len(without) == len(names) else ", ".join(without)
            notes.append(
                f"{name}: no client had a positive image to train on in {where}, so nothing was learned of it; its AUROC "
                "has no interval and no test, and it is not in the mean over classes."
            )
    return unlearned


def _ids(names: Sequence[str], predictions: Sequence[Predictions]) -> list[pd.Index]:
    for key in KEYS:
        ids = [_joined([getattr(p, field) for field in key]) for p in predictions]
        if all(index.is_unique for index in ids):
            return ids
    name, run = next((n, p) for n, p, joined in zip(names, predictions, ids, strict=True) if not joined.is_unique)
    raise ConfigError(
        f"{name}: expected a name for each test image, found {_repeated(run.images)!r} twice: images cannot be paired "
        "with those of other runs"
    )


def _nothing_shared(names: Sequence[str], ids: Sequence[pd.Index]) -> str:
    hint = "runs are compared on the same images: leave some out, compare runs on the same data, or another --set"
    for (name, one), (other, theirs) in combinations(zip(names, ids, strict=True), 2):
        if not len(one.intersection(theirs)):
            if one[0].rpartition("/")[2].isdecimal() != theirs[0].rpartition("/")[2].isdecimal():
                hint = "images of a run across sites are numbered, as their names stay there: compare such runs with each other"
            return f"{name} and {other} share no image of the test set (one has {one[0]!r}, the other {theirs[0]!r}): {hint}"
    return f"no image of the test set is in all runs, though every two of them share some: {hint}"


def _repeated(values: np.ndarray) -> str:
    distinct, counts = np.unique(values, return_counts=True)
    return str(distinct[counts.argmax()])


def _joined(parts: Sequence[np.ndarray]) -> pd.Index:
    joined = parts[0]
    for part in parts[1:]:
        joined = np.char.add(np.char.add(joined, "/"), part)
    return pd.Index(joined.astype(object))


def _classes(names: Sequence[str], predictions: Sequence[Predictions], notes: Notes) -> list[str]:
    """Return classes of which every run has a labelled and scored image, in the order of the first run."""
    of_runs = []
    for p in predictions:
        there = (~p.labels.isnan() & ~p.scores.isnan()).any(0).tolist()
        of_runs.append([name for name, has in zip(p.classes, there, strict=True) if has])
    every = list(dict.fromkeys(name for classes in of_runs for name in classes))
    shared = [name for name in every if all(name in classes for classes in of_runs)]
    if not shared:
        listed = [f"{run} has {', '.join(classes) or 'none'}" for run, classes in zip(names, of_runs, strict=True)]
        raise ConfigError(f"the runs share no class (names must be equal): {'; '.join(listed)}")
    for name in every:
        if lacking := [run for run, classes in zip(names, of_runs, strict=True) if name not in classes]:
            notes.append(f"{name}: not labelled, or not learned, in {', '.join(lacking)}.")
    return shared
