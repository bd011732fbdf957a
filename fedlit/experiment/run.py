"""A run of an experiment, from its first round to the test of its best model; what it says if the disk is full."""

import errno
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.checkpoint import Contents
from fedlit.core.checkpoints.manifest import Best
from fedlit.core.errors import TrainingError, causes
from fedlit.experiment.experiment import Experiment
from fedlit.experiment.naming import totals
from fedlit.experiment.parameters import parameters
from fedlit.experiment.phases import directory_of
from fedlit.experiment.resumption import locked, resumption
from fedlit.federation.callbacks import Callbacks
from fedlit.federation.engines.scores import Scores
from fedlit.federation.evaluation import evaluate_sets, pooled_metrics, with_sites
from fedlit.federation.interrupts import unwinding_on_signals
from fedlit.federation.session import Session
from fedlit.metrics.auroc import slug
from fedlit.predictions.export import export, owner
from fedlit.predictions.table import FOLDER, collected, write
from fedlit.tracking.run import Result, Run, last_checkpoint

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Error numbers of a file system that accepts no more data."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    directory: Path
    signum: int = 0  # Number of the signal that stopped the run, or 0. A stopped run has only this and its rounds.
    session: Session | None = None  # Its session, whose processes have ended.
    best: Path | None = None
    rounds: int = 0  # Number of completed rounds of the tested model; of a stopped run or phase, of all.
    metrics: dict[str, float] = field(default_factory=dict)
    phase: str = ""  # Name of the phase that was stopped.

    @property
    def stopped(self) -> str:
        """Message that names the signal that stopped the run, and the last completed round."""
        name = "Ctrl-C" if self.signum == signal.SIGINT else signal.Signals(self.signum).name
        where = f" of phase {self.phase!r}" if self.phase else ""
        when = f"after round {self.rounds}" if self.rounds else "before the end of the first round"
        return f"stopped by {name} {when}{where}"


def fit(experiment: Experiment) -> Outcome:
    """Train the phases and then the run, test the best model of each, and write the results into its directory.

    Phases that have finished in the directory of a resumed run are not repeated.

    Raises:
        ConfigError: The runs contradict each other, or another process is using the run; nothing has been trained.
        CheckpointError: The checkpoint to resume from is missing, or belongs to another run.
        TrainingError: Training cannot continue; all ranks stop.
    """
    with unwinding_on_signals(), ExitStack() as open_things:
        start = resumption(experiment, open_things)
        if experiment.away is not None and start.directory is not None:
            experiment.away.open(start.directory)
        runs = [each for each in experiment.runs if each is experiment or not _finished(each, start.directory)]
        session = _first_session(runs, start.directory)  # mistakes are found before there is a directory
        open_things.callback(session.engine.close)
        directory = start.open(experiment, open_things)
        if experiment.away is not None:
            experiment.away.open(directory)
        whole = _run(experiment, directory, start.directory is not None or len(experiment.runs) > 1)
        if len(experiment.runs) > 1:
            whole.announce()  # while its phases are trained it is found by its configuration
        fresh = Callbacks(experiment.callbacks).state()
        for number, each in enumerate(runs):
            if number:
                Callbacks(experiment.callbacks).load(fresh)
            if each is not experiment:
                outcome = _fit_phase(each.placed(directory), session)
            else:
                with full_disk_explained(directory):
                    outcome = _fit(experiment, session or experiment.session(directory), whole, start.checkpoint)
            session = None
            if outcome.signum:
                return replace(outcome, directory=directory, phase=each.phase or "")
        return outcome


def _finished(phase: Experiment, run: Path | None) -> bool:
    """Return whether a phase has finished in a run's directory, the same on every rank."""
    directory = run and directory_of(phase.name, run)
    finished = phase.fabric.broadcast(directory is not None and Result.read(directory) is not None)
    if finished:
        phase.console.print(f"phase {phase.name!r} is finished: {directory}")
    return finished


def _first_session(runs: Sequence[Experiment], run: Path | None) -> Session:
    """Make the session of the first of the runs that are left, after a check of the others."""
    first, *later = runs
    for each in later:
        each.check_later()
    directory = run if first.alters is None or run is None else directory_of(first.name, run)
    if first.alters is not None and first.away is not None and directory is not None and directory.exists():
        first.away.open(directory)
    session = first.session(directory)
    if first.alters is not None:
        try:
            first.check(session)
        except BaseException:
            session.engine.close()
            raise
    return session


def _fit_phase(phase: Experiment, session: Session | None) -> Outcome:
    """Train and test a phase in its directory, from its last checkpoint if it has one."""
    directory = directory_of(phase.name, phase.run_dir)
    phase.console.print(f"phase {phase.name!r}, in {directory}")
    resumed = phase.fabric.broadcast(directory.exists())
    if phase.fabric.is_global_zero:
        directory.mkdir(parents=True, exist_ok=True)
    with locked(phase, directory), full_disk_explained(directory):
        if phase.away is not None:
            phase.away.open(directory)
        last = phase.fabric.broadcast(checkpoint.find(directory / "checkpoints", "last"))
        return _fit(phase, session or phase.session(directory), _run(phase, directory, resumed), last)


