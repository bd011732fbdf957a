"""The split of patients into training, validation and test."""

import numpy as np
import pandas as pd

from fedlit.core.errors import DataError
from fedlit.core.seeds import numpy_generator
from fedlit.data.records import SPLITS, Records


def split_by_patient(records: Records, fractions: tuple[float, float, float], seed: int) -> np.ndarray:
    """Return the split of each record, [N] "train", "val" or "test", such that no patient is in two splits.

    Official splits are kept. The official split "train_val" is divided by patient in the ratio of the first two
    fractions. Records without official splits are divided by all three. Each site is divided on its own, so that every
    hospital has its share of each split.

    Raises:
        DataError: An official split has another name, or a patient is in two official splits.
    """
    if records.splits is None:
        return _divide(records, np.arange(len(records.names)), SPLITS, fractions, seed)
    splits = np.asarray(records.splits).astype(str)
    unknown = ~np.isin(splits, ("train", "val", "test", "train_val"))
    if unknown.any():
        row = int(np.flatnonzero(unknown)[0])
        raise DataError(
            f"official split of image {str(records.names[row])!r}: expected train, val, test or train_val, "
            f"found {str(splits[row])!r} ({int(unknown.sum())} such images)"
        )
    shared = shared_patients(records.patients, splits)
    if shared:
        first = "; ".join([*shared[:3], *["..."] * (len(shared) > 3)])
        raise DataError(
            f"{len(shared)} patients are in more than one official split: {first}. Keep each patient in one split, or "
            "remove the official splits."
        )
    both = np.flatnonzero(splits == "train_val")
    if len(both):
        splits = splits.astype("<U9")
        splits[both] = _divide(records, both, ("train", "val"), fractions[:2], seed)
    return splits


def _divide(
    records: Records, rows: np.ndarray, names: tuple[str, ...], fractions: tuple[float, ...], seed: int
) -> np.ndarray:
    rng = numpy_generator(seed, "split")
    patients, of_row, images = np.unique(np.asarray(records.patients)[rows], return_inverse=True, return_counts=True)
    sites, site_of_row = np.unique(np.asarray(records.sites)[rows], return_inverse=True)
    home = np.full(len(patients), len(sites))
    np.minimum.at(home, of_row, site_of_row)
    edges = np.cumsum(np.asarray(fractions) / np.sum(fractions))[:-1]
    part = np.empty(len(patients), dtype=np.int64)
    for site in range(len(sites)):
        members = rng.permutation(np.flatnonzero(home == site))
        ends = np.cumsum(images[members])
        if len(members):
            # A patient is in the split of the middle of its images, so edges are off by at most half a patient.
            middles = (ends - images[members] / 2) / ends[-1]
            part[members] = np.searchsorted(edges, middles, side="right")
    return np.array(names)[part[of_row]]


def shared_patients(patients: np.ndarray, splits: np.ndarray) -> list[str]:
    """Return a text for each patient in several splits, with the number of images in each."""
    pairs = pd.DataFrame({"patient": patients, "split": splits}).value_counts().sort_index().reset_index(name="images")
    return [
        f"patient {patient!r} in " + " and ".join(f"{row.split} ({row.images} images)" for row in rows.itertuples())
        for patient, rows in pairs[pairs.duplicated("patient", keep=False)].groupby("patient")
    ]
