"""Measure how often `fedlit evaluate --by scanner` claims a planted gap between groups, and gaps that do not exist.

    python tests/benchmarks/planted.py
    python tests/benchmarks/planted.py --contrasts 0.25 0.5 1 --draws 100

PhantomCXR shows one finding with less contrast at scanner B, in training and in test images; at a contrast of 1, the
scanners of the test images do not differ. Three models, which differ in their seed, are trained once by `fedlit.fit`.
They score each draw of test images, of other patients, and the code of `fedlit evaluate` compares the groups, for one
model and for all three. The true gaps are those of the same models on many more images.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch

import fedlit
from fedlit.core.examples import fetch
from fedlit.models import ImageClassifier
from fedlit.reports.compare.methods import Method
from fedlit.reports.compare.past_run import PastRun
from fedlit.reports.evaluation.evaluation import EvaluationOptions, evaluate_images
from fedlit.reports.evaluation.images import Images
from fedlit.schedules import ConstantSchedule

sys.path.append(str(Path(__file__).parents[1] / "support"))
from two_scanners import TwoScanners

FINDING, TRAINED, NEW = "Edema", 1_000_000, 2_000_000  # seeds of training images and of those for the true gaps


def data(folder: Path, seed: int, contrast: float, images: int, split: tuple, **options) -> TwoScanners:
    """Return images of two hospitals of the same image style."""
    sizes = {"images": images, "image_size": 32, "split": split, "batch_size": 16, "cache_dir": str(folder)}
    return TwoScanners(FINDING, contrast, hospitals=2, heterogeneity=0, seed=seed, **sizes, **options)


def trained(folder: Path, seed: int, contrast: float, rounds: int = 20) -> torch.nn.Module:
    """Train a model with `fedlit.fit`."""
    source = data(folder, TRAINED, contrast, 3000, (0.9, 0.05, 0.05))
    torch.manual_seed(seed)
    model = ImageClassifier(source.classes, "mobilenetv3_small_050", optimizer=partial(torch.optim.SGD, lr=0.3))
    options = {"accelerator": "cpu", "workers": 1, "eval_every": rounds, "checkpoint_every": rounds}
    schedule = ConstantSchedule(8, "steps")
    return fedlit.fit(model, source, seed=seed, rounds=rounds, schedule=schedule, run_dir=folder, **options).model


@torch.no_grad()
def scored(models: Sequence[torch.nn.Module], folder: Path, seed: int, contrast: float, images: int) -> Images:
    """Return test images with the logits of each model."""
    source = data(folder, seed, contrast, images, (0.02, 0.02, 0.96), pooled=True)
    source.setup()
    part = source.clients["pooled"].test
    batches = [fetch(part, rows) for rows in torch.arange(len(part)).split(256)]
    logits = tuple(torch.cat([model(batch[0]) for batch in batches]).double().numpy() for model in models)
    labels = torch.cat([batch[1] for batch in batches]).double().numpy()
    units, groups = np.asarray(part.patients), {"scanner": np.asarray(part.groups["scanner"])}
    return Images("federation", folder, source.classes, logits, labels, units, True, groups, (1,) * len(models))


def gaps(images: Images, count: int, draws: int = 2000) -> pd.DataFrame:
    """Return the gaps of scanner B minus A by class and measure, as `fedlit evaluate` computes them."""
    some = replace(images, logits=images.logits[:count], round=images.round[:count])
    runs = tuple(PastRun(str(seed), str(seed), seed, "", {}, {}, Path()) for seed in range(count))
    options = EvaluationOptions(by=("scanner",), draws=draws)
    found = evaluate_images(Method("", runs, {}), [some], ("scanner",), [], options, []).gaps
    sign = np.where(found["group"] == "B", 1, -1)
    return found.assign(gap=sign * found["gap"], half=found.eval("high - low") / 2).set_index(["class", "measure"])


def summary(name: str, part: pd.DataFrame, draws: int) -> str:
    """Return the true gaps, the reports with a claim, and the share of intervals that cover the true gap."""
    claims, tested = int(part.groupby("draw")["beyond_noise"].any().sum()), part[part["p"].notna()]
    inside = (tested["gap"] - tested["true"]).abs() <= tested["half"]
    ends = f"{part['true'].min():+.3f} to {part['true'].max():+.3f}"
    return f"    {name:24}true gap {ends:18}  claimed in {claims:3} of {draws}  covered {100 * inside.mean():5.1f}%"


def count_claims(models: Sequence[torch.nn.Module], folder: Path, contrast: float, draws: int, new: int) -> None:
    """Evaluate each draw of test images, and print how often gaps are claimed."""
    # The gaps of the same patients without an effect are zero but for chance, which the difference removes.
    many, same = (scored(models, folder, NEW, each, new) for each in (contrast, 1.0))
    true = {count: gaps(many, count, 100)["gap"] - gaps(same, count, 100)["gap"] for count in (1, 3)}
    found: dict[int, list[pd.DataFrame]] = {1: [], 3: []}
    for draw in range(draws):
        tested = scored(models, folder, draw, contrast, 1600)
        for count in found:
            found[count].append(gaps(tested, count).assign(true=true[count], draw=draw).reset_index())
    for count, parts in found.items():
        every, planted = pd.concat(parts), (pd.concat(parts)["class"] == FINDING) & (contrast < 1)
        print(f"\ncontrast {contrast:g}, trainings: {count}")
        for name, rows in (("planted", planted), ("not planted", ~planted)):
            for measure, part in every[rows].groupby("measure"):
                print(summary(f"{name}, {measure}", part, draws), flush=True)
        print(summary("not planted, any", every[~planted], draws), flush=True)


def main() -> None:
    """Train the models, and count claims for each contrast."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20, help="draws of test images")
    contrasts = "contrasts of the finding in test images; the first is that in training images"
    parser.add_argument("--contrasts", type=float, nargs="+", default=[0.25, 1.0], help=contrasts)
    parser.add_argument("--new", type=int, default=6_000, help="images that give the true gaps")
    args, began = parser.parse_args(), time.process_time()
    with TemporaryDirectory() as folder:
        models = [trained(Path(folder), seed, args.contrasts[0]) for seed in range(3)]
        for contrast in args.contrasts:
            count_claims(models, Path(folder), contrast, args.draws, args.new)
    print(f"\n{time.process_time() - began:.0f} s of processor time")


if __name__ == "__main__":
    main()
