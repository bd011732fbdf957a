"""Measure how often fedlit claims what is not so, and how often its intervals cover the truth.

    python tests/benchmarks/claims.py                  # every rate below; --trials 1000
    python tests/benchmarks/claims.py bold reports tune gaps coverage     # single ones
    python tests/benchmarks/claims.py power            # reports that find a true difference
    python tests/benchmarks/claims.py intervals        # coverage in more cases; --trials 10000
    python tests/benchmarks/claims.py histograms       # sites that hide rare classes
    python tests/benchmarks/claims.py real FOLDER      # 24 real runs of one configuration, split into "methods"

A rate is the share of trials with any false claim, in percent with its standard error; 5 is nominal, and at most 6 is
accepted. `bold`: a table of `fedlit reproduce`. `reports`: a report of `fedlit compare`, means and classes together.
`tune`: methods with the same settings, of which each has been tuned. `gaps`: a report of `fedlit evaluate` for one
training, with groups that do not differ. `coverage`: 95% intervals of AUROC, of which 93 to 97% should cover the truth.

`--trials` is the number of trials per rate; data that follow the seed get twice as many. FOLDER stores the runs, which
take some minutes once on two cores. Each real run is part of many splits, so the error of these rates is larger than
the printed one, which assumes independent splits.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import yaml
from scipy.special import expit, logit, ndtri
from scipy.stats import norm

from fedlit.experiment.rule import Rule
from fedlit.metrics.auroc import class_auroc
from fedlit.metrics.claim import ALPHA, claim, corrected, holm
from fedlit.metrics.intervals import logit_intervals
from fedlit.metrics.levels import LEVEL
from fedlit.metrics.measures import AT_THRESHOLD, MEASURES, PatientCounts, Sample, compare_groups
from fedlit.metrics.tally import Tally, pooled_auroc
from fedlit.predictions.table import read
from fedlit.reports.compare.alignment import Shared, share
from fedlit.reports.compare.methods import Method
from fedlit.reports.compare.past_run import PastRun
from fedlit.reports.compare.statistics import statistics
from fedlit.reports.reproductions.means import compare

CLASSES = tuple("ABCDEFGH")
DRAWS = 200  # of the bootstrap, which gives its standard deviation with an error of 5%

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


def rate(hits: list[float]) -> str:
    """Return a mean as a percentage, with its standard error."""
    values = np.asarray(hits, dtype=float)
    return f"{100 * values.mean():5.1f} ± {100 * values.std() / len(values) ** 0.5:.1f}"


def shown(name: str, hits: list[float]) -> None:
    """Print a rate."""
    print(f"{name:76}{rate(hits):>13}", flush=True)


def claims_of(drawn: Iterable[tuple[Shared, list[Method]]]) -> Iterator[tuple[list[bool], list[bool]]]:
    """Yield the claims of reports: on means over classes, and on classes."""
    for shared, methods in drawn:
        against = statistics(methods, methods[0], shared, draws=DRAWS).against
        yield [each.macro.claimed for each in against], [each.claimed for of in against for each in of.classes]


def bold(trials: int) -> None:
    """Print how often a table of 32 equal cells has a bold one."""
    cells = [(f"method {row}", column) for row in range(9) for column in "ABCD"]
    against = {f"method {row}": "method 0" for row in range(1, 9)}
    for seeds in (3, 10):
        rng, hits = np.random.default_rng(seeds), []
        places = [(*cell, seed) for cell in cells for seed in range(seeds)]
        values = pd.DataFrame(places, columns=["row", "column", "seed"])
        for _ in range(trials):
            of_seed = rng.normal(0, 0.03, (1, 4, seeds))  # the seed's data, common to all methods
            noise = rng.normal(0.8, 0.02, (9, 4, seeds)) + of_seed
            hits.append(compare(values.assign(auroc=noise.ravel()), against)["claimed"].any())
        shown(f"bold: 32 cells, {seeds} seeds", hits)


def reports(trials: int) -> None:
    """Print how often a report claims a difference, of a mean or of a class, if all methods are equal."""
    cases = ((simulated, 1, 3, 0.01), (simulated, 1, 5, 0.03), (simulated, 10, 3, 0.03), (redrawn, 1, 3, 0.03))
    for draw, methods, seeds, sd in cases:
        number = trials * (2 if draw is redrawn else 1)
        rngs = (np.random.default_rng((trial, seeds, methods)) for trial in range(number))
        drawn = (draw(rng, methods, seeds, sd, 320, 0.0) for rng in rngs)
        what = f"{methods} methods, {seeds} seeds, SD {sd}" + ", data that follow the seed" * (draw is redrawn)
        shown(f"reports: {what}", [any(means + classes) for means, classes in claims_of(drawn)])


def tune(trials: int) -> None:
    """Print how often equal methods are called different after a choice of settings by validation data.

    Eight settings differ by a standard deviation of 0.02, in the same way for all methods; the validation AUROC has an
    error of 0.03, of which half of the variance is common to the settings, and trainings differ by 0.01.
    """
    tries, finals = 8, 10
    for by in ("method", "seed"):
        rule = Rule(by=by)
        for methods in (1, 19):
            hits = []
            for trial in range(trials):
                rng = np.random.default_rng((trial, methods))
                truth = rng.normal(0.8, 0.02, tries)[:, None]
                tests = []
                for _ in range(methods + 1):
                    tried = truth + rng.normal(0, 0.01, (tries, finals))
                    seen = tried + 0.03 * 0.5**0.5 * (rng.normal(size=(tries, finals)) + rng.normal(size=finals))
                    best = rule.choose(seen if by == "seed" else seen[:, :1])
                    # The seed that chooses for all is not among the final ones.
                    ours = tried[best, np.arange(finals)] if by == "seed" else truth[best[0]] + _final(rng, finals)
                    tests.append(ours)
                of_seed = rng.normal(0, 0.01, (methods + 1, finals))  # other test images
                values = np.array(tests) + of_seed
                changes = [claim(each, values[0], np.nan, LEVEL, 0.0) for each in values[1:]]
                hits.append(any(each.claimed for each in corrected(changes)))
            whose = "each seed chooses" if by == "seed" else "one choice: a claim about settings"
            shown(f"tune: {methods} and a baseline, ten seeds, {whose}", hits)


def _final(rng: np.random.Generator, seeds: int) -> np.ndarray:
    return rng.normal(0, 0.01, seeds)


def gaps(trials: int) -> None:
    """Print how often a report of one training claims a gap between groups that do not differ.

    Ten classes; each of four groups is compared with the largest one, in AUROC and in sensitivity and specificity at a
    threshold. Draws have the standard deviation of a bootstrap over independent images.
    """
    z = np.random.default_rng(0).normal(size=DRAWS)
    z = (z - z.mean()) / z.std(ddof=1)
    measures = {"auroc": MEASURES["auroc"], "sensitivity": AT_THRESHOLD["sensitivity"]}
    measures["specificity"] = AT_THRESHOLD["specificity"]
    for sizes in ((100, 30, 30, 40, 60), (60, 60, 60, 60, 60), (300, 50, 50, 80, 100)):
        rng, hits = np.random.default_rng(sizes), []
        for _ in range(trials):
            p = []
            for _ in range(10):
                groups = [_group(rng, size) for size in sizes]
                for key, measure in measures.items():
                    samples = [
                        Sample(np.array([of[key][0]]), of[key][0] + of[key][1] * rng.permutation(z), of["support"])
                        for of in groups
                    ]
                    p += [compare_groups(measure, each, samples[0], LEVEL).p for each in samples[1:]]
            hits.append((holm(p) < ALPHA).any())
        shown(f"gaps: one training, groups of {', '.join(map(str, sizes))} positives", hits)


def _group(rng: np.random.Generator, positives: int) -> dict:
    """Return the measures of a group, each with its error, and its support."""
    ours, theirs = rng.normal(1.5, 1, positives), rng.normal(0, 1, 3 * positives)
    wins = ours[:, None] > theirs
    error = (wins.mean(1).var() / positives + wins.mean(0).var() / len(theirs)) ** 0.5
    rates = {"sensitivity": (ours > 0.7).mean(), "specificity": (theirs < 0.7).mean()}
    found = {
        key: (r, (r * (1 - r) / n) ** 0.5) for (key, r), n in zip(rates.items(), (positives, len(theirs)), strict=True)
    }
    support = PatientCounts(positives, len(theirs), positives, len(theirs))
    return {"auroc": (wins.mean(), error), "support": support, **found}


def coverage(trials: int) -> None:
    """Print how many 95% intervals of AUROC cover the truth."""
    for rare, other, truth in ((50, 150, 0.76), (50, 150, 0.92), (100, 300, 0.97)):
        rng = np.random.default_rng((rare, other))
        ends = [_resampled(rng, 100, rare, other, truth, 1, 1.0)[0] for _ in range(-(-trials // 100))]
        low, high = np.concatenate(ends, axis=1)
        known = ~np.isnan(low)
        shown(
            f"coverage: {rare} and {other} patients, AUROC {truth}", ((low <= truth) & (truth <= high))[known].tolist()
        )


RATES = {"bold": bold, "reports": reports, "tune": tune, "gaps": gaps, "coverage": coverage}


def power(trials: int) -> None:
    """Print how often a true difference is claimed, of the mean over classes and of single classes."""
    print(f"% of {trials} reports that claim a true difference of the mean / % of classes")
    for more, draw in ((0.03, simulated), (0.05, simulated), (0.03, redrawn), (0.05, redrawn)):
        for sd in (0.01, 0.03):
            for seeds in (3, 5):
                for images in (320, 1000):
                    rngs = (np.random.default_rng((trial, seeds, images)) for trial in range(trials))
                    found = list(claims_of(draw(rng, 1, seeds, sd, images, more) for rng in rngs))
                    cells = f"{rate([means[0] for means, _ in found])} /{rate([np.mean(of) for _, of in found])}"
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
    for seeds in (2, 3, 5):
        found = claims_of(_dealt(shared, seeds, trials))
        shown(f"real: splits with a claim, {seeds} seeds", [any(means + classes) for means, classes in found])


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
    """Print the named rates, or all, or one of the longer measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help=f"{', '.join(RATES)}; power, intervals, histograms, or real FOLDER")
    parser.add_argument("--trials", type=int, default=1000)
    args = parser.parse_args()
    what = args.what or list(RATES)
    if what[0] == "real":
        if len(what) != 2:
            parser.error("real: expected a folder for the runs, found none")
        return real(args.trials, Path(what[1]))
    functions = RATES | {"power": power, "intervals": intervals, "histograms": histograms}
    if unknown := [each for each in what if each not in functions]:
        parser.error(f"expected some of {', '.join(functions)}, found {unknown[0]}")
    for each in what:
        functions[each](args.trials)
    return None


if __name__ == "__main__":
    main()
