"""Images, labels and classes that all runs were tested on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations

import numpy as np
import pandas as pd

from fedlit.core.errors import ConfigError
from fedlit.predictions.table import Predictions
from fedlit.reports.compare.past_run import Notes

KEYS = (("images",), ("sites", "images"), ("clients", "sites", "images"))
"""Fields that may identify an image; the first ones that are unique in every run are used."""


@dataclass(frozen=True, eq=False)
class Shared:
    """The images and classes that all runs were tested on."""

    classes: tuple[str, ...]  # Names of the C classes.
    labels: np.ndarray  # `[N, C]` float32 in {0, 1, NaN}; NaN unless all runs know the label.
    patients: np.ndarray | None  # `[N]` str, or None if the patient of an image is unknown.
    scores: tuple[np.ndarray, ...]  # `[N, C]` for each run, or its rows only; 0 where the label is NaN.
    unlearned: np.ndarray  # `[C]` bool, True if some run had no positive training image of the class.
    notes: Notes  # What was left out.
    rows: tuple[slice, ...] = ()  # Rows of each run if draws of the data have their own test images; empty for all.
    overlap: float = 1.0  # Share of the test images that two draws have in common.
    clients: np.ndarray | None = None  # `[N]` str, the client that holds each image, "" if unknown; None likewise.

    def of_run(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return `[n, C]` scores and labels of a run, and the `[n]` units of its images."""
        rows = self.rows[number] if self.rows else slice(None)
        return self.scores[number], self.labels[rows], self.units[rows]

    def clients_of(self, number: int) -> np.ndarray:
        """Return `[n]`, the client that holds each image of a run, "" if unknown."""
        clients = np.full(len(self.labels), "") if self.clients is None else self.clients
        return clients[self.rows[number]] if self.rows else clients

    @property
    def units(self) -> np.ndarray:
        """Return `[N]`, the patient of each image, or the image's index if patients are unknown."""
        return np.arange(len(self.labels)) if self.patients is None else self.patients


def share(names: Sequence[str], predictions: Sequence[Predictions]) -> Shared:
    """Reduce the predictions of runs, named in messages, on one test set to what they share, in the same order.

    Raises:
        ConfigError: If the runs share no image or no class, or image ids repeat.
    """
    notes: Notes = []
    ids = image_ids(names, predictions)
    common = reduce(lambda one, other: one.intersection(other, sort=False), ids)
    if not len(common):
        raise ConfigError(_nothing_shared(names, ids))
    classes = _classes(names, predictions, notes)
    rows = [index.get_indexer(common) for index in ids]
    cells = [np.ix_(r, [p.classes.index(name) for name in classes]) for p, r in zip(predictions, rows, strict=True)]
    labels = np.stack([p.labels.numpy()[cell] for p, cell in zip(predictions, cells, strict=True)])
    scores = np.stack([p.scores.numpy()[cell] for p, cell in zip(predictions, cells, strict=True)])
    patients = np.stack([p.patients[r] for p, r in zip(predictions, rows, strict=True)])
    contradiction = np.nan_to_num(np.abs(labels - labels[0])).any(axis=(0, 2))
    same = ~contradiction & (patients == patients[0]).all(0)
    if not same.any():
        raise ConfigError(
            "all images that the runs share by id have other labels or patients in some runs: they are different "
            "images with the same names; compare runs on the same data"
        )
    for name, index in zip(names, ids, strict=True):
        if len(index) > len(common):
            notes.append(
                f"{len(index) - len(common):,} of the {len(index):,} test images of {name} are not in all runs."
            )
    if not same.all():
        notes.append(f"{(~same).sum():,} images are left out, as their labels or patients differ between runs.")
    labels, scores, persons = labels[:, same], scores[:, same], patients[0][same]
    known = ~np.isnan(labels)
    partly = known.any(0) & ~known.all(0)
    if partly.any():
        counts = ", ".join(f"{name} {n:,}" for name, n in zip(classes, partly.sum(0), strict=True) if n)
        notes.append(f"Some labels are left out, as only some runs know or score them: {counts}.")
    together = np.where(known.all(0), labels[0], np.nan).astype(np.float32)
    labelled = ~np.isnan(together).all(0)
    if not labelled.any():
        raise ConfigError(
            "the runs share no label: no image has a label and a score of the same class in all runs; compare others"
        )
    if not labelled.all():
        without = [name for name, has in zip(classes, labelled, strict=True) if not has]
        notes.append(f"{', '.join(without)}: left out, as no image is labelled and scored in all runs.")
    together = together[:, labelled]
    scores = tuple(np.where(np.isnan(together), 0, scores[:, :, labelled]))
    for name, values in zip(names, scores, strict=True):
        if not np.isfinite(values).all():
            raise ConfigError(f"{name}: expected finite scores, found NaN or inf; leave the run out")
    unknown = (persons == "").any()
    if unknown:
        notes.append(
            "Patients are unknown: images are counted instead and taken as independent, so intervals may be too narrow."
        )
    labelled_classes = tuple(name for name, has in zip(classes, labelled, strict=True) if has)
    unlearned = _unlearned(labelled_classes, names, predictions, notes)
    clients, known = predictions[0].clients[rows[0]][same], None if unknown else persons
    return Shared(labelled_classes, together, known, scores, unlearned, notes, clients=clients)


