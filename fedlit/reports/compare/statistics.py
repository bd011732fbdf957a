"""Statistics of methods per class: means over seeds, intervals and paired tests.

A difference can be noise for two reasons. **Test-set noise**: the same models would have other AUROCs on other
patients. The interval of a method's AUROC and ``p_images`` cover only this noise. **Seed noise**: another training
would give other models. The standard deviation over seeds and ``p_seeds`` cover only this noise. A claim (stars, filled
points, "beyond noise", a named class) needs both: its ``p`` is the larger of ``p_seeds`` and of one test whose variance
is the sum of both, with the degrees of freedom of Welch and Satterthwaite, and Holm's method corrects it. Two separate
tests that both reject are not enough, because each leaves out the other's variance. ``tests/benchmarks/claims.py``
measures how often this rule and others are wrong.

Both need enough patients: a class with fewer than ten positive or ten negative patients has an AUROC, but no interval
and no test. The same applies to a class without a positive training image in some run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pandas as pd

from fedlit.metrics import intervals
from fedlit.metrics.claim import ALPHA, Difference, claim, corrected, extra_variance, p_text
from fedlit.metrics.intervals import Bootstrap, Interval
from fedlit.metrics.levels import DRAWS, LEVEL
from fedlit.predictions.table import Predictions
from fedlit.reports.compare.alignment import Shared, share_by_draw
from fedlit.reports.compare.methods import Method, listed, paired_by_seed
from fedlit.reports.compare.past_run import Notes
from fedlit.reports.compare.support import Support

SET = "federation"
"""Test set of the clients, which is compared by default."""


@dataclass(frozen=True)
class AurocEstimate:
    """AUROC of a class, or its mean over classes, of one method."""

    value: float  # Mean over seeds; NaN where undefined.
    sd: float  # Standard deviation over seeds; NaN for one seed.
    interval: Interval  # Interval of the mean over these models, under test-set noise; NaN without enough evidence.


@dataclass(frozen=True, eq=False)
class MethodAuroc:
    """AUROC of a method, per class and on average."""

    method: Method
    by_seed: np.ndarray  # `[S, C]` AUROC of each run.
    classes: tuple[AurocEstimate, ...]  # AUROC of each class.
    macro: AurocEstimate  # Their mean, over the classes where it is defined (the same for all methods).

    @property
    def rows(self) -> tuple[AurocEstimate, ...]:
        """Return the estimate of each class, then the mean."""
        return (*self.classes, self.macro)


@dataclass(frozen=True, eq=False)
class MethodDifferences:
    """Differences between a method and the baseline."""

    method: Method
    baseline: Method  # The method that is subtracted.
    classes: tuple[Difference, ...]  # Difference of each class.
    macro: Difference  # Difference of the mean over classes.

    @property
    def rows(self) -> tuple[Difference, ...]:
        """Return the difference of each class, then that of the mean."""
        return (*self.classes, self.macro)

    @property
    def several_seeds(self) -> bool:
        """Return True if both methods have several seeds."""
        return min(len(self.method.runs), len(self.baseline.runs)) > 1

    @property
    def paired(self) -> bool:
        """Return True if the methods are paired by seed, because each seed has its own draw of the data."""
        return paired_by_seed(self.method, self.baseline)

    def verdict(self, names: Sequence[str]) -> str:
        """Return sentences about the mean difference and the classes that differ, with the names of the classes."""
        macro, ours, theirs = self.macro, self.method.name, self.baseline.name
        if macro.value != macro.value:
            return f"{ours} and {theirs} cannot be compared: no class has an AUROC."
        amount = f"{abs(macro.value):.4f}"
        place = f"{amount} {'above' if macro.value > 0 else 'below'}" if float(amount) else "level with"
        size = f"{ours} is {place} {theirs} on average over classes"
        if macro.p_images != macro.p_images:
            return f"{size}. This cannot be tested, so it supports no claim."
        if not self.several_seeds:
            beyond = macro.p_images < ALPHA
            noise = "is beyond test-set noise" if beyond else "could be test-set noise"
            link = "but" if beyond else "and"
            return f"{size}. This {noise} ({_equation(macro.p_images)}), {link} one seed says nothing about seed noise."
        noise = "is beyond noise" if macro.claimed else "could be noise"
        both = f"{_equation(macro.p_holm)} for both noises, corrected"
        each = f"{_equation(macro.p_images)} for test images only, {_equation(macro.p_seeds)} for seeds only"
        better = [n for n, d in zip(names, self.classes, strict=True) if d.claimed and d.value > 0]
        worse = [n for n, d in zip(names, self.classes, strict=True) if d.claimed and d.value < 0]
        parts = [f"{word} in {listed(which)}" for word, which in (("better", better), ("worse", worse)) if which]
        by_class = f"By class, it is {' and '.join(parts)}" if parts else "No single class differs beyond noise"
        reach = f"The interval of the mean reaches {macro.interval.high - macro.value:.3f} to either side"
        return f"{size}. This {noise} ({both}; {each}). {reach}. {by_class}."


@dataclass(frozen=True, eq=False)
class Statistics:
    """Numbers of a comparison."""

    shared: Shared  # Images and scores behind the numbers.
    support: Support  # Positives and negatives of each class.
    scored: tuple[MethodAuroc, ...]  # AUROC of every method.
    against: tuple[MethodDifferences, ...]  # Differences of every method but the baseline.
    level: float  # Level of the intervals.
    draws: int  # Number of draws of the bootstrap.

    def auroc_table(self) -> pd.DataFrame:
        """Return one row per method and class, as in ``auroc.csv``."""
        rows = []
        for scored in self.scored:
            support = [*self.support.rows(), (None,) * 5]
            for name, estimate, counts in zip(self.names, scored.rows, support, strict=True):
                interval = (estimate.interval.low, estimate.interval.high, estimate.interval.level)
                method = scored.method
                rows.append((method.name, name, estimate.value, estimate.sd, len(method.runs), *interval, *counts))
        columns = ["method", "class", "auroc", "sd_over_seeds", "seeds", "low", "high", "level"]
        counts = ["n_pos", "n_neg", "patients_pos", "patients_neg"]
        table = pd.DataFrame(rows, columns=[*columns, *counts, "in_mean"])
        return table.astype(dict.fromkeys(counts, "Int64") | {"in_mean": "boolean"})

    def differences_table(self) -> pd.DataFrame:
        """Return one row per method and class, as in ``differences.csv``."""
        columns = ["method", "baseline", "class", "difference", "low", "high", "level", "p_images"]
        columns += ["p_seeds", "p", "p_holm", "stars"]
        rows = []
        for against in self.against:
            for name, change in zip(self.names, against.rows, strict=True):
                interval = (change.interval.low, change.interval.high, change.interval.level)
                names = (against.method.name, against.baseline.name, name)
                alone = (change.p_images, change.p_seeds)
                rows.append((*names, change.value, *interval, *alone, change.p, change.p_holm, change.stars))
        return pd.DataFrame(rows, columns=columns)

    @property
    def spread(self) -> str | None:
        """Return which seeds a standard deviation is over; None if no method has several."""
        if all(len(scored.method.runs) == 1 for scored in self.scored):
            return None
        several_draws = any(len(set(scored.method.draws)) > 1 for scored in self.scored)
        return "seeds, each with its own draw of the data" if several_draws else "seeds on one draw of the data"

    @property
    def has_intervals(self) -> bool:
        """Return True if any AUROC has an interval."""
        return any(each.interval.low == each.interval.low for scored in self.scored for each in scored.rows)

    @property
    def images(self) -> str:
        """Return how many images the numbers are of, and which runs share them."""
        draws = len({rows.start for rows in self.shared.rows})
        sharing = f"of {draws} draws of the data, shared by the runs of each draw" if draws else "that all runs share"
        return f"{len(self.shared.labels):,} images {sharing}"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the classes and of their mean."""
        return (*self.shared.classes, self.support.macro_name)


