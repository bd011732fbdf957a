"""What ``fedlit fit``, ``test``, ``predict`` and ``export`` do once the configuration has become objects."""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from lightning.pytorch import LightningModule
from rich.console import Console

from fedlit import __version__, checkpoint
from fedlit.data.federated import FederatedDataModule
from fedlit.data.schemes import by_sharing
from fedlit.engines.base import Scores
from fedlit.errors import CheckpointError, ConfigError, TrainingError
from fedlit.evaluation import pooled_metrics
from fedlit.export import check_described, export, owner
from fedlit.fabric import FederationFabric
from fedlit.federation import Federation
from fedlit.interrupts import ending_on_sigterm
from fedlit.local import LocalModel
from fedlit.metrics.auroc import slug
from fedlit.personal import PersonalParts
from fedlit.phases import Phase
from fedlit.predictions import FOLDER, collected, write
from fedlit.progress import auroc_table, sets_table
from fedlit.randomness import derive_seed
from fedlit.run import (
    Result,
    Run,
    check_same_config,
    config_difference,
    find_checkpoint,
    flatten,
    git_revision,
    new_directory,
    run_of,
)
from fedlit.schedules import ConstantSchedule
from fedlit.session import Session
from fedlit.tracking.base import Tracker

SETS_ABREAST = 6
"""Test sets in one table on the terminal."""


@dataclass
class Experiment:
    """The objects of one configuration.

    Attributes:
        config: the resolved configuration, as YAML; saved with the run.
        settings: the same as nested mappings, for the tracker's parameters.
        tags: of the run in MLflow.
        phases: run before the federation's main part, in order.
    """

    config: str
    settings: dict
    seed: int
    experiment: str
    name: str | None
    run_dir: Path
    ckpt_path: str | None
    fast_dev_run: bool
    fabric: FederationFabric
    data: FederatedDataModule
    model: LightningModule
    federation: Federation
    tracker: Tracker
    tags: dict[str, str] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)

    def session(self, run: Path | None = None) -> Session:
        """The main part, from where a run's phases have brought the model."""
        model, parts = self._after(self.phases, run)
        return Session(self.federation, model, self.data, self.fabric, self.seed, self._tags, self._limit, parts)

    def phase_session(self, phase: Phase, run: Path | None = None) -> Session:
        """A phase, from where a run's earlier ones have brought the model."""
        model, parts = self._after(self.phases[: self.phases.index(phase)], run)
        model = phase.model(model)
        federation = phase.federation(self.federation)
        if self.fast_dev_run:
            federation.rounds, federation.schedule = 1, ConstantSchedule(1, "steps")
        seed, tags = derive_seed(self.seed, "phase", phase.name), {"fedlit.phases": str(len(self.phases))}
        return Session(federation, model, self.data, self.fabric, seed, self._tags | tags, self._limit, parts)

    def pending(self, run: Path | None) -> list[Phase]:
        """Phases that have rounds ahead of them.

        Raises:
            ConfigError: two have the same name.
        """
        names = [phase.name for phase in self.phases]
        if len(set(names)) < len(names):
            raise ConfigError(f"phases: expected different names, found {names}")
        return [p for p in self.phases if run is None or not p.finished(run, self.federation)]

    def first_session(self, run: Path | None) -> Session:
        """Of what comes first, once the main part is known to fit together as well."""
        pending = self.pending(run)
        if not pending:
            return self.session(run)
        if getattr(self.model, "fixed_features", None) is None:  # features of what a phase will change are not worth it
            main = replace(self, model=copy.deepcopy(self.model)).session()  # its algorithms change the model
            self.federation.chosen_monitor(main.rehearse(main.restore(None)[0]))
            main.engine.close()
        return self.phase_session(pending[0], run)

    def _after(self, phases: Sequence[Phase], run: Path | None) -> tuple[LightningModule, PersonalParts | None]:
        """The model as a run's phases have left it, and what clients kept to themselves in the last of them."""
        if run is None or not phases:
            return self.model, None
        model = copy.deepcopy(self.model)
        fresh = {name: value.clone() for name, value in model.state_dict().items()}
        for phase in phases:
            parts = phase.personal_parts(run, model, self.fabric)
            phase.hand_on(run, model, fresh)
        return model, parts

    @property
    def _tags(self) -> dict[str, str]:
        return self.tags | {"fedlit.version": __version__, "fedlit.git": git_revision() or "none"}

    @property
    def _limit(self) -> int | None:
        return 1 if self.fast_dev_run else None

    def local_model(self, run: Path) -> LocalModel:
        """An instance of the model beside the engine's, from where a run's phases have brought it."""
        module = copy.deepcopy(self._after(self.phases, run)[0])
        return LocalModel(self.fabric, module, self.federation.aggregators, self.federation.training)

    def checkpoint(self) -> Path | None:
        """The checkpoint that ``ckpt_path`` names, the same on every rank."""
        found = find_checkpoint(self.run_dir, self.experiment, self.ckpt_path) if self.ckpt_path else None
        return self.fabric.broadcast(found)

    def console(self) -> Console:
        return Console(quiet=not self.fabric.is_global_zero, highlight=False, markup=False, soft_wrap=True)


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
    settings = parameters(experiment.settings)
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
        run.log(metrics, before + experiment.federation.rounds)
        for picture in sorted(run.directory.glob("roc_*.png")):
            run.artifact(picture)
        for file in _keep(session, sets, rounds, run.directory / FOLDER):
            run.artifact(file, FOLDER)
        run.artifact(best, "best")
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