def _run(experiment: Experiment, directory: Path, resumed: bool) -> Run:
    params = parameters(experiment.settings, experiment.federation, experiment.names)
    main = experiment.fabric.is_global_zero
    return Run(directory, experiment.tracker, resumed, main, experiment.config, params, figures=experiment.figures)


def _fit(experiment: Experiment, session: Session, run: Run, resume: Path | None) -> Outcome:
    say, status, began = experiment.console.print, "FAILED", time.perf_counter()
    try:
        if signum := experiment.federation.fit(session, run, resume, experiment.callbacks):
            status = "KILLED"
            last = checkpoint.find(run.checkpoints, "last")
            return Outcome(run.directory, signum, rounds=checkpoint.rounds(last) if last else 0)
        run.check_in_place()
        best = checkpoint.find(run.checkpoints, "best") or checkpoint.find(run.checkpoints, "last")
        server, rounds, _ = session.restore(best)
        sets = evaluate_sets(session, server, "test")
        metrics = test_metrics(session, sets, run.directory if run.main and run.figures else None)
        run.log(metrics | totals(run.metrics), experiment.federation.rounds)
        for figure in sorted(run.directory.glob("roc_*.png")):
            run.artifact(figure)
        for file in write_predictions(session, sets, rounds, run.directory / FOLDER):
            run.artifact(file, FOLDER)
        run.artifact(best, "best")
        if experiment.away is None:  # the model's notes describe how images are decoded, which only the sites know
            _keep_model(experiment, session, Contents(rounds, server, {}, Best()), run)
        for line in () if experiment.fast_dev_run or experiment.alters else session.hand_out(server, rounds):
            say(line)
        run.artifact(run.metrics.path)
        seconds, settings = time.perf_counter() - began, experiment.federation
        result = Result(settings.rounds, rounds, seconds, metrics, client_weights=settings.client_weights)
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


@contextmanager
def full_disk_explained(run: Path) -> Iterator[None]:
    """Context manager that turns errors of a full disk into a message and deletes incomplete checkpoints.

    Raises:
        TrainingError: A file could not be written; names it and the command to resume.
    """
    try:
        yield
    except Exception as error:
        # The system's error is among the causes, because torch.save reports only its incomplete file.
        reason = next((each for each in causes(error) if isinstance(each, OSError) and each.errno in FULL), None)
        if reason is None:
            raise
        for draft in run.glob("checkpoints/.writing-*"):
            shutil.rmtree(draft, ignore_errors=True)
        last, place = last_checkpoint(run), reason.filename or run
        onward = f"resume with --ckpt_path {run}; {last} is kept" if last else "start again; no checkpoint exists yet"
        folder = next(path for path in (run, *run.absolute().parents) if path.exists())
        usage = shutil.disk_usage(folder)
        free = f"{usage.free / 2**20:,.0f} of {usage.total / 2**20:,.0f} MiB are free in {folder}"
        raise TrainingError(
            f"{place}: cannot be written: {reason.strerror} ({free}). Free disk space or raise the quota, then {onward}"
        ) from error


def test_metrics(session: Session, sets: dict[str, list[Scores]], directory: Path | None) -> dict[str, float]:
    """Return ``test/<set>/...`` of every test set and organisation; draw ROC curves into ``directory``, if not None."""
    metrics: dict[str, float] = {}
    for name, scores in with_sites(session, sets).items():
        prefix = f"test/{slug(name)}"
        metrics |= pooled_metrics(scores, session.classes, prefix, session.everyone.schemes, apart=True)
        metrics |= images_ranked(metrics, prefix)
        if directory and all(s.scores is not None for s in scores) and name in ("federation", *session.data.test_sets):
            from fedlit.tracking.figures import roc_figure  # matplotlib takes a second to import

            together = [torch.cat([getattr(s, part) for s in scores]) for part in ("scores", "labels")]
            figure = roc_figure(*together, session.classes, f"Test set: {name}")
            figure.canvas.print_png(directory / f"roc_{slug(name)}.png")
    return metrics


def images_ranked(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Return ``{prefix}/auroc_images``, the number of images that the AUROC of a class ranks, averaged over classes."""
    start = f"{prefix}/auroc/"
    names = [key.removeprefix(start) for key, value in metrics.items() if key.startswith(start) and value == value]
    counts = [metrics[f"{prefix}/n_pos/{name}"] + metrics[f"{prefix}/n_neg/{name}"] for name in names]
    return {f"{prefix}/auroc_images": sum(counts) / len(counts)} if counts else {}


def write_predictions(session: Session, sets: Mapping[str, Sequence[Scores]], rounds: int, folder: Path) -> list[Path]:
    """Write the predictions of each test set that the module scores per class; return the files.

    A set is left out if a site does not send its scores, because a part could be mistaken for the whole.
    """
    if not session.fabric.is_global_zero:
        return []
    whole = {name: scores for name, scores in sets.items() if all(s.tally is None for s in scores)}
    tables = [collected(session, name, scores, rounds) for name, scores in whole.items()]
    return [write(table, folder / f"{slug(table.name)}.parquet") for table in tables if table is not None]
