"""Measure the intervals and tests of `fedlit evaluate` on simulated data, and its speed.

    python tests/benchmarks/coverage.py intervals      # coverage of every kind of interval; --trials 10000
    python tests/benchmarks/coverage.py gaps           # type-I error and power of the tests of gaps between groups
    python tests/benchmarks/coverage.py speed          # 100,000 predictions, 14 classes, 3 groups, 2,000 draws

Scores are binormal, with logits that are calibrated or too extreme by a half. A tenth of the patients are positive, and
their number varies between data sets. With five images per patient, half of the variance of an image's score is common
to the patient's images. Every rate is printed with its standard error. `--support 0` also measures data sets for which
fedlit shows no interval because they have too few patients.
"""

import argparse
import os
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from claims import rate
from scipy.special import expit, logit, ndtri

from fedlit.metrics import measures
from fedlit.metrics.calibration import Reliability, bin_edges, bin_of
from fedlit.metrics.intervals import resampled
from fedlit.metrics.measures import (
    AT_THRESHOLD,
    MEASURES,
    PatientCounts,
    Sample,
    compare_groups,
    interval,
    standard_error,
)
from fedlit.metrics.performance import Performance, Stated
from fedlit.reports.compare.methods import Method
from fedlit.reports.compare.past_run import PastRun
from fedlit.reports.evaluation.evaluation import EvaluationOptions, evaluate_images
from fedlit.reports.evaluation.images import Images

SHARE = 0.1  # of the patients are positive
DRAWS = 200
LARGE = 1_000_000  # images of the sample that gives the true values
TAIL = 0.2  # of the positives score below the fixed threshold

Data = tuple[np.ndarray, np.ndarray, np.ndarray]


def sample(rng: np.random.Generator, patients: int, each: int, area: float, stretch: float, shift: float = 0) -> Data:
    """Draw logits, labels and patients; the logits are calibrated at a stretch of 1 and a shift of 0."""
    apart, positive = 2**0.5 * ndtri(area), rng.random(patients) < SHARE
    noise = rng.normal(size=(patients, each))
    if each > 1:
        noise = 0.5**0.5 * (noise + rng.normal(size=(patients, 1)))
    scores = logit(SHARE) + apart * (noise + apart * positive[:, None]) - apart**2 / 2
    rows = np.repeat(np.arange(patients), each)
    return (stretch * scores + shift).ravel(), positive[rows], rows


def performance(data: Data, thresholds: list[float]) -> Performance:
    """Return the performance of a sample, all of whose images are labelled."""
    scores, positive, rows = data
    return Performance(scores, positive, rows, rows[-1] + 1, Stated(prevalence=SHARE), thresholds)


def measured(data: Data, thresholds: list[float], seed: int) -> tuple[dict, dict, PatientCounts]:
    """Return values, draws and support of a sample."""
    part, patients = performance(data, thresholds), data[2][-1] + 1
    (counts,) = resampled(patients, DRAWS, seed, DRAWS)
    values = {key: float(value[0]) for key, value in part.values(np.ones((patients, 1))).items()}
    return values, part.values(counts.astype(np.float32)), part.support


def cases(positives: Sequence[int], images: Sequence[int]) -> Iterator[tuple[int, int, float, float]]:
    """Return expected positive patients, images per patient, AUROC and stretch of each case."""
    return ((n, each, *kind) for n in positives for each in images for kind in ((0.75, 1.0), (0.9, 1.5)))


def intervals(trials: int, positives: Sequence[int], images: Sequence[int]) -> None:
    """Print the share of data sets with an interval, and the coverage of these intervals."""
    keys = [*MEASURES, *(f"{key}@0" for key in AT_THRESHOLD), "bin"]
    print(f"% of {trials} data sets with an interval / % of these that cover the true value, of a level of 95%")
    for expected, each, area, stretch in cases(positives, images):
        rng, patients = np.random.default_rng((expected, each)), int(expected / SHARE)
        large = sample(rng, LARGE, 1, area, stretch)
        thresholds = [float(expit(np.quantile(large[0][large[1]], TAIL)))]
        part = performance(large, thresholds)
        truth = {key: float(value[0]) for key, value in part.values(np.ones((LARGE, 1))).items()}
        hits: dict[str, list[float]] = {key: [] for key in keys}
        for trial in range(trials):
            data = sample(rng, patients, each, area, stretch)
            if not 1 < data[1].sum() < len(data[1]) - 1:
                continue
            values, draws, support = measured(data, thresholds, trial)
            for key in keys[:-1]:
                name, _, at = key.partition("@")
                measure = (AT_THRESHOLD if at else MEASURES)[name]
                error = standard_error(draws[key], support.patients(measure.side))
                ends = interval(measure, values[key], error, support, 0.95)
                hits[key].append(np.nan if ends.low != ends.low else float(ends.low <= truth[key] <= ends.high))
            hits["bin"] += covered_bins(data, stretch)
        print(f"\n{expected} positive patients x {each}, AUROC {area}, logits x {stretch}")
        for key, values in hits.items():
            shown = [value for value in values if value == value]
            print(f"    {key:16}{100 * len(shown) / len(values):8.1f} {rate(shown) if shown else '-':>14}", flush=True)


