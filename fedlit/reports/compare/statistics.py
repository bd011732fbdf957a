"""Whether one method is better than another, per class: means over seeds, intervals, paired tests.

Two things make a difference that is none. **Test-set noise**: other patients would have given other AUROCs to the same
models; intervals and ``p`` are about that alone. **Seed noise**: training again would have given other models; the
standard deviation over seeds and ``p_seeds`` are about that alone. A difference is taken for real here where it is
beyond both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy import stats

from fedlit.errors import ConfigError
from fedlit.metrics.intervals import DRAWS, LEVEL, Bootstrap, DeLong, Interval, bootstrap, delong, paired_delong
from fedlit.metrics.paired import ALPHA, Paired, holm, paired
from fedlit.reports.compare.methods import Method
from fedlit.reports.compare.shared import Shared

DELONG, RESAMPLED = "DeLong", "bootstrap"


@dataclass(frozen=True)
class Estimate:
    """AUROC of a class, or its mean over classes, of one method.

    Attributes:
        value: mean over seeds; NaN where undefined.
        sd: standard deviation over seeds; NaN for one seed.
        interval: of the mean over these very models: test-set noise.
    """

    value: float
    sd: float
    interval: Interval


@dataclass(frozen=True)
class Difference:
    """A method's AUROC minus the baseline's.

    Attributes:
        value: of the means over seeds.
        interval: test-set noise.
        p: two-sided, of no difference, under test-set noise.
        p_holm: the same corrected for the number of classes; of the mean over classes it is ``p``.
        sd: standard deviation over seeds of the differences at equal seeds; NaN where seeds are not paired.
        p_seeds: two-sided t-test over seeds, paired where the methods have the same seeds, else Welch's; NaN where a
            method has one.
    """

    value: float
    interval: Interval
    p: float
    p_holm: float
    sd: float
    p_seeds: float

    @property
    def stars(self) -> str:
        """``***``, ``**``, ``*`` for ``p_holm`` below 0.001, 0.01, 0.05; ``ns`` above, ``-`` without a test."""
        if self.p_holm != self.p_holm:
            return "-"
        return next((s for bound, s in ((0.001, "***"), (0.01, "**"), (ALPHA, "*")) if self.p_holm < bound), "ns")


@dataclass(frozen=True, eq=False)
class Scored:
    """AUROC of a method.

    Attributes:
        method: whose.
        by_seed: [S, C] of each run.
        classes: of each class.
        macro: of their mean, over the classes where it is defined (the same for all methods).
        how: what the classes' intervals are from, ``bootstrap`` or ``DeLong``.
    """

    method: Method
    by_seed: np.ndarray
    classes: tuple[Estimate, ...]
    macro: Estimate
    how: str


@dataclass(frozen=True, eq=False)
class Against:
    """A method against the baseline.

    Attributes:
        method: whose AUROC it is.
        baseline: whose is subtracted.
        how: what the classes' intervals and p are from, ``bootstrap`` or ``DeLong``.
        seeds_paired: whether both have the same seeds.
        classes: of each class.
        macro: of the mean over classes; always from the bootstrap.
        over_classes: paired t-test over classes, as in Kulkarni et al., section 4.3.
    """

    method: Method
    baseline: Method
    how: str
    seeds_paired: bool
    classes: tuple[Difference, ...]
    macro: Difference
    over_classes: Paired

    def verdict(self, names: Sequence[str]) -> str:
        """Whether it is noise, in a sentence.

        Args:
            names: of the classes.
        """
        macro, alpha = self.macro, 1 - self.macro.interval.level
        if macro.value != macro.value:
            return f"{self.method.name} and {self.baseline.name}: no class has an AUROC, nothing can be said."
        amount = f"{abs(macro.value):.4f}"
        place = f"{amount} {'above' if macro.value > 0 else 'below'}" if float(amount) else "level with"
        size = f"{place} {self.baseline.name} on average over classes"
        tested, seeds = macro.p < alpha, min(len(self.method.runs), len(self.baseline.runs))
        of_test = f"p {p_text(macro.p)} for test images"
        if seeds < 2:
            alone = "one seed cannot tell what another training would give"
            judged = f"more than test images explain ({of_test}), but {alone}" if tested else f"noise ({of_test})"
            judged = judged if tested else f"could be {judged}"
        elif tested and macro.p_seeds < alpha:
            judged = f"beyond noise ({of_test}, {p_text(macro.p_seeds)} for seeds)"
        else:
            judged = f"could be noise ({of_test}, {p_text(macro.p_seeds)} for seeds)"
        better = [n for n, d in zip(names, self.classes, strict=True) if d.p_holm < alpha and d.value > 0]
        worse = [n for n, d in zip(names, self.classes, strict=True) if d.p_holm < alpha and d.value < 0]
        told = [f"{word} in {_listed(which)}" for word, which in (("better", better), ("worse", worse)) if which]
        singly = f"; class by class it is {' and '.join(told)}" if told else "; no class by itself differs"
        return f"{self.method.name} is {size}: {judged}{singly}."


@dataclass(frozen=True, eq=False)
class Statistics:
    """All numbers of a comparison.

    Attributes:
        shared: what they were computed on.
        n_pos: [C] images labelled positive.
        n_neg: [C] images labelled negative.
        scored: of every method.
        against: of every method but the baseline.
        level: of the intervals.
        draws: of the bootstrap.
    """

    shared: Shared
    n_pos: np.ndarray
    n_neg: np.ndarray
    scored: tuple[Scored, ...]
    against: tuple[Against, ...]
    level: float
    draws: int

    @cached_property
    def macro_name(self) -> str:
        """``macro``, which is undefined where a class is; then the mean goes by the number of classes that have one."""
        defined = int(((self.n_pos > 0) & (self.n_neg > 0)).sum())
        total = len(self.shared.classes)
        return "macro" if defined == total else f"mean of {defined} of {total} classes"

    def auroc_table(self) -> pd.DataFrame:
        """A row a method and class, as in ``auroc.csv``."""
        rows = []
        for scored in self.scored:
            support = [*zip(self.n_pos.tolist(), self.n_neg.tolist(), strict=True), (None, None)]
            entries = zip(self._names, (*scored.classes, scored.macro), support, strict=True)
            for name, estimate, (n_pos, n_neg) in entries:
                how = RESAMPLED if estimate is scored.macro else scored.how
                rows.append(
                    {
                        "method": scored.method.name,
                        "class": name,
                        "auroc": estimate.value,
                        "sd_over_seeds": estimate.sd,
                        "seeds": len(scored.method.runs),
                        "low": estimate.interval.low,
                        "high": estimate.interval.high,
                        "level": estimate.interval.level,
                        "interval": how,
                        "n_pos": n_pos,
                        "n_neg": n_neg,
                    }
                )
        return pd.DataFrame(rows).astype({"n_pos": "Int64", "n_neg": "Int64"})

    def differences_table(self) -> pd.DataFrame:
        """A row a method and class, as in ``differences.csv``."""
        columns = ["method", "baseline", "class", "difference", "low", "high", "level", "test", "p", "p_holm", "stars"]
        columns += ["sd_over_seeds", "p_seeds", "seeds_paired"]
        rows = []
        for against in self.against:
            for name, found in zip(self._names, (*against.classes, against.macro), strict=True):
                how = RESAMPLED if found is against.macro else against.how
                interval = (found.interval.low, found.interval.high, found.interval.level)
                names = (against.method.name, against.baseline.name, name)
                tests = (how, found.p, found.p_holm, found.stars, found.sd, found.p_seeds, against.seeds_paired)
                rows.append(dict(zip(columns, (*names, found.value, *interval, *tests), strict=True)))
        return pd.DataFrame(rows, columns=columns)

    @property
    def _names(self) -> tuple[str, ...]:
        return (*self.shared.classes, self.macro_name)


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
        methods: with the runs in the order of ``shared.scores``.
        baseline: one of them.
        shared: their scores.
        level: of the intervals.
        draws: of the bootstrap.
        say: told what is being done.

    Raises:
        ConfigError: the level or the number of draws makes no sense, or there are fewer than two patients.
    """
    if not 0 < level < 1 or draws < 100:
        raise ConfigError(f"compare: expected 0 < level < 1 and at least 100 draws, found {level} and {draws}")
    patients = np.arange(len(shared.labels)) if shared.patients is None else shared.patients
    if len(np.unique(patients)) < 2:
        raise ConfigError("the runs share test images of a single patient: at least two are needed")
    n_pos, n_neg = (shared.labels == 1).sum(0), (shared.labels == 0).sum(0)
    defined = (n_pos > 0) & (n_neg > 0)
    boots: list[Bootstrap] = []
    for number, scores in enumerate(shared.scores, start=1):
        say(f"bootstrap: run {number} of {len(shared.scores)}")
        boots.append(_with_macro(bootstrap(scores, shared.labels, patients, draws), defined))
    scored, means, own = [], {}, {}
    for method in methods:
        start = sum(len(other.runs) for other in methods[: methods.index(method)])
        own[method.name] = slice(start, start + len(method.runs))
        means[method.name] = _mean(boots[own[method.name]])
        single = shared.scores[start] if len(method.runs) == 1 else None
        scored.append(_scored(method, boots[own[method.name]], means[method.name], single, shared, level))
    against = []
    for method in methods:
        if method is not baseline:
            runs, theirs = own[method.name], own[baseline.name]
            change = means[method.name].minus(means[baseline.name])
            against.append(
                _against(
                    method, baseline, boots[runs], boots[theirs], change,
                    shared.scores[runs], shared.scores[theirs], shared, level,
                )
            )  # fmt: skip
    return Statistics(shared, n_pos, n_neg, tuple(scored), tuple(against), level, draws)