def numbers_of(
    methods: Sequence[Method],
    baseline: Method,
    predictions: Mapping[str, Predictions],
    notes: Notes,
    level: float = LEVEL,
    draws: int = DRAWS,
    progress: Callable[[str], None] = lambda text: None,
) -> Statistics:
    """Return the statistics of methods on the images, classes and draws of the data that all their runs share.

    All runs have predictions, by their place. Notes on what is left out are added to ``notes``.

    Raises:
        ConfigError: If the runs have nothing in common.
    """
    place, methods = methods.index(baseline), _of_common_draws(methods, notes)
    several = {method.name: len(method.runs) > 1 for method in methods}
    names = [f"{m.name} (seed {run.seed})" if several[m.name] else m.name for m in methods for run in m.runs]
    same_draws = all(set(method.draws) == set(methods[place].draws) for method in methods)
    drawn = [run.draw if same_draws else () for method in methods for run in method.runs]
    shared = share_by_draw(names, [predictions[run.where] for method in methods for run in method.runs], drawn)
    numbers = statistics(methods, methods[place], shared, level, draws, progress)
    notes += shared.notes + numbers.support.notes
    return numbers


def _of_common_draws(methods: Sequence[Method], notes: Notes) -> list[Method]:
    """Return the methods with only their runs on draws of the data that all have; all runs if there is no such draw."""
    common = set.intersection(*(set(method.draws) for method in methods))
    if not common or all(set(method.draws) == common for method in methods):
        return list(methods)
    left = [run.where for method in methods for run in method.runs if run.draw not in common]
    notes.append(f"Left out, as not all methods have runs on their draws of the data: {', '.join(left)}.")
    return [replace(m, runs=tuple(run for run in m.runs if run.draw in common)) for m in methods]


