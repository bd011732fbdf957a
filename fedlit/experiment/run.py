"""A run of an experiment from its first round to its test, and what it leaves in its directory."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.checkpoint import Contents
from fedlit.core.checkpoints.manifest import Best
from fedlit.experiment.experiment import Experiment
from fedlit.experiment.final_metrics import keep, test_metrics
from fedlit.experiment.naming import totals
from fedlit.experiment.phases import Part
from fedlit.experiment.resumption import resumption
from fedlit.federation.evaluation import evaluate_sets
from fedlit.federation.session import Session
from fedlit.predictions.export import export, owner
from fedlit.predictions.table import FOLDER
from fedlit.tracking.full_disk import full_disk_explained
from fedlit.tracking.run import Result, Run

Say = Callable[[str], None]
"""Takes a line for the person who waits."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        directory: The run's directory.
        signum: The number of the signal that stopped it before its end, or 0; there is nothing else then.
        session: The main part, whose processes have ended.
        best: The checkpoint of the model that was tested.
        rounds: Completed rounds of that model.
        metrics: Values of ``test/...``.
    """

    directory: Path
    signum: int = 0
    session: Session | None = None
    best: Path | None = None
    rounds: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


def fit(experiment: Experiment, say: Say) -> Outcome:
    """Train, test the best model, and write what came of it into the run's directory.

    Args:
        experiment: What to train.
        say: Called with each line for the person who waits, beside the progress of the rounds.

    Raises:
        ConfigError: The parts do not fit together, or another process is at work on the run; nothing has been trained.
        CheckpointError: The checkpoint to go on from is missing, or of something else.
        TrainingError: Training cannot go on; all ranks stop alike.
    """
    with ExitStack() as open_things:
        begins = resumption(experiment, open_things)
        for line in begins.told:
            say(line)
        if begins.resumed and experiment.away is not None:
            experiment.away.open(begins.directory)
        first = experiment.first_session(begins.directory)  # what is refused is refused before there is a directory
        open_things.callback(first.engine.close)
        here = begins.in_directory(experiment, open_things)
        for line in here.told:
            say(line)
        if experiment.away is not None:
            experiment.away.open(here.directory)
        run = Run(here.directory, experiment.tracker, begins.resumed, experiment.fabric.is_global_zero)
        with full_disk_explained(here.directory):
            return _fit(experiment, first, run, here.checkpoint, say)


def _fit(experiment: Experiment, session: Session, run: Run, resume: Path | None, say: Say) -> Outcome:
    status, began, before, signum = "FAILED", time.perf_counter(), 0, 0
    try:
        pending = experiment.pending(run.directory)
        for part in experiment.parts:
            if part in pending:
                if part is not pending[0]:
                    session.engine.close()
                    session = experiment.session(run.directory, part)
                if part.title:
                    say(part.title)
                signum = part.federation.fit(
                    session, run, _goes_on_from(part, run, resume), config=experiment.config, params=experiment.parameters,
                    checkpoints=part.checkpoints(run.directory), before=before, callbacks=experiment.callbacks,
                )  # fmt: skip
            if signum:
                break
            before += part.federation.rounds
        if signum:
            status = "KILLED"
            return Outcome(run.directory, signum)
        run.check_in_place()
        best = checkpoint.find(run.checkpoints, "best") or checkpoint.find(run.checkpoints, "last")
        server, rounds, _ = session.restore(best)
        sets = evaluate_sets(session, server, "test")
        metrics = test_metrics(session, sets, run.directory if run.main else None)
        run.log(metrics | totals(run.metrics), before)
        for picture in sorted(run.directory.glob("roc_*.png")):
            run.artifact(picture)
        for file in keep(session, sets, rounds, run.directory / FOLDER):
            run.artifact(file, FOLDER)
        run.artifact(best, "best")
        if experiment.away is None:  # of data elsewhere it is not known how they are decoded
            _keep_model(session, Contents(rounds, server, {}, Best()), run, say)
        for line in () if experiment.fast_dev_run else session.hand_out(server, rounds):
            say(line)
        run.artifact(run.metrics.path)
        result = Result(experiment.federation.rounds, rounds, time.perf_counter() - began, metrics)
        status = "FINISHED"
        return Outcome(run.directory, 0, session, best, rounds, metrics)
    except (KeyboardInterrupt, SystemExit):
        status = "KILLED"
        raise
    finally:
        session.engine.close()
        run.finish(status)
        if run.main and status == "FINISHED":
            result.write(run.directory)


def _goes_on_from(part: Part, run: Run, resume: Path | None) -> Path | None:
    """The checkpoint from which a part goes on: a phase's last one, and of the main part the one that was asked for."""
    folder = part.checkpoints(run.directory)
    if part.phase:
        return checkpoint.find(folder, "last")
    return resume if resume and resume.parent == folder else None


def _keep_model(session: Session, best: Contents, run: Run, say: Say) -> None:
    """Log the best model as one of MLflow where the tracker takes it; one that cannot be is said, and ends no run."""
    if not (run.main and run.tracker.keeps_models):
        return
    from fedlit.predictions.serving import save_mlflow_model

    folder = run.directory / "model"
    try:
        client = owner(session, None)
        save_mlflow_model(folder, lambda file: export(session, best, run.directory, client, file))
    except Exception as error:  # a module of one's own may fail in any way
        reason = (str(error) or type(error).__name__).splitlines()[0].partition(". ")[0]
        say(f"the best model is not logged as an MLflow model: {reason}")
    else:
        run.artifact(folder)
