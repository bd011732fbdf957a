"""How often what `fedlit compare` says is wrong, and how often it finds what is there.

    python tests/benchmarks/claims.py null             # simulated methods that are equal
    python tests/benchmarks/claims.py power            # simulated methods that differ
    python tests/benchmarks/claims.py intervals        # simulated runs; --trials 10000
    python tests/benchmarks/claims.py real FOLDER      # 24 real runs of one configuration, dealt into two "methods"

Every rate is printed with its standard error. `--trials` sets how many comparisons each is of. FOLDER keeps the runs: on
two cores they take some minutes once, and each of them counts in many deals, so that the error of a rate of real runs is
larger than printed, which is of independent deals.

Three rules are compared, all from the numbers of the report. *images*: p of test images alone below 0.05, by Holm over the
classes of a method, as before version 0.1. *each*: both separate tests (Student's over seeds) below 0.05. *fedlit*: what is
claimed now. *each* and *fedlit* have Holm over methods and classes.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import yaml
from scipy.special import expit, logit, ndtri
from scipy.stats import norm, t

from fedlit.metrics.intervals import Interval, bootstrap
from fedlit.metrics.paired import ALPHA, holm
from fedlit.predictions.table import read
from fedlit.reports.compare.alignment import Shared, share
from fedlit.reports.compare.methods import Method
from fedlit.reports.compare.past_run import PastRun
from fedlit.reports.compare.statistics import Statistics, statistics

CLASSES = tuple("ABCDEFGH")
DRAWS = 200  # of the bootstrap; its standard deviation is then known to 5%
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
        "logger": [],
    },
    "seeds": list(range(24)),
}


def simulated(
    rng: np.random.Generator, methods: int, seeds: int, sd: float, images: int, more: float, shared: float = 0.5
) -> tuple[Shared, list[Method]]:
    """Draw scores of a baseline and other methods, whose AUROC is larger by a constant.

    The mean AUROC over eight classes is 0.8 with the standard deviation `sd` over seeds, a quarter of the variance from
    each class's own. Scores are binormal. Of the noise of an image, half is common to all runs, a share of the rest to the
    seeds of a method (so that a method is better on some images and worse on others), the rest each run's own.
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
    found = Shared(CLASSES, labels.astype(np.float32), patients, tuple(scores), nothing, [])
    return found, [_method(f"m{m}", range(seeds)) for m in range(methods + 1)]


def _method(name: str, seeds: range) -> Method:
    return Method(name, tuple(PastRun(f"{name}-{s}", "", s, "", {}, {}, Path()) for s in seeds), {})