def p_text(p: float) -> str:
    """p in words: ``< 0.001``, ``0.034``, ``-`` where there is none."""
    return "-" if p != p else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _with_macro(boot: Bootstrap, defined: np.ndarray) -> Bootstrap:
    """The same with one more column, the mean over the defined classes; NaN in draws that leave one of them without."""
    if not defined.any():
        defined = ~defined  # NaN throughout
    macro, draws = boot.estimate[defined].mean(), boot.draws[:, defined].mean(1)
    return Bootstrap(np.append(boot.estimate, macro), np.column_stack([boot.draws, draws]), boot.sample)


def _mean(boots: Sequence[Bootstrap]) -> Bootstrap:
    estimate, draws = (np.mean([getattr(boot, part) for boot in boots], axis=0) for part in ("estimate", "draws"))
    return Bootstrap(estimate, draws, boots[0].sample)


def _scored(
    method: Method, boots: Sequence[Bootstrap], mean: Bootstrap, single: np.ndarray | None, shared: Shared, level: float
) -> Scored:
    by_seed = np.stack([boot.estimate for boot in boots])
    deviations = by_seed.std(0, ddof=1) if len(boots) > 1 else np.full(by_seed.shape[1], np.nan)
    intervals, how = list(mean.intervals(level)), RESAMPLED
    if single is not None and shared.patients is None:
        intervals[:-1], how = delong(single, shared.labels).intervals(level), DELONG
    # An AUROC of 1 is 1 in every draw, which is no evidence of certainty.
    exact = _edges(mean.estimate[:-1], shared.labels, level)
    intervals[:-1] = [e if i.low != i.low else i for i, e in zip(intervals[:-1], exact, strict=True)]
    found = [Estimate(*numbers) for numbers in zip(mean.estimate.tolist(), deviations.tolist(), intervals, strict=True)]
    return Scored(method, by_seed[:, :-1], tuple(found[:-1]), found[-1], how)


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
    level: float,
) -> Against:
    intervals, p, how = *_normal(change, level), RESAMPLED
    if len(ours) == len(theirs) == 1 and not shared.clustered:
        tested = paired_delong(our_scores[0], their_scores[0], shared.labels)
        intervals[:-1], p[:-1], how = tested.intervals(level), tested.p, DELONG
    seeds_paired = None not in method.seeds and method.seeds == baseline.seeds
    sd, p_seeds = _over_seeds(
        np.stack([boot.estimate for boot in ours]), np.stack([boot.estimate for boot in theirs]), seeds_paired
    )
    corrected = np.append(holm(p[:-1]), p[-1])
    columns = (change.estimate, intervals, p, corrected, sd, p_seeds)
    found = [Difference(float(v), i, *map(float, rest)) for v, i, *rest in zip(*columns, strict=True)]
    means = [np.mean([boot.estimate[:-1] for boot in boots], axis=0) for boots in (ours, theirs)]
    return Against(method, baseline, how, seeds_paired, tuple(found[:-1]), found[-1], paired(*means))


def _normal(change: Bootstrap, level: float) -> tuple[list[Interval], np.ndarray]:
    """Intervals and two-sided p [C]; p is 1 where nothing differs in any draw, both are NaN with too few draws."""
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
    """[C] standard deviation over seeds of the differences, and p of a t-test over seeds, paired or Welch's."""
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
