"""Plans of sweeps: their settings, and their runs."""

import itertools
import shutil
from argparse import ArgumentError
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from jsonargparse import Namespace

from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import CheckpointError, ConfigError
from fedlit.core.system import documents
from fedlit.core.system.fetching import without_fetching
from fedlit.experiment.choices import short_names
from fedlit.experiment.credentials import opened
from fedlit.experiment.jobs import CommandLine
from fedlit.experiment.mistakes import Sources, SweepSources, explain
from fedlit.experiment.naming import OF_RUNS, Names, as_folders, as_option, check_name, check_names, shortest
from fedlit.experiment.options import DEFAULT_CLASSES, experiment_parser, of_seed, one_draw, resolved
from fedlit.experiment.parser import Parser, is_mistake
from fedlit.tracking.base import Tracker
from fedlit.tracking.lock import HOLDER, LOCK
from fedlit.tracking.loggers import tracker_of
from fedlit.tracking.names import TEST
from fedlit.tracking.run import RESERVED, Result, config_difference, flatten, metric_of, read_config

RESERVED_KEYS = ("config", "seed", "experiment", "name", "run_dir", "ckpt_path", "fast_dev_run")
"""Keys that a sweep sets for each run."""

LOG, WANTED = "console.log", ".wanted.yaml"
"""Files in a run's directory: its output, and the configuration with which it is started."""

METRIC, VALIDATION = "test/federation/auroc_macro", "val/auroc_macro"
"""Default metrics of the summary: without a grid, and with one, from which the user selects a point."""


INDIVIDUAL, POOLED = "individual", "pooled"
"""Baselines of a federation: the model of each client, and one model of all data."""

BASELINES = {INDIVIDUAL: {}, POOLED: {"data.pooled": True}}
"""Keys of the baselines' cases, which train without an algorithm; individual models have a client each."""


@dataclass(frozen=True)
class Sweep:
    """A sweep: one run for each case, combination of the grid's values and seed.

    Keys are those of ``fedlit fit``, dotted as on its command line (``model.optimizer.lr``) or nested as in a YAML. The
    grid overrides the case, the case overrides ``set``, and ``set`` overrides ``config``.

    Args:
        experiment: Name of the sweep, and of the group of its runs, on disk and in MLflow.
        config: YAML files from which all runs start, relative to the file of the sweep.
        set: Keys for all runs.
        cases: Named alternatives, each with its own keys.
        grid: Lists of values by key; the runs take all combinations.
        baselines: Cases that fedlit adds: ``individual``, a model for each client from its own data, and ``pooled``,
            one model from all data. The names of the clients are read from the data.
        seeds: Seeds of the runs. They set the key ``seed``, and are added to ``data.seed``, so that each seed has its
            own data, split and partition, unless the source fixes them. ``data.seed`` in any section keeps one draw for
            all seeds.
        metric: Metric of the summary: a test metric, or another metric in ``metrics.csv`` at the round of the best
            model. By default ``val/auroc_macro`` with a grid, and ``test/federation/auroc_macro`` without.
        run_dir: Folder of all runs: RUN_DIR/EXPERIMENT/NAME/.
        file: File of the sweep, for messages.
        starts: Weights from which the runs of a seed start, by seed.
        points: Combinations of the grid's values that are run; None for all.
        tags: Tags of all runs, besides those of their case and values.

    Raises:
        ConfigError: A list is empty, a name cannot be that of a folder, or a key is one that the sweep sets.
    """

    experiment: str
    config: list[str] = field(default_factory=list)
    set: dict[str, Any] = field(default_factory=dict)
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)
    baselines: list[Literal["individual", "pooled"]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=lambda: [0])
    metric: str = ""
    run_dir: str = "runs"
    file: Path | None = None
    starts: dict[int, str] = field(default_factory=dict)
    points: Sequence[Mapping[str, Any]] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, values in (("seeds", self.seeds), *((f"grid.{key}", values) for key, values in self.grid.items())):
            if not values:
                raise ConfigError(f"{name}: expected at least one value, found none; leave the key out, or add values")
        if not self.metric:
            object.__setattr__(self, "metric", VALIDATION if self.grid else METRIC)
        elif self.grid and self.metric.startswith(TEST):
            raise ConfigError(
                "metric: expected a metric of the validation data such as val/auroc_macro, as the summary selects a "
                f"point of the grid, found {self.metric!r} of the test set; `fedlit compare` shows the test AUROC of "
                "all runs"
            )
        check_name("experiment", self.experiment, OF_RUNS)
        for name in self.cases:
            check_name("cases", name)
            if self.baselines and name.partition("-")[0] in BASELINES:
                raise ConfigError(f"cases: {name!r} is the name of one of the baselines; choose another name")
        for section in (self.set, *self.cases.values(), self.grid):
            for key in _options(section):
                if key in RESERVED_KEYS:
                    advice = "use seeds" if key == "seed" else "leave it out"
                    raise ConfigError(f"{key}: a sweep sets it for each run; {advice}")

    @property
    def directory(self) -> Path:
        """Folder of the runs."""
        return Path(self.run_dir) / self.experiment

    @property
    def table(self) -> Path:
        """File with one row per run."""
        return self.directory / "sweep.csv"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    name: str
    group: str  # Name without the seed.
    case: str  # Name of the case, or "" without cases.
    point: Mapping[str, str | float | bool | None]  # Values of the grid by key, lists and classes as text.
    seed: int
    directory: Path
    config: str  # Whole configuration, as YAML.
    rounds: int  # Number of rounds.
    data_seed: int | None = None  # Seed of its data, or None if they have none.
    tracker: Tracker = field(default_factory=Tracker, compare=False)  # That of its configuration.

    @classmethod
    def of(
        cls, args: Namespace, parser: Parser, group: str, rounds: int, tracker: Tracker, point: "_Point | None" = None
    ) -> "PlannedRun":
        """Return the run of a configuration that has a name and a seed, of a sweep at a point."""
        case, shown = (point.case, point.shown) if point else ("", {})
        return cls(
            args.name, group, case, shown, args.seed, Path(args.run_dir) / args.experiment / args.name,
            config=resolved(args, parser), rounds=rounds,
            data_seed=args.get("data.init_args.seed"), tracker=tracker,
        )  # fmt: skip

    @property
    def has_checkpoint(self) -> bool:
        """True if an earlier call has left a checkpoint of the run."""
        return checkpoint.find(self.directory / "checkpoints", "last") is not None

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

    def metric(self, key: str) -> float:
        """Return a metric of the finished run, or NaN if it is not logged."""
        return metric_of(self.directory, key) if Result.read(self.directory) else float("nan")


