"""Gain of each site from joining a federation: a method's AUROC minus that of the site's own model.

The gain of a site is measured on its own test images, and once more on those of all other sites. Each is a difference
like every other of a comparison, with test-set and seed noise, and Holm's method corrects it over all sites and
methods. The summary over sites is a random-effects mean. Its error by Hartung and Knapp sees what differs from site to
site, but not that all sites share the trainings of one federation; the variance of these is added.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from scipy import stats

from fedlit.core.errors import ConfigError
from fedlit.metrics.claim import ALPHA, Difference, corrected, holm
from fedlit.metrics.intervals import Interval
from fedlit.metrics.levels import DRAWS, LEVEL
from fedlit.predictions.table import COLUMNS, Predictions
from fedlit.reports.compare.alignment import image_ids
from fedlit.reports.compare.between_sites import CrossTest, cross_tests
from fedlit.reports.compare.external import completed
from fedlit.reports.compare.methods import Method, grouped, paired_by_seed
from fedlit.reports.compare.past_run import Notes, PastRun
from fedlit.reports.compare.statistics import SET, AurocEstimate, Statistics, numbers_of
from fedlit.reports.table import number


@dataclass(frozen=True, eq=False)
class SiteGain:
    """Gain of a site from a method on one set of test images, as a mean over classes."""

    site: str
    own: AurocEstimate  # AUROC of the site's own model.
    joined: AurocEstimate  # AUROC of the method.
    gain: Difference  # The method minus the own model; ``p_holm`` is over all sites and methods.
    support: str  # Number of images, and the classes in the mean.
    by_seed: np.ndarray  # `[S]` AUROC of the method by seed; the gain by seed if each has its own draw of the data.

    @property
    def text(self) -> str:
        """Return the gain with its interval, such as ``+0.031 [+0.012, +0.050]``."""
        return _signed(self.gain.value, self.gain.interval)


@dataclass(frozen=True)
class RandomEffects:
    """Mean effect over sites, and how much sites differ (DerSimonian and Laird 1986, Hartung and Knapp 2001)."""

    sites: int  # Number of sites K.
    mean: float  # Mean effect, with DerSimonian and Laird's weights.
    error: float  # Its standard error by Hartung and Knapp, with K - 1 degrees of freedom.
    weights: np.ndarray  # `[K]` weights of the sites, which sum to 1.
    tau2: float  # Variance of the effect between sites.
    i2: float  # Share of the observed variance that is between sites, in [0, 1].


@dataclass(frozen=True, eq=False)
class GainSummary:
    """Random-effects summary of a method's gains over sites."""

    effects: RandomEffects
    interval: Interval  # Interval of the mean gain: sites, images and, with several seeds, trainings.
    p: float  # Two-sided p of no gain; NaN with one seed.
    p_holm: float = float("nan")  # ``p``, corrected by Holm over methods.

    @property
    def as_difference(self) -> Difference:
        """Return the mean gain as a difference."""
        return Difference(self.effects.mean, self.interval, np.nan, np.nan, self.p, self.p_holm)

    def text(self, method: str) -> str:
        """Return sentences about the mean gain and the differences between sites."""
        effects = self.effects
        if self.p != self.p:
            claim = "one seed says nothing about seed noise"
        else:
            p = "p < 0.001" if self.p_holm < 0.001 else f"p = {self.p_holm:.3f}"
            claim = (
                f"this {'is beyond noise' if self.p_holm < ALPHA else 'could be noise'}, {p} (corrected over methods)"
            )
        mean, sites = _signed(effects.mean, self.interval), f"{effects.sites} sites"
        return (
            f"The mean gain from {method} over {sites} is {mean}; {claim}. Estimated from {sites}, gains "
            f"differ between sites with a standard deviation (tau) of {effects.tau2**0.5:.3f}, I\u00b2 "
            f"{100 * effects.i2:.0f}%."
        )


