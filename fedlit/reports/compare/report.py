"""Files of a comparison: ``report.html``, its figures as SVG and PDF, its numbers as CSV."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from fedlit.core.system.files import write_csv
from fedlit.reports.compare.between_sites import matrix_rows
from fedlit.reports.compare.comparison import METRIC, Comparison
from fedlit.reports.compare.curves import band_note, curves_figure
from fedlit.reports.compare.forest import differences_figure, gains_figure, intervals_figure
from fedlit.reports.compare.joining import Joining
from fedlit.reports.compare.methods import Method, differences
from fedlit.reports.compare.page import Chart, page, report_folder
from fedlit.reports.compare.past_run import metric_against, sent, steps
from fedlit.reports.compare.roc import class_curves, comparison_roc_figure
from fedlit.reports.compare.statistics import Statistics
from fedlit.reports.compare.styles import Style, styles
from fedlit.reports.compare.tables import (
    auroc_table,
    differences_table,
    gains_table,
    logged_table,
    matrix_table,
    runs_table,
    settings_table,
    site_values_table,
    sites_table,
    spread_table,
    tests_table,
)
from fedlit.reports.table import Table


def write_report(comparison: Comparison, folder: Path) -> Path:
    """Write the report, its figures and tables to a folder, replacing earlier ones; return the page's path.

    Raises:
        ConfigError: If the folder cannot be created.
    """
    looks = styles([method.name for method in comparison.methods])
    charts = {"progress": _progress(comparison, looks)}
    numbers = comparison.statistics
    if numbers is not None:
        charts |= _numbers(numbers, looks)
    if comparison.joining is not None:
        charts["joining"] = [_gains(comparison.joining)]
    file = report_folder(folder, (chart for section in charts.values() for chart in section))
    differing = differences(comparison.methods)
    same = [(k, str(v)) for k, v in comparison.methods[0].settings.items() if k not in differing.index]
    shared = Table("Settings that all methods share", ("setting", "value"), (), same)
    text = page(comparison, looks, charts, _tables(comparison, differing), shared, _partitions(comparison.methods))
    file.write_text(text, encoding="utf-8")
    for name, table in _csv_files(comparison).items():
        write_csv(table, folder / name)
    return file


def _csv_files(comparison: Comparison) -> dict[str, pd.DataFrame]:
    numbers, joining, tables = comparison.statistics, comparison.joining, {}
    if numbers is not None:
        tables |= {"auroc.csv": numbers.auroc_table(), "differences.csv": numbers.differences_table()}
    if joining is not None:
        tables |= {"gains.csv": joining.table(), "matrix.csv": matrix_rows(joining.matrix)}
    if comparison.logged:
        tables["logged.csv"] = pd.concat([metric.table() for metric in comparison.logged])
    if comparison.sites:
        tables["sites.csv"] = pd.concat([each.table() for each in comparison.sites])
    return tables


def write_latex(comparison: Comparison, folder: Path) -> list[Path]:
    """Write a ``.tex`` file for each table of numbers; return the files."""
    numbers, tables = comparison.statistics, {}
    if numbers is not None:
        tables["auroc"] = auroc_table(numbers, comparison.test_set)
        if numbers.against:
            tables["differences"] = differences_table(numbers)
    if comparison.joining is not None:
        tables["gains"] = gains_table(comparison.joining)
        tables["matrix"] = matrix_table(comparison.joining)
    if comparison.logged:
        tables["logged"] = logged_table(comparison)
    if comparison.sites:
        tables["sites"] = site_values_table(comparison.sites)
    for name, table in tables.items():
        (folder / f"{name}.tex").write_text(table.latex(), encoding="utf-8")
    return [folder / f"{name}.tex" for name in tables]


def _tables(comparison: Comparison, differing: pd.DataFrame) -> dict[str, list[Table]]:
    """Return the tables of each section of the page."""
    tables = {"runs": [runs_table(comparison.methods), *([settings_table(differing)] if len(differing) else [])]}
    if (numbers := comparison.statistics) is not None:
        tables["auroc"] = [auroc_table(numbers, comparison.test_set)]
        tables["differences"] = [tests_table(numbers, against) for against in numbers.against]
    if (joining := comparison.joining) is not None:
        tables["joining"] = [*(sites_table(joining, gains) for gains in joining.methods), matrix_table(joining)]
    if comparison.logged:
        tables["logged"] = [logged_table(comparison)]
    if comparison.sites:
        tables["sites"] = [spread_table(comparison.sites), site_values_table(comparison.sites)]
    return tables


def _numbers(numbers: Statistics, looks: Mapping[str, Style]) -> dict[str, list[Chart]]:
    level = f"{100 * numbers.level:g}% intervals"
    seeds = [len(scored.method.runs) for scored in numbers.scored]
    values = "AUROC of one seed" if max(seeds) == 1 else "Mean AUROC over seeds"
    ends = f", with {level} under test-set noise." if numbers.has_intervals else "; none has an interval."
    alt = "AUROC of each class and method with its interval; the table has the numbers."
    auroc = Chart("auroc", intervals_figure(numbers, looks), f"{values}{ends}", alt)
    caption = _roc_caption(seeds, "images" if numbers.shared.patients is None else "patients")
    drawn = comparison_roc_figure(class_curves(numbers), numbers, looks)
    charts = {"auroc": [auroc], "roc": [Chart("roc", drawn, caption, "ROC curves by class.")]}
    if numbers.against:
        baseline = numbers.against[0].baseline.name
        several = [against.several_seeds for against in numbers.against]
        noise = "both noises" if all(several) else "test-set noise"
        if any(several) and not all(several):
            noise = "both noises, or test-set noise only if a method has one seed"
        points = "Filled points have p (Holm) below 0.05." if any(several) else "One seed supports no claim."
        caption = f"Difference in AUROC from {baseline}, with {level} under {noise}. {points}"
        alt = "Differences of each class and method; the tables have the numbers."
        charts["differences"] = [Chart("differences", differences_figure(numbers, looks), caption, alt)]
    return charts


def _gains(joining: Joining) -> Chart:
    caption = (
        f"Gain of each site from joining: AUROC on its own test images minus that of its own model, with "
        f"{100 * joining.level:g}% intervals. Filled points have p (Holm, over sites and methods) below 0.05."
    )
    figure = gains_figure(joining, styles([each.method.name for each in joining.methods]))
    return Chart("gains", figure, caption, "Gains of each site and method; the table has the numbers.")


def _roc_caption(seeds: Sequence[int], units: str) -> str:
    lines = "Curves of one seed" if max(seeds) == 1 else "Mean curves over seeds at each false positive rate"
    bands = []
    if max(seeds) > 2:
        bands.append("± one standard deviation over three or more seeds")
    if 2 in seeds:
        bands.append("the range of two seeds")
    if 1 in seeds:
        bands.append(f"the pointwise 95% interval over test {units} for one seed, if a class has enough {units}")
    counts = (
        "Numbers in a panel are AUROCs; above it are positives and negatives: images, with patients in parentheses."
    )
    return f"{lines}. Bands show {'; '.join(bands)}. {counts}"


def _progress(comparison: Comparison, looks: Mapping[str, Style]) -> list[Chart]:
    charts: list[Chart] = []
    if (key := comparison.metric) is None:
        return charts
    y_label = "validation AUROC, mean of classes" if key == METRIC else key
    for name, label, x_label, x in (
        ("steps", "local steps", "local steps, all clients", steps),
        ("bytes", "communicated bytes", "communicated, all clients", sent),
    ):
        of_runs = {method.name: method.runs for method in comparison.methods}
        curves = {n: [metric_against(run, key, x(run)) for run in runs] for n, runs in of_runs.items()}
        if any(len(series) for seeds in curves.values() for series in seeds):
            figure = curves_figure(curves, x_label, y_label, looks, in_bytes=name == "bytes")
            caption = f"{key} against {label}. {band_note(curves)}"
            charts.append(Chart(name, figure, caption, f"{key} of each method against {label}."))
    return charts


def _partitions(methods: Sequence[Method]) -> dict[bytes, str]:
    """Return each distinct figure of a partition once, with the names of its runs."""
    owners: dict[bytes, list[str]] = {}
    for method in methods:
        for run in method.runs:
            if (file := run.directory / "partition.png").is_file():
                owners.setdefault(file.read_bytes(), []).append(f"{method.name} (seed {run.seed})")
    everyone = len(owners) == 1 and sum(map(len, owners.values())) == sum(len(method.runs) for method in methods)
    return {png: "all" if everyone else ", ".join(names) for png, names in owners.items()}
