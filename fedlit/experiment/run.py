"""A run of an experiment, from its first round to the test of its best model."""

import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.checkpoint import Contents
from fedlit.core.checkpoints.manifest import Best
from fedlit.experiment.experiment import Experiment
from fedlit.experiment.final_metrics import test_metrics, write_predictions
from fedlit.experiment.naming import totals
from fedlit.experiment.parameters import parameters
from fedlit.experiment.phases import RunPart
from fedlit.experiment.resumption import resumption
from fedlit.federation.evaluation import evaluate_sets
from fedlit.federation.interrupts import unwinding_on_signals
from fedlit.federation.session import Session
from fedlit.predictions.export import export, owner
from fedlit.predictions.table import FOLDER
from fedlit.tracking.full_disk import full_disk_explained
from fedlit.tracking.run import Result, Run


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    directory: Path
    signum: int = 0  # Number of the signal that stopped the run, or 0. A stopped run has only this and its rounds.
    session: Session | None = None  # Session of the main part, whose processes have ended.
    best: Path | None = None
    rounds: int = 0  # Number of completed rounds of the tested model; of a stopped run, over all of its parts.
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def stopped(self) -> str:
        """Message that names the signal that stopped the run, and the last completed round."""
        name = "Ctrl-C" if self.signum == signal.SIGINT else signal.Signals(self.signum).name
        return f"stopped by {name} " + (
            f"after round {self.rounds}" if self.rounds else "before the end of the first round"
        )


def fit(experiment: Experiment) -> Outcome:
    """Train, test the best model, and write the results into the run's directory.

    Raises:
        ConfigError: The parts contradict each other, or another process is using the run; nothing has been trained.
        CheckpointError: The checkpoint to resume from is missing, or belongs to another run.
        TrainingError: Training cannot continue; all ranks stop.
    """
    with unwinding_on_signals(), ExitStack() as open_things:
        start = resumption(experiment, open_things)
        resumed = start.directory is not None
        if resumed and experiment.away is not None:
            experiment.away.open(start.directory)
        first, pending = experiment.first_session(start.directory)  # mistakes are found before there is a directory
        open_things.callback(first.engine.close)
        directory = start.open(experiment, open_things)
        if experiment.away is not None:
            experiment.away.open(directory)
        run = Run(directory, experiment.tracker, resumed, experiment.fabric.is_global_zero)
        with full_disk_explained(directory):
            return _fit(experiment, first, pending, run, start.checkpoint)


def _fit(
    experiment: Experiment, session: Session, pending: Sequence[RunPart], run: Run, resume: Path | None
) -> Outcome:
    say, params = experiment.console.print, parameters(experiment.settings, experiment.federation, experiment.names)
    status, began, before, signum = "FAILED", time.perf_counter(), 0, 0
    try:
        for part in experiment.parts:
            if part in pending:
                if part is not pending[0]:
                    session.engine.close()
                    session = experiment.session(run.directory, part)
                if part.title:
                    say(part.title)
                options = {"config": experiment.config, "params": params}
                signum = part.fit(session, run, resume, before=before, callbacks=experiment.callbacks, **options)
            if signum:
                break
            before += part.federation.rounds
        if signum:
            status = "KILLED"
            last = checkpoint.find(part.checkpoints(run.directory), "last")
            return Outcome(run.directory, signum, rounds=before + (checkpoint.rounds(last) if last else 0))
        run.check_in_place()
        best = checkpoint.find(run.checkpoints, "best") or checkpoint.find(run.checkpoints, "last")
        server, rounds, _ = session.restore(best)
        sets = evaluate_sets(session, server, "test")
        metrics = test_metrics(session, sets, run.directory if run.main else None)
        run.log(metrics | totals(run.metrics), before)
        for figure in sorted(run.directory.glob("roc_*.png")):
            run.artifact(figure)
        for file in write_predictions(session, sets, rounds, run.directory / FOLDER):
            run.artifact(file, FOLDER)
        run.artifact(best, "best")
        if experiment.away is None:  # the model's notes describe how images are decoded, which only the sites know
            _keep_model(experiment, session, Contents(rounds, server, {}, Best()), run)
        for line in () if experiment.fast_dev_run else session.hand_out(server, rounds):
            say(line)
        run.artifact(run.metrics.path)
        main, seconds = experiment.federation.rounds, time.perf_counter() - began
        weights = experiment.federation.client_weights
        result = Result(main, rounds, seconds, metrics, phase_rounds=before - main, client_weights=weights)
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


def _keep_model(experiment: Experiment, session: Session, best: Contents, run: Run) -> None:
    """Log the best model as an MLflow model if the tracker keeps models; print why if it cannot be logged."""
    if not (run.main and run.tracker.keeps_models):
        return
    from fedlit.predictions.serving import save_mlflow_model

    folder = run.directory / "model"
    try:
        client = owner(session, None)
        save_mlflow_model(folder, lambda file: export(session, best, run.directory, client, file))
    except Exception as error:  # the user's own module may fail in any way
        reason = (str(error) or type(error).__name__).splitlines()[0].partition(". ")[0]
        experiment.console.print(f"the best model is not logged as an MLflow model: {reason}")
    else:
        run.artifact(folder)