@dataclass(frozen=True, eq=False)
class MethodGains:
    """Gains of all sites from a method."""

    method: Method
    home: tuple[SiteGain, ...]  # On the test images of each site.
    away: tuple[SiteGain | None, ...]  # On those of all other sites; None if no single model scores them.
    summary: GainSummary | None  # None with fewer than two sites that have a variance.


@dataclass(frozen=True, eq=False)
class Joining:
    """Gains of all methods, and notes on what was left out."""

    methods: tuple[MethodGains, ...]
    level: float
    notes: Notes
    matrix: tuple[CrossTest, ...] = ()  # Each site's own model on the test images of each site.

    def table(self) -> pd.DataFrame:
        """Return one row per method, test images and site, as in ``gains.csv``; the last of a method is the summary."""
        rows = []
        for gains in self.methods:
            for images, entries in (("own", gains.home), ("others", gains.away)):
                for each in filter(None, entries):
                    ours = (each.own.value, each.joined.value, each.gain.value)
                    ends = (each.gain.interval.low, each.gain.interval.high)
                    ps = (each.gain.p_images, each.gain.p_seeds, each.gain.p, each.gain.p_holm)
                    rows.append((gains.method.name, images, each.site, *ours, *ends, *ps, each.support))
            if (summary := gains.summary) is not None:
                ends = (summary.interval.low, summary.interval.high)
                ps = (np.nan, np.nan, summary.p, summary.p_holm)
                about = f"{summary.effects.sites} sites, tau2 {summary.effects.tau2:.3g}, I2 {summary.effects.i2:.3g}"
                rows.append((gains.method.name, "own", "all", np.nan, np.nan, summary.effects.mean, *ends, *ps, about))
        columns = ["method", "images", "site", "auroc_own_model", "auroc", "gain", "low", "high", "p_images", "p_seeds"]
        return pd.DataFrame(rows, columns=[*columns, "p", "p_holm", "support"])


def gains_from_joining(
    runs: Sequence[PastRun],
    level: float = LEVEL,
    draws: int = DRAWS,
    progress: Callable[[str], None] = lambda text: None,
) -> Joining:
    """Compare every method with each site's own model; finished runs of a single client are individual models.

    Raises:
        ConfigError: If there are no individual models or no others, a site has two kinds of individual model, or runs
            share no test images.
    """
    notes: Notes = []
    scored = {run.where: scores for run in runs if (scores := _held(run)) is not None}
    scored |= {run.where: completed(run, list(scored.values()), notes) for run in runs if run.table is not None}
    tested = grouped([run for run in runs if run.where in scored])
    alone = {site: method for method in tested if (site := method.runs[0].site) is not None}
    for method in tested:
        if (site := method.runs[0].site) is not None and alone[site] is not method:
            raise ConfigError(
                f"--against individual: {site} has two individual models, {method.name} and {alone[site].name}; leave "
                "one out"
            )
    others = [method for method in tested if method.runs[0].site is None]
    if not alone or not others:
        raise ConfigError(
            f"--against individual: expected runs of single clients and runs of federations, found {len(alone)} and "
            f"{len(others)} of them; `baselines: [individual, pooled]` in the YAML of a sweep adds the missing ones"
        )
    notes += _untested(runs, scored, others, alone)
    home, away, texts = {}, {}, {}  # gains by method and site; sites by note
    single = [method for method in others if not any(scored[run.where].models.any() for run in method.runs)]
    for site, own_model in sorted(alone.items()):
        progress(f"gains of {site}")
        inside = _parts([own_model, *others], scored, True)
        home |= _gains(site, _numbers(site, inside, [own_model, *others], texts, level, draws))
        elsewhere = _parts([own_model, *single], scored, False)
        if single and all(map(len, elsewhere.values())):
            away |= _gains(site, _numbers(site, elsewhere, [own_model, *single], {}, level, draws))
    notes += [f"{', '.join(sites)}: {note}" for note, sites in texts.items()]
    if len(alone) == 1:
        notes.append("There is one site, so there is no summary over sites, and nothing is known of their differences.")
    home, away, sites = _corrected(home), _corrected(away), sorted(alone)
    methods = [
        MethodGains(m, tuple(home.get((m.name, s)) for s in sites), tuple(away.get((m.name, s)) for s in sites), None)
        for m in others
    ]
    return Joining(_summarised(methods, level, notes), level, notes, cross_tests(alone, scored))


