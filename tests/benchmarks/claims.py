"""Measure error rates and power of the claims of `fedlit compare`.

    python tests/benchmarks/claims.py null             # simulated methods that are equal
    python tests/benchmarks/claims.py power            # simulated methods that differ
    python tests/benchmarks/claims.py intervals        # simulated runs; --trials 10000
    python tests/benchmarks/claims.py histograms       # sites that hide rare classes
    python tests/benchmarks/claims.py real FOLDER      # 24 real runs of one configuration, split into "methods"

Every rate is printed with its standard error. `--trials` is the number of comparisons per rate. FOLDER stores the runs,
which take some minutes once on two cores. Each real run is part of many splits, so the error of these rates is larger
than the printed one, which assumes independent splits.

Three rules are compared, all from the numbers of the report. *images*: p of only the test images below 0.05, with Holm
over the classes of a method. *each*: both separate tests (Student's over seeds) below 0.05. *fedlit*: the claims of the
report. *each* and *fedlit* have Holm over methods and classes.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
import yaml
from scipy.special import expit, logit, ndtri
from scipy.stats import norm

from fedlit.metrics.auroc import class_auroc
from fedlit.metrics.intervals import logit_intervals
from fedlit.metrics.paired import ALPHA, holm
from fedlit.metrics.tally import Tally, pooled_auroc
from fedlit.predictions.table import read
from fedlit.reports.compare.alignment import Shared, share
from fedlit.reports.compare.methods import Method
from fedlit.reports.compare.past_run import PastRun
from fedlit.reports.compare.statistics import Statistics, statistics

CLASSES = tuple("ABCDEFGH")
DRAWS = 200  # of the bootstrap, which gives its standard deviation with an error of 5%
RULES = ("images", "each", "fedlit")

RUNS = {
    "experiment": "claims",
    "set": {
        "data": {
            "class_path": "PhantomCXR",
            "init_args": {"hospitals": 3, "images": 1600, "image_size": 32, "batch_size": 16},
        },
        "model": {
            "class_path": "ImageClassifier",
            "init_args": {
                "backbone": "mobilenetv3_small_050",
                "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 2e-3}},
            },
        },
        "federation.aggregators": ["FedAvg"],
        "federation.rounds": 4,
        "federation.schedule": {"class_path": "ConstantSchedule", "init_args": {"window": 1, "unit": "epochs"}},
        "federation.workers": 1,
        "data.seed": 0,  # the same draw for all runs
        "logger": [],
    },
    "seeds": list(range(24)),
}


def simulated(
    rng: np.random.Generator, methods: int, seeds: int, sd: float, images: int, more: float, shared: float = 0.5
) -> tuple[Shared, list[Method]]:
    """Draw scores of a baseline and of other methods, whose AUROC is higher by a constant.

    The mean AUROC over eight classes is 0.8 with the standard deviation `sd` over seeds; a quarter of the variance is
    specific to each class. Scores are binormal. Half of an image's noise is common to all runs, a share of the rest is
    common to the seeds of a method (so that a method is better on some images and worse on others), and the remainder
    is specific to each run.
    """
    runs = methods * seeds + seeds
    effects = 0.75**0.5 * rng.normal(size=(runs, 1)) + (0.25 * len(CLASSES)) ** 0.5 * rng.normal(
        size=(runs, len(CLASSES))
    )
    method = np.arange(runs) // seeds
    truth = np.clip(0.8 + sd * effects + more * (method > 0)[:, None], 0.52, 0.985)
    labels = np.stack([rng.permutation(images) < share * images for share in np.linspace(0.08, 0.3, len(CLASSES))], 1)
    shape = (images, len(CLASSES))
    common, of_method = rng.normal(size=shape), rng.normal(size=(methods + 1, *shape))
    own = rng.normal(size=(runs, *shape))
    noise = 0.5**0.5 * common + (0.5 * shared) ** 0.5 * of_method[method] + (0.5 - 0.5 * shared) ** 0.5 * own
    scores = noise + 2**0.5 * ndtri(truth)[:, None, :] * labels
    patients = np.array([f"p{n:04d}" for n in range(images)])
    nothing = np.zeros(len(CLASSES), dtype=bool)
    shared_rows = Shared(CLASSES, labels.astype(np.float32), patients, tuple(scores), nothing, [])
    return shared_rows, [_method(f"m{m}", range(seeds)) for m in range(methods + 1)]


def redrawn(
    rng: np.random.Generator, methods: int, seeds: int, sd: float, images: int, more: float, shared: float = 0.5
) -> tuple[Shared, list[Method]]:
    """Draw the same, with different test images for each seed."""
    parts = [simulated(rng, methods, 1, sd, images, more, shared)[0] for _ in range(seeds)]
    places = [(seed, method) for method in range(methods + 1) for seed in range(seeds)]
    shared_rows = Shared(
        CLASSES,
        np.concatenate([part.labels for part in parts]),
        np.concatenate([np.char.add(f"{seed}/", part.patients) for seed, part in enumerate(parts)]),
        tuple(parts[seed].scores[method] for seed, method in places),
        parts[0].unlearned,
        [],
        tuple(slice(images * seed, images * (seed + 1)) for seed, _ in places),
    )
    return shared_rows, [_method(f"m{m}", range(seeds), True) for m in range(methods + 1)]


def _method(name: str, seeds: range, drawn: bool = False) -> Method:
    draws = [(("data.seed", seed),) * drawn for seed in seeds]
    runs = [PastRun(f"{name}-{s}", "", s, "", {}, {}, Path(), draw) for s, draw in zip(seeds, draws, strict=True)]
    return Method(name, tuple(runs), {})


def claimed(numbers: Statistics) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the claims of each rule: on the mean over classes, `[M]` bool, and on classes, `[M, C]` bool."""
    means = [each.macro for each in numbers.against]
    classes = [each.classes for each in numbers.against]
    of = {"images": lambda d: d.p_images, "each": lambda d: max(d.p_images, d.p_seeds)}
    images = np.array([holm([of["images"](d) for d in row]) for row in classes])
    each = holm([of["each"](d) for row in classes for d in row]).reshape(images.shape)
    return {
        "images": (np.array([of["images"](d) for d in means]) < ALPHA, images < ALPHA),
        "each": (holm([of["each"](d) for d in means]) < ALPHA, each < ALPHA),
        "fedlit": (np.array([d.claimed for d in means]), np.array([[d.claimed for d in row] for row in classes])),
    }


