"""The tables of a comparison.

A number is bold because of its test, never because its mean is the largest: a method if it is better than the baseline
beyond noise, and the baseline if all other methods are worse beyond noise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from fedlit.metrics.claim import Difference, p_text
from fedlit.metrics.intervals import FEWEST, MIN_PATIENTS, Interval
from fedlit.reports.compare.between_sites import BySite
from fedlit.reports.compare.comparison import Comparison
from fedlit.reports.compare.joining import Joining, MethodGains
from fedlit.reports.compare.logged import LoggedMetric
from fedlit.reports.compare.methods import Method
from fedlit.reports.compare.past_run import cost_row
from fedlit.reports.compare.statistics import MethodDifferences, Statistics
from fedlit.reports.table import ABSENT, Cell, Number, Table, interval_text, number, short

COSTS = ("rounds", "sent", "steps", "drift")
MOST_SETTINGS = 12


def methods_table(comparison: Comparison, labels: Mapping[str, str]) -> Table:
    """Return the methods with their costs; those whose label is shortened have their number."""
    rows = []
    for place, method in enumerate(comparison.methods, start=1):
        name = method.name if labels[method.name] == method.name else f"{place} {method.name}"
        name += " (baseline)" if method.name == comparison.baseline.name and len(comparison.methods) > 1 else ""
        rows.append((name, str(len(method.runs)), *cost_row(method.runs)))
    return Table("Methods", ("method",), ("runs", *COSTS), rows)


def runs_table(methods: Sequence[Method]) -> Table:
    """Return the runs with their costs."""
    rows = [
        (
            *(each.name, run.name, run.git or ABSENT, run.where),
            *(ABSENT if run.seed is None else str(run.seed), *cost_row([run])),
        )
        for each in methods
        for run in each.runs
    ]
    caption = (
        "Runs; sent: bytes from and to all clients; steps: local steps of all clients; drift: mean client drift over "
        "rounds; code: its revision"
    )
    return Table(caption, ("method", "run", "code", "location"), ("seed", *COSTS), rows)


def settings_table(differing: pd.DataFrame) -> Table:
    """Return the settings that differ, with a column for each method."""
    rows = [(str(key), *map(str, row)) for key, *row in differing.itertuples(name=None)]
    return Table("Settings that differ; -: not set", ("setting", *differing.columns), (), rows)


def settings_list(differing: pd.DataFrame, labels: Mapping[str, str]) -> Table:
    """Return the first settings that differ, with the methods that have each value."""
    rows = []
    for key, row in list(differing.iterrows())[:MOST_SETTINGS]:
        owners: dict[str, list[str]] = {}
        for name, value in row.items():
            owners.setdefault(value, []).append(labels[name])
        rows.append((str(key), "\n".join(f"{value}  ({'; '.join(names)})" for value, names in owners.items())))
    if len(differing) > MOST_SETTINGS:
        rows.append((f"{len(differing) - MOST_SETTINGS} more are in the report", ""))
    return Table("Settings that differ (-: not set)", ("setting", "value  (methods)"), (), rows)


def estimates_table(comparison: Comparison, numbers: Statistics, labels: Mapping[str, str]) -> Table:
    """Return a row for each class and method, with the AUROC and the difference from the baseline."""
    changes = {against.method.name: against.rows for against in numbers.against}
    rows = []
    for i, name in enumerate(numbers.names):
        if i < len(numbers.shared.classes):
            name += f": {numbers.support.positives(i, ' positive')}, {numbers.support.negatives(i, ' negative')}"
        for scored in numbers.scored:
            estimate, change = scored.rows[i], changes.get(scored.method.name)
            ends = interval_text(estimate.interval.low, estimate.interval.high).replace(" to ", "-")
            cells = [name, labels[scored.method.name], short(estimate.value), short(estimate.sd), ends]
            if change is not None:
                both = (p_text(p).replace("< 0.001", "<.001") for p in (change[i].p_images, change[i].p_seeds))
                stars = Number(change[i].stars, bold=change[i].claimed)
                cells += [number(change[i].value, "+.3f"), *both, stars]
            elif numbers.against:
                cells += ["base", "", "", ""]
            rows.append(cells)
    compared = ("diff.", "p img", "p seed", "") if numbers.against else ()
    caption = f"AUROC on test set {comparison.test_set!r}, {numbers.images}"
    return Table(caption, ("class", "method"), ("mean", "SD", f"{100 * numbers.level:g}% int.", *compared), rows)


def auroc_table(numbers: Statistics, test_set: str) -> Table:
    """Return a row for each class, with the AUROC of each method and the class's support."""
    support, rows = numbers.support, []
    for i, name in enumerate(numbers.names):
        counts = (support.positives(i), support.negatives(i)) if i < len(numbers.shared.classes) else ("", "")
        changes = {against.method.name: against.rows[i] for against in numbers.against}
        cells = [
            Number(
                short(scored.rows[i].value),
                spread="" if (sd := scored.rows[i].sd) != sd else short(sd),
                interval=_ends(scored.rows[i].interval),
                bold=_better(scored.method, changes),
            )
            for scored in numbers.scored
        ]
        rows.append((name, *cells, *counts))
    units = "images" if numbers.shared.patients is None else "patients"
    values = "AUROC" if numbers.spread is None else f"mean AUROC ± SD over {numbers.spread}"
    caption = f"Test set {test_set}: {values} on {numbers.images}"
    if numbers.has_intervals:
        caption += (
            f", with {100 * numbers.level:g}% intervals under test-set noise; no interval: fewer than {FEWEST} {units} "
            "on the rarer side, or almost none ranked wrongly"
        )
    caption += "; positives and negatives are images" + " (patients)" * (units == "patients")
    caption += "; macro: mean over classes" * (support.macro_name == "macro")
    if any(against.several_seeds for against in numbers.against):
        baseline = numbers.against[0].baseline.name
        caption += f"; bold: better than {baseline} beyond noise, or, for it, better than all others"
    return Table(caption, ("class",), (*_names(numbers), "positives", "negatives"), rows, summary=1)


