"""The start of a run: its directory, its checkpoint, and the lock that excludes other processes."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import CheckpointError, ConfigError
from fedlit.experiment.experiment import Experiment
from fedlit.experiment.given_objects import check_same, write_fingerprints
from fedlit.tracking.lock import RunLock, is_held
from fedlit.tracking.run import (
    PHASES,
    check_same_config,
    check_writable,
    find_run,
    is_called,
    last_checkpoint,
    new_directory,
    runs_in,
)


def named_run(experiment: Experiment) -> tuple[Path, Path | None] | None:
    """Return the run that ``ckpt_path`` names and its checkpoint, if it has one; the same on every rank, or None.

    Raises:
        ConfigError: ``ckpt_path`` is empty, for example an unset variable of the shell.
        CheckpointError: There is no such checkpoint.
    """
    which = experiment.ckpt_path
    if which is not None and not which.strip():
        raise ConfigError("ckpt_path: expected last, best, a run directory or a checkpoint, found an empty text")
    named = find_run(experiment.run_dir, experiment.experiment, which, experiment.name) if which else None
    return experiment.fabric.broadcast(named)


def required_checkpoint(experiment: Experiment) -> Path:
    """Return the checkpoint that ``ckpt_path`` names, and print which of the run's models it is.

    Raises:
        ConfigError: ``ckpt_path`` is not set.
        CheckpointError: There is no such checkpoint.
    """
    if not experiment.ckpt_path:
        raise ConfigError("--ckpt_path: expected last, best, a run directory or a checkpoint, found nothing; add it")
    named = named_run(experiment)
    if named is None:
        folder = experiment.run_dir / experiment.experiment
        raise CheckpointError(
            f"{folder}: expected a run with a checkpoint, found none; check --run_dir and --experiment"
        )
    run, path = named
    if path is None:
        raise CheckpointError(
            f"{run}: expected a checkpoint, found only those of its phases, {run / PHASES}; resume the run, or name "
            "the directory of a phase with the phase's own config.yaml"
        )
    experiment.console.print(f"{path}: {_which(path, experiment.ckpt_path)}")
    return path


def _which(path: Path, asked: str) -> str:
    """Return which of the run's models a checkpoint has, and how to take the best one if it is another."""
    try:
        best, last = (checkpoint.find(path.parent, which) for which in ("best", "last"))
    except CheckpointError:  # the error names the file when the checkpoint itself is read
        best = last = None
    names = [name for name, other in (("best", best), ("last", last)) if other == path]
    text = f"the {' and '.join(names) or 'model'}{' model' * bool(names)}"
    if best in (None, path):
        return text
    return f"{text}; the best was round {checkpoint.rounds(best)}: --ckpt_path {'best' if asked == 'last' else best}"


@contextmanager
def locked(experiment: Experiment, run: Path) -> Iterator[None]:
    """Context manager that locks a run's directory against other processes; the first rank does so for all ranks."""
    lock, refusal = RunLock(run), ""
    if experiment.fabric.is_global_zero:
        try:
            lock.acquire()
        except ConfigError as error:
            refusal = error
    if refusal := experiment.fabric.broadcast(refusal):
        raise ConfigError(str(refusal))
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True)
class Resumption:
    """The start of a run."""

    directory: Path | None  # The run's directory, or None for a new run that does not have one yet.
    checkpoint: Path | None  # Checkpoint to resume from, or None to start with the first round.
    held: bool  # Whether the directory is locked already.

    def open(self, experiment: Experiment, open_things: ExitStack) -> Path:
        """Return the run's directory, which is created if needed, named if its name is taken, and locked.

        Raises:
            ConfigError: Another process is using the directory.
        """
        directory = self.directory
        if directory is None:
            created = experiment.fabric.is_global_zero and new_directory(
                experiment.run_dir, experiment.experiment, experiment.name or experiment.names.run
            )
            directory = experiment.fabric.broadcast(created)
            if experiment.name not in (None, directory.name):
                taken = directory.with_name(experiment.name)
                experiment.console.print(
                    f"{taken} already exists: this run is {directory.name}; --ckpt_path {taken} would resume that one"
                )
            if created and experiment.fingerprints:
                write_fingerprints(directory, experiment.fingerprints)
        if not self.held:
            open_things.enter_context(locked(experiment, directory))
        return directory


def resumption(experiment: Experiment, open_things: ExitStack) -> Resumption:
    """Return and print the start of a run; a run that is resumed is locked until ``open_things`` is closed.

    Raises:
        ConfigError: Another process is using the run, its configuration differs, or its directory cannot be written.
        CheckpointError: There is no such checkpoint.
    """
    named = named_run(experiment)
    if named is not None:
        run = named[0]
        open_things.enter_context(locked(experiment, run))
        named = named_run(experiment)  # again: another process may just have resumed the run
        if named is None or named[0] != run:
            raise ConfigError(f"--ckpt_path {experiment.ckpt_path}: another run has just started; repeat the command")
        check_same_config(run, experiment.config)
        check_same(run, experiment.fingerprints)
    directory, path = named or (None, None)
    folder, say = experiment.run_dir / experiment.experiment, experiment.console.print
    runs = [run for run in runs_in(folder) if is_called(run, experiment.name)]
    for run in _passed_over(experiment, named and directory, runs):
        say(f"passed over {run}: it ended before its first checkpoint and cannot be resumed; you can remove it")
    if named is not None:
        say(f"resuming {directory} after {checkpoint.rounds(path)} rounds" if path else f"resuming {directory}")
    elif experiment.ckpt_path:
        called = f" of the name {experiment.name}" if experiment.name else ""
        say(f"no run{called} in {folder} {'with a checkpoint' if runs else 'yet'}: starting a new one")
    if directory is None:
        check_writable(experiment.run_dir, experiment.experiment)
    experiment.tracker.check(experiment.experiment, directory)
    return Resumption(directory, path, held=named is not None)


def _passed_over(experiment: Experiment, chosen: Path | None, runs: Sequence[Path]) -> list[Path]:
    """Return the newer runs that ``last`` and ``best`` pass over because they have no checkpoint."""
    if experiment.ckpt_path not in ("last", "best") or not experiment.fabric.is_global_zero:
        return []
    began = (chosen / "config.yaml").stat().st_mtime if chosen else 0.0
    newer = [run for run in runs if (run / "config.yaml").stat().st_mtime >= began]
    return [run for run in newer if not last_checkpoint(run) and not is_held(run)]
