"""Every two options meet in some run: each is refused before training, or gives one result however it is run.

One process, two processes, a run in two halves and two sites have to end with the same weights.
"""

import itertools
import random
from pathlib import Path

import pytest
import torch
from runs import Kept

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

BASE = """
figures: false
data:
  class_path: PhantomCXR
  init_args: {hospitals: 3, images: 60, image_size: 16, batch_size: 8, cache_dir: cache}
model:
  class_path: ImageClassifier
  init_args: {backbone: small_cnn, optimizer: {class_path: SGD, init_args: {lr: 0.05}}}
federation:
  rounds: 2
  workers: 1
  schedule: {class_path: ConstantSchedule, init_args: {window: 2, unit: steps}}
"""
WARM_UP = "phases: [{name: warm-up, rounds: 1, trainable: head, keep: all}]\n"

AXES: dict[str, dict[str, str]] = {
    "algorithm": {
        name: f"--federation.aggregators='[{name}]'"
        for name in (
            "CODA", "LocalSGDAM", "PersonalHeads", "TrimmedMean", "Scaffold,SurgicalHeads,FedBNPlus",
        )
    },
    "objective": {name: f"--model.objective {name}" for name in ("BCE", "AUCSaddle")},
    "labels": {"all": "", "hidden": "--data.scheme HideClasses --data.scheme.shared 4"},
    "phases": {"one": "", "warm-up": "--config warm_up.yaml"},
    "participation": {"all": "", "two of three": "--federation.participation 0.67"},
    "optimizer": {"reset": "", "kept": "--federation.optimizer_state keep"},
    "another": {
        "two processes": "--federation.workers 2",
        "two halves": "--federation.rounds 1",
        "two sites": "--sites loopback:2",
    },
}  # fmt: skip


def pairs(axes: dict[str, dict[str, str]]) -> list[dict[str, str]]:
    """Rows in which every two values of different axes meet, greedily; the same in every process."""
    drawn, names = random.Random(0), list(axes)
    left = {
        ((one, a), (other, b))
        for one, other in itertools.combinations(names, 2)
        for a in axes[one]
        for b in axes[other]
    }
    rows = []

    def met(row: dict[str, str]) -> set:
        return {pair for pair in itertools.combinations(row.items(), 2) if pair in left}

    while left:
        tried = [{name: drawn.choice(list(values)) for name, values in axes.items()} for _ in range(200)]
        first = dict(min(left))
        tried += [row | first for row in tried[:50]]
        best = max(tried, key=lambda row: len(met(row)))
        left -= met(best)
        rows.append(best)
    return rows


ROWS = pairs(AXES)


@pytest.mark.parametrize("row", ROWS, ids=[",".join(row.values()).replace(" ", "-") for row in ROWS])
def test_it_is_refused_or_gives_one_result(row: dict[str, str], fedlit_cli, folder: Path):
    Path("base.yaml").write_text(BASE)
    Path("warm_up.yaml").write_text(WARM_UP)
    words = " ".join(AXES[axis][value] for axis, value in row.items() if axis != "another")
    line, other = f"fit --config base.yaml {words} --logger false", AXES["another"][row["another"]]
    code, _, err = fedlit_cli(f"{line} --name one")
    if code:
        assert "fedlit: error: " in err, err
        assert not Path(
            "runs/default/one/metrics.csv"
        ).exists()  # a mean over too few clients is known in the first round
    again, _, said = fedlit_cli(f"{line} {other} --name other")
    assert bool(again) == bool(code) or "sites" in said, said
    if row["another"] == "two halves" and not code:
        again, _, said = fedlit_cli(f"{line} --name other --ckpt_path runs/default/other")
        assert again == 0, said
    if not code and not again:
        one, two = (Kept(Path("runs/default") / name).tensors() for name in ("one", "other"))
        if row["another"] == "two sites":  # which keep the states of their clients
            one = {name: tensor for name, tensor in one.items() if name.startswith("server/")}
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6 if row["another"] == "two sites" else 0)
