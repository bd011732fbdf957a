"""Whether one method is better than another, per class: means over seeds, intervals, paired tests.

A difference can be noise for two reasons. **Test-set noise**: other patients would have given the same models other AUROCs;
the interval of a method's AUROC and ``p_images`` are about that alone. **Seed noise**: training again would have given other
models; the standard deviation over seeds and ``p_seeds`` are about that alone. A claim (stars, filled points, "beyond noise",
a class that is named) needs both: its ``p`` is the larger of ``p_seeds`` and of one test whose variance is the sum of both,
with the degrees of freedom of Welch and Satterthwaite, and Holm corrects it. Two separate tests that both reject would not
do: each leaves out the other's variance. ``tests/benchmarks/claims.py`` measures how often this and other rules are wrong.

Both need enough patients: a class with fewer than ten positive or negative ones has an AUROC, but no interval and
no test. Neither has a class of which a run had no positive image to train on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import stats

from fedlit.core.errors import ConfigError
from fedlit.metrics.intervals import (
    DRAWS,
    LEVEL,
    Bootstrap,
    Interval,
    bootstrap,
    delong,
    logit_intervals,
    paired_delong,
)
from fedlit.metrics.paired import ALPHA, Paired, holm, p_text, paired, stars
from fedlit.reports.compare.alignment import Shared
from fedlit.reports.compare.methods import Method
from fedlit.reports.compare.support import Support

DELONG, RESAMPLED = "DeLong", "bootstrap"


@dataclass(frozen=True)
class Estimate:
    """AUROC of a class, or its mean over classes, of one method."""

    value: float  # Mean over seeds; NaN where undefined.
    sd: float  # Standard deviation over seeds; NaN for one seed.
    interval: Interval  # Interval of the mean over these very models: test-set noise; NaN where nothing can be judged.


@dataclass(frozen=True)
class Difference:
    """A method's AUROC minus the baseline's."""

    value: float  # Difference of the means over seeds.
    interval: Interval  # Its interval: both noises; test-set noise alone where a method has one seed.
    p_images: float  # Two-sided p of no difference, under test-set noise alone.
    # Two-sided p of Student's t-test over seeds, not paired: equal seeds on one draw of the data are separate trainings.
    # NaN where a method has one seed.
    p_seeds: float
    p: float  # The larger of ``p_seeds`` and of a test with both variances; NaN where a method has one seed.
    # ``p`` corrected by Holm: of a class for all classes of all methods, of the mean over classes for all methods.
    p_holm: float = float("nan")

    @property
    def claimed(self) -> bool:
        """Whether the difference is beyond both noises, so that anything may be claimed of it."""
        return self.p_holm < ALPHA

    @property
    def stars(self) -> str:
        """``***``, ``**``, ``*`` for ``p_holm`` below 0.001, 0.01, 0.05, else ``ns``; ``-`` where there is no test."""
        return stars(self.p_holm)


@dataclass(frozen=True, eq=False)
class Scored:
    """AUROC of a method."""

    method: Method
    by_seed: np.ndarray  # `[S, C]` AUROC of each run.
    classes: tuple[Estimate, ...]  # AUROC of each class.
    macro: Estimate  # Their mean, over the classes where it is defined (the same for all methods).
    how: str  # What the classes' intervals are from, ``bootstrap`` or ``DeLong``.


@dataclass(frozen=True, eq=False)
class Against:
    """A method against the baseline."""

    method: Method
    baseline: Method  # What is subtracted.
    how: str  # What the classes' intervals and p are from, ``bootstrap`` or ``DeLong``.
    classes: tuple[Difference, ...]  # Difference of each class.
    macro: Difference  # Difference of the mean over classes; always from the bootstrap.
    over_classes: Paired  # Paired t-test over classes, as in Kulkarni et al., section 4.3.

    @property
    def several_seeds(self) -> bool:
        """Whether both methods have several seeds."""
        return min(len(self.method.runs), len(self.baseline.runs)) > 1

    def verdict(self, names: Sequence[str]) -> str:
        """Return whether it is noise, in a sentence with the names of the classes."""
        macro = self.macro
        if macro.value != macro.value:
            return f"{self.method.name} and {self.baseline.name}: no class has an AUROC, nothing can be said."
        amount = f"{abs(macro.value):.4f}"
        place = f"{amount} {'above' if macro.value > 0 else 'below'}" if float(amount) else "level with"
        size = f"{self.method.name} is {place} {self.baseline.name} on average over classes"
        if macro.p_images != macro.p_images:
            return f"{size}; no test can be made of that, so nothing can be said of it."
        if not self.several_seeds:
            of_images = f"p {p_text(macro.p_images)} for test images"
            if macro.p_images < ALPHA:
                judged = f"more than test images explain ({of_images}), but"
            else:
                judged = f"could be noise ({of_images}), and"
            return f"{size}: {judged} one seed cannot tell what another training would give."
        alone = f"{p_text(macro.p_images)} for test images alone, {p_text(macro.p_seeds)} for seeds alone"
        judged = f"{'beyond noise' if macro.claimed else 'could be noise'} (p {p_text(macro.p_holm)}; {alone})"
        better = [n for n, d in zip(names, self.classes, strict=True) if d.claimed and d.value > 0]
        worse = [n for n, d in zip(names, self.classes, strict=True) if d.claimed and d.value < 0]
        parts = [f"{word} in {_listed(which)}" for word, which in (("better", better), ("worse", worse)) if which]
        singly = f"class by class it is {' and '.join(parts)}" if parts else "no class by itself differs"
        return f"{size}: {judged}; {singly}."


@dataclass(frozen=True, eq=False)
class Statistics:
    """All numbers of a comparison."""

    shared: Shared  # Images and scores that they were computed on.
    support: Support  # Positives and negatives of each class.
    scored: tuple[Scored, ...]  # AUROC of every method.
    against: tuple[Against, ...]  # Differences of every method but the baseline.
    level: float  # Level of the intervals.
    draws: int  # Number of draws of the bootstrap.

    def auroc_table(self) -> pd.DataFrame:
        """Return a row a method and class, as in ``auroc.csv``."""
        rows = []
        for scored in self.scored:
            support = [*self.support.rows(), (None,) * 5]
            entries = zip(self._names, (*scored.classes, scored.macro), support, strict=True)
            for name, estimate, counts in entries:
                how = RESAMPLED if estimate is scored.macro else scored.how
                interval = (estimate.interval.low, estimate.interval.high, estimate.interval.level, how)
                method = scored.method
                rows.append((method.name, name, estimate.value, estimate.sd, len(method.runs), *interval, *counts))
        columns = ["method", "class", "auroc", "sd_over_seeds", "seeds", "low", "high", "level", "interval"]
        counts = ["n_pos", "n_neg", "patients_pos", "patients_neg"]
        table = pd.DataFrame(rows, columns=[*columns, *counts, "in_mean"])
        return table.astype(dict.fromkeys(counts, "Int64") | {"in_mean": "boolean"})

    def differences_table(self) -> pd.DataFrame:
        """Return a row a method and class, as in ``differences.csv``."""
        columns = ["method", "baseline", "class", "difference", "low", "high", "level", "images_test", "p_images"]
        columns += ["p_seeds", "p", "p_holm", "stars"]
        rows = []
        for against in self.against:
            for name, change in zip(self._names, (*against.classes, against.macro), strict=True):
                how = RESAMPLED if change is against.macro else against.how
                interval = (change.interval.low, change.interval.high, change.interval.level)
                names = (against.method.name, against.baseline.name, name)
                alone = (how, change.p_images, change.p_seeds)
                rows.append((*names, change.value, *interval, *alone, change.p, change.p_holm, change.stars))
        return pd.DataFrame(rows, columns=columns)

    @property
    def spread(self) -> str:
        """Return what a standard deviation is over."""
        own = any(len(set(scored.method.draws)) > 1 for scored in self.scored)
        return "seeds, each with its own draw of the data" if own else "seeds on one draw of the data"

    @property
    def _names(self) -> tuple[str, ...]:
        return (*self.shared.classes, self.support.macro_name)


def statistics(
    methods: Sequence[Method],
    baseline: Method,
    shared: Shared,
    level: float = LEVEL,
    draws: int = DRAWS,
    say: Callable[[str], None] = lambda text: None,
) -> Statistics:
    """Compare methods on what their runs share.

    Intervals are of the mean over seeds, from a bootstrap over patients in which all runs see the same draws; without
    patient ids, over images. Where it is sure that images are independent, DeLong's are used for single seeds: for a
    method's AUROC where patients are unknown, for a difference also where each patient has one image. The standard deviation
    of the bootstrap's draws is the error of a difference under test-set noise, so a small p needs no million draws.

    Args:
        methods: Methods with the runs in the order of ``shared.scores``.
        baseline: The method that is subtracted from the others.
        shared: Scores of the runs.
        level: Level of the intervals.
        draws: Number of draws of the bootstrap.
        say: Function that is told what is being done.

    Raises:
        ConfigError: If the level or the number of draws makes no sense, or there are fewer than two patients.
    """
    if not 0 < level < 1 or draws < 100:
        raise ConfigError(f"compare: expected 0 < level < 1 and at least 100 draws, found {level} and {draws}")
    support = Support.of(shared)
    judged = np.append(support.judged, support.judged.any())
    boots: list[Bootstrap] = []
    parts = list(dict.fromkeys(rows.start for rows in shared.rows))
    for number in range(len(shared.scores)):
        say(f"bootstrap: run {number + 1} of {len(shared.scores)}")
        seed = parts.index(shared.rows[number].start) if parts else 0  # draws of the data are independent
        boots.append(_with_macro(bootstrap(*shared.of_run(number), draws, seed), support.averaged))
    scored, means, slices = [], {}, {}
    for method in methods:
        start = sum(len(other.runs) for other in methods[: methods.index(method)])
        slices[method.name] = slice(start, start + len(method.runs))
        means[method.name] = _mean(boots[slices[method.name]])
        single = shared.scores[start] if len(method.runs) == 1 else None
        of_runs = (boots[slices[method.name]], means[method.name], single)
        scored.append(_scored(method, *of_runs, shared, support, judged, level))
    against = []
    theirs = slices[baseline.name]
    for method in (each for each in methods if each is not baseline):
        ours, change = slices[method.name], means[method.name].minus(means[baseline.name])
        of_runs = {"ours": boots[ours], "theirs": boots[theirs], "change": change}
        of_runs |= {"our_scores": shared.scores[ours], "their_scores": shared.scores[theirs]}
        of_all = {"shared": shared, "averaged": support.averaged, "judged": judged, "level": level}
        against.append(_against(method, baseline, **of_runs, **of_all))
    return Statistics(shared, support, tuple(scored), _corrected(against), level, draws)


def _with_macro(boot: Bootstrap, averaged: np.ndarray) -> Bootstrap:
    """Return the same with one more column, the mean over some classes; NaN in draws that leave one of them without."""
    if not averaged.any():
        blank = np.full((len(boot.draws), 1), np.nan)
        return Bootstrap(np.append(boot.estimate, np.nan), np.hstack([boot.draws, blank]), boot.sample)
    macro, draws = boot.estimate[averaged].mean(), boot.draws[:, averaged].mean(1)
    return Bootstrap(np.append(boot.estimate, macro), np.column_stack([boot.draws, draws]), boot.sample)


def _mean(boots: Sequence[Bootstrap]) -> Bootstrap:
    estimate, draws = (np.mean([getattr(boot, part) for boot in boots], axis=0) for part in ("estimate", "draws"))
    return Bootstrap(estimate, draws, boots[0].sample)


def _scored(
    method: Method,
    boots: Sequence[Bootstrap],
    mean: Bootstrap,
    single: np.ndarray | None,
    shared: Shared,
    support: Support,
    judged: np.ndarray,
    level: float,
) -> Scored:
    by_seed = np.stack([boot.estimate for boot in boots])
    deviations = by_seed.std(0, ddof=1) if len(boots) > 1 else np.full(by_seed.shape[1], np.nan)
    fewest = np.minimum(*support.independent).clip(2)
    # The bootstrap's variance of k patients is k - 1 over k of the unbiased one.
    variance, how = _error(mean)[:-1] ** 2 * fewest / (fewest - 1), RESAMPLED
    if single is not None and shared.patients is None:
        variance, how = delong(single, shared.labels).variance, DELONG
    images, known = support.rarer, support.averaged
    if known.any():  # the mean over classes is of the patients and images of a usual class, and of all their errors
        usual = np.median(fewest[known])
        fewest, images = np.append(fewest, usual), np.append(images, images[known].sum())
        variance = np.append(variance, _error(mean)[-1] ** 2 * usual / (usual - 1))
    else:
        fewest, images, variance = (np.append(each, np.nan) for each in (fewest, images, variance))
    intervals = logit_intervals(mean.estimate, variance, fewest, images, level)
    columns = (mean.estimate.tolist(), deviations.tolist(), _where(judged, intervals, level))
    estimates = [Estimate(*numbers) for numbers in zip(*columns, strict=True)]
    return Scored(method, by_seed[:, :-1], tuple(estimates[:-1]), estimates[-1], how)


def _where(judged: np.ndarray, intervals: Sequence[Interval], level: float) -> list[Interval]:
    nothing = Interval(float("nan"), float("nan"), level)
    return [interval if known else nothing for interval, known in zip(intervals, judged, strict=True)]


def _against(
    method: Method,
    baseline: Method,
    ours: Sequence[Bootstrap],
    theirs: Sequence[Bootstrap],
    change: Bootstrap,
    our_scores: Sequence[np.ndarray],
    their_scores: Sequence[np.ndarray],
    shared: Shared,
    averaged: np.ndarray,
    judged: np.ndarray,
    level: float,
) -> Against:
    error, how = _error(change), RESAMPLED
    if len(ours) == len(theirs) == 1 and not shared.clustered:
        tested = paired_delong(our_scores[0], their_scores[0], shared.labels)
        error[:-1], how = np.sqrt(tested), DELONG
    by_seed = [np.stack([boot.estimate for boot in boots]) for boots in (ours, theirs)]
    paired_by = _pairing(method, baseline, shared)
    numbers = [_tested(*column, level, paired_by) for column in zip(*(each.T for each in by_seed), error, strict=True)]
    changes = [d if known else _untested(d) for d, known in zip(numbers, judged, strict=True)]
    means = [np.where(averaged, each[:, :-1].mean(0), np.nan) for each in by_seed]
    return Against(method, baseline, how, tuple(changes[:-1]), changes[-1], paired(*means))


def _pairing(method: Method, baseline: Method, shared: Shared) -> float | None:
    """Return what the variance of a mean over seeds is larger by than that of independent ones, over the variance of one.

    None where the runs are not paired: equal seeds on one draw of the data are separate trainings. Where the test images of
    draws overlap it is that of a resampled t-test (Nadeau and Bengio 2003), test images over others, and infinite where
    all draws have the same test images, whose noise the differences of seeds do not show.
    """
    if method.draws != baseline.draws or len(set(method.draws)) < max(2, len(method.draws)):
        return None
    return shared.overlap / (1 - shared.overlap) if shared.rows and shared.overlap < 1 else np.inf


def _tested(
    ours: np.ndarray, theirs: np.ndarray, error: float, level: float, overlapping: float | None = None
) -> Difference:
    """Return the difference of AUROCs by seed, `[S]` and `[T]`, whose error on other test images is known (or NaN).

    With ``overlapping``, see `_pairing`, seeds are paired: each has its own draw of the data.
    """
    value = float(ours.mean() - theirs.mean())
    with np.errstate(divide="ignore", invalid="ignore"):
        p_images = 1.0 if error == value == 0 else float(2 * stats.norm.sf(abs(value) / error)) if error else np.nan
        if min(len(ours), len(theirs)) < 2:
            reach = stats.norm.ppf((1 + level) / 2) * (error or np.nan)
            return Difference(value, Interval(value - reach, value + reach, level), p_images, np.nan, np.nan)
        if overlapping is None:
            p_seeds, variance, freedom = _over_seeds(ours, theirs)
        else:
            p_seeds, variance, freedom = _over_draws(ours - theirs, overlapping if overlapping < np.inf else 0.0)
        if overlapping is not None and overlapping < np.inf:  # the differences of draws show both noises
            reach = max(
                stats.t.ppf((1 + level) / 2, freedom) * np.sqrt(variance), stats.norm.ppf((1 + level) / 2) * error
            )
            interval = Interval(value - reach, value + reach, level)
            return Difference(value, interval, p_images, p_seeds, max(p_seeds, p_images))
        total = variance + error**2
        freedom *= (total / variance) ** 2
        reach = stats.t.ppf((1 + level) / 2, freedom) * np.sqrt(total)
        p = max(p_seeds, float(2 * stats.t.sf(abs(value) / np.sqrt(total), freedom)))
    return Difference(value, Interval(value - reach, value + reach, level), p_images, p_seeds, p)


def _over_draws(differences: np.ndarray, overlapping: float) -> tuple[float, float, float]:
    """Return p of a paired t-test, the variance of the mean difference, and its degrees of freedom; or NaN."""
    count = len(differences)
    variance = differences.var(ddof=1) * (1 / count + overlapping)
    if np.ptp(differences) < 1e-12:
        return np.nan, np.nan, np.nan
    p = 2 * stats.t.sf(abs(differences.mean()) / np.sqrt(variance), count - 1)
    return float(p), float(variance), float(count - 1)


def _over_seeds(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float, float]:
    """Return p of a t-test over seeds, the variance of the difference of means, and its degrees of freedom; or NaN.

    The t-test of two samples is Student's, which has more power with few seeds than Welch's. Where variances differ the
    sum of both noises, of which the variance here is a part, guards against what it then misses.
    """
    samples = [ours, theirs]
    if max(map(np.ptp, samples)) < 1e-12:
        return np.nan, np.nan, np.nan
    sizes = np.array([len(sample) for sample in samples])
    variances = np.array([sample.var(ddof=1) for sample in samples])
    parts = variances / sizes
    pooled = (variances @ (sizes - 1)) / (sizes - 1).sum() * (1 / sizes).sum()
    p = 2 * stats.t.sf(abs(ours.mean() - theirs.mean()) / np.sqrt(pooled), (sizes - 1).sum())
    return float(p), float(parts.sum()), float(parts.sum() ** 2 / (parts**2 / (sizes - 1)).sum())


def _untested(change: Difference) -> Difference:
    nothing = Interval(float("nan"), float("nan"), change.interval.level)
    return replace(change, interval=nothing, p_images=np.nan, p_seeds=np.nan, p=np.nan)


def _corrected(against: Sequence[Against]) -> tuple[Against, ...]:
    """Return the same with Holm's p: of the mean over classes for the methods, of a class for methods and classes."""
    macro = holm([each.macro.p for each in against])
    classes = iter(holm([change.p for each in against for change in each.classes]).tolist())
    return tuple(
        replace(
            each,
            macro=replace(each.macro, p_holm=p),
            classes=tuple(replace(change, p_holm=next(classes)) for change in each.classes),
        )
        for each, p in zip(against, macro.tolist(), strict=True)
    )


def _error(change: Bootstrap) -> np.ndarray:
    """Return `[C]` standard deviation of the draws; NaN where fewer than two are defined."""
    error, defined = np.full(len(change.estimate), np.nan), (~np.isnan(change.draws)).sum(0) > 1
    error[defined] = np.nanstd(change.draws[:, defined], axis=0, ddof=1)
    return error


def _listed(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
