"""Files and terminal output of an evaluation: ``report.html``, figures as SVG and PDF, numbers as CSV."""

from collections.abc import Iterator
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table as Printed
from rich.text import Text

from fedlit import __version__
from fedlit.metrics.calibration import BINS
from fedlit.metrics.intervals import FEWEST
from fedlit.metrics.measures import SUPPORT
from fedlit.reports.compare.page import report_folder, template
from fedlit.reports.evaluation.evaluation import Evaluation
from fedlit.reports.evaluation.figures import charts
from fedlit.reports.evaluation.tables import TextTable, tables, verdict

SECTIONS = {
    "ranking": "Discrimination",
    "calibration": "Calibration and Brier score",
    "groups": "Groups of patients",
    "points": "Operating points",
    "use": "Decision curves",
}


def write_report(evaluation: Evaluation, folder: Path) -> Path:
    """Write the report, its figures and tables to a folder, replacing earlier ones; return the page's path.

    Raises:
        ConfigError: The folder cannot be created.
    """
    drawn, found = charts(evaluation), tables(evaluation)
    file = report_folder(folder, (chart for section in drawn.values() for chart in section))
    for name in ("estimates", "gaps", "points"):
        if len(frame := getattr(evaluation, name)):
            frame.to_csv(folder / f"{name}.csv", index=False)
    page = template("evaluation/report.html.jinja").render(
        evaluation=evaluation, verdict=verdict(evaluation), tables=found, charts=drawn, version=__version__,
        sections={name: title for name, title in SECTIONS.items() if found.get(name) or drawn.get(name)},
        support=SUPPORT, fewest=FEWEST, bins=BINS,
    )  # fmt: skip
    file.write_text(page, encoding="utf-8")
    return file


def show(evaluation: Evaluation, console: Console) -> None:
    """Print the most important numbers of the first test set, the verdict and the notes."""
    for table in _shortened(evaluation):
        look = {"box": box.SIMPLE_HEAD, "show_edge": False, "pad_edge": False}
        printed = Printed(title=table.caption, title_justify="left", **look)
        for place, name in enumerate(table.head):
            printed.add_column(name, justify="left" if place < table.names else "right", overflow="fold")
        for row in table.rows:
            printed.add_row(*map(Text, row))
        console.print(printed)
        console.print()
    console.print(f"{verdict(evaluation)}\n")
    for note in evaluation.notes:
        console.print(Text(f"note: {note}", style="yellow"))


def _shortened(evaluation: Evaluation) -> Iterator[TextTable]:
    """Yield AUROC and calibration by class, and rates at thresholds; the page has the other tables."""
    sections = tables(evaluation)
    for section, names in (("ranking", ("AUROC",)), ("calibration", ("calibration intercept", "calibration slope"))):
        table = sections[section][0]
        kept = [i for i, name in enumerate(table.head) if i < table.names or name in names]
        head, *rows = (tuple(row[i] for i in kept) for row in (table.head, *table.rows))
        yield TextTable(table.caption, head, rows)
    for table in sections["points"][:1]:
        rows = [(row[0], row[1], row[2], row[3], *(cell.partition("\n")[0] for cell in row[5:7])) for row in table.rows]
        yield TextTable(table.caption, (*table.head[:4], *table.head[5:7]), rows, 4)
