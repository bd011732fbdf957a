"""Intervals of `fedlit audit` for a model that never saw the patients, and its time for 112,120 images.

The images are of 30,805 patients, with 14 classes and groups by sex, age and view, as in NIH ChestX-ray14.
"""

import time

import numpy as np
import pandas as pd

from fedlit.metrics.levels import DRAWS, LEVEL
from fedlit.metrics.membership import membership
from fedlit.reports.audit import audited

CHANCE = {"auroc": 0.5, "tpr_at_1pct_fpr": 0.01, "tpr_at_0.1pct_fpr": 0.001, "advantage": 0.0}
SIMULATIONS = 400


def coverage(members: int, others: int) -> dict[str, float]:
    """Return the share of simulations in which the interval of each measure contains chance; NaN if it is undefined."""
    contained = {name: [] for name in CHANCE}
    for seed in range(SIMULATIONS):
        loss = np.random.default_rng(seed).exponential(size=members + others)
        found = membership(loss, np.arange(len(loss)) < members, draws=500)
        for name, value in CHANCE.items():
            if np.isfinite(found[name].value):
                contained[name].append(found[name].low <= value <= found[name].high)
    return {name: float(np.mean(each)) if each else np.nan for name, each in contained.items()}


def images(count: int = 112_120, patients: int = 30_805) -> pd.DataFrame:
    """Return losses that say nothing, of images of several patients each."""
    rng = np.random.default_rng(0)
    patient = rng.integers(patients, size=count)
    rows = {"loss": rng.exponential(size=count), "member": (patient % 10 < 7), "drawn": True, "site": "", "client": "a"}
    rows |= {"patient": patient.astype(str)}
    for kind, values in (("sex", "FM"), ("age", "0123"), ("view", "PA")):
        rows[f"group/{kind}"] = np.array(list(values))[patient % len(values)]
    shares = np.geomspace(0.18, 0.002, 14)
    return pd.DataFrame(rows | {f"positive/{i}": rng.random(count) < share for i, share in enumerate(shares)})


if __name__ == "__main__":
    print("training, others:", *CHANCE)
    for members, others in ((20, 10), (60, 40), (140, 60), (600, 250)):
        found = coverage(members, others)
        print(
            f"{members:,}, {others:,}:", *(f"{100 * share:.1f}%" if share == share else "-" for share in found.values())
        )
    table = images()
    began, cpu = time.perf_counter(), time.process_time()
    audit = audited(table, None, LEVEL, DRAWS)
    print(f"{len(table):,} images, {len(audit.rows)} sets of patients: {time.perf_counter() - began:.1f} s, ")
    print(f"{time.process_time() - cpu:.1f} s of processor time")