def _signed(value: float, interval: Interval) -> str:
    """Return a gain with its interval; an undefined one is ``unknown``."""
    if value != value:
        return "unknown"
    ends = f" [{number(interval.low, '+.3f')}, {number(interval.high, '+.3f')}]"
    return number(value, "+.3f") + (ends if interval.low == interval.low else "")


def _held(run: PastRun) -> Predictions | None:
    """Return a run's predictions of all images that clients hold, from all of its test sets; None without any."""
    tables = [run.predictions(name) for name in run.sets]
    parts = [part for table in tables if len(part := table.take(table.clients != ""))]
    if not parts or (run.site is not None and SET not in run.sets):
        return None
    names = {"scores": torch.cat, "labels": torch.cat} | dict.fromkeys(COLUMNS.values(), np.concatenate)
    return replace(parts[0], groups={}, **{n: cat([getattr(p, n) for p in parts]) for n, cat in names.items()})


def _parts(methods: Sequence[Method], scored: Mapping[str, Predictions], inside: bool) -> dict[str, Predictions]:
    """Return each run's predictions of the images of which the first method, an individual model, holds the test set.

    If not ``inside``, return those of all other images.
    """
    runs = [run for method in methods for run in method.runs]
    names = [method.name for method in methods for _ in method.runs]
    places = [run.where for run in runs]
    ids = dict(zip(places, image_ids(names, [scored[place] for place in places]), strict=True))
    at_home = [(run.draw, ids[run.where][scored[run.where].clients == run.site]) for run in methods[0].runs]
    one_draw = any(set(method.draws) != set(methods[0].draws) for method in methods)
    parts = {}
    for run in runs:
        here = np.zeros(len(ids[run.where]), dtype=bool)
        for draw, images in at_home:
            here |= ids[run.where].isin(images) & (one_draw or draw == run.draw)
        parts[run.where] = scored[run.where].take(here == inside)
    return parts


def _numbers(
    site: str,
    parts: Mapping[str, Predictions],
    methods: Sequence[Method],
    texts: dict[str, list[str]],
    level: float,
    draws: int,
) -> Statistics:
    """Return the statistics of a site, of whose methods the first is its own model; collect notes with their sites."""
    notes: Notes = []
    for run, name in ((run, method.name) for method in methods for run in method.runs):
        if not len(parts[run.where]):
            raise ConfigError(
                f"--against individual: {run.where} ({name}) has no image of the test set of {site} in "
                f"{methods[0].runs[0].where}; compare runs on the same data"
            )
    try:
        numbers = numbers_of(methods, methods[0], parts, notes, level=level, draws=draws)
    except ConfigError as error:
        raise ConfigError(f"--against individual: {site}: {error}") from error
    for note in notes:
        texts.setdefault(note, []).append(site)
    return numbers


def _gains(site: str, numbers: Statistics) -> dict[tuple[str, str], SiteGain]:
    """Return by method and site the gains from all methods but the first, which is the site's own model."""
    own_model, *others = numbers.scored
    known = numbers.support.averaged
    means = [each.by_seed[:, known].mean(1) if known.any() else np.full(1, np.nan) for each in numbers.scored]
    support = f"{len(numbers.shared.labels):,} images, {numbers.support.macro_name}"
    gains = {}
    for scored, against, mean in zip(others, numbers.against, means[1:], strict=True):
        by_seed = mean - means[0] if paired_by_seed(scored.method, own_model.method) else mean
        gains[scored.method.name, site] = SiteGain(site, own_model.macro, scored.macro, against.macro, support, by_seed)
    return gains