def share_by_draw(names: Sequence[str], predictions: Sequence[Predictions], draws: Sequence[object]) -> Shared:
    """Reduce the runs of each draw of the data to what they share; all runs together if their test sets are equal.

    The images of the draws are concatenated. A patient of two draws counts as two.

    Raises:
        ConfigError: If the runs of a draw have nothing to `share`, or the draws share no class.
    """
    members = {draw: [i for i, other in enumerate(draws) if other == draw] for draw in dict.fromkeys(draws)}
    tested = [tested_on(predictions[numbers[0]]) for numbers in members.values()]
    if len(tested) < 2 or all(each == tested[0] for each in tested):
        return share(names, predictions)
    parts = [share([names[i] for i in ns], [predictions[i] for i in ns]) for ns in members.values()]
    classes = [name for name in parts[0].classes if all(name in part.classes for part in parts)]
    if not classes:
        raise ConfigError(
            "the draws of the data share no class that is labelled and scored in all runs; compare runs of one draw"
        )
    columns = [[part.classes.index(name) for name in classes] for part in parts]
    known = all(part.patients is not None for part in parts)
    ends = np.cumsum([0, *(len(part.labels) for part in parts)]).tolist()
    scores, rows = {}, {}
    for number, (part, column, members_of) in enumerate(zip(parts, columns, members.values(), strict=True)):
        for i, values in zip(members_of, part.scores, strict=True):
            scores[i], rows[i] = values[:, column], slice(ends[number], ends[number + 1])
    notes = list(dict.fromkeys(note for part in parts for note in part.notes))
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
        overlap=overlap_of(tested),
        clients=np.concatenate([part.clients for part in parts]),
    )


def overlap_of(tested: Sequence[Mapping[str, tuple[str, bytes]]]) -> float:
    """Return the mean share of the test images that two draws have in common, given `tested_on` of each draw.

    It is 0 if images of the same name have other patients or labels, as synthetic data have in each draw.
    """
    pairs = list(combinations(tested, 2))
    if not all(one[key] == other[key] for one, other in pairs for key in one.keys() & other):
        return 0.0
    return float(np.mean([len(one.keys() & other) / min(len(one), len(other)) for one, other in pairs]))


def tested_on(predictions: Predictions) -> dict[str, tuple[str, bytes]]:
    """Return patient and labels by image."""
    labels = np.nan_to_num(predictions.labels.numpy(), nan=-1).astype(np.int8)
    return {
        name: (patient, row.tobytes())
        for name, patient, row in zip(predictions.images.tolist(), predictions.patients.tolist(), labels, strict=True)
    }


