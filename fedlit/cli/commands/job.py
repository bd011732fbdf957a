"""``fedlit job``: one job of a cluster, whose runs start, or continue, one after another on one of its nodes."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace

import fedlit
from fedlit.cli.commands import COMMANDS
from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.core.system.processes import CORES, blocked
from fedlit.experiment.jobs import CommandLine, run_jobs
from fedlit.experiment.parser import Parser
from fedlit.experiment.planned_run import PlannedRun
from fedlit.tracking.journal import LATER
from fedlit.tracking.run import flatten


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of a job."""
    options = Parser(description=COMMANDS["job"])
    files = "Configurations that a command with --on or --print_jobs has written: jobs/NAME.yaml. They run in order."
    options.add_argument("files", metavar="FILE", nargs="+", type=Path, help=files)
    version = "Version of fedlit that wrote them. Another one is refused."
    options.add_argument("--submitted_by", type=str, default="", help=version)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Start the runs, or continue them from their last checkpoints; return the exit code of the first that failed.

    After a signal it is 128 and the signal's number.

    Raises:
        ConfigError: A file is missing, or this node has another fedlit than the submission.
        CheckpointError: A run's directory has a run of another configuration.
    """
    array, start = os.environ.get("SLURM_ARRAY_JOB_ID"), int(os.environ.get("SLURM_RESTART_COUNT", 0)) + 1
    number = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else "without SLURM"
    print(f"job {number} on {os.uname().nodename}, start {start}", flush=True)
    if args.submitted_by not in ("", fedlit.__version__):
        raise ConfigError(
            f"{args.files[0]}: expected fedlit {args.submitted_by}, which submitted it, found {fedlit.__version__} on "
            "this node; install the same version, or submit again"
        )
    runs, codes = {run.name: run for run in map(_planned, args.files)}, list[int]()
    todo = []
    for run in runs.values():
        if run.standing() == "finished":
            print(f"{run.directory} is finished", flush=True)
        else:
            todo.append(run.job())
    os.environ[LATER] = "1"
    os.environ.setdefault(CORES, os.environ.get("SLURM_CPUS_ON_NODE", ""))

    def ended(job: CommandLine, code: int, signalled: bool) -> None:
        runs[job.name].tidy()
        codes.append(code if code >= 0 else 128 - code)
        print(f"{job.name}: exit code {codes[-1]}", flush=True)

    # A SIGTERM of SLURM reaches all processes, and its script sends this one a SIGUSR1 as well: the runs would get two.
    with blocked([signal.SIGTERM] if array else []):
        signum = run_jobs(todo, 1, lambda job: runs[job.name].prepare(), ended, lambda: None)
    return 128 + signum if signum else max(codes, default=0)


def _planned(file: Path) -> PlannedRun:
    try:
        config = file.read_text()
    except OSError as error:
        raise ConfigError(
            f"{file}: expected the configuration that was submitted, found none on {os.uname().nodename} "
            f"({error.strerror}); choose a folder that all nodes see, or submit the runs again"
        ) from error
    settings = flatten(documents.parse(config))
    directory = Path(settings["run_dir"], settings["experiment"], settings["name"])
    # Tries of several methods have directories of the same name, in different experiments.
    return PlannedRun("", directory, settings["federation.rounds"], name=str(directory), config=config)
