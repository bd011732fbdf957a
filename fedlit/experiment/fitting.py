"""A run of an experiment from its first round to its test, and what it leaves in its directory."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.checkpoint import Contents
from fedlit.core.checkpoints.manifest import Best
from fedlit.core.errors import ConfigError
from fedlit.experiment.experiment import Experiment
from fedlit.experiment.naming import totals
from fedlit.experiment.phases import Part
from fedlit.experiment.tested import keep, test_metrics
from fedlit.federation.evaluation import evaluate_sets
from fedlit.federation.session import Session
from fedlit.predictions.export import export, owner
from fedlit.predictions.table import FOLDER
from fedlit.tracking.full_disk import told
from fedlit.tracking.run import Result, Run, check_same_config, check_writable, new_directory, run_of, runs_in

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
    fabric = experiment.fabric
    with ExitStack() as open_things:
        resume = _resumed(experiment, say, open_things)
        directory = run_of(resume) if resume else experiment.begun
        if directory is None:
            check_writable(experiment.run_dir, experiment.experiment)
        if directory is not None and experiment.away is not None:
            experiment.away.open(directory)
        first = experiment.first_session(directory)  # what is refused is refused before there is a directory
        open_things.callback(first.engine.close)
        if directory is None:
            made = fabric.is_global_zero and new_directory(
                experiment.run_dir, experiment.experiment, experiment.run_name
            )
            directory = fabric.broadcast(made)
        if resume is None:
            open_things.enter_context(experiment.alone(directory))
        if experiment.away is not None:
            experiment.away.open(directory)
        run = Run(directory, experiment.tracker, bool(resume or experiment.begun), fabric.is_global_zero)
        with told(directory):
            return _fit(experiment, first, run, resume, say)


def _resumed(experiment: Experiment, say: Say, open_things: ExitStack) -> Path | None:
    """The checkpoint to go on from, or None; its run is kept from other processes until what is open is closed."""
    found = experiment.checkpoint()
    if found is not None:
        open_things.enter_context(experiment.alone(run_of(found)))
        held, found = run_of(found), experiment.checkpoint()  # another process may just have gone on with it
        if found is None or run_of(found) != held:
            raise ConfigError(
                f"--ckpt_path {experiment.ckpt_path}: a new run has begun meanwhile; give the command again"
            )
        check_same_config(held, experiment.config)
    for line in experiment.passed_over(found):
        say(line)
    where = experiment.run_dir / experiment.experiment
    if found is not None:
        say(f"resuming {run_of(found)} after {checkpoint.rounds(found)} rounds")
    elif experiment.ckpt_path:
        say(f"no run in {where} {'with a checkpoint' if runs_in(where) else 'yet'}: starting a new one")
    return found


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
                    session, run, _goes_on_from(part, run, resume), experiment.config, experiment.parameters,
                    part.checkpoints(run.directory), before, experiment.callbacks,
                )  # fmt: skip
            if signum:
                break
            before += part.federation.rounds
        if signum:
            status = "KILLED"
            return Outcome(run.directory, signum)
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
        _keep_model(session, Contents(rounds, server, {}, Best()), run, say)
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