def claimed(numbers: Statistics) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return by rule what is claimed: of the mean over classes, `[M]` bool, and of classes, `[M, C]` bool."""
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


def null(trials: int) -> None:
    """Print how often a report claims something where all methods are equal."""
    print(f"% of {trials} reports with a false claim; of a mean over classes / of a class")
    print(f"{'':46}" + "".join(f"{rule:>26}" for rule in RULES) + f"{'t-test over classes':>22}")
    for interaction in (0.0, 0.5):
        for methods in (1, 10):
            for seeds in (2, 3, 5) if methods == 1 else (3,):
                for sd, images in ((0.01, 320), (0.03, 320), (0.03, 1000)):
                    if methods > 1 and images > 320:
                        continue
                    found, over = {rule: ([], []) for rule in RULES}, []
                    for trial in range(trials):
                        rng = np.random.default_rng((trial, seeds, methods, images))
                        shared, named = simulated(rng, methods, seeds, sd, images, 0.0, interaction)
                        numbers = statistics(named, named[0], shared, draws=DRAWS)
                        over.append(any(each.over_classes.p < ALPHA for each in numbers.against))
                        for rule, (mean, classes) in claimed(numbers).items():
                            found[rule][0].append(mean.any())
                            found[rule][1].append(classes.any())
                    cells = "".join(f"{rate(m):>13} /{rate(c):>11}" for m, c in found.values())
                    where = f"{methods:2} x {seeds} seeds, SD {sd}, {images:4} images, {interaction:.0%} shared"
                    print(f"{where:46}{cells}{rate(over):>22}", flush=True)


def power(trials: int) -> None:
    """Print how often a true difference is claimed: of the mean over classes, and the share of classes."""
    print(f"% of {trials} reports that claim a true difference of the mean / % of classes")
    print(f"{'':46}" + "".join(f"{rule:>26}" for rule in RULES))
    for more in (0.03, 0.05):
        for sd in (0.01, 0.03):
            for seeds in (3, 5):
                for images in (320, 1000):
                    found = {rule: ([], []) for rule in RULES}
                    for trial in range(trials):
                        rng = np.random.default_rng((trial, seeds, images))
                        shared, named = simulated(rng, 1, seeds, sd, images, more)
                        for rule, (mean, classes) in claimed(statistics(named, named[0], shared, draws=DRAWS)).items():
                            found[rule][0].append(mean.all())
                            found[rule][1].append(classes.mean())
                    cells = "".join(f"{rate(m):>13} /{rate(c):>11}" for m, c in found.values())
                    print(f"{f'+{more}, SD {sd}, {seeds} seeds, {images:4} images':46}{cells}", flush=True)


def real(trials: int, folder: Path) -> None:
    """Print how often runs of one configuration, dealt into two methods, are said to differ."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claims.yaml").write_text(yaml.safe_dump(RUNS | {"run_dir": str(folder)}))
    command = [sys.executable, "-m", "fedlit", "sweep", "--config", str(folder / "claims.yaml"), "--jobs", "1"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    files = [folder / "claims" / f"seed={seed}" / "predictions" / "federation.parquet" for seed in RUNS["seeds"]]
    shared = share([file.parts[-3] for file in files], [read(file) for file in files])
    print(f"{len(files)} runs, {len(shared.labels)} test images, {len(shared.classes)} classes; {trials} deals")
    print(
        f"% of deals with a claim; of a mean over classes / of a class\n{'':46}"
        + "".join(f"{rule:>26}" for rule in RULES)
    )
    for seeds in (2, 3, 5):
        found, over = {rule: ([], []) for rule in RULES}, []
        for numbers in _dealt(shared, seeds, trials):
            over.append(numbers.against[0].over_classes.p < ALPHA)
            for rule, (mean, classes) in claimed(numbers).items():
                found[rule][0].append(mean.any())
                found[rule][1].append(classes.any())
        cells = "".join(f"{rate(m):>13} /{rate(c):>11}" for m, c in found.values())
        print(f"{f'{seeds} seeds':46}{cells}   t-test over classes {rate(over)}", flush=True)


def _dealt(shared: Shared, seeds: int, trials: int) -> Iterator[Statistics]:
    methods = [_method("A", range(seeds)), _method("B", range(seeds, 2 * seeds))]
    for trial in range(trials):
        chosen = np.random.default_rng(trial).permutation(len(shared.scores))[: 2 * seeds]
        part = Shared(
            shared.classes,
            shared.labels,
            shared.patients,
            tuple(shared.scores[i] for i in chosen),
            shared.unlearned,
            [],
        )
        yield statistics(methods, methods[0], part, draws=DRAWS)


def intervals(trials: int) -> None:
    """Print how often 95% intervals cover the AUROC, and their mean width: per class, and of the mean over ten classes."""
    names = tuple("ABCDEFGHIJ")
    print(f"% of {trials} data sets whose 95% interval covers the true AUROC (mean width)")
    print(f"{'':58}{'fedlit':>20}{'percentiles':>20}{'logit, normal':>20}{'logit, t':>20}{'mean of ten classes':>22}")
    for kind in ("equal variances", "positives vary more"):
        for each in (1, 3):
            for rare, other in ((10, 10), (10, 150), (20, 150), (40, 150)):
                for truth in (0.6, 0.76, 0.92, 0.97):
                    found = {name: [] for name in ("fedlit", "percentiles", "normal", "t", "mean")}
                    for trial in range(-(-trials // len(names))):
                        rng = np.random.default_rng((trial, rare, other, each))
                        shared = _one_run(rng, names, rare, other, truth, each, 1.0 if kind[0] == "e" else 1.6)
                        method = _method("A", range(1))
                        (scored,) = statistics([method], method, shared, draws=DRAWS).scored
                        boot = bootstrap(shared.scores[0], shared.labels, shared.units, DRAWS)
                        ends = {"fedlit": [e.interval for e in scored.classes], "mean": [scored.macro.interval]}
                        ends["percentiles"] = boot.intervals()
                        error, area = boot.draws.std(0, ddof=1), boot.estimate.clip(1e-9, 1 - 1e-9)
                        for name, q in (("normal", norm.ppf(0.975)), ("t", t.ppf(0.975, rare - 1))):
                            reach = q * error / (area * (1 - area))
                            ends[name] = [
                                Interval(*map(float, e), 0.95)
                                for e in zip(*expit(logit(area) + np.outer((-1, 1), reach)), strict=True)
                            ]
                        for name, each_of in ends.items():
                            found[name] += [(i.low <= truth <= i.high, i.high - i.low) for i in each_of]
                    cells = "".join(
                        f"{rate([hit for hit, _ in f]):>13} ({np.mean([w for _, w in f]):.2f})" for f in found.values()
                    )
                    where = f"{kind}, {rare} and {other} patients x {each}, AUROC {truth}"
                    print(f"{where:58}{cells}", flush=True)


def _one_run(
    rng: np.random.Generator, names: tuple[str, ...], rare: int, other: int, truth: float, each: int, spread: float
) -> Shared:
    """Draw binormal scores of patients with so many images each, of which half of the variance is the patient's."""
    labels = np.repeat([1.0, 0.0], [rare, other])
    noise = rng.normal(size=(rare + other, 1, len(names)))
    if each > 1:
        noise = 0.5**0.5 * (noise + rng.normal(size=(rare + other, each, len(names))))
    noise = np.where(labels[:, None, None] == 1, spread, 1.0) * noise
    scores = noise + (1 + spread**2) ** 0.5 * ndtri(truth) * labels[:, None, None]
    patients = np.repeat([f"p{n:04d}" for n in range(rare + other)], each)
    columns = np.repeat(labels, each)[:, None].repeat(len(names), 1).astype(np.float32)
    nothing = np.zeros(len(names), dtype=bool)
    return Shared(names, columns, patients, (scores.reshape(-1, len(names)),), nothing, [])


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("null", "power", "intervals", "real"))
    parser.add_argument("folder", nargs="?", type=Path, help="folder of the real runs")
    parser.add_argument("--trials", type=int, default=200)
    args = parser.parse_args()
    if args.what == "real" and args.folder is None:
        parser.error("real: name a folder, in which the runs are kept")
    if args.what == "real":
        real(args.trials, args.folder)
    else:
        {"null": null, "power": power, "intervals": intervals}[args.what](args.trials)


if __name__ == "__main__":
    main()
