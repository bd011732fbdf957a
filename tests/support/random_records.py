"""Records of random patients, without pixels."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from fedlit.data.records import Records
from fedlit.data.splits import split_by_patient

FRACTIONS = (0.7, 0.1, 0.2)
seeds = st.integers(0, 2**31)


class NoPixels:
    """A store of images without pixels."""

    def __init__(self, images: int) -> None:
        self.shape, self.path = (images, 1, 0, 0), Path("no-pixels")

    def __len__(self) -> int:
        return self.shape[0]


def random_records(seed: int, patients: int, sites: int = 1, largest: int = 6) -> Records:
    """Random patients with 1 to `largest` images each, without pixels, which partitions do not read."""
    rng = np.random.default_rng(seed)
    images = rng.integers(1, largest + 1, patients)
    patient = np.repeat([f"p{index}" for index in range(patients)], images)
    home = np.repeat([f"hospital {index}" for index in rng.integers(0, sites, patients)], images)
    total = int(images.sum())
    return Records(
        store=NoPixels(total),
        names=np.array([f"{index:06d}.png" for index in range(total)]),
        labels=(rng.random((total, 3)) < [0.4, 0.15, 0.05]).astype(np.float32),
        classes=("Effusion", "Mass", "Hernia"),
        patients=patient,
        sites=home,
        table=pd.DataFrame({"View": rng.choice(["PA", "AP"], total), "Age": rng.integers(1, 90, total)}),
    )


def divided(records: Records, seed: int) -> Records:
    """The records, divided by patient into training, validation and test."""
    return replace(records, splits=split_by_patient(records, FRACTIONS, seed))


def values_per(key: np.ndarray, value: np.ndarray) -> pd.Series:
    return pd.DataFrame({"key": key, "value": value}).groupby("key")["value"].nunique()