def statistics(
    methods: Sequence[Method],
    baseline: Method,
    shared: Shared,
    level: float = LEVEL,
    draws: int = DRAWS,
    progress: Callable[[str], None] = lambda text: None,
) -> Statistics:
    """Compare methods on the images and classes that their runs share.

    Intervals are of the mean over seeds. They come from a bootstrap over patients, or over images if patients are
    unknown, in which all runs see the same draws. The standard deviation of the draws is the error of a difference
    under test-set noise, so a small p does not need millions of draws.

    The scores of ``shared`` are in the order of the methods and of their runs.

    Raises:
        ConfigError: If there are fewer than two patients.
    """
    support, boots = Support.of(shared), []
    parts = list(dict.fromkeys(rows.start for rows in shared.rows))
    for number in range(len(shared.scores)):
        progress(f"bootstrap: run {number + 1} of {len(shared.scores)}")
        seed = parts.index(shared.rows[number].start) if parts else 0  # draws of the data are independent
        boots.append(_with_macro(intervals.bootstrap(*shared.of_run(number), draws, seed), support.averaged))
    of_runs = iter(boots)
    resampled = [_Resampled(method, tuple(islice(of_runs, len(method.runs)))) for method in methods]
    first = resampled[methods.index(baseline)]
    scored = [_scored(each, shared, support, level) for each in resampled]
    against = [_against(each, first, shared, support, level) for each in resampled if each is not first]
    return Statistics(shared, support, tuple(scored), _corrected(against), level, draws)


@dataclass(frozen=True, eq=False)
class _Resampled:
    """A method with the bootstrap of each of its runs."""

    method: Method
    boots: tuple[Bootstrap, ...]

    @property
    def single(self) -> bool:
        return len(self.boots) == 1

    @property
    def by_seed(self) -> np.ndarray:
        """Return `[S, C + 1]` AUROC of each run, the mean over classes last."""
        return np.stack([boot.estimate for boot in self.boots])

    @property
    def mean(self) -> Bootstrap:
        """Return the bootstrap of the mean over runs."""
        means = (np.mean([getattr(boot, part) for boot in self.boots], axis=0) for part in ("estimate", "draws"))
        return Bootstrap(*means, self.boots[0].sample)


def _with_macro(boot: Bootstrap, averaged: np.ndarray) -> Bootstrap:
    """Append a column with the mean over the averaged classes; NaN in draws in which one of them is undefined."""
    if not averaged.any():
        blank = np.full((len(boot.draws), 1), np.nan)
        return Bootstrap(np.append(boot.estimate, np.nan), np.hstack([boot.draws, blank]), boot.sample)
    macro, draws = boot.estimate[averaged].mean(), boot.draws[:, averaged].mean(1)
    return Bootstrap(np.append(boot.estimate, macro), np.column_stack([boot.draws, draws]), boot.sample)


