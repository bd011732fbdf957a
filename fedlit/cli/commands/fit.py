"""``fedlit fit``."""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jsonargparse import Namespace
from rich.console import Console

from fedlit.cli.cluster import add_options as add_cluster_options
from fedlit.cli.cluster import looked, runner
from fedlit.cli.commands import COMMANDS
from fedlit.cli.commands.test import print_results
from fedlit.cli.tables import seeds_table
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.ranges import Count
from fedlit.core.system.fetching import without_fetching
from fedlit.experiment.experiment import Experiment
from fedlit.experiment.grid import plan_seeds
from fedlit.experiment.options import OF_A_CLUSTER, composed, experiment_parser, seeds_of
from fedlit.experiment.parser import Parser
from fedlit.experiment.plan import METRIC
from fedlit.experiment.run import fit
from fedlit.experiment.sweep import draws_of, log_groups, next_steps, run_all
from fedlit.sites.configuration import to_json
from fedlit.sites.experiment import LOOPBACK, joined
from fedlit.sites.plan import lacking, line_to_add
from fedlit.sites.submission import Lead, Submission
from fedlit.tracking.run import Result


def parser(argv: Sequence[str]) -> Parser:
    """Return the options of a run: the keys of a YAML, the number of parallel runs, and the sites."""
    return _parser()


@cache  # the runs of a sweep inherit it
def _parser() -> Parser:
    options = experiment_parser(COMMANDS["fit"])
    jobs = "Number of runs at a time, if --seed names several seeds."
    options.add_argument("--jobs", type=Count, default=1, help=jobs)
    add_cluster_options(options)
    sites = (
        "Sites that train the clients, instead of this process. loopback:3 starts three processes on this machine, "
        "each with a share of the clients and its own state, which exchange only messages. With the folder that the "
        "lead of a federation has received for NVFlare, the real sites train: the server keeps the run, and this "
        "command shows it."
    )
    options.add_argument("--sites", type=str | None, default=None, help=sites)
    fresh = "Comma-separated sites that have lost the states of their clients and continue without them."
    options.add_argument("--fresh_state", type=str, default="", help=fresh)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Train once per seed; return the exit code."""
    seeds = seeds_of(args)
    several = [key for key in OF_A_CLUSTER if args[key]]
    if several and len(seeds) == 1:
        raise ConfigError(f"--{several[0]}: expected several seeds, found one; write --seed 0,1,2, or use a sweep")
    if len(seeds) > 1 and args.sites:
        raise ConfigError(f"--sites: expected one seed, found {len(seeds)}; start one command for each seed")
    if len(seeds) > 1:
        if not args.fast_dev_run:
            return run_seeds(args, parser, seeds)
        Console(highlight=False).print(f"a trial run: only seed {seeds[0]}")
        args.seed = seeds[0]
    fresh = [name.strip() for name in args.fresh_state.split(",") if name.strip()]
    if args.sites and not args.sites.startswith(LOOPBACK):
        return run_elsewhere(args, parser, fresh)
    with composed(args, parser, tracked=True) as experiment, joined(experiment, args.sites, fresh) as ready:
        return run_fit(ready)


def run_seeds(args: Namespace, parser: Parser, seeds: Sequence[int]) -> int:
    """Train once per seed, each in its own process and run; return the exit code.

    Raises:
        ConfigError: The configuration has a mistake, or a launcher has started this process; no run has been started.
    """
    if "LOCAL_WORLD_SIZE" in os.environ or os.environ.get("LT_CLI_USED", "0") != "0":
        raise ConfigError(
            f"seed: expected one under torchrun or fabric run, found {', '.join(map(str, seeds))}; start this "
            "command without a launcher, and set --fabric.devices"
        )
    runs, console = plan_seeds(args, parser, seeds), Console(highlight=False, markup=False, soft_wrap=True)
    file = runs[0].directory.with_name(f"{runs[0].group}.csv")
    ways = runner(args, parser.sources.argv)
    if looked(args, ways, {file: lambda: runs}, console):
        return 0
    table = run_all(runs, file, METRIC, ways, console)
    log_groups({runs[0].group: runs})
    if finished := [result for run in runs if (result := Result.read(run.directory))]:
        console.print(seeds_table(finished, draws_of(table), console.width))
    console.print(next_steps(table, file))
    return 0 if (table["status"] == "finished").all() else 1


def run_elsewhere(args: Namespace, parser: Parser, fresh: Sequence[str]) -> int:
    """Train at the sites of a federation, through its NVFlare server; return the exit code.

    Raises:
        ConfigError: The folder does not exist, NVFlare is not installed, or the server refuses the job.
        TrainingError: Training cannot continue; gives the reason.
    """
    lead = Lead.read(Path(args.sites))
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when gRPC is imported; the link says what is wrong
    try:
        from fedlit.sites.follower import Follower  # imports NVFlare, which is optional
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "nvflare":
            raise
        raise ConfigError(
            f"--sites {args.sites}: NVFlare is not installed here; pip install 'fedlit[sites]'"
        ) from error
    if args.ckpt_path not in (None, "last", "best"):
        raise ConfigError(
            f"--ckpt_path: expected last, best or nothing, as the server keeps the runs, found {args.ckpt_path!r}"
        )
    weights = args.get("model.init_args.weights")  # a name, for which the server's own file has the path
    if weights is not None:
        args["model.init_args.weights"] = None
    with without_fetching(), composed(args, parser, tracked=True) as experiment:  # mistakes are found here
        console = experiment.console
        config = to_json(experiment, None if weights is None else str(weights))
        resumed = args.experiment if args.ckpt_path else None
        submission = Submission(config, experiment.name or experiment.names.run, resumed, experiment.name, fresh)
        if needed := lacking({key: experiment.settings[key] for key in ("model", "federation", "phases", "callbacks")}):
            console.print(f"the files of the server and of every site must list these classes: {line_to_add(needed)}")
    ending = Follower(lead, submission, console.print).run()
    if ending.kind == "stopped":
        console.print("stopped; to continue: --ckpt_path last")
        return 130
    print_results(ending.metrics, f"best model (after round {ending.rounds})", console)
    for line in (f"run directory at {lead.server}: {ending.directory}", lead.reaching(ending.summary)):
        console.print(line)
    return 0


def run_fit(experiment: Experiment) -> int:
    """Train, test the best model, and print where the results are; return the exit code."""
    main, console = experiment.fabric.is_global_zero, experiment.console
    try:
        outcome = fit(experiment)
        if outcome.signum:
            console.print(f"{outcome.stopped}; to continue: --ckpt_path {outcome.directory}")
            return 128 + outcome.signum if main else 0
        print_results(outcome.metrics, f"best model (after round {outcome.rounds})", console)
        if not experiment.fast_dev_run:
            console.print(f"run directory: {outcome.directory}")
        return 0
    except TrainingError:
        if main:
            raise
        return 0  # all ranks stop, and only the first reports the error
    finally:
        if main and experiment.tracker.summary():
            console.print(experiment.tracker.summary())
