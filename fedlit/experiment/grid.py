"""What a sweep consists of: its YAML, and the runs that follow from it."""

import copy
import itertools
import shutil
from argparse import ArgumentError
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jsonargparse import Namespace

from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import CheckpointError, ConfigError
from fedlit.core.fetching import without_fetching
from fedlit.core.system import documents
from fedlit.experiment.choices import short_names
from fedlit.experiment.credentials import as_words, complete
from fedlit.experiment.jobs import Job
from fedlit.experiment.mistakes import Sources, SweepSources, explain
from fedlit.experiment.naming import (
    OF_RUNS,
    as_folders,
    as_option,
    check_name,
    check_names,
    group_name,
    method_name,
    shortest,
)
from fedlit.experiment.options import DEFAULT_CLASSES, experiment_parser, resolved
from fedlit.experiment.parser import Parser, is_mistake
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.lock import HOLDER, LOCK
from fedlit.tracking.names import TEST
from fedlit.tracking.run import RESERVED, Result, config_difference, flatten, read_config

OWN_KEYS = ("config", "seed", "experiment", "name", "run_dir", "ckpt_path", "fast_dev_run")
"""Keys that a sweep sets itself."""

LOG, WANTED = "console.log", ".wanted.yaml"
"""Files of a run's directory: what it printed, and the configuration that it is started with."""

METRIC, VALIDATION = "test/federation/auroc_macro", "val/auroc_macro"
"""What is shown of runs by default: where nothing is chosen, and of a grid, from which somebody chooses."""


@dataclass(frozen=True)
class Sweep:
    """A grid of runs: every case with every combination of the grid's values and every seed.

    Keys are those of ``fedlit fit``, dotted as on its command line (``model.optimizer.lr``) or nested as in a YAML.
    Where a key is given more than once, the grid wins over the case, the case over ``set``, and ``set`` over ``config``.

    Args:
        experiment: Groups the runs, on disk and in MLflow. It is also the name of the sweep.
        config: YAML files that all runs start from, relative to the file of the sweep.
        set: Keys for all runs.
        cases: Named alternatives, each with keys of its own.
        grid: Lists of values by key. Runs take every combination.
        seeds: Seeds of the runs. They set the key ``seed``, and are added to ``data.seed``: each draws its own data, split
            and partition, as far as the source does not fix them. ``data.seed`` in any section keeps one draw for all seeds.
        metric: Metric that the summary shows: a test metric, or another one of ``metrics.csv``, of the best model's round. By
            default ``val/auroc_macro`` where there is a grid, ``test/federation/auroc_macro`` elsewhere.
        run_dir: Folder of all runs: RUN_DIR/EXPERIMENT/NAME/.
        file: File of the sweep, for messages.
        starts: Weights that the runs of a seed start from, by seed.

    Raises:
        ConfigError: A list is empty, a folder cannot have a name, or the sweep itself sets a key.
    """

    experiment: str
    config: list[str] = field(default_factory=list)
    set: dict[str, Any] = field(default_factory=dict)
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [0])
    metric: str = ""
    run_dir: str = "runs"
    file: Path | None = None
    starts: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, values in (("seeds", self.seeds), *((f"grid.{key}", values) for key, values in self.grid.items())):
            if not values:
                raise ConfigError(f"{name}: expected at least one value, found none; leave the key out, or fill it")
        if not self.metric:
            object.__setattr__(self, "metric", VALIDATION if self.grid else METRIC)
        elif self.grid and self.metric.startswith(TEST):
            raise ConfigError(
                f"metric: {self.metric!r} is of the test set, which may not choose among the points of a grid; use a "
                "metric of the validation data, such as val/auroc_macro. `fedlit compare` shows the test AUROC of all runs"
            )
        check_name("experiment", self.experiment, OF_RUNS)
        for name in self.cases:
            check_name("cases", name)
        for section in (self.set, *self.cases.values(), self.grid):
            for key in _options(section):
                if key in OWN_KEYS:
                    hint = "use seeds" if key == "seed" else "leave it out"
                    raise ConfigError(f"{key}: a sweep sets it for each run; {hint}")

    @property
    def directory(self) -> Path:
        """Folder of the runs."""
        return Path(self.run_dir) / self.experiment

    @property
    def table(self) -> Path:
        """File with a row for each run."""
        return self.directory / "sweep.csv"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    name: str
    group: str  # Name without the seed.
    case: str  # Name of the case, or "" where the sweep has none.
    point: Mapping[str, str | float | bool | None]  # Values of the grid by key, lists and classes in words.
    seed: int
    directory: Path
    config: str  # Whole configuration, as YAML.
    rounds: int  # Number of rounds that it trains.
    credentials: tuple[str, ...] = ()  # Words with what no file may hold.
    data_seed: int | None = None  # Seed of its data; None where they have none.

    @property
    def has_checkpoint(self) -> bool:
        """Whether an earlier call has left a checkpoint of the run."""
        return checkpoint.find(self.directory / "checkpoints", "last") is not None

    def standing(self) -> Literal["new", "unfinished", "finished"]:
        """Return what an earlier call has left of the run.

        Raises:
            CheckpointError: The directory holds a run of another configuration, or something that is no run.
        """
        if not self.has_checkpoint:
            files = {path.name for path in self.directory.iterdir()} if self.directory.exists() else set()
            if files and not files & {"config.yaml", LOG, WANTED, RESERVED, LOCK, HOLDER}:
                raise CheckpointError(f"{self.directory} is in the way, and is not a run's; move it away")
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

    def job(self) -> Job:
        """Return what to start. A run that has a checkpoint is continued."""
        onward = ("--ckpt_path", str(self.directory)) if self.has_checkpoint else ()
        return Job(
            self.name,
            ("fit", "--config", str(self.directory / WANTED), *self.credentials, *onward),
            self.directory / LOG,
        )

    def prepare(self) -> None:
        """Make way for the run: nothing stays of one that died before its first checkpoint."""
        if not self.has_checkpoint:
            if self.directory.exists():
                shutil.rmtree(self.directory)
            self.directory.mkdir(parents=True)
            (self.directory / RESERVED).touch()
        (self.directory / WANTED).write_text(self.config)

    def tidy(self) -> None:
        """Remove what only its start needed."""
        for name in (RESERVED, WANTED):
            (self.directory / name).unlink(missing_ok=True)

    def metric(self, key: str) -> float:
        """Return a metric of the finished run, NaN where it has none of that name."""
        result = Result.read(self.directory)
        if result is None or key in result.metrics:
            return result.metrics[key] if result else float("nan")
        values = {
            step: value for step, name, value in MetricsFile(self.directory / "metrics.csv").rows() if name == key
        }
        return values.get(result.best_round, next(reversed(values.values()), float("nan")))


