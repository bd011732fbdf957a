"""Records of three hospitals, and their source as a user would write it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from fedlit.data.federated import FederatedDataModule
from fedlit.data.partition import Partition
from fedlit.data.pictures.images import ImageStore
from fedlit.data.records import Records

SCHEME = {"North": ("Effusion", "Mass"), "South": ("Mass", "Edema")}


def make_records(cache_dir, count: int = 240) -> Records:
    """240 images of 60 patients at three hospitals, of which North and South label two classes each."""
    rng = np.random.default_rng(0)
    patients = np.array([f"p{index % 60:02d}" for index in range(count)])
    return Records(
        store=ImageStore.from_array(rng.integers(0, 256, (count, 1, 8, 8), dtype=np.uint8), cache_dir),
        names=np.array([f"{index:04d}.png" for index in range(count)]),
        labels=(rng.random((count, 3)) < 0.3).astype(np.float32),
        classes=("Effusion", "Mass", "Edema"),
        patients=patients,
        sites=np.array(["North", "South", "West"])[np.char.str_len(patients) % 3 + np.arange(count) % 60 % 3],
        site_classes=SCHEME,
        table=pd.DataFrame({"View": rng.choice(["PA", "AP"], count)}),
    )


def changed(field: str, rows: Any, value: Any) -> Callable[[Records], Records]:
    """Return a function that sets some rows of a field."""

    def change(records: Records) -> Records:
        column = getattr(records, field).copy()
        column[rows] = value
        return replace(records, **{field: column})

    return change


class Source(FederatedDataModule):
    """A user's source: only records(). `change` alters the records for a test.

    Args:
        where: A folder for the cache.
    """

    def __init__(self, where: str, partition: Partition, change=None, **kwargs):
        super().__init__(partition, image_size=8, cache_dir=where, **kwargs)
        self.change, self.reads = change, 0

    def records(self) -> Records:
        self.reads += 1
        records = make_records(self.cache_dir)
        return self.change(records) if self.change else records


def ready(data: FederatedDataModule) -> FederatedDataModule:
    data.prepare_data()
    data.setup()
    return data
