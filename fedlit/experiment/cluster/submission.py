"""The jobs of the runs of one table: what they ask of SLURM (``--on``), their submission, and how far they are."""

import json
import os
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from fedlit import __version__
from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import ConfigError, Submitted
from fedlit.core.ranges import Count, NonNegativeInt
from fedlit.core.system import documents, slurm
from fedlit.core.system.argument_types import check_arguments
from fedlit.core.system.files import whole
from fedlit.experiment.mistakes import near
from fedlit.experiment.planned_run import LOG, WANTED, PlannedRun
from fedlit.tracking.run import Result, metric_of

GRACE = 120
"""Least number of seconds between the stop of a run and the time limit of its job."""

FOLLOWING = "FEDLIT_FOLLOWING"
"""Environment variable of the job that repeats a command: it does not start again what has failed."""

TRAP = "trap 'code=143; kill -USR1 $! 2> /dev/null' TERM"
"""Line by which a script keeps a SIGTERM that comes before its job handles signals.

The job gets it as a SIGUSR1: a second SIGTERM, if SLURM has sent one to all processes, would kill its run.
"""

TASK = """runs=(
{files}
)
if [ -z "$code" ]; then
  {job} &
  while code=0; wait $! || code=$?; kill -0 $! 2> /dev/null; do :; done
fi
task=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID
if [ "$code" != 138 ] && [ "$code" != 143 ]; then
  exit "$code"
elif [ "${{SLURM_RESTART_COUNT:-0}}" -ge {requeues} ]; then
  echo "stopped by a signal after {requeues} other starts; submit it again to continue"
elif [ -n "$(squeue --noheader --jobs "$task" --states RUNNING --format %i)" ]; then  # it was not cancelled
  echo "stopped by a signal; waits in the queue to continue"
  scontrol requeue "$task"
fi
exit "$code"
"""
"""What a script does: a job of its runs, which starts again after a signal."""

LAST_LINES = 5
"""Number of lines of a failed run's output that are shown."""


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