@dataclass(frozen=True)
class _Point:
    """A case with one combination of the grid's values: runs that differ in their seed alone."""

    group: str
    case: str
    chosen: Mapping[str, tuple[Any, str]]  # Value, and the value in words, by key.
    settings: Mapping[str, Any]  # Of all sections, by dotted key; those that win are in.

    @property
    def words(self) -> list[str]:
        return [f"--{key}={as_option(value)}" for key, value in self.settings.items()]

    @property
    def shown(self) -> dict[str, str | float | bool | None]:
        return {k: word if isinstance(value, (list, dict)) else value for k, (value, word) in self.chosen.items()}

    def tags(self, experiment: str) -> dict[str, str]:
        tags = {"fedlit.sweep": experiment}
        tags |= {"fedlit.case": self.case, "fedlit.method": self.case} if self.case else {}
        return tags | {key.rstrip("+"): word for key, (_, word) in self.chosen.items()}


def load_sweep(path: str | Path) -> Sweep:
    """Read a sweep's YAML.

    Raises:
        ConfigError: There is no file or no YAML, a key is unknown, or a value has another type. The place is named.
    """
    path = Path(path)
    sources = Sources(("sweep", "--config", str(path)))
    parser = Parser(exit_on_error=False)
    parser.add_class_arguments(Sweep, skip={"file", "starts"})
    try:
        written = documents.load_mapping(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    try:
        # Values are kept as they are written: to a class of another library the parser adds arguments that it cannot have.
        as_written = {key: written[key] for key in ("set", "cases", "grid") if written.get(key)}
        keys = parser.parse_object(copy.deepcopy(written)).as_dict() | as_written
        files = [str(path.parent / name) for name in keys["config"]]
        return Sweep(**keys | {"config": files, "file": path})
    except ArgumentError as error:
        raise ConfigError(f"{path}: {explain(error, sources, parser.get_defaults().as_dict())}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def plan(sweep: Sweep, parser: Parser | None = None) -> list[PlannedRun]:
    """Return the runs of a sweep in order. Their configurations are whole, and their objects can be made.

    Nothing is fetched, and no data are read. Plans of many sweeps may share a ``parser``, which takes half a second to make.

    Raises:
        ConfigError: There is a mistake in one of them. The run and the key are named.
    """
    for file in sweep.config:
        if not Path(file).is_file():
            raise ConfigError(f"config: there is no file {file}; paths are relative to the sweep's own file")
    parser = parser or experiment_parser()
    parser.exit_on_error = False
    shared = [word for file in sweep.config for word in ("--config", file)]
    runs: list[PlannedRun] = []
    names: dict[str, str] = {}
    made: set[object] = set()
    rounds: dict[str, int] = {}
    for point in _points(sweep):
        sources = SweepSources(("fit", *shared), sweep.file, point.case)
        with _explained(f"run {point.group or sweep.experiment}", sources, parser):
            args = parser.parse_args([*DEFAULT_CLASSES, *shared, *point.words])
            complete(args.clone())  # what is missing is missing now
            credentials = as_words(args)
            parts = {part: str(args[part]) for part in ("data", "model", "federation", "logger")}
            if fresh := {(parts["data"], parts["model"]), parts["federation"], parts["logger"]} - made:
                # What a constructor refuses, it refuses now.
                with without_fetching():
                    rounds[parts["federation"]] = parser.instantiate(args).federation.rounds
                made |= fresh
        args.experiment, args.run_dir, args.ckpt_path, args.fast_dev_run = sweep.experiment, sweep.run_dir, None, False
        tags, args.tags = {**args.tags, **point.tags(sweep.experiment)}, {}
        data = args.data
        for seed in sweep.seeds:
            args.data = data if one_draw(sources, point.settings) else of_seed(data, seed)
            if seed in sweep.starts:
                args["model.init_args.weights"] = sweep.starts[seed]
            name = ",".join([point.group] * bool(point.group) + [f"seed={seed}"])
            args.seed, args.name, args.tags = seed, None, {}
            check_name(f"run {name[:80]}", name, OF_RUNS)
            if name in names.values():
                raise ConfigError(f"run {name} is there twice; remove the value that is")
            if (same := names.setdefault(resolved(args, parser), name)) != name:
                raise ConfigError(f"runs {same} and {name} have the same configuration; remove one of them")
            args.name, args.tags = name, tags
            directory, config, length = sweep.directory / name, resolved(args, parser), rounds[parts["federation"]]
            settings = (
                point.case,
                point.shown,
                seed,
                directory,
                config,
                length,
                credentials,
                args.get("data.init_args.seed"),
            )
            runs.append(PlannedRun(name, point.group, *settings))
    return runs


def _points(sweep: Sweep) -> Iterator[_Point]:
    short = shortest(list(sweep.grid))
    values = [[(value, word) for value, word in zip(v, as_folders(v), strict=True)] for v in sweep.grid.values()]
    for case, *combination in itertools.product(sweep.cases or [""], *values):
        chosen = dict(zip(sweep.grid, combination, strict=True))
        group = ",".join([case] * bool(case) + [f"{short[key]}={word}" for key, (_, word) in chosen.items()])
        settings = _options(sweep.set) | _options(sweep.cases.get(case, {}))
        yield _Point(group, case, chosen, settings | _options({key: value for key, (value, _) in chosen.items()}))


def plan_seeds(args: Namespace, parser: Parser, seeds: Sequence[int]) -> list[PlannedRun]:
    """Return the runs of one configuration with several seeds. Its objects can be made; its seed and name are set.

    Raises:
        ConfigError: A seed is there twice, or a checkpoint is named, which belongs to one run.
    """
    if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
        raise ConfigError(f"seed: {twice[0]} is there twice; remove one of them")
    if args.ckpt_path:
        raise ConfigError(
            f"ckpt_path: {args.ckpt_path} is of one run, and seed names {len(seeds)}; to go on with all of them give the "
            "command again without it, to go on with one give its seed alone"
        )
    complete(args.clone())  # what is missing is missing now
    check_names(args)
    with without_fetching():
        objects = parser.instantiate(args)  # what a constructor refuses, it refuses now
    method = method_name(objects.federation, objects.model)
    group = group_name(documents.parse(resolved(args, parser)), method)
    point = args.name or group
    runs = []
    data = args.data
    for seed in seeds:
        args.data = data if one_draw(parser.sources) else of_seed(data, seed)
        args.seed, args.name = seed, f"{point},seed={seed}"
        directory, config = Path(args.run_dir) / args.experiment / args.name, resolved(args, parser)
        settings = (seed, directory, config, objects.federation.rounds, as_words(args), args.get("data.init_args.seed"))
        runs.append(PlannedRun(args.name, point, "", {}, *settings))
    return runs


def one_draw(sources: Sources, settings: Iterable[str] = ()) -> bool:
    """Return whether ``data.seed`` is given, so that all seeds share one draw of the data."""
    keys = ("data.seed", "data.init_args.seed")
    return any(key in settings or sources.where(key) for key in keys)


def of_seed(data: Any, seed: int) -> Any:
    """Return the data's configuration with a run's seed added to every seed in it.

    Raises:
        ConfigError: A seed is negative, from which no data can be drawn.
    """
    values = vars(data) if isinstance(data, Namespace) else data
    if isinstance(values, dict):
        moved = {k: v + seed if k == "seed" and type(v) is int else of_seed(v, seed) for k, v in values.items()}
        if seed < 0 and "seed" in moved:
            raise ConfigError(
                f"seed: data are drawn from 0 and above, found {seed}; data.seed keeps one draw for all seeds"
            )
        return type(data)(**moved)
    return [of_seed(each, seed) for each in data] if isinstance(data, list) else data


@contextmanager
def _explained(what: str, sources: Sources, parser: Parser) -> Iterator[None]:
    """Tell mistakes in the words of whoever wrote the YAML."""
    try:
        yield
    except ArgumentError as error:
        options = [action.dest for action in parser._actions]
        raise ConfigError(f"{what}: {explain(error, sources, options, short_names())}") from error
    except Exception as error:
        if not is_mistake(error):
            raise
        raise ConfigError(f"{what}: {explain(error, sources)}") from error


def _options(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted key, as options of the command line; a class stays whole."""
    options: dict[str, Any] = {}
    for key, value in settings.items():
        if hasattr(value, "items") and value and "class_path" not in value:
            options |= _options(value, f"{prefix}{key}.")
        else:
            options[prefix + key] = value
    return options