def _corrected(gains: Mapping[tuple[str, str], SiteGain]) -> dict[tuple[str, str], SiteGain]:
    changes = corrected([gain.gain for gain in gains.values()])
    return {place: replace(gain, gain=change) for (place, gain), change in zip(gains.items(), changes, strict=True)}


def _summarised(methods: Sequence[MethodGains], level: float, notes: Notes) -> tuple[MethodGains, ...]:
    """Add the summary over sites to each method; its p is corrected by Holm over methods."""
    summaries = [_summary(each, level, notes) for each in methods]
    p = holm([np.nan if summary is None else summary.p for summary in summaries]).tolist()
    return tuple(
        replace(each, summary=None if summary is None else replace(summary, p_holm=p_holm))
        for each, summary, p_holm in zip(methods, summaries, p, strict=True)
    )


def _summary(gains: MethodGains, level: float, notes: Notes) -> GainSummary | None:
    known = [each for each in gains.home if each.gain.variance > 0 and each.gain.p_images == each.gain.p_images]
    if left := [each.site for each in gains.home if each not in known]:
        notes.append(f"{gains.method.name}: {', '.join(left)} is not in the summary, as its gain has no variance.")
    if len(known) < 2:
        return None
    effects = random_effects([each.gain.value for each in known], [each.gain.variance for each in known])
    variance, freedom = effects.error**2, effects.sites - 1
    seeds = {len(each.by_seed) for each in known}
    several = len(seeds) == 1 and min(seeds) > 1
    if several:
        together = effects.weights @ np.stack([each.by_seed for each in known])
        shared = together.var(ddof=1) / len(together)
        total = variance + shared
        freedom = total**2 / (variance**2 / freedom + shared**2 / (len(together) - 1))
        variance = total
    reach = stats.t.ppf((1 + level) / 2, freedom) * variance**0.5
    p = float(2 * stats.t.sf(abs(effects.mean) / variance**0.5, freedom)) if several and variance else np.nan
    return GainSummary(effects, Interval(effects.mean - reach, effects.mean + reach, level), p)


def _untested(
    runs: Sequence[PastRun], scored: Mapping[str, Predictions], others: Sequence[Method], alone: Mapping[str, Method]
) -> Notes:
    """Note the runs without predictions, and the sites without a model of their own."""
    notes = [
        f"{run.site or run.where}: {run.where} has no predictions of test images that a client holds, so it is in no "
        "gain; a site without a test set has none."
        for run in runs
        if run.where not in scored
    ]
    federated = [scored[run.where] for method in others for run in method.runs if run.table is None]
    sites = {name for table in federated for name in table.clients.tolist()} - {"pooled"}
    if lacking := sorted(sites - alone.keys()):
        notes.append(f"{', '.join(lacking)}: no run has an individual model, so the gain is unknown.")
    return notes


def random_effects(effects: Sequence[float], variances: Sequence[float]) -> RandomEffects:
    """Combine the effects of K sites, at least two, given their variances above 0."""
    effect, variance = np.asarray(effects, dtype=np.float64), np.asarray(variances, dtype=np.float64)
    count = len(effect)
    fixed = 1 / variance
    q = float(fixed @ (effect - fixed @ effect / fixed.sum()) ** 2)
    excess = q - (count - 1)
    tau2 = max(0.0, excess / (fixed.sum() - fixed @ fixed / fixed.sum()))
    weights = 1 / (variance + tau2)
    shares = weights / weights.sum()
    mean = float(shares @ effect)
    error = float(np.sqrt(shares @ (effect - mean) ** 2 / (count - 1)))
    return RandomEffects(count, mean, error, shares, tau2=float(tau2), i2=max(0.0, excess / q) if q else 0.0)