def covered_bins(data: Data, stretch: float) -> list[float]:
    """Return 1 for each bin of a reliability diagram whose interval covers the mean true probability, else 0."""
    scores, positive, rows = data
    probability, truth = expit(scores), expit(scores / stretch)
    place = bin_of(probability, bin_edges(probability))
    binned = Reliability.of(probability, positive, bin_edges(probability))
    low, high = binned.intervals(place, positive, rows, 0.95)
    mean = np.bincount(place, truth) / np.bincount(place)
    return ((low <= mean) & (mean <= high)).astype(float).tolist()


def gaps(trials: int, positives: Sequence[int], images: Sequence[int], several: Sequence[int]) -> None:
    """Print how often a gap between two groups has p below 0.05, if there is none and if there is one."""
    print(f"% of {trials} data sets with p < 0.05: without a gap / with AUROC 0.8 and 0.7 and an intercept of 0.5")
    for seeds in several:
        for expected in positives:
            for each in images:
                found = {key: ([], []) for key in ("auroc", "intercept", "sensitivity@0", "specificity@0")}
                for place, (area, shift) in enumerate(((0.8, 0.0), (0.7, -0.5))):
                    rng = np.random.default_rng((expected, each, seeds))
                    large = sample(rng, LARGE // 10, 1, 0.8, 1.0)
                    thresholds = [float(expit(np.quantile(large[0][large[1]], TAIL)))]
                    for trial in range(trials):
                        groups = [
                            _of_seeds(rng, expected, each, seeds, *truth, thresholds, 2 * trial + number)
                            for number, truth in enumerate(((0.8, 0.0), (area, shift)))
                        ]
                        for key, hits in found.items():
                            gap = _tested(groups, key)
                            if gap.p == gap.p:
                                hits[place].append(float(gap.p < 0.05))
                print(f"\n{expected} positive patients x {each} in each group, {seeds} seeds")
                for key, (null, power) in found.items():
                    print(f"    {key:16}{rate(null):>14} /{rate(power):>14}", flush=True)


def _of_seeds(
    rng: np.random.Generator,
    positives: int,
    each: int,
    seeds: int,
    area: float,
    shift: float,
    thresholds: list,
    seed: int,
) -> tuple[dict, dict, PatientCounts]:
    """Return values by seed, mean draws and support; seeds differ in an own noise of each image and of the model."""
    scores, positive, rows = sample(rng, int(positives / SHARE), each, area, 1.0, shift)
    scale = scores.std()
    parts = []
    for _ in range(seeds):
        own = 0.3 * scale * rng.normal(size=scores.shape) + 0.2 * rng.normal() + 0.1 * rng.normal() * positive
        parts.append(measured((scores + own * (seeds > 1), positive, rows), thresholds, seed))
    values = {key: np.array([part[0][key] for part in parts]) for key in parts[0][0]}
    return values, {key: np.mean([part[1][key] for part in parts], axis=0) for key in parts[0][1]}, parts[0][2]


def _tested(groups: list[tuple[dict, dict, PatientCounts]], key: str) -> measures.Gap:
    name, _, at = key.partition("@")
    samples = [Sample(values[key], draws[key], support) for values, draws, support in groups]
    return compare_groups((AT_THRESHOLD if at else MEASURES)[name], *samples, 0.95)


def speed(images: int, classes: int) -> None:
    """Print the time of an evaluation of many images, classes and groups."""
    rng = np.random.default_rng(0)
    shares = np.linspace(0.02, 0.2, classes)
    labels = (rng.random((images, classes)) < shares).astype(float)
    logits = rng.normal(size=labels.shape) + 1.5 * labels + logit(shares)
    names, groups = tuple(f"class {i}" for i in range(classes)), {"age": rng.choice(["a", "b", "c"], size=images)}
    units = np.array([f"p{n // 2:06d}" for n in range(images)])
    tested = Images("federation", Path("simulated"), names, (logits,), labels, units, True, groups, (1,))
    run = PastRun("simulated", "simulated", 0, "", {}, {}, Path())
    began, busy = time.perf_counter(), time.process_time()
    evaluation = evaluate_images(Method("simulated", (run,), {}), [tested], ("age",), [], EvaluationOptions(), [])
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{images:,} predictions, {classes} classes, 3 groups, 2,000 draws: {seconds:.0f} s on {os.cpu_count()} cores"
    )
    print(f"{busy:.0f} s of processor time, {os.cpu_count()} cores")
    print(f"{len(evaluation.estimates):,} values, {len(evaluation.gaps)} tests, {memory:.1f} GiB")


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("intervals", "gaps", "speed"))
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--images", type=int, default=100_000, help="images, for speed")
    parser.add_argument("--classes", type=int, default=14)
    parser.add_argument("--positives", type=int, nargs="+", default=[30, 200], help="expected positive patients")
    parser.add_argument("--each", type=int, nargs="+", default=[1, 5], help="images per patient")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 3], help="runs of a method, for gaps")
    parser.add_argument("--support", type=int, default=measures.SUPPORT, help="patients on each side for an interval")
    args = parser.parse_args()
    measures.SUPPORT = args.support
    if args.what == "speed":
        speed(args.images, args.classes)
    elif args.what == "intervals":
        intervals(args.trials, args.positives, args.each)
    else:
        gaps(args.trials, args.positives, args.each, args.seeds)


if __name__ == "__main__":
    main()