def rate(hits: list[float]) -> str:
    """Return a mean as a percentage, with its standard error."""
    values = np.asarray(hits, dtype=float)
    return f"{100 * values.mean():5.1f} ± {100 * values.std() / len(values) ** 0.5:.1f}"


def rates(
    drawn: Iterable[tuple[Shared, list[Method]]], of_classes: Callable[[np.ndarray], float] = np.any
) -> tuple[str, str]:
    """Return the rates of claims of each rule, of a mean and of classes, and that of t-tests over classes."""
    found, over = {rule: ([], []) for rule in RULES}, []
    for shared, methods in drawn:
        numbers = statistics(methods, methods[0], shared, draws=DRAWS)
        over.append(any(each.over_classes.p < ALPHA for each in numbers.against))
        for rule, (mean, classes) in claimed(numbers).items():
            found[rule][0].append(mean.any())
            found[rule][1].append(of_classes(classes))
    return "".join(f"{rate(m):>13} /{rate(c):>11}" for m, c in found.values()), rate(over)


def null(trials: int) -> None:
    """Print how often a report claims a difference if all methods are equal."""
    print(f"% of {trials} reports with a false claim; of a mean over classes / of a class")
    print(f"{'':46}" + "".join(f"{rule:>26}" for rule in RULES) + f"{'t-test over classes':>22}")
    for interaction, draw in ((0.0, simulated), (0.5, simulated), (0.5, redrawn)):
        for methods in (1, 10):
            for seeds in (2, 3, 5) if methods == 1 else (3,):
                for sd, images in ((0.01, 320), (0.03, 320), (0.03, 1000)):
                    if methods > 1 and images > 320:
                        continue
                    rngs = (np.random.default_rng((trial, seeds, methods, images)) for trial in range(trials))
                    cells, over = rates(draw(rng, methods, seeds, sd, images, 0.0, interaction) for rng in rngs)
                    where = f"{methods:2} x {seeds} seeds, SD {sd}, {images:4} images, {interaction:.0%} shared"
                    where += ", redrawn" * (draw is redrawn)
                    print(f"{where:46}{cells}{over:>22}", flush=True)