@dataclass(frozen=True)
class _Point:
    """A case with one combination of the grid's values: runs that differ only in their seed."""

    group: str
    case: str
    chosen: Mapping[str, tuple[Any, str]]  # Value, and its text, by key.
    settings: Mapping[str, Any]  # Merged sections by dotted key.

    @property
    def words(self) -> list[str]:
        return [f"--{key}={as_option(value)}" for key, value in self.settings.items()]

    @property
    def shown(self) -> dict[str, str | float | bool | None]:
        return {k: word if isinstance(value, (list, dict)) else value for k, (value, word) in self.chosen.items()}

    @property
    def tags(self) -> dict[str, str]:
        tags = {"fedlit.method": self.case} if self.case else {}
        return tags | {key.rstrip("+"): word for key, (_, word) in self.chosen.items()}


def plan(sweep: Sweep, parser: Parser | None = None) -> list[PlannedRun]:
    """Return the runs of a sweep in order, with complete configurations whose objects have been made once.

    No weights are fetched, and data are read only for the clients' names of individual baselines. Plans of many sweeps
    may share a ``parser``, which takes half a second to make.

    Raises:
        ConfigError: A run has a mistake; names the run and the key.
    """
    for file in sweep.config:
        if not Path(file).is_file():
            raise ConfigError(f"config: there is no file {file}; write paths relative to the file of the sweep")
    parser = parser or experiment_parser()
    parser.exit_on_error = False
    shared = [word for file in sweep.config for word in ("--config", file)]
    runs: list[PlannedRun] = []
    names: dict[str, str] = {}
    made: set[object] = set()
    rounds: dict[str, int] = {}
    trackers: dict[str, Tracker] = {}
    for point in _with_clients(_points(sweep), sweep, shared, parser):
        sources = SweepSources(("fit", *shared), sweep.file, point.case)
        with _explained(f"run {point.group or sweep.experiment}", sources, parser):
            args = parser.parse_args([*DEFAULT_CLASSES, *shared, *point.words])
            whole = opened(args, several=True)  # what the environment lacks is found now
            parts = {part: str(args[part]) for part in ("data", "model", "federation", "logger")}
            if fresh := {(parts["data"], parts["model"]), parts["federation"], parts["logger"]} - made:
                with without_fetching():  # mistakes that constructors refuse are found now
                    objects = parser.instantiate(whole)
                rounds[parts["federation"]] = objects.federation.rounds
                trackers[parts["logger"]] = tracker_of(objects.logger)
                made |= fresh
        args.experiment, args.run_dir, args.ckpt_path, args.fast_dev_run = sweep.experiment, sweep.run_dir, None, False
        tags, args.tags = {**args.tags, **point.tags, **sweep.tags}, {}
        data = args.data
        for seed in sweep.seeds:
            args.data = data if one_draw(sources, point.settings) else of_seed(data, seed)
            if seed in sweep.starts:
                args["model.init_args.weights"] = sweep.starts[seed]
            name = ",".join([point.group] * bool(point.group) + [f"seed={seed}"])
            args.seed, args.name, args.tags = seed, None, {}
            check_name(f"run {name[:80]}", name, OF_RUNS)
            if name in names.values():
                raise ConfigError(f"run {name}: expected different values and seeds, found this run twice; remove one")
            if (same := names.setdefault(resolved(args, parser), name)) != name:
                raise ConfigError(f"runs {same} and {name} have the same configuration; remove one of them")
            args.name, args.tags = name, tags
            made_of = rounds[parts["federation"]], trackers[parts["logger"]]
            runs.append(PlannedRun.of(args, parser, point.group, *made_of, point))
    return runs


