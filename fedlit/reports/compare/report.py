"""A comparison as files: ``report.html``, its figures as SVG and PDF, its numbers as CSV."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedlit import __version__
from fedlit.reports.compare.comparison import Comparison
from fedlit.reports.compare.figures import (
    PAGE,
    Point,
    Style,
    Support,
    TestedPoint,
    band_note,
    curves_figure,
    differences_figure,
    drift_figure,
    intervals_figure,
    patient_draws,
    roc_curve,
    roc_figure,
    save,
    styles,
)
from fedlit.reports.compare.methods import Method, differences
from fedlit.reports.compare.page import Block, Chart, Facts, Note, Paragraph, Picture, Section, Table, page
from fedlit.reports.compare.progress import DRIFT, against, cost, sent, steps
from fedlit.reports.compare.statistics import Against, Difference, Estimate, Statistics, p_text
from fedlit.reports.compare.terminal import ALONE, cost_row, interval_text, number, short

HEIGHT = 3.0
"""Of curves, in inches."""

MOST_NOTES = 3
"""At the head of the page."""

METHOD = """Test-set noise and seed noise are told apart. Intervals, and p of each class, say what other test images would
have given the same models: they are of the mean over a method's seeds. The standard deviation (SD) over seeds, and p over
seeds, say what other seeds would have given on the same images: p over seeds is of a t-test, paired where both methods
have the same seeds, else Welch's.

All methods are compared on the same images: those that all runs scored, with the same labels. {how} p (Holm) is corrected
for the number of classes, not for the number of methods. Stars: *** below 0.001, ** below 0.01, * below 0.05, ns above.
The mean over classes is undefined (and called otherwise) where a class has no AUROC.

The paired t-test over classes takes a class as one observation, as in Kulkarni et al. (arXiv:2301.06683), section 4.3;
Shapiro-Wilk tells whether the differences pass for normal, and Wilcoxon's test does not need that. Classes share images,
so they are not independent: it describes this set of classes."""

BOOTSTRAP = """They are of {draws:,} bootstrap draws of {units}, in which all runs see the same draws: intervals of an AUROC
are percentiles, intervals and p of a difference are normal with the standard deviation of the draws as the error."""

DELONG = """Intervals and p of single classes are DeLong's, paired for differences{where}; those of the mean over classes are
of a bootstrap."""


def write_report(comparison: Comparison, folder: Path) -> Path:
    """Write the report, its figures and tables to a folder; returns the page.

    Args:
        comparison: of runs.
        folder: made where it is not there; files of the same names are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    look = styles([method.name for method in comparison.methods])
    sections = list(_sections(comparison, look))
    for chart in (block for section in sections for block in section.blocks if isinstance(block, Chart)):
        for suffix in ("svg", "pdf"):
            save(chart.figure, folder / f"{chart.name}.{suffix}")
    numbers = comparison.statistics
    if numbers is not None:
        numbers.auroc_table().to_csv(folder / "auroc.csv", index=False)
        numbers.differences_table().to_csv(folder / "differences.csv", index=False)
    file = folder / "report.html"
    title = f"Comparison of {len(comparison.methods)} method{'s' * (len(comparison.methods) != 1)}"
    file.write_text(page(title, sections, list(_lead(comparison)), f"fedlit {__version__}"), encoding="utf-8")
    return file


def _lead(comparison: Comparison) -> Iterator[Block]:
    numbers = comparison.statistics
    facts = [("methods", str(len(comparison.methods))), ("runs", str(sum(len(m.runs) for m in comparison.methods)))]
    if len(comparison.methods) > 1:
        facts.append(("baseline", comparison.baseline.name))
    if numbers is not None:
        patients = numbers.shared.patients
        facts += [("test set", comparison.test_set), ("test images", f"{len(numbers.shared.labels):,}")]
        facts += [("patients", "unknown" if patients is None else f"{len(set(patients.tolist())):,}")]
        facts += [("classes", str(len(numbers.shared.classes)))]
        yield Facts(facts)
        for found in numbers.against:
            yield Paragraph(found.verdict(numbers.shared.classes))
    else:
        yield Facts(facts)
    if len(comparison.methods) == 1:
        yield Note(ALONE)
    for note in comparison.notes[:MOST_NOTES]:
        yield Note(note[0].upper() + note[1:])
    if (more := len(comparison.notes) - MOST_NOTES) > 0:
        yield Note(f"{more} more of what was left out, and why: in the last section.")


def _sections(comparison: Comparison, look: dict[str, Style]) -> Iterator[Section]:
    numbers = comparison.statistics
    if numbers is not None:
        yield Section("AUROC", list(_auroc(comparison, numbers, look)))
        if numbers.against:
            yield Section(f"Differences to {comparison.baseline.name}", list(_differences(numbers, look)))
        yield Section("ROC curves", [_roc(numbers, look)])
    if curves := list(_curves(comparison, look)):
        yield Section("Progress and communication", curves)
    if drift := list(_drift(comparison.methods, look)):
        yield Section("Client drift", drift)
    if pictures := list(_partitions(comparison.methods)):
        yield Section("Partitions", pictures)
    yield Section("Runs and settings", list(_settings(comparison.methods, look)))
    yield Section("How, and what was left out", list(_how(comparison)))