def logged_table(comparison: Comparison, labels: Mapping[str, str] | None = None) -> Table:
    """Return a row for each logged metric and method, with the spread over seeds and the difference from the baseline.

    Methods have their names, or these ``labels``.
    """
    rows = []
    for metric in comparison.logged:
        form = _form(metric)
        for each in metric.methods:
            name, change = each.method.name, each.change
            cells = [metric.name, labels[name] if labels else name, number(each.value, form), number(each.sd, form)]
            cells.append(_ends(each.interval, form).replace(" to ", "-") or ABSENT)
            if change is not None:
                ps = (p_text(p).replace("< 0.001", "<.001") for p in (change.p_images, change.p_seeds))
                cells += [number(change.value, f"+{form}"), *ps, Number(change.stars, bold=change.claimed)]
            else:
                cells += ["base" if each.method.name == comparison.baseline.name else "", "", "", ""]
            rows.append(cells)
    level = comparison.logged[0].methods[0].interval.level
    head = ("mean", "SD", f"{100 * level:g}% int.", "diff.", "p img", "p seed", "")
    return Table(f"Metrics that the modules log, on test set {comparison.test_set!r}", ("metric", "method"), head, rows)


def spread_table(sites: Sequence[BySite], labels: Mapping[str, str] | None = None) -> Table:
    """Return a row for each metric and method: the worst site, its value, the best value and the spread."""
    rows = []
    for each in sites:
        for name in each.values:
            site, *values = each.extremes(name)
            rows.append((each.metric, labels[name] if labels else name, site or ABSENT, *map(short, values)))
    caption = "Between sites: each site's own test images, mean over seeds; SD between sites"
    if any(each.best is None for each in sites):
        caption += f"; {ABSENT}: no run says by federation.monitor_mode if higher is better"
    return Table(caption, ("metric", "method", "worst site"), ("worst", "best", "SD"), rows)


def site_values_table(sites: Sequence[BySite]) -> Table:
    """Return a row for each metric and site, with the value of each method and its spread over seeds."""
    methods = list(dict.fromkeys(name for each in sites for name in each.values))
    rows = []
    for each in sites:
        for site in dict.fromkeys(str(site) for table in each.values.values() for site in table):
            tables = (each.values.get(name, pd.DataFrame()) for name in methods)
            columns = [table.get(site, pd.Series(dtype=float)) for table in tables]
            rows.append((each.metric, site, *(_mean_and_sd(column) for column in columns)))
    caption = (
        f"Each site's own test images: mean ± SD over seeds. AUROC: mean over the classes with at least {MIN_PATIENTS} "
        "positive and negative patients (images, if patients are unknown) at the site"
    )
    return Table(caption, ("metric", "site"), tuple(methods), rows)


def differences_table(numbers: Statistics) -> Table:
    """Return a row for each class, with each method's difference from the baseline and p."""
    rows = [
        (name, *(cell for each in numbers.against for cell in (_change(each.rows[i]), p_text(each.rows[i].p_holm))))
        for i, name in enumerate(numbers.names)
    ]
    noise = "test-set and seed noise" if any(each.several_seeds for each in numbers.against) else "test-set noise only"
    caption = (
        f"Difference in AUROC from {numbers.against[0].baseline.name}, with {100 * numbers.level:g}% intervals under "
        f"{noise}, and p corrected by Holm; intervals are not corrected. Bold: beyond noise (p below 0.05). macro: "
        "mean over classes."
    )
    heads = tuple(word for each in numbers.against for word in (each.method.name, "p"))
    return Table(caption, ("class",), heads, rows, summary=1)


def tests_table(numbers: Statistics, against: MethodDifferences) -> Table:
    """Return a row for each class, with a method's difference from the baseline and all its p."""
    rows = [
        (
            *(name, number(change.value, "+.4f"), _ends(change.interval, "+.3f") or ABSENT),
            *map(p_text, (change.p_images, change.p_seeds, change.p)),
            _starred(p_text(change.p_holm), change),
        )
        for name, change in zip(numbers.names, against.rows, strict=True)
    ]
    noise = "test-set and seed noise" if against.several_seeds else "test-set noise only; one seed gets no stars"
    caption = f"{against.method.name} minus {against.baseline.name}: intervals cover {noise}"
    head = ("difference", f"{100 * numbers.level:g}% interval", "p, images", "p, seeds", "p, both", "p (Holm)")
    return Table(caption, ("class",), head, rows, summary=1)


