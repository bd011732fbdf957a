"""``fedlit compare``."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace
from rich.console import Console

from fedlit.cli.commands import COMMANDS
from fedlit.experiment.parser import Parser
from fedlit.metrics.intervals import DRAWS, LEVEL
from fedlit.tracking.run import flatten

EPILOG = """Runs that differ only in their seed count as one method. The methods are compared on the images, labels and
classes that all runs share, from the predictions that `fedlit fit` and `fedlit test` write; the report names what is
left out. Intervals come from a bootstrap over patients or from DeLong's method. Intervals and p describe the
uncertainty from the test images; the standard deviation over seeds and p over seeds describe that from training. OUTPUT
receives report.html, its figures as SVG and PDF, auroc.csv and differences.csv."""


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of a comparison."""
    options = Parser(description=COMMANDS["compare"], epilog=EPILOG)
    runs = "Run directories, folders with run directories, or ids of MLflow runs."
    options.add_argument("runs", metavar="RUN", nargs="*", type=str, default=[], help=runs)
    experiment = "Experiment in MLflow, all of whose finished runs are compared."
    options.add_argument("--experiment", type=str | None, default=None, help=experiment)
    tags = "Restrict the runs of MLflow to those with these tags: --tags.NAME VALUE."
    # A dot in a tag's name, as in fedlit.case, makes a level.
    options.add_argument("--tags", type=dict[str, str | dict[str, str]], default={}, help=tags)
    store = "Address of MLflow: sqlite:///FILE, another database, or a server."
    options.add_argument("--tracking_uri", type=str, default="sqlite:///mlflow.db", help=store)
    baseline = "Method that is subtracted from the others. By default the first."
    options.add_argument("--baseline", metavar="METHOD", type=str | None, default=None, help=baseline)
    tested = "Test set on which the methods are compared. By default federation."
    options.add_argument("--set", metavar="NAME", type=str | None, default=None, help=tested)
    metric = "Metric that is plotted against rounds, local steps and bytes. By default val/auroc_macro."
    options.add_argument("--metric", metavar="KEY", type=str | None, default=None, help=metric)
    options.add_argument("--output", type=Path, default=Path("comparison"), help="Folder for the report.")
    options.add_argument("--level", type=float, default=LEVEL, help="Level of the confidence intervals.")
    options.add_argument("--draws", type=int, default=DRAWS, help="Number of bootstrap draws.")
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Compare runs and write the report; return the exit code."""
    from fedlit.reports.compare.comparison import compare_runs
    from fedlit.reports.compare.report import write_report
    from fedlit.reports.compare.runs import load_runs
    from fedlit.reports.compare.terminal import show  # matplotlib takes a second to import

    console = Console(highlight=False, markup=False)
    tags = {key: str(value) for key, value in flatten(args.tags).items()} if args.tags else {}
    with tempfile.TemporaryDirectory(prefix="fedlit-") as folder, console.status("loading runs") as status:
        runs, notes = load_runs(args.runs, args.experiment, tags, args.tracking_uri, Path(folder))
        comparison = compare_runs(
            runs,
            notes,
            args.baseline,
            test_set=args.set,
            metric=args.metric,
            level=args.level,
            draws=args.draws,
            progress=status.update,
        )
        status.update("drawing")
        earlier = " (replacing an earlier report)" if (args.output / "report.html").exists() else ""
        report = write_report(comparison, args.output)
        status.stop()
        show(comparison, console)
    console.print(f"report, figures, tables{earlier}: {report}", soft_wrap=True)
    return 0
