"""``fedlit compare``."""

import tempfile
from pathlib import Path

from jsonargparse import Namespace
from rich.console import Console

from fedlit.metrics.intervals import DRAWS, LEVEL
from fedlit.parser import Parser
from fedlit.run import flatten

DESCRIPTION = "Compare runs: AUROC with intervals and paired tests, cost, settings; on the terminal and as a report."

EPILOG = """Runs that differ in their seed alone are one method. All methods are compared on the images, labels and classes
that all runs share, by the predictions that `fedlit fit` and `fedlit test` keep with a run; what is left out is said.
Intervals are from a bootstrap over patients, or DeLong's; they and p are about the noise of test images, the standard
deviation over seeds and p over seeds about that of training. OUTPUT gets report.html, its figures as SVG and PDF,
auroc.csv and differences.csv."""


def parser() -> Parser:
    """The options of a comparison."""
    options = Parser(description=DESCRIPTION, epilog=EPILOG)
    named = "run directories, folders of them, or ids of MLflow runs"
    options.add_argument("runs", metavar="RUN", nargs="*", type=str, default=[], help=named)
    everything = "all finished runs of this experiment in MLflow"
    options.add_argument("--experiment", type=str | None, default=None, help=everything)
    tagged = "only runs of MLflow with these tags: --tags.NAME VALUE"
    # A dot in a tag's name, as in fedlit.case, makes a level.
    options.add_argument("--tags", type=dict[str, str | dict[str, str]], default={}, help=tagged)
    store = "of MLflow: sqlite:///FILE, another database, or a server"
    options.add_argument("--tracking_uri", type=str, default="sqlite:///mlflow.db", help=store)
    first = "the method from which all others are subtracted; by default the first"
    options.add_argument("--baseline", metavar="METHOD", type=str | None, default=None, help=first)
    tested = "the test set on whose predictions methods are compared; by default federation"
    options.add_argument("--set", metavar="NAME", type=str | None, default=None, help=tested)
    shown = "shown against rounds, local steps and bytes; by default val/auroc_macro"
    options.add_argument("--metric", metavar="KEY", type=str | None, default=None, help=shown)
    options.add_argument("--output", type=Path, default=Path("comparison"), help="folder of the report")
    options.add_argument("--level", type=float, default=LEVEL, help="of confidence intervals")
    options.add_argument("--draws", type=int, default=DRAWS, help="of the bootstrap")
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Compare runs and write the report; returns the exit code."""
    from fedlit.reports.compare.comparison import compare
    from fedlit.reports.compare.report import write_report
    from fedlit.reports.compare.runs import load
    from fedlit.reports.compare.terminal import show  # with matplotlib they take a second to import

    console = Console(highlight=False, markup=False)
    tags = {key: str(value) for key, value in flatten(args.tags).items()} if args.tags else {}
    with tempfile.TemporaryDirectory(prefix="fedlit-") as folder, console.status("loading runs") as status:
        runs, notes = load(args.runs, args.experiment, tags, args.tracking_uri, Path(folder))
        found = compare(runs, notes, args.baseline, args.set, args.metric, args.level, args.draws, status.update)
        status.update("drawing")
        report = write_report(found, args.output)
        status.stop()
        show(found, console)
    console.print(f"report, figures, tables: {report}", soft_wrap=True)
    return 0
