"""``fedlit audit``."""

from collections.abc import Sequence
from contextlib import closing
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
    from fedlit.core.checkpoints import checkpoint
    from fedlit.core.checkpoints.manifest import Manifest
    from fedlit.core.errors import ConfigError
    from fedlit.experiment.options import composed, experiment_parser
    from fedlit.federation.evaluation import evaluate_sets
    from fedlit.reports.audit import FOLDER, PARTS, image_table

    if (args.run / "sites.json").is_file():
        raise ConfigError(
            f"{args.run}: its clients trained at their sites, whose images are not here; each site can audit the "
            "model that it received: fedlit site audit PATH"
        )
    folder = args.run / "checkpoints"
    best = checkpoint.find(folder, "best") or checkpoint.find(folder, "last")
    if best is None:
        raise ConfigError(f"{args.run}: expected the directory of a run, with checkpoints, found none; name another")
    options = experiment_parser()
    options.introduce((), ())
    words = ["--config", str(args.run / "config.yaml"), "--ckpt_path", str(args.run)]
    with composed(options.parse_args([*options.first_words, *words]), options) as experiment:
        experiment.data.augment = False  # the loss of an altered image says little about the image
        session, trained = experiment.session(args.run), args.run / "partition.csv"
        with closing(session.engine):
            split = session.data.assignment
            if split is not None and trained.is_file() and split.to_csv(index=False) != trained.read_text():
                raise ConfigError(
                    f"{trained}: expected the split of the data as they are now, found another, so it is not known who "
                    "was in the training set; restore the data of the run"
                )
            server, rounds, _ = session.restore(best)
            sets = [evaluate_sets(session, server, part).get("federation", []) for part in PARTS]
            scored = [scores for views in sets for scores in views]
            images = image_table(scored, session.program.dataset, session.data, session.classes, session.exclusive)
        if experiment.fabric.is_global_zero:
            whose = ", each client's own" if session.personal else ""
            named = f"{args.run}, the best model{whose}, after round {rounds}"
            weights = Manifest.read(best).sha256["server.pt"]
            report(images, args, args.output or args.run / FOLDER, named, weights)
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