def _auroc(comparison: Comparison, numbers: Statistics, look: dict[str, Style]) -> Iterator[Block]:
    names, classes = [scored.method.name for scored in numbers.scored], numbers.shared.classes
    rows = []
    for i, name in enumerate((*classes, numbers.macro_name)):
        found = [(*scored.classes, scored.macro)[i] for scored in numbers.scored]
        support = (f"{numbers.n_pos[i]:,}", f"{numbers.n_neg[i]:,}") if i < len(classes) else ("", "")
        rows.append([name, *support, *map(_cell, found)])
    caption = (
        f"AUROC on test set {comparison.test_set}: mean over seeds \u00b1 SD over seeds ({100 * numbers.level:g}% "
        "interval: test-set noise)"
    )
    yield Table(["class", "positives", "negatives", *names], rows, caption, styles=look, summary=1)
    points = {s.method.name: dict(zip(classes, map(_point, s.classes), strict=True)) for s in numbers.scored}
    macro = {s.method.name: _point(s.macro) for s in numbers.scored}
    name, support = numbers.macro_name, _support(numbers)
    figure = intervals_figure(points, classes, look, macro=macro, macro_label=name, support=support, width=PAGE)
    caption = f"AUROC with {100 * numbers.level:g}% intervals (test-set noise), means over seeds."
    yield Chart(
        figure, "auroc", caption, "AUROC of each class and method with its interval; the table has the numbers."
    )


def _differences(numbers: Statistics, look: dict[str, Style]) -> Iterator[Block]:
    names = (*numbers.shared.classes, numbers.macro_name)
    for found in numbers.against:
        rows = [[n, *_tested(d)] for n, d in zip(names, (*found.classes, found.macro), strict=True)]
        caption = f"{found.method.name} minus {found.baseline.name}; interval, p and stars are of test images alone"
        head = ["class", "difference", f"{100 * numbers.level:g}% interval", "p", "p (Holm)", "", "SD over seeds"]
        yield Table([*head, "p over seeds"], rows, caption, texts=(0, 5), summary=1)
    rows = [[found.method.name, *_over_classes(found)] for found in numbers.against]
    head = ["method", "classes", "mean difference", "t-test p", "", "Shapiro-Wilk p", "Wilcoxon p"]
    caption = (
        "Paired over classes: a class is one observation. Classes share images, so their differences are not independent, and "
        "p says nothing of other trainings."
    )
    yield Table(head, rows, caption, texts=(0, 4), styles=look)
    points = {
        f.method.name: dict(zip(numbers.shared.classes, map(_tested_point, f.classes), strict=True))
        for f in numbers.against
    }
    macro = {found.method.name: _tested_point(found.macro) for found in numbers.against}
    baseline = numbers.against[0].baseline.name
    figure = differences_figure(
        points, numbers.shared.classes, look, baseline, macro=macro, macro_label=numbers.macro_name
    )
    caption = f"Difference in AUROC to {baseline} with {100 * numbers.level:g}% intervals (test-set noise); filled: p below 0.05."
    yield Chart(figure, "differences", caption, "Differences of each class and method; the tables have the numbers.")


def _roc(numbers: Statistics, look: dict[str, Style]) -> Chart:
    shared = numbers.shared
    single = any(len(scored.method.runs) == 1 for scored in numbers.scored)
    units = list(range(len(shared.labels))) if shared.patients is None else shared.patients
    draws = patient_draws(units) if single else None
    curves, runs = {}, iter(shared.scores)
    for scored in numbers.scored:
        own = [next(runs) for _ in scored.method.runs]
        curves[scored.method.name] = {
            name: roc_curve([s[:, i] for s in own], [shared.labels[:, i]] * len(own), draws if len(own) == 1 else None)
            for i, name in enumerate(shared.classes)
        }
    auroc = {
        s.method.name: dict(zip(shared.classes, (e.value for e in s.classes), strict=True)) for s in numbers.scored
    }
    figure = roc_figure(curves, shared.classes, look, auroc=auroc, support=_support(numbers))
    band = "one standard deviation over seeds (of two seeds, between them)"
    if single:
        of_one = "of a single seed, the pointwise 95% interval over test patients"
        band = of_one if all(len(s.method.runs) == 1 for s in numbers.scored) else f"{band}; {of_one}"
    return Chart(figure, "roc", f"Mean over seeds at each false positive rate. Bands: {band}.", "ROC curves by class.")