def sites_table(joining: Joining, gains: MethodGains) -> Table:
    """Return a row for each site: both AUROCs at the site, the gain from a method, and that on the other sites."""
    rows = [
        (
            *(home.site, home.support, short(home.own.value), short(home.joined.value), home.text),
            *(_starred(p_text(home.gain.p_holm), home.gain), _elsewhere(away.gain) if away else ABSENT),
        )
        for home, away in zip(gains.home, gains.away, strict=True)
    ]
    caption = (
        f"AUROC on each site's own test images: of its own model (alone) and of {gains.method.name} (joined); "
        "elsewhere: gain on the test images of all other sites"
    )
    head = ("alone", "joined", f"gain [{100 * joining.level:g}% interval]", "p (Holm)", "elsewhere")
    return Table(caption, ("site", "measured on"), head, rows)


def matrix_table(joining: Joining) -> Table:
    """Return a row for each site's own model and a column for the test images of each site."""
    most: dict[str, int] = {}
    for cell in joining.matrix:
        most[cell.tested_on] = max(cell.classes, most.get(cell.tested_on, 0))
    rows: dict[str, list[Cell]] = {}
    for cell in joining.matrix:
        value = _mean_and_sd(pd.Series(cell.by_seed))
        if 0 < cell.classes < most[cell.tested_on]:
            value = replace(value, text=f"{value.text} ({cell.classes} of {most[cell.tested_on]} classes)")
        rows.setdefault(cell.model, [cell.model]).append(value)
    caption = "AUROC of each site's own model (rows) on the test images of each site (columns), mean ± SD over seeds"
    return Table(caption, ("own model of",), tuple(most), list(rows.values()))


def gains_list(joining: Joining) -> Table:
    """Return a row for each method and site, as :func:`sites_table` but with stars in place of p."""
    rows = [
        (
            *(gains.method.name, home.site, short(home.own.value), short(home.joined.value), home.text),
            *(Number(home.gain.stars, bold=home.gain.claimed), str(_elsewhere(away.gain)) if away else ABSENT),
        )
        for gains in joining.methods
        for home, away in zip(gains.home, gains.away, strict=True)
    ]
    head = ("alone", "joined", f"gain [{100 * joining.level:g}% interval]", "", "elsewhere")
    return Table("What joining brought each site: AUROC on its own test images", ("method", "site"), head, rows)


def gains_table(joining: Joining) -> Table:
    """Return a row for each site with its gain from each method, and the summary over sites."""
    by_site = zip(*(each.home for each in joining.methods), strict=True)
    rows = [(homes[0].site, short(homes[0].own.value), *(_change(each.gain) for each in homes)) for homes in by_site]
    summaries = [each.summary for each in joining.methods]
    if any(summaries):
        rows.append(("all sites", "", *(Number(ABSENT) if s is None else _change(s.as_difference) for s in summaries)))
    caption = (
        f"AUROC of each site's own model on its test images, and what joining adds, with {100 * joining.level:g}% "
        "intervals under test-set and seed noise, which are not corrected. Bold: beyond noise (p below 0.05, "
        "Holm-corrected over sites and methods). All sites: random effects (DerSimonian-Laird, Hartung-Knapp)."
    )
    heads = ("own model", *(each.method.name for each in joining.methods))
    return Table(caption, ("site",), heads, rows, summary=int(any(summaries)))


def _mean_and_sd(values: pd.Series) -> Number:
    return Number(short(values.mean()), spread=short(sd) if (sd := values.std()) == sd else "")


def _form(metric: LoggedMetric) -> str:
    """Return the format of a metric's values: three decimals, or three digits if they are very large or small."""
    largest = max(abs(each.value) for each in metric.methods)
    return ".3f" if 0.01 <= largest < 1000 else ".3g"


def _names(numbers: Statistics) -> tuple[str, ...]:
    return tuple(scored.method.name for scored in numbers.scored)


def _better(method: Method, changes: Mapping[str, Difference]) -> bool:
    if (change := changes.get(method.name)) is not None:
        return change.claimed and change.value > 0
    return bool(changes) and all(each.claimed and each.value < 0 for each in changes.values())


def _change(change: Difference) -> Number:
    return Number(number(change.value, "+.3f"), interval=_ends(change.interval, "+.3f"), bold=change.claimed)


def _starred(text: str, change: Difference) -> Number:
    return Number(text, stars=change.stars if change.p_holm == change.p_holm else "", bold=change.claimed)


def _elsewhere(gain: Difference) -> Number:
    return _starred(number(gain.value, "+.3f"), gain)


def _ends(interval: Interval, form: str = ".3f") -> str:
    return interval_text(interval.low, interval.high, form) if interval.low == interval.low else ""