def _unlearned(
    classes: Sequence[str], names: Sequence[str], predictions: Sequence[Predictions], notes: Notes
) -> np.ndarray:
    """Return the classes without a positive training image in some run; runs without counts do not matter."""
    if silent := [name for name, p in zip(names, predictions, strict=True) if p.trained_positives is None]:
        notes.append(
            f"{', '.join(silent)}: the predictions lack the numbers of positive training images, so fedlit cannot see "
            "which classes had none; `fedlit test --output RUN/predictions` rewrites those of a run."
        )
    unlearned = np.zeros(len(classes), dtype=bool)
    for i, name in enumerate(classes):
        known = [(run, p) for run, p in zip(names, predictions, strict=True) if p.trained_positives is not None]
        without = [run for run, p in known if p.trained_positives[p.classes.index(name)] == 0]
        unlearned[i] = bool(without)
        if without:
            where = "any run" if len(without) == len(names) else ", ".join(without)
            notes.append(
                f"{name}: no client had a positive training image in {where}, so the class was not learned; its AUROC "
                "has no interval and no test, and it is not in the mean over classes."
            )
    return unlearned


def image_ids(names: Sequence[str], predictions: Sequence[Predictions]) -> list[pd.Index]:
    """Return an id of each image of each run, from the first fields of KEYS that are unique in every run.

    Raises:
        ConfigError: If no fields are unique.
    """
    for key in KEYS:
        columns = [[getattr(p, field).tolist() for field in key] for p in predictions]
        ids = [pd.Index(map("/".join, zip(*each, strict=True)), dtype=object) for each in columns]
        if all(index.is_unique for index in ids):
            return ids
    name, run = next((n, p) for n, p, joined in zip(names, predictions, ids, strict=True) if not joined.is_unique)
    twice = str(pd.Series(run.images).mode()[0])
    raise ConfigError(
        f"{name}: expected one name per test image, found {twice!r} twice, so images cannot be paired "
        "between runs; leave the run out"
    )


def _nothing_shared(names: Sequence[str], ids: Sequence[pd.Index]) -> str:
    hint = (
        "runs are compared on the same images; compare runs on the same data, leave some out, or choose another --set"
    )
    for (name, one), (other, theirs) in combinations(zip(names, ids, strict=True), 2):
        if not len(one.intersection(theirs)):
            if one[0].rpartition("/")[2].isdecimal() != theirs[0].rpartition("/")[2].isdecimal():
                hint = (
                    "a run across sites numbers its images, because names stay at the sites; compare such runs only "
                    "with each other"
                )
            images = f"one has {one[0]!r}, the other {theirs[0]!r}"
            return f"{name} and {other} share no image of the test set ({images}): {hint}"
    return f"no image of the test set is in all runs, although every two runs share some: {hint}"


def _classes(names: Sequence[str], predictions: Sequence[Predictions], notes: Notes) -> list[str]:
    """Return the classes that every run has labelled and scored, in the order of the first run."""
    of_runs = []
    for p in predictions:
        labelled = (~p.labels.isnan() & ~p.scores.isnan()).any(0).tolist()
        of_runs.append([name for name, has in zip(p.classes, labelled, strict=True) if has])
    every = list(dict.fromkeys(name for classes in of_runs for name in classes))
    shared = [name for name in every if all(name in classes for classes in of_runs)]
    if not shared:
        listed = [f"{run} has {', '.join(classes) or 'none'}" for run, classes in zip(names, of_runs, strict=True)]
        raise ConfigError(f"the runs share no class: {'; '.join(listed)}; names of classes must be equal")
    for name in every:
        if lacking := [run for run, classes in zip(names, of_runs, strict=True) if name not in classes]:
            notes.append(f"{name}: left out, as it is not labelled, or not learned, in {', '.join(lacking)}.")
    return shared