def _curves(comparison: Comparison, look: dict[str, Style]) -> Iterator[Block]:
    key = comparison.metric
    if key is None:
        return
    for name, label, x in (
        ("rounds", "round", None),
        ("steps", "local steps of a client", steps),
        ("bytes", "communicated, all clients", sent),
    ):
        curves = {m.name: [against(run, key, x(run) if x else None) for run in m.runs] for m in comparison.methods}
        if any(len(series) for all_seeds in curves.values() for series in all_seeds):
            called = "validation AUROC, mean of classes" if key == "val/auroc_macro" else key
            figure = curves_figure(curves, label, called, look, in_bytes=name == "bytes", width=PAGE, height=HEIGHT)
            what = {"rounds": "rounds", "steps": "local steps", "bytes": "communicated bytes"}[name]
            alt = f"{key} of each method against {what}."
            yield Chart(figure, f"{name}", f"{key} against {what}. {band_note(curves)}", alt)


def _drift(methods: Sequence[Method], look: dict[str, Style]) -> Iterator[Block]:
    drift = {method.name: [run.metric(DRIFT) for run in method.runs] for method in methods}
    values = [value for all_seeds in drift.values() for series in all_seeds for value in series]
    if values:
        figure = drift_figure(drift, look, log_y=min(values) > 0, width=PAGE)
        caption = f"The spread of the clients' updates, mean |delta_k|\u00b2 - |mean delta|\u00b2. {band_note(drift)}"
        yield Chart(figure, "drift", caption, "Client drift of each method by round.")


def _partitions(methods: Sequence[Method]) -> Iterator[Block]:
    """Each different picture once, with all the runs that have it."""
    owners: dict[bytes, list[str]] = {}
    for method in methods:
        for run in method.runs:
            if file := run.place.file("partition.png"):
                owners.setdefault(file.read_bytes(), []).append(f"{method.name} (seed {run.seed})")
    for place, (png, whose) in enumerate(owners.items(), start=1):
        everyone = len(owners) == 1 and len(whose) == sum(len(method.runs) for method in methods)
        told = "all runs" if everyone else ", ".join(whose)
        caption = f"Training images, clients by classes: share of positives. Of {told}."
        yield Picture(png, f"partition-{place}", caption, "Number of positive images of each client and class.")


def _settings(methods: Sequence[Method], look: dict[str, Style]) -> Iterator[Block]:
    head = ["method", "seed", "run", "status", "rounds", "sent", "steps", "drift", "code", "where"]
    rows = []
    for method in methods:
        for run in method.runs:
            seed = "-" if run.seed is None else str(run.seed)
            rows.append([method.name, seed, run.name, run.status, *cost_row(cost([run])), run.git or "-", run.where])
    yield Table(head, rows, "Runs", texts=(0, 2, 3, 8, 9), styles=look)
    found = differences(methods)
    if len(found):
        rows = [[str(key), *row] for key, row in zip(found.index, found.to_numpy().tolist(), strict=True)]
        texts = tuple(range(len(methods) + 1))
        yield Table(["setting", *found.columns], rows, "Settings that differ", texts=texts, styles=look)
    same = [[key, value] for key, value in methods[0].settings.items() if key not in found.index]
    yield Table(["setting", "value"], same, "Settings that all methods have", texts=(0, 1), folded=True)


def _how(comparison: Comparison) -> Iterator[Block]:
    if numbers := comparison.statistics:
        units = (
            "images, as patients are unknown" if numbers.shared.patients is None else "patients, with all their images"
        )
        told = [BOOTSTRAP.format(draws=numbers.draws, units=units)]
        if any(found.how == "DeLong" for found in (*numbers.scored, *numbers.against)):
            told.append(DELONG.format(where="" if numbers.shared.patients is None else ", where both have one seed"))
        yield Paragraph(METHOD.format(how=" ".join(told)))
    for note in comparison.notes:
        yield Note(note[0].upper() + note[1:])


def _cell(found: Estimate) -> str:
    sd = f" \u00b1 {short(found.sd)}" if found.sd == found.sd else ""
    interval = interval_text(found.interval.low, found.interval.high)
    return f"{short(found.value)}{sd}" + (f" ({interval})" if interval != "-" else "")


def _tested(found: Difference) -> list[str]:
    interval = interval_text(found.interval.low, found.interval.high, "+.3f")
    first = [number(found.value, "+.4f"), interval, p_text(found.p), p_text(found.p_holm), found.stars]
    return [*first, number(found.sd, ".4f"), p_text(found.p_seeds)]


def _over_classes(found: Against) -> list[str]:
    paired = found.over_classes
    first = [str(paired.classes), number(paired.difference, "+.4f"), p_text(paired.p), paired.stars]
    return [*first, p_text(paired.normality), p_text(paired.wilcoxon)]


def _point(found: Estimate) -> Point:
    return Point(found.value, found.interval.low, found.interval.high)


def _tested_point(found: Difference) -> TestedPoint:
    return TestedPoint(found.value, found.interval.low, found.interval.high, found.p_holm)


def _support(numbers: Statistics) -> dict[str, Support]:
    counts = zip(numbers.shared.classes, numbers.n_pos.tolist(), numbers.n_neg.tolist(), strict=True)
    return {name: Support(n_pos, n_neg) for name, n_pos, n_neg in counts}
