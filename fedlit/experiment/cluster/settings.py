"""The YAML of ``--on``: the requests of every job to SLURM."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from fedlit.core.errors import ConfigError
from fedlit.core.ranges import Count, NonNegativeInt
from fedlit.core.system import documents
from fedlit.core.system.argument_types import check_arguments
from fedlit.experiment.mistakes import near


@dataclass(frozen=True)
class Cluster:
    """Requests of every job to SLURM. Without a key, SLURM's own default holds.

    Args:
        partition: Partition of the jobs.
        account: Account that is charged.
        time: Longest time of a job, such as ``4:00:00`` or ``1-12:00:00``. A longer run continues in another job.
        cpus: Cores of a job, which its run shares among its workers.
        gpus: GPUs of a job: a number, or a type and a number such as ``a100:1``.
        memory: Memory of a job, such as ``16G``.
        parallel: Largest number of jobs at a time.
        runs_a_job: Number of runs that a job trains one after another, which saves the start of Python for short runs.
            ``time`` and ``parallel`` are those of jobs.
        setup: Lines of the shell before the run, such as ``module load cuda``, as one text.
        more: Other options of sbatch by name, such as ``{qos: long, exclude: node07}``; true for one without a value.
        requeues: How often a job that was stopped by its time limit or another signal starts again.
    """

    partition: str | None = None
    account: str | None = None
    time: str | int | None = None
    cpus: Count | None = None
    gpus: str | int | None = None
    memory: str | int | None = None
    parallel: Count | None = None
    runs_a_job: Count = 1
    setup: str = ""
    more: dict[str, str | int | float | bool] = field(default_factory=dict)
    requeues: NonNegativeInt = 20

    @classmethod
    def read(cls, file: Path) -> "Cluster":
        """Read a YAML.

        Raises:
            ConfigError: The file cannot be read, or has a key or a value that does not fit; names the place.
        """
        try:
            given = {key: value for key, value in documents.load_mapping(file).items() if value is not None}
        except OSError as error:
            raise ConfigError(f"--on: {file}: {error.strerror}; write the path of a YAML") from error
        known = [each.name for each in fields(cls)]
        if unknown := [str(key) for key in given if key not in known]:
            hint = near(unknown[0], known) or f"; expected {', '.join(known)}"
            raise ConfigError(f"{file}: there is no key {unknown[0]}{hint}; other options of sbatch belong below more")
        check_arguments(cls.__init__, given, f"{file}: ")
        return cls(**given)

    def header(self, own: Mapping[str, object]) -> list[str]:
        """Return the lines by which a script asks SLURM for this, and for options of its own."""
        options = {
            "partition": self.partition, "account": self.account, "time": self.time, "cpus-per-task": self.cpus,
            "gpus": self.gpus, "mem": self.memory, **self.more, **own,
        }  # fmt: skip
        return [
            f"#SBATCH --{name}" + ("" if value is True else f"={value}")
            for name, value in options.items()
            if value is not None and value is not False
        ]
