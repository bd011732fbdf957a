"""``fedlit fit``."""

import os
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace
from rich.console import Console

from fedlit.cli.commands import COMMANDS
from fedlit.cli.commands.test import print_results
from fedlit.cli.tables import seeds_table
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.fetching import without_fetching
from fedlit.experiment.experiment import Experiment, composed
from fedlit.experiment.grid import METRIC, plan_seeds
from fedlit.experiment.options import experiment_parser, seeds_of
from fedlit.experiment.parser import Parser
from fedlit.experiment.run import fit
from fedlit.experiment.sweep import draws_of, next_steps, run_all
from fedlit.sites.joining import LOOPBACK, joined
from fedlit.sites.submission import Lead, Resumed, Submission
from fedlit.sites.submitted import to_json
from fedlit.sites.table import lacking, line_to_add
from fedlit.tracking.run import Result


def parser(argv: Sequence[str]) -> Parser:
    """The keys of a YAML, and how many of several seeds run side by side."""
    options = experiment_parser(COMMANDS["fit"])
    jobs = "Number of runs side by side, where there are several seeds."
    options.add_argument("--jobs", type=int, default=1, help=jobs)
    sites = (
        "Sites that have the clients, in place of this process: loopback:3 starts three processes of this machine, each with "
        "a share of the clients, its own state, and nothing but messages between them. The folder that a lead has got for "
        "NVFlare runs the federation over its sites: the run is the server's, and this command watches over it."
    )
    options.add_argument("--sites", type=str | None, default=None, help=sites)
    fresh = (
        "Sites, with commas between them, that have lost what their clients keep between rounds, and go on without it."
    )
    options.add_argument("--fresh_state", type=str, default="", help=fresh)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Train, once a seed; returns the exit code."""
    seeds = seeds_of(args)
    if len(seeds) > 1 and args.sites:
        raise ConfigError("--sites: the sites of one run; give one --seed, and a command for each")
    if len(seeds) > 1:
        if not args.fast_dev_run:
            return run_seeds(args, parser, seeds)
        Console(highlight=False).print(f"a trial run: seed {seeds[0]} alone")
        args.seed = seeds[0]
    fresh = [name.strip() for name in args.fresh_state.split(",") if name.strip()]
    if args.sites and not args.sites.startswith(LOOPBACK):
        return run_elsewhere(args, parser, fresh)
    with composed(args, parser, tracked=True) as experiment, joined(experiment, args.sites, fresh) as ready:
        return run_fit(ready)


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
        console.print(seeds_table(finished, draws_of(table), console.width))
    console.print(next_steps(table, file))
    return 0 if (table["status"] == "finished").all() else 1


def run_elsewhere(args: Namespace, parser: Parser, fresh: Sequence[str]) -> int:
    """Train over the sites of a lead's folder, at a server of NVFlare; returns the exit code.

    Raises:
        ConfigError: There is no such folder, NVFlare is not installed, or the server does not take the job.
        TrainingError: Training cannot go on; gives the reason.
    """
    lead = Lead.read(Path(args.sites))
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when gRPC is imported; the link says what is wrong
    try:
        from fedlit.sites.supervisor import Supervisor  # with NVFlare, which not everybody has
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "nvflare":
            raise
        raise ConfigError(
            f"--sites {args.sites}: NVFlare is not installed here; pip install 'fedlit[sites]'"
        ) from error
    if args.ckpt_path not in (None, "last", "best"):
        raise ConfigError(
            f"--ckpt_path: runs are the server's; expected last, best or nothing, found {args.ckpt_path!r}"
        )
    named = args.get("model.init_args.weights")  # a name in the server's own file, which says where they are
    if named is not None:
        args["model.init_args.weights"] = None
    with without_fetching(), composed(args, parser, tracked=True) as experiment:  # what is refused is refused here
        console = experiment.console()
        config = to_json(experiment, None if named is None else str(named))
        submission = Submission(
            config, experiment.run_name, Resumed(args.experiment) if args.ckpt_path else None, fresh
        )
        if needed := lacking({key: experiment.settings[key] for key in ("model", "federation", "phases", "callbacks")}):
            console.print(f"the files of the server and of every site must have these classes: {line_to_add(needed)}")
    ending = Supervisor(lead, submission, console.print).run()
    if ending.kind == "stopped":
        console.print("stopped; to continue: --ckpt_path last")
        return 130
    print_results(ending.metrics, f"best model (after {ending.rounds} rounds)", console)
    for line in (f"run directory at {lead.server}: {ending.directory}", lead.reaching(ending.summary)):
        console.print(line)
    return 0


def run_fit(experiment: Experiment) -> int:
    """Train, test the best model, and say where to look; returns the process's exit code."""
    main, console = experiment.fabric.is_global_zero, experiment.console()
    try:
        outcome = fit(experiment, console.print)
        if outcome.signum:
            console.print(f"stopped by a signal; to continue: --ckpt_path {outcome.directory}")
            return 128 + outcome.signum if main else 0
        print_results(outcome.metrics, f"best model (after {outcome.rounds} rounds)", console)
        if not experiment.fast_dev_run:
            console.print(f"run directory: {outcome.directory}")
        return 0
    except TrainingError:
        if main:
            raise
        return 0  # all ranks stop alike: the first one speaks for the run, and its exit code counts
    finally:
        if main and experiment.tracker.summary():
            console.print(experiment.tracker.summary())