def run_test(experiment: Experiment, output: Path | None) -> int:
    """Evaluate a checkpoint on the test sets, and keep the predictions."""
    path, console = _required_checkpoint(experiment), experiment.console()
    session = experiment.session(run_of(path))
    try:
        server, rounds, _ = session.restore(path)
        sets = session.evaluate_sets(server, "test")
        print_results(test_metrics(session, sets, None), f"{path} (after {rounds} rounds)", console)
        folder = output or (run_of(path) / FOLDER if _tested_by_fit(experiment, path) else None)
        if folder is None:
            console.print(
                f"predictions are not kept: {run_of(path) / FOLDER} is for the run's best model under its own "
                "configuration; --output FOLDER keeps these"
            )
        elif _keep(session, sets, rounds, folder):
            console.print(f"predictions: {folder}")
        return 0
    finally:
        session.engine.close()


def run_predict(experiment: Experiment, part: str, output: Path | None, format: str) -> int:
    """Write the probabilities of a checkpoint for every image of a part of the data, one file a set."""
    path, console = _required_checkpoint(experiment), experiment.console()
    session = experiment.session(run_of(path))
    try:
        server, rounds, _ = session.restore(path)
        folder = output or run_of(path) / "probabilities"
        for name, scores in session.evaluate_sets(server, part, "predict_step").items():
            found = collected(session, name, scores, rounds)
            if found is None:
                raise ConfigError(
                    "the module declares no classes, or its predict_step returns no [B, C] tensor: "
                    "there is nothing to write per class"
                )
            if session.fabric.is_global_zero:
                file = write(found, folder / f"{slug(name)}_{part}.{format}")
                console.print(f"{len(found)} images: {file}")
        return 0
    finally:
        session.engine.close()


