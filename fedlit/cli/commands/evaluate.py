"""``fedlit evaluate``."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace
from rich.console import Console

from fedlit.cli.commands import COMMANDS
from fedlit.core.ranges import Fraction
from fedlit.experiment.helptexts import STORE
from fedlit.experiment.parser import Parser
from fedlit.metrics.levels import DRAWS, LEVEL, Draws
from fedlit.tracking.addresses import store_address

EPILOG = """The runs are of one method and differ only in their seed: their values are averaged. Runs with their own
draws of the data, as `--seed 0,1,2` and sweeps make them, are evaluated on the test images of their draws. Everything
is computed from the predictions that `fedlit fit` and `fedlit test` write. A threshold is chosen on the validation
images that `fedlit predict --part val` scores, never on test images, and is then used on every test set and at every
site. OUTPUT receives report.html, its figures as SVG and PDF, estimates.csv, gaps.csv and points.csv. Runs in MLflow
receive up to four figures as artifacts, in the folder evaluation."""


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of an evaluation."""
    options = Parser(description=COMMANDS["evaluate"], epilog=EPILOG)
    runs = (
        "Run directories, folders with run directories, ids of MLflow runs, or files of `fedlit predict` with labels; "
        "all of one method."
    )
    options.add_argument("runs", metavar="RUN", nargs="+", type=str, help=runs)
    by = (
        "Kinds of groups, with commas: NAME of the columns group/NAME of the predictions, client or site. By default "
        "all group/NAME."
    )
    options.add_argument("--by", metavar="NAME,...", type=str | None, default=None, help=by)
    tested = "Test set that is evaluated. By default all; figures are of federation, or of the first."
    options.add_argument("--set", metavar="NAME", type=str | None, default=None, help=tested)
    threshold = (
        "Operating point, or a list of them: '{class: NAME, at: sensitivity 0.9, on: val}'. Without a class, of every "
        "class. At is a sensitivity or a specificity. On is val (validation images of all clients), val/CLIENT, or "
        "val/each (a threshold of each client, used at all others)."
    )
    options.add_argument("--threshold", metavar="POINT", type=dict | list[dict] | None, default=None, help=threshold)
    rates = {
        "sensitivity": "Sensitivity at which specificity is given.",
        "specificity": "Specificity at which sensitivity is given.",
    }
    for name, text in rates.items():
        options.add_argument(f"--{name}", type=Fraction, default=0.9, help=text)
    risk = "Probability from which a patient would be treated, for net benefit."
    options.add_argument("--risk", type=Fraction, default=0.1, help=risk)
    prevalence = (
        "Share of positives for predictive values at thresholds. By default that of each class in the test set."
    )
    options.add_argument("--prevalence", type=Fraction | None, default=None, help=prevalence)
    options.add_argument("--output", type=Path, default=Path("evaluation"), help="Folder for the report.")
    options.add_argument("--level", type=Fraction, default=LEVEL, help="Level of the confidence intervals.")
    options.add_argument("--draws", type=Draws, default=DRAWS, help="Number of bootstrap draws.")
    options.add_argument("--tracking_uri", type=str | None, default=None, help=STORE)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Evaluate runs and write the report; return the exit code."""
    from fedlit.metrics.performance import Stated
    from fedlit.reports.compare.runs import load_runs
    from fedlit.reports.evaluation.evaluation import EvaluationOptions, evaluate_runs
    from fedlit.reports.evaluation.figures import charts  # matplotlib takes a second to import
    from fedlit.reports.evaluation.points import Point
    from fedlit.reports.evaluation.report import add_to_mlflow, show, write_report

    entries = args.threshold if isinstance(args.threshold, list) else [args.threshold] * (args.threshold is not None)
    request = EvaluationOptions(
        by=None if args.by is None else tuple(filter(None, map(str.strip, args.by.split(",")))),
        test_set=args.set,
        points=tuple(map(Point.read, entries)),
        stated=Stated(args.sensitivity, args.specificity, args.risk),
        prevalence=args.prevalence,
        level=args.level,
        draws=args.draws,
    )
    console = Console(highlight=False, markup=False)
    with tempfile.TemporaryDirectory(prefix="fedlit-") as folder, console.status("loading runs") as status:
        runs, notes = load_runs(args.runs, None, {}, store_address(args.tracking_uri), Path(folder))
        evaluation = evaluate_runs(runs, request, notes, status.update)
        status.update("drawing")
        earlier = " (replacing an earlier report)" if (args.output / "report.html").exists() else ""
        drawn = charts(evaluation)
        report = write_report(evaluation, args.output, drawn)
        status.update("adding figures to MLflow")
        logged = add_to_mlflow(evaluation, drawn, store_address(args.tracking_uri), Path(folder))
        status.stop()
        show(evaluation, console)
    if logged:
        console.print(logged, soft_wrap=True)
    console.print(f"report, figures, tables{earlier}: {report}", soft_wrap=True)
    return 0
