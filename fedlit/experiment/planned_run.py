"""One run of a plan: its configuration, how far it has come, and the command that starts or continues it."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jsonargparse import Namespace

from fedlit.core.checkpoints.manifest import newest
from fedlit.core.errors import CheckpointError
from fedlit.experiment.jobs import CommandLine
from fedlit.tracking.base import Tracker
from fedlit.tracking.lock import HOLDER, LOCK
from fedlit.tracking.run import RESERVED, Result, config_difference, flatten, read_config

LOG, WANTED = "console.log", ".wanted.yaml"
"""Files in a run's directory: its output, and the configuration with which it is started."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan."""

    group: str  # Name without the seed.
    directory: Path
    rounds: int  # Number of rounds.
    name: str = ""
    seed: int = 0
    config: str = ""  # Whole configuration, as YAML.
    stage: str = ""  # In a tuning ``try`` or ``final``.
    case: str = ""  # Name of the case, or "" without cases.
    # Values of the grid by key, lists and classes as text.
    point: Mapping[str, str | float | bool | None] = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict, compare=False)  # Those of its case, by name.
    data_seed: int | None = None  # Seed of its data, or None if they have none.
    tracker: Tracker = field(default_factory=Tracker, compare=False)  # That of its configuration.
    body: Mapping[str, tuple[int, ...]] = field(default_factory=dict, compare=False)  # Shapes of its model's body.
    # The configuration of its group, parsed, with the credentials of the environment.
    settings: Namespace | None = field(default=None, compare=False, repr=False)

    @property
    def has_checkpoint(self) -> bool:
        """True if an earlier call has left a checkpoint of the run."""
        return newest(self.directory / "checkpoints") is not None

    def standing(self) -> Literal["new", "unfinished", "finished"]:
        """Return how far an earlier call has brought the run.

        Raises:
            CheckpointError: The directory contains a run of another configuration, or other files.
        """
        if not self.has_checkpoint:
            files = {path.name for path in self.directory.iterdir()} if self.directory.exists() else set()
            if files and not files & {"config.yaml", LOG, WANTED, RESERVED, LOCK, HOLDER}:
                raise CheckpointError(f"{self.directory} exists but is not a run directory; move it away")
            return "new"
        rows = config_difference(self.directory, self.config)
        before = flatten(read_config(self.directory)).get("federation.rounds")
        if before is not None and before > self.rounds:
            rows.append(f"federation.rounds: {before} there, {self.rounds} now")
        if rows:
            raise CheckpointError(
                f"run {self.name}: {self.directory} was started with another configuration:\n"
                + "\n".join(f"  {row}" for row in rows)
                + "\nundo the change, choose another experiment, or move the directory away"
            )
        result = Result.read(self.directory)
        return "finished" if result and result.rounds == self.rounds else "unfinished"

    def job(self) -> CommandLine:
        """Return the command that starts the run, or continues it if it has a checkpoint."""
        resume = ("--ckpt_path", str(self.directory)) if self.has_checkpoint else ()
        words = ("fit", "--config", str(self.directory / WANTED), *resume)
        return CommandLine(self.name, words, self.directory / LOG)

    def prepare(self) -> None:
        """Write the run's configuration; delete the files of a run that died before its first checkpoint."""
        if not self.has_checkpoint:
            if self.directory.exists():
                shutil.rmtree(self.directory)
            self.directory.mkdir(parents=True)
            (self.directory / RESERVED).touch()
        (self.directory / WANTED).write_text(self.config)

    def tidy(self) -> None:
        """Delete the files that only the start of the run needs."""
        for name in (RESERVED, WANTED):
            (self.directory / name).unlink(missing_ok=True)
