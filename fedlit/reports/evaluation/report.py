"""Files and terminal output of an evaluation: ``report.html``, figures as SVG and PDF, numbers as CSV."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fedlit import __version__
from fedlit.core.system.files import write_csv
from fedlit.metrics.calibration import BINS
from fedlit.metrics.intervals import FEWEST
from fedlit.metrics.measures import MEASURES, SUPPORT
from fedlit.reports.compare.page import Chart, report_folder, template
from fedlit.reports.evaluation.evaluation import Evaluation
from fedlit.reports.evaluation.tables import tables, verdict
from fedlit.reports.table import Table
from fedlit.tracking.addresses import without_credentials
from fedlit.tracking.mlflow import add_files
from fedlit.tracking.store import noted_run

MOST_LOGGED = 4  # figures in MLflow

SECTIONS = {
    "ranking": "Discrimination",
    "calibration": "Calibration and Brier score",
    "groups": "Groups of patients",
    "points": "Operating points",
    "use": "Decision curves",
}


def write_report(evaluation: Evaluation, folder: Path, drawn: Mapping[str, Sequence[Chart]]) -> Path:
    """Write the report, its tables and its figures by section to a folder, replacing earlier ones; return the page.

    Raises:
        ConfigError: The folder cannot be created.
    """
    text_tables = tables(evaluation)
    file = report_folder(folder, (chart for section in drawn.values() for chart in section))
    for name in ("estimates", "gaps", "points"):
        if len(frame := getattr(evaluation, name)):
            write_csv(frame, folder / f"{name}.csv")
    page = template("evaluation/report.html.jinja").render(
        evaluation=evaluation, verdict=verdict(evaluation), tables=text_tables, charts=drawn, version=__version__,
        sections={name: title for name, title in SECTIONS.items() if text_tables.get(name) or drawn.get(name)},
        support=SUPPORT, fewest=FEWEST, bins=BINS,
    )  # fmt: skip
    file.write_text(page, encoding="utf-8")
    return file


def add_to_mlflow(
    evaluation: Evaluation, drawn: Mapping[str, Sequence[Chart]], tracking_uri: str, folder: Path
) -> str | None:
    """Add the reliability diagram, the decision curve and two ROC curves to ``evaluation/`` of the runs in MLflow.

    The store is for ids of runs and for directories whose store needs credentials; the folder is for temporary files.
    Return a line for the user, a warning if MLflow did not take the figures; None if no run is in MLflow.
    """
    named = [
        noted_run(run.directory, tracking_uri) if run.where == str(run.directory) else (tracking_uri, run.where)
        for run in evaluation.method.runs
    ]
    chosen = [chart for section in drawn.values() for chart in section if not chart.name.startswith("pr_")]
    if not (stored := [each for each in named if each is not None]) or not chosen:
        return None
    files = [folder / f"{chart.name}.png" for chart in chosen[:MOST_LOGGED]]
    for chart, file in zip(chosen, files, strict=False):
        chart.figure.savefig(file, format="png", dpi=150)
    for uri, run_id in stored:  # the first failure ends it, as a server that is down would make each run wait
        if reason := add_files(uri, run_id, files, "evaluation"):
            return f"warning: MLflow at {without_credentials(uri)} did not take the figures of run {run_id}: {reason}"
    return f"figures in MLflow: evaluation/ of {len(stored)} run{'s' * (len(stored) > 1)}"


def show(evaluation: Evaluation, console: Console) -> None:
    """Print the most important numbers of the first test set, the verdict and the notes."""
    for table in _shortened(evaluation):
        console.print(table.printed())
        console.print()
    console.print(f"{verdict(evaluation)}\n")
    for note in evaluation.notes:
        console.print(Text(f"note: {note}", style="yellow"))


def _shortened(evaluation: Evaluation) -> Iterator[Table]:
    """Yield AUROC and calibration by class, and rates at thresholds; the page has the other tables."""
    sections = tables(evaluation)
    ranking, calibration = sections["ranking"][0], sections["calibration"][0]
    auroc = ranking.head.index(MEASURES["auroc"].title)
    columns = [calibration.head.index(MEASURES[name].title) for name in ("intercept", "slope")]
    both = zip((ranking.head, *ranking.rows), (calibration.head, *calibration.rows), strict=True)
    (_, *head), *rows = ((ours[0], ours[auroc], *(theirs[i] for i in columns)) for ours, theirs in both)
    yield Table(ranking.caption, ranking.names, tuple(head), rows)
    for table in sections["points"][:1]:
        rows = [row for row in table.rows if row[2] == table.rows[0][2]]
        left = "; those of single sites are in the report" if len(rows) < len(table.rows) else ""
        varying = [i for i in range(4) if i == 0 or len({row[i] for row in rows}) > 1]
        fixed = "; ".join(f"{table.head[i]} {rows[0][i]}" for i in range(4) if i not in varying)
        caption = f"{table.caption.partition(';')[0]}{f' ({fixed})' if fixed else ''}{left}"
        shown = [(*(row[i] for i in varying), *(replace(each, interval="") for each in row[5:7])) for row in rows]
        yield Table(caption, tuple(table.names[i] for i in varying), table.head[5:7], shown)
