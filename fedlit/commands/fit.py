"""``fedlit fit``."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace
from rich.console import Console

from fedlit import checkpoint
from fedlit.checkpoint import Best, Loaded
from fedlit.commands.test import keep, print_results, test_metrics
from fedlit.errors import ConfigError, TrainingError
from fedlit.experiment import Experiment, composed, experiment_parser, seeds_of
from fedlit.export import export, owner
from fedlit.grid import METRIC, plan_seeds
from fedlit.grouping import totals
from fedlit.interrupts import ending_on_sigterm
from fedlit.parser import Parser
from fedlit.predictions import FOLDER
from fedlit.run import Result, Run, check_same_config, new_directory, run_of
from fedlit.serving import save_mlflow_model
from fedlit.session import Session
from fedlit.sweep import next_steps, run_all, seeds_table

DESCRIPTION = "Train a federation, test its best model, log to MLflow."


def parser() -> Parser:
    """The keys of a YAML, and how many of several seeds run side by side."""
    options = experiment_parser(DESCRIPTION)
    options.add_argument("--jobs", type=int, default=1, help="runs side by side, where there are several seeds")
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Train, once a seed; returns the exit code."""
    seeds = seeds_of(args)
    if len(seeds) > 1:
        if not args.fast_dev_run:
            return run_seeds(args, parser, seeds)
        Console(highlight=False).print(f"a trial run: seed {seeds[0]} alone")
        args.seed = seeds[0]
    with composed(args, parser) as experiment:
        return run_fit(experiment)


def run_seeds(args: Namespace, parser: Parser, seeds: Sequence[int]) -> int:
    """Train once a seed, each in a process and a run of its own; returns the exit code.

    Raises:
        ConfigError: a mistake in the configuration, or ranks of a launcher; nothing has been started.
    """
    if "LOCAL_WORLD_SIZE" in os.environ or os.environ.get("LT_CLI_USED", "0") != "0":
        raise ConfigError(
            f"seed: expected one under torchrun or fabric run, found {', '.join(map(str, seeds))}; without a launcher "
            "--fabric.devices starts the ranks of each run"
        )
    runs, console = plan_seeds(args, parser, seeds), Console(highlight=False, markup=False, soft_wrap=True)
    file = runs[0].directory.with_name(f"{runs[0].group}.csv")
    table = run_all(runs, file, METRIC, args.jobs, console)
    if finished := [result for run in runs if (result := Result.read(run.directory))]:
        console.print(seeds_table(finished))
    console.print(next_steps(table, file))
    return 0 if (table["status"] == "finished").all() else 1


def run_fit(experiment: Experiment) -> int:
    """Train, test the best model, and say where to look; returns the process's exit code."""
    fabric, console, resume = experiment.fabric, experiment.console(), experiment.checkpoint()
    if resume is not None:
        check_same_config(run_of(resume), experiment.config)
        console.print(f"resuming {run_of(resume)} after {checkpoint.rounds(resume)} rounds")
    elif experiment.ckpt_path:
        console.print(f"no run in {experiment.run_dir / experiment.experiment} yet: starting a new one")
    directory = run_of(resume) if resume else None
    first = experiment.first_session(directory)  # what is refused is refused before there is a directory
    try:
        if directory is None and fabric.is_global_zero:
            directory = new_directory(experiment.run_dir, experiment.experiment, experiment.name)
        run = Run(fabric.broadcast(directory), experiment.tracker, resume is not None, fabric.is_global_zero)
        with ending_on_sigterm():
            return _fit(experiment, first, run, resume, console)
    except TrainingError:
        if fabric.is_global_zero:
            raise
        return 0  # all ranks stop alike: the first one speaks for the run, and its exit code counts
    finally:
        first.engine.close()


def _fit(experiment: Experiment, session: Session, run: Run, resume: Path | None, console: Console) -> int:
    status, began, before, signum = "FAILED", time.perf_counter(), 0, 0
    settings = experiment.parameters
    try:
        pending = experiment.pending(run.directory)
        for phase in experiment.phases:
            if phase in pending:
                if phase is not pending[0]:
                    session = experiment.phase_session(phase, run.directory)
                console.print(f"phase {phase.name!r}, before the main part")
                folder = phase.checkpoints(run.directory)
                done = checkpoint.find(folder, "last")
                signum = session.federation.fit(session, run, done, experiment.config, settings, folder, before)
                session.engine.close()
            if signum:
                break
            before += phase.federation(experiment.federation).rounds
        if not signum:
            session = experiment.session(run.directory) if pending else session
            done = resume if resume and resume.parent == run.checkpoints else None
            signum = experiment.federation.fit(session, run, done, experiment.config, settings, before=before)
        if signum:
            status = "KILLED"
            console.print(f"stopped by a signal; to continue: --ckpt_path {run.directory}")
            return 128 + signum if run.main else 0
        best = checkpoint.find(run.checkpoints, "best") or checkpoint.find(run.checkpoints, "last")
        server, rounds, _ = session.restore(best)
        sets = session.evaluate_sets(server, "test")
        metrics = test_metrics(session, sets, run.directory if run.main else None)
        run.log(metrics | totals(run.metrics), before + experiment.federation.rounds)
        for picture in sorted(run.directory.glob("roc_*.png")):
            run.artifact(picture)
        for file in keep(session, sets, rounds, run.directory / FOLDER):
            run.artifact(file, FOLDER)
        run.artifact(best, "best")
        _keep_model(session, Loaded(rounds, server, {}, Best()), run, console)
        run.artifact(run.metrics.path)
        print_results(metrics, f"best model (after {rounds} rounds)", console)
        if not experiment.fast_dev_run:
            console.print(f"run directory: {run.directory}")
        result = Result(experiment.federation.rounds, rounds, time.perf_counter() - began, metrics)
        status = "FINISHED"
        return 0
    except (KeyboardInterrupt, SystemExit):
        status = "KILLED"
        raise
    finally:
        session.engine.close()
        run.finish(status)
        if run.main and status == "FINISHED":
            result.write(run.directory)
        if run.main and run.tracker.summary():
            console.print(run.tracker.summary())


def _keep_model(session: Session, best: Loaded, run: Run, console: Console) -> None:
    """Log the best model as one of MLflow where the tracker takes it; one that cannot be is said, and ends no run."""
    if not (run.main and run.tracker.keeps_models):
        return
    folder = run.directory / "model"
    try:
        client = owner(session, None)
        save_mlflow_model(folder, lambda file: export(session, best, run.directory, client, file))
    except Exception as error:  # a module of one's own may fail in any way
        reason = (str(error) or type(error).__name__).splitlines()[0].partition(". ")[0]
        console.print(f"the best model is not logged as an MLflow model: {reason}")
    else:
        run.artifact(folder)