def _points(sweep: Sweep) -> Iterator[_Point]:
    short = shortest(list(sweep.grid))
    words = {key: dict(zip(map(as_option, v), as_folders(v), strict=True)) for key, v in sweep.grid.items()}
    every = (dict(zip(sweep.grid, values, strict=True)) for values in itertools.product(*sweep.grid.values()))
    points = list(every) if sweep.points is None else sweep.points
    cases = {**sweep.cases} or ({"federated": {}} if sweep.baselines else {"": {}})
    cases |= {name: {"federation.aggregators": [], **BASELINES[name]} for name in dict.fromkeys(sweep.baselines)}
    for case, point in itertools.product(cases, points):
        chosen = {key: (value, words[key][as_option(value)]) for key, value in point.items()}
        group = ",".join([case] * bool(case) + [f"{short[key]}={word}" for key, (_, word) in chosen.items()])
        settings = _options(sweep.set) | _options(cases[case])
        yield _Point(group, case, chosen, settings | _options(point))


def _with_clients(points: Iterable[_Point], sweep: Sweep, shared: Sequence[str], parser: Parser) -> Iterator[_Point]:
    """Replace the point of individual models by one for each client of its data."""
    for point in points:
        if point.case != INDIVIDUAL or not sweep.baselines:
            yield point
            continue
        with _explained(f"run {point.group}", SweepSources(("fit", *shared), sweep.file, point.case), parser):
            args = parser.parse_args([*DEFAULT_CLASSES, *shared, *point.words])
            with without_fetching():
                data = parser.instantiate(opened(args, several=True)).data
            data.prepare_data()
            data.setup()
        names = args.federation.clients or list(data.clients)
        for name, word in zip(names, as_folders(names), strict=True):
            case = f"{INDIVIDUAL}-{word}"
            settings = {**point.settings, "federation.clients": [name]}
            yield replace(point, group=case + point.group.removeprefix(INDIVIDUAL), case=case, settings=settings)


def plan_seeds(args: Namespace, parser: Parser, seeds: Sequence[int]) -> list[PlannedRun]:
    """Return the runs of one configuration with several seeds; sets its seed and name, and makes its objects once.

    Raises:
        ConfigError: A seed is repeated, or a checkpoint is named, which belongs to one run.
    """
    if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
        raise ConfigError(f"seed: expected different seeds, found {twice[0]} twice; remove one")
    if args.ckpt_path:
        raise ConfigError(
            f"ckpt_path: expected nothing with {len(seeds)} seeds, found {args.ckpt_path}; to continue all runs, "
            "repeat the command without it, and to continue one run, give only its seed"
        )
    whole = opened(args, several=True)  # what the environment lacks is found now
    check_names(args)
    with without_fetching():
        objects = parser.instantiate(whole)  # mistakes that constructors refuse are found now
    names = Names.of(objects.federation, objects.model, documents.parse(resolved(args, parser)))
    group = args.name or names.group
    runs, data, tracker = [], args.data, tracker_of(objects.logger)
    for seed in seeds:
        args.data = data if one_draw(parser.sources) else of_seed(data, seed)
        args.seed, args.name = seed, f"{group},seed={seed}"
        runs.append(PlannedRun.of(args, parser, group, objects.federation.rounds, tracker))
    return runs


@contextmanager
def _explained(run: str, sources: Sources, parser: Parser) -> Iterator[None]:
    """Context manager that explains mistakes with their places in the YAML."""
    try:
        yield
    except ArgumentError as error:
        options = parser.options()
        raise ConfigError(f"{run}: {explain(error, sources, options, short_names())}") from error
    except Exception as error:
        if not is_mistake(error):
            raise
        raise ConfigError(f"{run}: {explain(error, sources)}") from error


def _options(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings by dotted key, as options of the command line; classes stay mappings."""
    options: dict[str, Any] = {}
    for key, value in settings.items():
        if hasattr(value, "items") and value and "class_path" not in value:
            options |= _options(value, f"{prefix}{key}.")
        else:
            options[prefix + key] = value
    return options