def power(trials: int) -> None:
    """Print how often a true difference is claimed, of the mean over classes and of single classes."""
    print(f"% of {trials} reports that claim a true difference of the mean / % of classes")
    print(f"{'':46}" + "".join(f"{rule:>26}" for rule in RULES))
    for more, draw in ((0.03, simulated), (0.05, simulated), (0.03, redrawn), (0.05, redrawn)):
        for sd in (0.01, 0.03):
            for seeds in (3, 5):
                for images in (320, 1000):
                    rngs = (np.random.default_rng((trial, seeds, images)) for trial in range(trials))
                    cells, _ = rates((draw(rng, 1, seeds, sd, images, more) for rng in rngs), np.mean)
                    where = f"+{more}, SD {sd}, {seeds} seeds, {images:4} images" + ", redrawn" * (draw is redrawn)
                    print(f"{where:46}{cells}", flush=True)


def real(trials: int, folder: Path) -> None:
    """Print how often a difference is claimed between runs of the same configuration, split into two methods."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claims.yaml").write_text(yaml.safe_dump(RUNS | {"run_dir": str(folder)}))
    command = [sys.executable, "-m", "fedlit", "sweep", "--config", str(folder / "claims.yaml"), "--jobs", "1"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    files = [folder / "claims" / f"seed={seed}" / "predictions" / "federation.parquet" for seed in RUNS["seeds"]]
    shared = share([file.parts[-3] for file in files], [read(file) for file in files])
    print(f"{len(files)} runs, {len(shared.labels)} test images, {len(shared.classes)} classes; {trials} splits")
    print(
        f"% of splits with a claim; of a mean over classes / of a class\n{'':46}"
        + "".join(f"{rule:>26}" for rule in RULES)
    )
    for seeds in (2, 3, 5):
        cells, over = rates(_dealt(shared, seeds, trials))
        print(f"{f'{seeds} seeds':46}{cells}   t-test over classes {over}", flush=True)


def _dealt(shared: Shared, seeds: int, trials: int) -> Iterator[tuple[Shared, list[Method]]]:
    methods = [_method("A", range(seeds)), _method("B", range(seeds, 2 * seeds))]
    for trial in range(trials):
        order = np.random.default_rng(trial).permutation(len(shared.scores))[: 2 * seeds]
        scores = tuple(shared.scores[i] for i in order)
        yield Shared(shared.classes, shared.labels, shared.patients, scores, shared.unlearned, []), methods


def intervals(trials: int) -> None:
    """Print the share of data sets with an interval, and its coverage, for a class and for the mean over ten."""
    print(f"% of {trials} data sets with a 95% interval; % of these intervals that cover the true AUROC")
    heads = ("fedlit", "percentiles", "logit, normal", "mean of ten classes")
    print(f"{'':58}" + "".join(f"{name:>20}" for name in heads))
    for kind in ("equal variances", "positives vary more"):
        for each in (1, 3):
            for rare, other in ((50, 50), (50, 150), (100, 300)):
                for truth in (0.6, 0.76, 0.92, 0.97, 0.99):
                    rng, rows = np.random.default_rng((rare, other, each)), []
                    for _ in range(-(-trials // 500)):
                        rows.append(_resampled(rng, 500, rare, other, truth, each, 1.0 if kind[0] == "e" else 1.6))
                    cells = "".join(_covered(rows, place, truth) for place in range(len(heads)))
                    where = f"{kind}, {rare} and {other} patients x {each}, AUROC {truth}"
                    print(f"{where:58}{cells}", flush=True)


def _covered(rows: list[list[np.ndarray]], place: int, truth: float) -> str:
    low, high = np.concatenate([ends[place] for ends in rows], axis=1)
    shown = ~np.isnan(low)
    return f"{100 * shown.mean():8.1f} {rate(((low <= truth) & (truth <= high))[shown]) if shown.any() else '-':>11}"


def _resampled(
    rng: np.random.Generator, sets: int, rare: int, other: int, truth: float, each: int, spread: float
) -> list[np.ndarray]:
    """Draw binormal scores, half of whose variance is common to a patient's images, and return ends `[2, sets]`.

    The bootstrap over patients counts the pairs that each two patients win, like fedlit's, for many data sets at once.
    """

    def noise(patients: int) -> np.ndarray:
        own = rng.normal(size=(sets, patients, 1))
        return own if each == 1 else 0.5**0.5 * (own + rng.normal(size=(sets, patients, each)))

    positive, negative = spread * noise(rare) + (1 + spread**2) ** 0.5 * ndtri(truth), noise(other)
    wins = sum(
        positive[:, :, None, i] > negative[:, None, :, j] for i in range(each) for j in range(each)
    ) / np.float32(each**2)
    drawn = rng.multinomial(rare + other, np.full(rare + other, 1 / (rare + other)), size=DRAWS // 2).astype(np.float32)
    ours, theirs = drawn[:, :rare], drawn[:, rare:]
    draws = ((ours @ wins) * theirs).sum(2) / (ours.sum(1) * theirs.sum(1))
    area, fewest = wins.mean((1, 2), dtype=float), min(rare, other)
    variance = draws.var(1, ddof=1, dtype=float) * fewest / (fewest - 1)
    error, middle = np.sqrt(variance), area.clip(1e-9, 1 - 1e-9)
    reach = norm.ppf(0.975) * error / (middle * (1 - middle))
    mean, total = (part.reshape(-1, 10) for part in (area, variance))
    ends = [
        _ends(area, variance, fewest, fewest * each),
        np.quantile(draws, [0.025, 0.975], axis=1),
        expit(logit(middle) + np.array([[-1], [1]]) * reach),
        _ends(mean.mean(1), total.sum(1) / 100, fewest, 10 * fewest * each),
    ]
    ends[1][:, ends[1][0] == ends[1][1]] = np.nan
    return ends


def _ends(area: np.ndarray, variance: np.ndarray, patients: int, images: int) -> np.ndarray:
    ends = logit_intervals(area, variance, np.full(len(area), patients), np.full(len(area), images))
    return np.array([(each.low, each.high) for each in ends]).T


def histograms(trials: int) -> None:
    """Print how often the exact AUROC of all images is outside of the bound from histograms."""
    outside, widths = [], []
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        sizes, shift = rng.integers(20, 120, size=4), rng.normal(size=4)
        labels = [torch.from_numpy((rng.random((n, 1)) < rng.uniform(0.03, 0.5)).astype(np.float32)) for n in sizes]
        scores = [torch.from_numpy(rng.normal(size=y.shape)) + 1.2 * y + s for y, s in zip(labels, shift, strict=True)]
        tallies = [Tally.of(*each, ("A",), 5) for each in zip(scores, labels, strict=True)]
        reported = [int(tally.positives.sum() + tally.negatives.sum()) > 0 for tally in tallies]
        hidden = sum(int(n) for n, has in zip(sizes, reported, strict=True) if not has)
        pooled, within = pooled_auroc(tallies, ("A",), [hidden])
        exact = class_auroc(torch.cat(scores), torch.cat(labels), ("A",)).auroc
        if hidden and any(reported):
            outside.append(float((pooled.auroc - exact).abs() > within + 1e-12))
            widths.append(float(within))
    print(f"% of {len(outside)} federations with a hidden class whose exact AUROC is outside: {rate(outside)}")
    print(f"median bound {np.median(widths):.2f}, largest {max(widths):.2f}")


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("null", "power", "intervals", "histograms", "real"))
    parser.add_argument("folder", nargs="?", type=Path, help="folder for the real runs")
    parser.add_argument("--trials", type=int, default=200)
    args = parser.parse_args()
    if args.what == "real" and args.folder is None:
        parser.error("real: expected a folder for the runs, found none")
    if args.what == "real":
        real(args.trials, args.folder)
    else:
        {"null": null, "power": power, "intervals": intervals, "histograms": histograms}[args.what](args.trials)


if __name__ == "__main__":
    main()
