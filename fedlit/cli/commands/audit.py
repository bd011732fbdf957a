"""``fedlit audit``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace
from rich.console import Console

from fedlit.cli.commands import COMMANDS
from fedlit.core.ranges import Fraction
from fedlit.experiment.parser import Parser
from fedlit.metrics.levels import DRAWS, LEVEL, Draws

if TYPE_CHECKING:
    from pandas import DataFrame

EPILOG = """A model can remember the patients that it was trained on. The audit gives every image to the model and
compares the losses of training patients with those of validation and test patients of the same clients. It answers one
question: can anybody who has the model, and an image with its labels, tell whether the patient was in the training set?
An AUROC of 0.5 is chance, 1 is certainty. A low value does not show that the model reveals nothing, as there are
stronger attacks. Data with an official split, and sets of fewer than ten patients, have no number. OUTPUT receives
report.html, its figure, and audit.json."""


def add_options(options: Parser) -> None:
    """Add the options that audits of runs and of sites share."""
    by = "Kinds of groups, with commas: names of groups of the data, client or site. By default all groups and client."
    options.add_argument("--by", metavar="NAME,...", type=str | None, default=None, help=by)
    options.add_argument("--level", type=Fraction, default=LEVEL, help="Level of the intervals.")
    options.add_argument("--draws", type=Draws, default=DRAWS, help="Number of bootstrap draws of patients.")


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of an audit."""
    options = Parser(description=COMMANDS["audit"], epilog=EPILOG)
    options.add_argument("run", metavar="RUN", type=Path, help="Directory of a run, on the machine that has its data.")
    folder = "Folder for the report. By default audit/ in the run directory."
    options.add_argument("--output", type=Path | None, default=None, help=folder)
    add_options(options)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Audit the best model of a run, and write the report; return the exit code."""
    from lightning.pytorch.utilities.rank_zero import rank_zero_only

    from fedlit.reports.audit import FOLDER, images_of

    images, model, weights = images_of(args.run)
    if rank_zero_only.rank == 0:
        report(images, args, args.output or args.run / FOLDER, model, weights)
    return 0


def report(images: "DataFrame", args: Namespace, folder: Path, model: str, weights: str) -> None:
    """Audit a model by the losses of images, write the report to a folder, and print it."""
    from fedlit.reports.audit import LIMITS, MEANING, audited, write_audit

    by = None if args.by is None else tuple(filter(None, map(str.strip, args.by.split(","))))
    audit = audited(images, by, args.level, args.draws, model, weights)
    page = write_audit(audit, folder)
    console = Console(highlight=False, markup=False)
    if audit.rows:
        console.print(audit.table(("auroc", "tpr_at_1pct_fpr")).printed())
        console.print()
    console.print(f"{audit.verdict}\n\n{MEANING} {LIMITS}\n")
    for note in audit.notes:
        console.print(f"note: {note}")
    console.print(f"report: {page}", soft_wrap=True)
