"""Where a run begins: which run, from which checkpoint, and that no other process is at work on it."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import ConfigError
from fedlit.experiment.experiment import Experiment
from fedlit.experiment.fingerprints import check_same, keep
from fedlit.tracking.lock import is_held
from fedlit.tracking.run import (
    check_same_config,
    check_writable,
    is_called,
    last_checkpoint,
    new_directory,
    run_of,
    runs_in,
)


@dataclass(frozen=True)
class Resumption:
    """Where a run begins.

    Attributes:
        directory: The run's directory; None for a new run that has none yet.
        checkpoint: What it goes on from; None where it begins with the first round.
        told: Lines for the person who waits.
    """

    directory: Path | None
    checkpoint: Path | None
    told: tuple[str, ...]

    @property
    def resumed(self) -> bool:
        """Whether the run has begun before."""
        return self.directory is not None

    def in_directory(self, experiment: Experiment, open_things: ExitStack) -> "Resumption":
        """Give a new run its directory; other processes are kept from it until what is open is closed.

        What is told then is where the run is if its name is taken.

        Raises:
            ConfigError: Another process is at work there.
        """
        directory, lines = self.directory, ()
        if directory is None:
            made = experiment.fabric.is_global_zero and new_directory(
                experiment.run_dir, experiment.experiment, experiment.run_name
            )
            directory = experiment.fabric.broadcast(made)
            if experiment.name not in (None, directory.name):
                taken = directory.with_name(experiment.name)
                lines = (
                    f"{taken} is there already: this run is {directory.name}; --ckpt_path {taken} would go on with it",
                )
            if made and experiment.given:
                keep(directory, experiment.given)
        if self.checkpoint is None:
            open_things.enter_context(experiment.alone(directory))
        return replace(self, directory=directory, told=lines)


def resumption(experiment: Experiment, open_things: ExitStack) -> Resumption:
    """Find where a run begins; a run that is gone on with is kept from other processes until what is open is closed.

    Raises:
        ConfigError: Another process is at work on the run, it is of another configuration, or no run can be written.
        CheckpointError: There is no such checkpoint.
    """
    found = experiment.checkpoint()
    if found is not None:
        open_things.enter_context(experiment.alone(run_of(found)))
        held, found = run_of(found), experiment.checkpoint()  # another process may just have gone on with it
        if found is None or run_of(found) != held:
            raise ConfigError(
                f"--ckpt_path {experiment.ckpt_path}: a new run has begun meanwhile; give the command again"
            )
        check_same_config(held, experiment.config)
        check_same(held, experiment.given)
    told, where = _passed_over(experiment, found), experiment.run_dir / experiment.experiment
    runs = [run for run in runs_in(where) if is_called(run, experiment.name)]
    if found is not None:
        told.append(f"resuming {run_of(found)} after {checkpoint.rounds(found)} rounds")
    elif experiment.ckpt_path:
        named = f" of the name {experiment.name}" if experiment.name else ""
        told.append(f"no run{named} in {where} {'with a checkpoint' if runs else 'yet'}: starting a new one")
    directory = run_of(found) if found else experiment.begun
    if directory is None:
        check_writable(experiment.run_dir, experiment.experiment)
    return Resumption(directory, found, tuple(told))


def _passed_over(experiment: Experiment, found: Path | None) -> list[str]:
    """Say which runs the ``last`` or ``best`` checkpoint is not of, as they have none: a line each."""
    if experiment.ckpt_path not in ("last", "best") or not experiment.fabric.is_global_zero:
        return []
    chosen = run_of(found) if found else None
    began = (chosen / "config.yaml").stat().st_mtime if chosen else 0.0
    ended = [run for run in runs_in(experiment.run_dir / experiment.experiment) if not last_checkpoint(run)]
    return [
        f"passed over {run}: it ended before its first checkpoint, and holds nothing to go on with; it can be removed"
        for run in ended
        if run != chosen
        and is_called(run, experiment.name)
        and (run / "config.yaml").stat().st_mtime >= began
        and not is_held(run)
    ]