def _scored(runs: _Resampled, shared: Shared, support: Support, level: float) -> MethodAuroc:
    mean, by_seed = runs.mean, runs.by_seed
    deviations = np.full(by_seed.shape[1], np.nan) if runs.single else by_seed.std(0, ddof=1)
    fewest = np.minimum(*support.independent).clip(2)
    # The bootstrap's variance of k patients is k - 1 over k of the unbiased one.
    variance = _error(mean)[:-1] ** 2 * fewest / (fewest - 1)
    images, known = support.rarer, support.averaged
    if known.any():  # the mean over classes has the median class's patients, and the rarer images of all classes
        usual = np.median(fewest[known])
        fewest, images = np.append(fewest, usual), np.append(images, images[known].sum())
        variance = np.append(variance, _error(mean)[-1] ** 2 * usual / (usual - 1))
    else:
        fewest, images, variance = (np.append(each, np.nan) for each in (fewest, images, variance))
    ends = intervals.logit_intervals(mean.estimate, variance, fewest, images, level)
    shown = [each if ok else Interval(np.nan, np.nan, level) for each, ok in zip(ends, _judged(support), strict=True)]
    columns = (mean.estimate.tolist(), deviations.tolist(), shown)
    estimates = [AurocEstimate(*numbers) for numbers in zip(*columns, strict=True)]
    return MethodAuroc(runs.method, by_seed[:, :-1], tuple(estimates[:-1]), estimates[-1])


def _against(
    runs: _Resampled, baseline: _Resampled, shared: Shared, support: Support, level: float
) -> MethodDifferences:
    error = _error(runs.mean.minus(baseline.mean))
    extra = extra_variance(shared.overlap) if paired_by_seed(runs.method, baseline.method) else None
    columns = zip(runs.by_seed.T, baseline.by_seed.T, error, strict=True)
    differences = [claim(*column, level, extra) for column in columns]
    differences = [each if ok else each.untested for each, ok in zip(differences, _judged(support), strict=True)]
    return MethodDifferences(runs.method, baseline.method, tuple(differences[:-1]), differences[-1])


def _judged(support: Support) -> np.ndarray:
    """Return `[C + 1]` bool, the classes with intervals and tests, and whether their mean has them."""
    return np.append(support.judged, support.judged.any())


def _corrected(against: Sequence[MethodDifferences]) -> tuple[MethodDifferences, ...]:
    """Correct p by Holm for all tests of the report; half of the error is for the means, half for the classes."""
    means, classes = [each.macro for each in against], [change for each in against for change in each.classes]
    if sum(each.p == each.p for each in classes) == sum(each.p == each.p for each in means):
        # With one class, its test is that of the mean.
        means = corrected(means)
        of_method = (mean for mean, each in zip(means, against, strict=True) for _ in each.classes)
        classes = [
            replace(c, p_holm=m.p_holm if c.p == c.p else np.nan) for c, m in zip(classes, of_method, strict=True)
        ]
    else:
        halves = [1 / len(half) for half in (means, classes) for _ in half]
        both = corrected([*means, *classes], halves)
        means, classes = both[: len(means)], both[len(means) :]
    classes = iter(classes)
    return tuple(
        replace(each, macro=macro, classes=tuple(next(classes) for _ in each.classes))
        for each, macro in zip(against, means, strict=True)
    )


def _error(change: Bootstrap) -> np.ndarray:
    """Return `[C]`, the standard deviation of the draws; NaN if fewer than two are defined."""
    error, defined = np.full(len(change.estimate), np.nan), (~np.isnan(change.draws)).sum(0) > 1
    error[defined] = np.nanstd(change.draws[:, defined], axis=0, ddof=1)
    return error


def _equation(p: float) -> str:
    text = p_text(p)
    return f"p {text}" if text.startswith("<") else f"p = {text}" if p == p else "p undefined"
