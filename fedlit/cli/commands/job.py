"""``fedlit job``: one task of an array, whose run starts, or continues, on a node of the cluster."""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

import fedlit
from fedlit.cli.commands import COMMANDS
from fedlit.cli.main import main
from fedlit.core.errors import ConfigError
from fedlit.core.ranges import NonNegativeInt
from fedlit.core.system import documents, slurm
from fedlit.core.system.processes import CORES
from fedlit.core.system.signals import blocked
from fedlit.experiment.parser import Parser
from fedlit.tracking.journal import LATER

if TYPE_CHECKING:  # its import takes seconds
    from fedlit.experiment.planned_run import PlannedRun

STOPPED = 128 + signal.SIGTERM
"""Exit code of a run that a time limit or a preemption has stopped."""


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of a job."""
    options = Parser(description=COMMANDS["job"])
    file = "Configuration that a command with --on or --print_jobs has written: jobs/NAME.yaml."
    options.add_argument("file", metavar="FILE", type=Path, help=file)
    version = "Version of fedlit that wrote it. Another one is refused."
    options.add_argument("--submitted_by", type=str, default="", help=version)
    requeues = "How often a job of SLURM that a signal stopped starts again."
    options.add_argument("--requeues", type=NonNegativeInt, default=0, help=requeues)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Start the run, or continue it from its last checkpoint; return the exit code.

    Raises:
        ConfigError: The file is missing, or this node has another fedlit than the submission.
        CheckpointError: The run's directory has a run of another configuration.
    """
    array, restarts = os.environ.get("SLURM_ARRAY_JOB_ID"), int(os.environ.get("SLURM_RESTART_COUNT", 0))
    number = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else ""
    print(f"job {number or 'without SLURM'} on {os.uname().nodename}, start {restarts + 1}", flush=True)
    try:
        with blocked([signal.SIGTERM]):  # which may come while PyTorch is imported
            run = _planned(args)
            if run.standing() == "finished":
                print(f"{run.directory} is finished")
                return 0
            run.prepare()
            command = run.job()
        os.environ[LATER] = "1"
        os.environ.setdefault(CORES, os.environ.get("SLURM_CPUS_ON_NODE", ""))
        sys.argv = [sys.argv[0], *command.words]  # with which a run on several devices starts its other ranks
        with command.log.open("a") as log, redirect_stdout(log), redirect_stderr(log):
            main(list(command.words))
    except SystemExit as ended:
        code = ended.code
    run.tidy()
    jobs = slurm.listed() if number and code == STOPPED else {}
    if number in jobs and jobs[number].state == "RUNNING":  # a job that was cancelled is completing
        if restarts < args.requeues:
            slurm.requeue(number)
            print("stopped by a signal; waits in the queue to continue")
        else:
            print(f"stopped by a signal after {args.requeues} other starts; submit it again to continue")
    return code


def _planned(args: Namespace) -> "PlannedRun":
    from fedlit.experiment.planned_run import PlannedRun
    from fedlit.tracking.run import flatten

    if args.submitted_by and args.submitted_by != fedlit.__version__:
        raise ConfigError(
            f"{args.file}: expected fedlit {args.submitted_by}, which submitted it, found {fedlit.__version__} on this "
            "node; install the same version, or submit again"
        )
    try:
        config = args.file.read_text()
    except OSError as error:
        raise ConfigError(f"{args.file}: {error.strerror}; submit the runs again") from error
    settings = flatten(documents.parse(config))
    directory = Path(settings["run_dir"], settings["experiment"], settings["name"])
    return PlannedRun("", directory, settings["federation.rounds"], name=directory.name, config=config)
