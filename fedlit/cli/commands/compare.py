"""``fedlit compare``."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from jsonargparse import Namespace
from rich.console import Console

from fedlit.cli.commands import COMMANDS
from fedlit.core.errors import ConfigError
from fedlit.core.ranges import Fraction
from fedlit.experiment.helptexts import STORE
from fedlit.experiment.parser import Parser
from fedlit.metrics.levels import DRAWS, LEVEL, Draws
from fedlit.tracking.addresses import store_address

EPILOG = """Runs that differ only in their seed count as one method. The methods are compared on the images, labels and
classes that all runs share, from the predictions that `fedlit fit` and `fedlit test` write; the report names what is
left out. Intervals come from a bootstrap over patients. Intervals and p describe the uncertainty from the test images;
the standard deviation over seeds and p over seeds describe that from training. OUTPUT receives report.html, its figures
as SVG and PDF, auroc.csv and differences.csv.

Files of predictions are those of `fedlit predict`, as CSV or Parquet. A CSV file of another model needs the columns
image and score/CLASS; missing labels, patients and sites are those of the runs, by image.

--against individual shows what joining brought each site: the AUROC of every method minus that of the site's own model,
on the site's own test images and on those of the other sites, with a random-effects summary over sites. `baselines:
[individual, pooled]` in the YAML of `fedlit sweep` trains these models."""


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of a comparison."""
    options = Parser(description=COMMANDS["compare"], epilog=EPILOG)
    runs = "Run directories, folders with run directories, ids of MLflow runs, or files of predictions (see below)."
    options.add_argument("runs", metavar="RUN", nargs="*", type=str, default=[], help=runs)
    experiment = "Experiment in MLflow, all of whose finished runs are compared."
    options.add_argument("--experiment", type=str | None, default=None, help=experiment)
    tags = "Restrict the runs of MLflow to those with these tags: --tags.NAME VALUE."
    # A dot in a tag's name, as in fedlit.method, makes a level.
    options.add_argument("--tags", type=dict[str, str | dict[str, str]], default={}, help=tags)
    options.add_argument("--tracking_uri", type=str | None, default=None, help=STORE)
    baseline = "Method that is subtracted from the others. By default the first."
    options.add_argument("--baseline", metavar="METHOD", type=str | None, default=None, help=baseline)
    individual = "Also compare with the model of each site alone. See below."
    options.add_argument(
        "--against", metavar="individual", type=Literal["individual"] | None, default=None, help=individual
    )
    margin = "Largest loss of AUROC that is acceptable, such as 0.01: test that no method is worse by more "
    margin += "(non-inferiority)."
    options.add_argument("--margin", type=Fraction | None, default=None, help=margin)
    latex = "Also write the tables as LaTeX with booktabs."
    options.add_argument("--latex", action="store_true", help=latex)
    tested = "Test set on which the methods are compared. By default federation."
    options.add_argument("--set", metavar="NAME", type=str | None, default=None, help=tested)
    metric = "Metric that is plotted against local steps and bytes. By default val/auroc_macro, or "
    metric += "what selects the best model."
    options.add_argument("--metric", metavar="KEY", type=str | None, default=None, help=metric)
    options.add_argument("--output", type=Path, default=Path("comparison"), help="Folder for the report.")
    options.add_argument("--level", type=Fraction, default=LEVEL, help="Level of the confidence intervals.")
    options.add_argument("--draws", type=Draws, default=DRAWS, help="Number of bootstrap draws.")
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Compare runs and write the report; return the exit code."""
    from fedlit.reports.compare.comparison import compare_runs
    from fedlit.reports.compare.joining import gains_from_joining
    from fedlit.reports.compare.margin import margin_tests
    from fedlit.reports.compare.report import write_latex, write_report
    from fedlit.reports.compare.runs import load_runs
    from fedlit.reports.compare.terminal import show  # matplotlib takes a second to import
    from fedlit.tracking.run import flatten

    console = Console(highlight=False, markup=False)
    tags = {key: str(value) for key, value in flatten(args.tags).items()} if args.tags else {}
    with tempfile.TemporaryDirectory(prefix="fedlit-") as folder, console.status("loading runs") as status:
        runs, notes = load_runs(args.runs, args.experiment, tags, store_address(args.tracking_uri), Path(folder))
        options = {"metric": args.metric, "level": args.level, "draws": args.draws, "progress": status.update}
        comparison = compare_runs(runs, notes, args.baseline, test_set=args.set, **options)
        numbers = comparison.statistics
        if args.margin is not None and not (numbers and numbers.against):
            raise ConfigError(
                "--margin: expected at least two methods with predictions, found fewer; add runs of another method"
            )
        if args.margin is not None:
            comparison = replace(comparison, margins=margin_tests(numbers, args.margin))
        if args.against:
            gains = gains_from_joining(runs, args.level, args.draws, status.update)
            comparison = replace(comparison, joining=gains)
        status.update("drawing")
        earlier = " (replacing an earlier report)" if (args.output / "report.html").exists() else ""
        report = write_report(comparison, args.output)
        tables = write_latex(comparison, args.output) if args.latex else []
        status.stop()
        show(comparison, console)
    console.print(f"report, figures, tables{earlier}: {report}", soft_wrap=True)
    if tables:
        console.print(f"LaTeX: {', '.join(map(str, tables))}", soft_wrap=True)
    return 0