@dataclass
class Submission:
    """The jobs of a table's runs, noted in ``jobs/TABLE.json`` next to it."""

    table: Path
    tasks: dict[str, str] = field(default_factory=dict)  # Number of the last job of each run; "" if it was cancelled.
    directories: dict[str, str] = field(default_factory=dict)  # Directory of each run.
    following: str = ""  # Number of the job that repeats the command after them.

    @classmethod
    def of(cls, table: Path) -> "Submission":
        """Read what was submitted for the runs of a table."""
        try:
            return cls(table, **json.loads((table.parent / "jobs" / f"{table.stem}.json").read_text()))
        except FileNotFoundError:
            return cls(table)

    @property
    def folder(self) -> Path:
        """Folder of the configurations and the output of the jobs."""
        return self.table.parent.absolute() / "jobs"

    def write(self) -> None:
        """Write the note."""
        content = asdict(self)
        del content["table"]
        with whole(self.folder / f"{self.table.stem}.json") as draft:
            draft.write_text(json.dumps(content, indent=1) + "\n")

    def freeze(self, runs: Sequence[PlannedRun]) -> list[Path]:
        """Write the configurations of runs; return their files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for run in runs:
            (self.folder / f"{run.name}.yaml").write_text(run.config)
        return [self.folder / f"{run.name}.yaml" for run in runs]

    def queued(self) -> dict[str, str]:
        """Return the jobs that wait or run, by the names of their runs."""
        listed = slurm.listed()
        return {name: number for name, number in self.tasks.items() if number in listed}

    def cancel(self) -> int:
        """Cancel the jobs that wait or run, and the job after them; return the number of jobs of runs."""
        queued = self.queued()
        slurm.cancel(list(dict.fromkeys([self.following, *queued.values()])))
        self.tasks |= dict.fromkeys(queued, "")
        self.write()
        return len(set(queued.values()))

    def states(self) -> list[tuple[str, str, str]]:
        """Return name, state and last lines of the output of each run; only failed ones have lines."""
        jobs = slurm.listed()
        return [(name, *self._state(name, jobs.get(number))) for name, number in self.tasks.items()]

    def _state(self, name: str, job: slurm.Job | None) -> tuple[str, str]:
        directory = Path(self.directories[name])
        if Result.read(directory) is not None:
            return "finished", ""
        if job is not None and job.state == "RUNNING":
            last = checkpoint.find(directory / "checkpoints", "last")
            state = "running" if (directory / WANTED).exists() else "its job is running"
            return f"{state}, {checkpoint.rounds(last) if last else 0} rounds done", ""
        if job is not None:
            return f"{job.state.lower()}: {job.reason}", ""
        if not self.tasks[name]:
            return "cancelled", ""
        outputs = [each for each in (directory / LOG, self.folder / f"{self.tasks[name]}.log") if each.exists()]
        if not outputs:
            return f"no output: can its node see {self.folder}?", ""
        text = "\n".join(each.read_text(errors="replace") for each in outputs)
        return "failed, or cancelled", "\n".join(text.splitlines()[-LAST_LINES:])


@dataclass(frozen=True)
class Slurm:
    """Submits planned runs as one array of jobs, and a job after them that repeats the command."""

    cluster: Cluster
    words: tuple[str, ...]  # Words of the command after ``fedlit``.

    def tried(self, table: Path) -> Collection[str]:
        """Return the names of the runs that count as failed if they have no result: none in a command of a user.

        Raises:
            Submitted: Jobs of the same table wait or run; nothing is submitted.
        """
        submission, follows = Submission.of(table), bool(os.environ.get(FOLLOWING))
        if queued := submission.queued():
            if follows:  # SLURM starts this job although jobs that a signal has stopped wait again
                self._follow(submission, ":".join({number.partition("_")[0] for number in queued.values()}))
            raise Submitted(
                f"{len(queued)} runs of {table.parent} wait or run on SLURM; nothing was submitted\n{self._how}"
            )
        return submission.tasks if follows else ()

    def submit(self, table: Path, runs: Sequence[PlannedRun]) -> None:
        """Submit runs, if there are any.

        Raises:
            Submitted: They are jobs now.
            ConfigError: SLURM refuses them; nothing is left in its queue.
        """
        if not runs:
            return
        submission = Submission.of(table)
        submission.freeze(runs)
        array = slurm.submit(self.script(submission, runs))
        each = self.cluster.runs_a_job
        submission.tasks |= {run.name: f"{array}_{number // each}" for number, run in enumerate(runs)}
        submission.directories |= {run.name: str(run.directory.absolute()) for run in runs}
        try:
            self._follow(submission, array)
        except ConfigError:
            slurm.cancel([array])
            raise
        raise Submitted(
            f"{len(runs)} runs are job {array} of SLURM; job {submission.following} repeats this command after them\n"
            + self._how
        )

    def script(self, submission: Submission, runs: Sequence[PlannedRun]) -> str:
        """Return the script whose tasks train the runs."""
        each = self.cluster.runs_a_job
        many = f"%{self.cluster.parallel}" if self.cluster.parallel else ""
        rounds = [metric_of(run.directory, "time/round_s") for run in runs if (run.directory / "metrics.csv").exists()]
        grace = max([GRACE, *(round(2 * seconds) for seconds in rounds if seconds == seconds)])
        tasks = f"0-{(len(runs) - 1) // each}{many}"
        own = {
            "job-name": f"fedlit-{submission.table.parent.name}", "array": tasks, "requeue": True,
            "open-mode": "append", "signal": f"B:TERM@{grace}", "output": submission.folder / "%A_%a.log",
        }  # fmt: skip
        files = [f"  {shlex.quote(str(submission.folder / f'{run.name}.yaml'))}" for run in runs]
        words = f'job "${{runs[@]:SLURM_ARRAY_TASK_ID*{each}:{each}}}" --submitted_by {__version__}'
        task = TASK.format(files="\n".join(files), job=_fedlit(words), requeues=self.cluster.requeues)
        return self._script(own, task, TRAP)

    @property
    def _how(self) -> str:
        command = shlex.join(["fedlit", *self.words])
        return f"to see how far they are: {command} --status true\nto cancel them: {command} --cancel true"

    def _follow(self, submission: Submission, after: str) -> None:
        own = {
            "job-name": f"fedlit-{submission.table.parent.name}-next", "dependency": f"afterany:{after}",
            "open-mode": "append", "output": submission.folder / "next.log",
        }  # fmt: skip
        body = f"export {FOLLOWING}=1\nexec {_fedlit(shlex.join(self.words))}\n"
        submission.following = slurm.submit(self._script(own, body))
        submission.write()

    def _script(self, own: Mapping[str, object], body: str, *before: str) -> str:
        here, setup = f"cd {shlex.quote(os.getcwd())} || exit 1", self.cluster.setup.strip()
        lines = ["#!/bin/bash", *self.cluster.header(own), *before, here, *([setup] if setup else []), body]
        return "\n".join(lines)


def _fedlit(words: str) -> str:
    return f"{shlex.quote(sys.executable)} -m fedlit {words}"
