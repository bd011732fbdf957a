"""Records of three hospitals, as a user's source would return them."""

import numpy as np
import pandas as pd

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
