"""Whether one method is better than another, per class: means over seeds, intervals, paired tests.

Two things make a difference that is none. **Test-set noise**: other patients would have given other AUROCs to the same
models; intervals and ``p`` are about that alone. **Seed noise**: training again would have given other models; the
standard deviation over seeds and ``p_seeds`` are about that alone. A difference is taken for real here where it is
beyond both.

Both need enough patients: a class with fewer than ten positive or negative ones has an AUROC, but no interval and
no test. Neither has a class of which a run had no positive image to train on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from fedlit.core.errors import ConfigError
from fedlit.metrics.intervals import DRAWS, LEVEL, Bootstrap, DeLong, Interval, bootstrap, delong, paired_delong
from fedlit.metrics.paired import ALPHA, Paired, holm, paired
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
    interval: Interval  # Its interval: test-set noise.
    p: float  # Two-sided p of no difference, under test-set noise.
    p_holm: float  # The same corrected for the number of classes; for the mean over classes it is ``p``.
    sd: float  # Standard deviation over seeds of the differences at equal seeds; NaN where seeds are not paired.
    # Two-sided p of a t-test over seeds, paired where the methods have the same seeds, else Welch's; NaN where a method
    # has one seed.
    p_seeds: float
    several_seeds: bool  # Whether both methods have several: a test of one training each earns no stars.

    @property
    def stars(self) -> str:
        """Return ``***``, ``**``, ``*`` for ``p_holm`` below 0.001, 0.01, 0.05; ``ns`` above.

        They are ``-`` without a test, and in the place of stars where a method has one seed.
        """
        if self.p_holm >= ALPHA:
            return "ns"
        bounds = ((0.001, "***"), (0.01, "**"), (ALPHA, "*")) if self.several_seeds else ()
        return next((stars for bound, stars in bounds if self.p_holm < bound), "-")


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
    seeds_paired: bool  # Whether both have the same seeds.
    classes: tuple[Difference, ...]  # Difference of each class.
    macro: Difference  # Difference of the mean over classes; always from the bootstrap.
    over_classes: Paired  # Paired t-test over classes, as in Kulkarni et al., section 4.3.

    @property
    def several_seeds(self) -> bool:
        """Whether both methods have several seeds."""
        return min(len(self.method.runs), len(self.baseline.runs)) > 1

    @property
    def stars_over_classes(self) -> str:
        """Return the stars of the test over classes; ``-`` where a method has one seed."""
        return self.over_classes.stars if self.several_seeds else "-"

    def verdict(self, names: Sequence[str]) -> str:
        """Return whether it is noise, in a sentence with the names of the classes."""
        macro, alpha = self.macro, 1 - self.macro.interval.level
        if macro.value != macro.value:
            return f"{self.method.name} and {self.baseline.name}: no class has an AUROC, nothing can be said."
        amount = f"{abs(macro.value):.4f}"
        place = f"{amount} {'above' if macro.value > 0 else 'below'}" if float(amount) else "level with"
        size = f"{place} {self.baseline.name} on average over classes"
        if macro.p != macro.p:
            return f"{self.method.name} is {size}; no test can be made of that, so nothing can be said of it."
        tested = macro.p < alpha
        of_test = f"p {p_text(macro.p)} for test images"
        if not self.several_seeds:
            alone = "one seed cannot tell what another training would give"
            judged = f"more than test images explain ({of_test}), but {alone}" if tested else f"noise ({of_test})"
            judged = judged if tested else f"could be {judged}"
        elif tested and macro.p_seeds < alpha:
            judged = f"beyond noise ({of_test}, {p_text(macro.p_seeds)} for seeds)"
        else:
            judged = f"could be noise ({of_test}, {p_text(macro.p_seeds)} for seeds)"
        better = [n for n, d in zip(names, self.classes, strict=True) if d.p_holm < alpha and d.value > 0]
        worse = [n for n, d in zip(names, self.classes, strict=True) if d.p_holm < alpha and d.value < 0]
        parts = [f"{word} in {_listed(which)}" for word, which in (("better", better), ("worse", worse)) if which]
        by_class = "class by class" if self.several_seeds else "class by class, and on these test images alone,"
        singly = f"; {by_class} it is {' and '.join(parts)}" if parts else "; no class by itself differs"
        return f"{self.method.name} is {size}: {judged}{singly}."


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
        columns = ["method", "baseline", "class", "difference", "low", "high", "level", "test", "p", "p_holm", "stars"]
        columns += ["sd_over_seeds", "p_seeds", "seeds_paired"]
        rows = []
        for against in self.against:
            for name, change in zip(self._names, (*against.classes, against.macro), strict=True):
                how = RESAMPLED if change is against.macro else against.how
                interval = (change.interval.low, change.interval.high, change.interval.level)
                names = (against.method.name, against.baseline.name, name)
                tests = (how, change.p, change.p_holm, change.stars, change.sd, change.p_seeds, against.seeds_paired)
                rows.append((*names, change.value, *interval, *tests))
        return pd.DataFrame(rows, columns=columns)

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
    method's AUROC where patients are unknown, for a difference also where each patient has one image. A difference's
    interval and p are normal, with the standard deviation of the bootstrap's draws as the error: they agree with each
    other, and a small p needs no million draws.

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
    for number, scores in enumerate(shared.scores, start=1):
        say(f"bootstrap: run {number} of {len(shared.scores)}")
        boots.append(_with_macro(bootstrap(scores, shared.labels, shared.units, draws), support.averaged))
    scored, means, slices = [], {}, {}
    for method in methods:
        start = sum(len(other.runs) for other in methods[: methods.index(method)])
        slices[method.name] = slice(start, start + len(method.runs))
        means[method.name] = _mean(boots[slices[method.name]])
        single = shared.scores[start] if len(method.runs) == 1 else None
        of_runs = (boots[slices[method.name]], means[method.name], single)
        scored.append(_scored(method, *of_runs, shared, judged, level))
    against = []
    theirs = slices[baseline.name]
    for method in (each for each in methods if each is not baseline):
        ours, change = slices[method.name], means[method.name].minus(means[baseline.name])
        of_runs = (boots[ours], boots[theirs], change, shared.scores[ours], shared.scores[theirs])
        against.append(_against(method, baseline, *of_runs, shared, support.averaged, judged, level))
    return Statistics(shared, support, tuple(scored), tuple(against), level, draws)


def p_text(p: float) -> str:
    """Return p in words: ``< 0.001``, ``0.034``, ``-`` where there is none."""
    return "-" if p != p else "< 0.001" if p < 0.001 else f"{p:.3f}"


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
    judged: np.ndarray,
    level: float,
) -> Scored:
    by_seed = np.stack([boot.estimate for boot in boots])
    deviations = by_seed.std(0, ddof=1) if len(boots) > 1 else np.full(by_seed.shape[1], np.nan)
    intervals, how = list(mean.intervals(level)), RESAMPLED
    if single is not None and shared.patients is None:
        intervals[:-1], how = delong(single, shared.labels).intervals(level), DELONG
    # An AUROC of 1 is 1 in every draw, which is no evidence of certainty.
    exact = _edges(mean.estimate[:-1], shared.labels, level)
    intervals[:-1] = [e if i.low != i.low else i for i, e in zip(intervals[:-1], exact, strict=True)]
    columns = (mean.estimate.tolist(), deviations.tolist(), _where(judged, intervals, level))
    estimates = [Estimate(*numbers) for numbers in zip(*columns, strict=True)]
    return Scored(method, by_seed[:, :-1], tuple(estimates[:-1]), estimates[-1], how)


def _where(judged: np.ndarray, intervals: Sequence[Interval], level: float) -> list[Interval]:
    nothing = Interval(float("nan"), float("nan"), level)
    return [interval if known else nothing for interval, known in zip(intervals, judged, strict=True)]


def _edges(auroc: np.ndarray, labels: np.ndarray, level: float) -> tuple[Interval, ...]:
    edge = np.where((auroc == 0) | (auroc == 1), auroc, np.nan)
    return DeLong(edge, np.zeros_like(edge), (labels == 1).sum(0), (labels == 0).sum(0)).intervals(level)


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
    intervals, p, how = *_normal(change, level), RESAMPLED
    if len(ours) == len(theirs) == 1 and not shared.clustered:
        tested = paired_delong(our_scores[0], their_scores[0], shared.labels)
        intervals[:-1], p[:-1], how = tested.intervals(level), tested.p, DELONG
    seeds_paired = None not in method.seeds and method.seeds == baseline.seeds
    by_seed = (np.stack([boot.estimate for boot in boots]) for boots in (ours, theirs))
    sd, p_seeds = _over_seeds(*by_seed, seeds_paired)
    p, p_seeds = np.where(judged, p, np.nan), np.where(judged, p_seeds, np.nan)
    corrected = np.append(holm(p[:-1]), p[-1])
    columns = (change.estimate, _where(judged, intervals, level), p, corrected, sd, p_seeds)
    several = min(len(ours), len(theirs)) > 1
    changes = [Difference(float(v), i, *map(float, rest), several) for v, i, *rest in zip(*columns, strict=True)]
    means = [np.mean([boot.estimate[:-1] for boot in boots], axis=0) for boots in (ours, theirs)]
    means = [np.where(averaged, mean, np.nan) for mean in means]
    return Against(method, baseline, how, seeds_paired, tuple(changes[:-1]), changes[-1], paired(*means))


def _normal(change: Bootstrap, level: float) -> tuple[list[Interval], np.ndarray]:
    """Return intervals and two-sided p `[C]`; p is 1 where nothing differs in any draw, both are NaN with too few draws."""
    defined = (~np.isnan(change.draws)).sum(0)
    p, error = np.full((2, len(defined)), np.nan)
    for column in np.flatnonzero(defined > 1):
        error[column], value = np.nanstd(change.draws[:, column], ddof=1), change.estimate[column]
        certain = 1.0 if value == 0 else np.nan
        p[column] = 2 * stats.norm.sf(abs(value) / error[column]) if error[column] > 0 else certain
    reach = stats.norm.ppf((1 + level) / 2) * error
    ends = zip((change.estimate - reach).tolist(), (change.estimate + reach).tolist(), strict=True)
    return [Interval(low, high, level) for low, high in ends], p


def _over_seeds(ours: np.ndarray, theirs: np.ndarray, seeds_paired: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return `[C]` standard deviation over seeds of the differences, and p of a t-test over seeds, paired or Welch's."""
    nothing = np.full(ours.shape[1], np.nan)
    if min(len(ours), len(theirs)) < 2:
        return nothing, nothing
    # scipy warns of columns in which nothing varies; they have no test.
    if seeds_paired:
        change = ours - theirs
        varied = np.ptp(change, axis=0) > 1e-12
        p = np.where(varied, stats.ttest_1samp(np.where(varied, change, _spread_out(change)), 0).pvalue, np.nan)
        return change.std(0, ddof=1), p
    varied = np.maximum(np.ptp(ours, axis=0), np.ptp(theirs, axis=0)) > 1e-12
    columns = (np.where(varied, each, _spread_out(each)) for each in (ours, theirs))
    return nothing, np.where(varied, stats.ttest_ind(*columns, equal_var=False).pvalue, np.nan)


def _spread_out(values: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.arange(len(values), dtype=float)[:, None], values.shape)


def _listed(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
