"""``fedlit test``."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from jsonargparse import Namespace
from rich.console import Console

from fedlit.cli.commands import COMMANDS
from fedlit.cli.tables import auroc_table, sets_table
from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import CheckpointError
from fedlit.core.messages import ServerState
from fedlit.experiment.experiment import Experiment
from fedlit.experiment.options import composed, experiment_parser
from fedlit.experiment.parser import Parser
from fedlit.experiment.resumption import locked, required_checkpoint
from fedlit.experiment.run import test_metrics, write_predictions
from fedlit.federation.evaluation import evaluate_sets
from fedlit.federation.session import Session
from fedlit.predictions.table import FOLDER
from fedlit.tracking.lock import is_held
from fedlit.tracking.run import config_difference, run_of


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of a test: the keys of a YAML, and the folder of the predictions."""
    options = experiment_parser(COMMANDS["test"])
    folder = (
        "Folder for the predictions. By default predictions/ in the run directory, if this is the run's best model "
        "with the run's own configuration; otherwise they are not written."
    )
    options.add_argument("--output", type=Path | None, default=None, help=folder)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Evaluate a checkpoint on the test sets, and write the predictions; return the exit code."""
    with ExitStack() as open_things:
        experiment = open_things.enter_context(composed(args, parser))
        path, console = required_checkpoint(experiment), experiment.console
        if (run_of(path) / "config.yaml").exists() and (rows := config_difference(run_of(path), experiment.config)):
            console.print(f"note: {run_of(path)} was trained with other settings: {'; '.join(rows[:5])}")
        folder = args.output or (run_of(path) / FOLDER if _tested_by_fit(experiment, path) else None)
        if folder == run_of(path) / FOLDER:  # to which a run writes when it ends
            open_things.enter_context(locked(experiment, run_of(path)))
        session = experiment.session(run_of(path))
        open_things.callback(session.engine.close)
        path, server, rounds = _restored(experiment, session, path)
        sets = evaluate_sets(session, server, "test")
        print_results(test_metrics(session, sets, None), f"{path} (after round {rounds})", console)
        if folder is None:
            console.print(
                f"the predictions were not written: {run_of(path) / FOLDER} is for the run's best model with the run's "
                "own configuration; --output FOLDER writes them elsewhere"
            )
        elif write_predictions(session, sets, rounds, folder):
            console.print(f"predictions: {folder}")
        return 0


def _restored(experiment: Experiment, session: Session, path: Path) -> tuple[Path, ServerState, int]:
    """Load a checkpoint, or the newer one by which a run that is still training has replaced it."""
    while True:
        try:
            server, rounds, _ = session.restore(path)
        except CheckpointError:
            run = run_of(path)
            if path.exists() or not is_held(run) or run_of(path := required_checkpoint(experiment)) != run:
                raise
        else:
            return path, server, rounds


def print_results(metrics: Mapping[str, float], title: str, console: Console) -> None:
    """Print the AUROC per class of all clients together (or of the only test set), then that of the other test sets."""
    means = [key for key in metrics if key.startswith("test/") and key.endswith(("/auroc_macro", "/auroc_own_macro"))]
    first, *others = sorted((key.split("/")[1] for key in means), key=lambda name: name != "federation") or [""]
    if first:
        console.print(auroc_table(metrics, f"test/{first}", f"AUROC on test set {first!r}, {title}", console.width))
    if others:
        console.print(sets_table(metrics, others, f"AUROC by test set, {title}", console.width))


def _tested_by_fit(experiment: Experiment, path: Path) -> bool:
    """Return whether this test gives the same results as the one at the end of the run."""
    run, folder = run_of(path), path.parent
    if experiment.fast_dev_run or folder != run / "checkpoints" or not (run / "config.yaml").exists():
        return False
    if config_difference(run, experiment.config):
        return False
    if is_held(run):  # the best model may still change
        return True
    return path == (checkpoint.find(folder, "best") or checkpoint.find(folder, "last"))