def run_export(experiment: Experiment, client: str | None, output: Path | None) -> int:
    """Write the model of a checkpoint, or a client's own, to a file."""
    path, console = _required_checkpoint(experiment), experiment.console()
    run = run_of(path)
    check_described(run, experiment.config)
    local = experiment.local_model(run)  # before the engine takes the module for itself
    experiment.federation.workers = 1  # nothing is computed
    session = experiment.session(run)
    try:
        whose = owner(session, client)
        file = output or run / ("model.safetensors" if whose is None else f"model-{slug(whose)}.safetensors")
        if experiment.fabric.is_global_zero:
            export(session, local, path, whose, file)
        if client and whose is None:
            console.print(f"clients keep no part of the model: {client!r} has the federation's")
        if unknown := [name for name in session.classes if name not in session.learned(whose)]:
            console.print(f"not learned, so that their scores say nothing: {', '.join(unknown)}")
        console.print(f"model after {checkpoint.rounds(path)} rounds: {file}")
        return 0
    finally:
        session.engine.close()


def test_metrics(session: Session, sets: dict[str, list[Scores]], directory: Path | None) -> dict[str, float]:
    """``test/<set>/...`` of every test set and organisation; with a directory, ROC curves are drawn there."""
    metrics: dict[str, float] = {}
    for name, scores in session.with_sites(sets).items():
        metrics |= pooled_metrics(scores, session.classes, f"test/{slug(name)}", by_sharing(session.schemes))
        if directory and scores[0].scores is not None and name in ("federation", *session.data.test_sets):
            from fedlit.reports.figures import roc_figure  # matplotlib takes a second to import

            together = [torch.cat([getattr(s, part) for s in scores]) for part in ("scores", "labels")]
            figure = roc_figure(*together, session.classes, f"Test set: {name}")
            figure.savefig(directory / f"roc_{slug(name)}.png", dpi=150)
    return metrics


def print_results(metrics: Mapping[str, float], title: str, console: Console) -> None:
    """AUROC per class and test set; of a single set with its support."""
    sets = [key.split("/")[1] for key in metrics if key.startswith("test/") and key.endswith("/auroc_macro")]
    if len(sets) == 1:
        console.print(auroc_table(metrics, f"test/{sets[0]}", f"AUROC on test set {sets[0]!r}, {title}"))
    for start in range(0, len(sets) * (len(sets) > 1), SETS_ABREAST):
        console.print(sets_table(metrics, sets[start : start + SETS_ABREAST], f"AUROC by test set, {title}"))


def parameters(settings: dict) -> dict[str, str | int | float | bool]:
    """The configuration as flat parameters that people compare, less what says where a run ran."""
    left_out = ("config", "experiment", "fast_dev_run", "logger", "ckpt_path", "run_dir", "name", "tags")
    flat = flatten({k: v for k, v in settings.items() if k not in left_out})
    named = {k: v.rpartition(".")[2] if k.endswith(".class_path") else v for k, v in flat.items() if v is not None}
    return {
        k.replace(".init_args", "").removesuffix(".class_path"): v if isinstance(v, (int, float)) else str(v)
        for k, v in named.items()
    }


def _required_checkpoint(experiment: Experiment) -> Path:
    if not experiment.ckpt_path:
        raise ConfigError("--ckpt_path is needed: last, best, a run directory or a checkpoint")
    path = experiment.checkpoint()
    if path is None:
        raise CheckpointError(f"no run with a checkpoint in {experiment.run_dir / experiment.experiment}")
    return path


def _tested_by_fit(experiment: Experiment, path: Path) -> bool:
    """Whether a test of a checkpoint is the one that ends its run, in all that gives other numbers."""
    run, folder = run_of(path), path.parent
    if experiment.fast_dev_run or folder != run / "checkpoints" or not (run / "config.yaml").exists():
        return False
    best = checkpoint.find(folder, "best") or checkpoint.find(folder, "last")
    return path == best and not config_difference(run, experiment.config)


def _keep(session: Session, sets: Mapping[str, Sequence[Scores]], rounds: int, folder: Path) -> list[Path]:
    """Write the predictions of each test set that the module scores per class; returns the files."""
    if not session.fabric.is_global_zero:
        return []
    found = [collected(session, name, scores, rounds) for name, scores in sets.items()]
    return [write(each, folder / f"{slug(each.name)}.parquet") for each in found if each is not None]
