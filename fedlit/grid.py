"""What a sweep consists of: its YAML, and the runs that follow from it."""

import itertools
import json
import re
import shutil
from argparse import ArgumentError
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import Namespace

from fedlit import checkpoint
from fedlit.choices import short_names
from fedlit.errors import CheckpointError, ConfigError
from fedlit.experiment import DEFAULT_CLASSES, experiment_parser, resolved
from fedlit.grouping import group_name, method_name
from fedlit.jobs import Job
from fedlit.mistakes import Sources, SweepSources, explain
from fedlit.parser import Parser, is_mistake
from fedlit.run import RESERVED, Result, config_difference
from fedlit.tracking.base import MetricsFile

OWN_KEYS = ("config", "seed", "experiment", "name", "run_dir", "ckpt_path", "fast_dev_run")
"""Keys that a sweep sets itself."""

LOG, WANTED = "console.log", ".wanted.yaml"
"""Files of a run's directory: what it printed, and the configuration that it is started with."""

METRIC = "test/federation/auroc_macro"
"""What is shown of runs, where nobody chooses."""

WORD_LENGTH = 40
"""Largest part of a name that tells one value of the grid."""


@dataclass(frozen=True)
class Sweep:
    """A grid of runs: every case with every combination of the grid's values and every seed.

    Keys are those of ``fedlit fit``, dotted as on its command line (``model.optimizer.lr``) or nested as in a YAML.
    Where a key is given more than once, the grid wins over the case, the case over ``set``, and ``set`` over ``config``.

    Args:
        experiment: of the runs, on disk and in MLflow; also the sweep's name.
        config: YAML files that all runs start from, relative to the sweep's file.
        set: keys for all runs.
        cases: named alternatives, each with keys of its own.
        grid: lists of values by key; runs take every combination.
        seeds: of the runs; ``seed`` is the key that they set.
        metric: what the summary shows: a test metric, or another whose last value is in ``metrics.csv``.
        run_dir: runs go to RUN_DIR/EXPERIMENT/NAME/.
        file: where the sweep is written, for messages.

    Raises:
        ConfigError: an empty list, a name that no folder can have, or a key that the sweep sets itself.
    """

    experiment: str
    config: list[str] = field(default_factory=list)
    set: dict[str, Any] = field(default_factory=dict)
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [0])
    metric: str = METRIC
    run_dir: str = "runs"
    file: Path | None = None

    def __post_init__(self) -> None:
        for name, values in (("seeds", self.seeds), *((f"grid.{key}", values) for key, values in self.grid.items())):
            if not values:
                raise ConfigError(f"{name}: expected at least one value, found none; leave the key out, or fill it")
        for name in self.cases:
            if not re.fullmatch(r"\w[\w.+-]*", name):
                raise ConfigError(f"cases: expected a name of letters, digits and _ . + -, found {name!r}")
        for section in (self.set, *self.cases.values(), self.grid):
            for key in _options(section):
                if key in OWN_KEYS:
                    hint = "use seeds" if key == "seed" else "leave it out"
                    raise ConfigError(f"{key}: a sweep sets it for each run; {hint}")

    @property
    def directory(self) -> Path:
        return Path(self.run_dir) / self.experiment

    @property
    def table(self) -> Path:
        return self.directory / "sweep.csv"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep.

    Attributes:
        group: its name without the seed.
        case: name, or "" where the sweep has none.
        point: the values of the grid by key, lists and classes in words.
        config: the whole configuration, as YAML.
        rounds: that it trains.
    """

    name: str
    group: str
    case: str
    point: Mapping[str, str | float | bool | None]
    seed: int
    directory: Path
    config: str
    rounds: int

    @property
    def has_checkpoint(self) -> bool:
        return checkpoint.find(self.directory / "checkpoints", "last") is not None

    def standing(self) -> Literal["new", "unfinished", "finished"]:
        """What an earlier call has left of the run.

        Raises:
            CheckpointError: a run of another configuration, or something that is no run.
        """
        if not self.has_checkpoint:
            found = {path.name for path in self.directory.iterdir()} if self.directory.exists() else set()
            if found and not found & {"config.yaml", LOG, WANTED, RESERVED}:
                raise CheckpointError(f"{self.directory} is in the way, and is not a run's; move it away")
            return "new"
        rows = config_difference(self.directory, self.config)
        before = yaml.safe_load((self.directory / "config.yaml").read_text())["federation"]["rounds"]
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
        """What to start; a run that has a checkpoint goes on."""
        words = ("fit", "--config", str(self.directory / WANTED))
        return Job(
            self.name,
            (*words, "--ckpt_path", str(self.directory)) if self.has_checkpoint else words,
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
        """A metric of the finished run; NaN where it has none of that name."""
        result = Result.read(self.directory)
        if result is None or key in result.metrics:
            return result.metrics[key] if result else float("nan")
        rows = MetricsFile(self.directory / "metrics.csv").rows()
        return next(iter(deque((value for _, name, value in rows if name == key), maxlen=1)), float("nan"))


@dataclass(frozen=True)
class _Point:
    """A case with one combination of the grid's values: runs that differ in their seed alone.

    Attributes:
        chosen: value, and the value in words, by key.
        settings: of all sections, by dotted key; those that win are in.
    """

    group: str
    case: str
    chosen: Mapping[str, tuple[Any, str]]
    settings: Mapping[str, Any]

    @property
    def words(self) -> list[str]:
        return [f"--{key}={_text(value)}" for key, value in self.settings.items()]

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
        ConfigError: no file, no YAML, an unknown key or a value of another type; says where.
    """
    path = Path(path)
    sources = Sources(("sweep", "--config", str(path)))
    if problem := sources.syntax_error():
        raise ConfigError(problem)
    parser = Parser(exit_on_error=False)
    parser.add_class_arguments(Sweep, skip={"file"})
    written = yaml.safe_load(path.read_text())
    if not isinstance(written, dict):
        raise ConfigError(f"{path}: expected keys such as experiment, config, grid and seeds; found {written!r}")
    try:
        keys = parser.parse_object(written).as_dict()
        files = [str(path.parent / name) for name in keys["config"]]
        return Sweep(**keys | {"config": files, "file": path})
    except ArgumentError as error:
        raise ConfigError(f"{path}: {explain(str(error), sources, parser.get_defaults().as_dict())}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def plan(sweep: Sweep) -> list[PlannedRun]:
    """The runs of a sweep, in order; their configurations are whole, and their objects can be made.

    Raises:
        ConfigError: a mistake in any of them; names the run and the key.
    """
    for file in sweep.config:
        if not Path(file).is_file():
            raise ConfigError(f"config: there is no file {file}; paths are relative to the sweep's own file")
    parser = experiment_parser()
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
            parts = {part: str(args[part]) for part in ("data", "model", "federation", "logger")}
            if fresh := {(parts["data"], parts["model"]), parts["federation"], parts["logger"]} - made:
                # What a constructor refuses, it refuses now.
                rounds[parts["federation"]] = parser.instantiate(args).federation.rounds
                made |= fresh
        args.experiment, args.run_dir, args.ckpt_path, args.fast_dev_run = sweep.experiment, sweep.run_dir, None, False
        tags, args.tags = {**args.tags, **point.tags(sweep.experiment)}, {}
        for seed in sweep.seeds:
            name = ",".join([point.group] * bool(point.group) + [f"seed={seed}"])
            args.seed, args.name, args.tags = seed, None, {}
            if name in names.values():
                raise ConfigError(f"run {name} is there twice; remove the value that is")
            if (same := names.setdefault(resolved(args, parser), name)) != name:
                raise ConfigError(f"runs {same} and {name} have the same configuration; remove one of them")
            args.name, args.tags = name, tags
            runs.append(
                PlannedRun(
                    name,
                    point.group,
                    point.case,
                    point.shown,
                    seed,
                    sweep.directory / name,
                    resolved(args, parser),
                    rounds[parts["federation"]],
                )
            )
    return runs


def _points(sweep: Sweep) -> Iterator[_Point]:
    short = _short_names(list(sweep.grid))
    values = [[(value, word) for value, word in zip(v, _words(v), strict=True)] for v in sweep.grid.values()]
    for case, *combination in itertools.product(sweep.cases or [""], *values):
        chosen = dict(zip(sweep.grid, combination, strict=True))
        group = ",".join([case] * bool(case) + [f"{short[key]}={word}" for key, (_, word) in chosen.items()])
        settings = _options(sweep.set) | _options(sweep.cases.get(case, {}))
        yield _Point(group, case, chosen, settings | _options({key: value for key, (value, _) in chosen.items()}))


def plan_seeds(args: Namespace, parser: Parser, seeds: Sequence[int]) -> list[PlannedRun]:
    """The runs of one configuration with several seeds; its objects can be made.

    Args:
        args: the configuration; ``seed`` and ``name`` are set.
        parser: of the configuration.
        seeds: of the runs.

    Raises:
        ConfigError: a seed is there twice, or a checkpoint is named, which is one run's.
    """
    if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
        raise ConfigError(f"seed: {twice[0]} is there twice; remove one of them")
    if args.ckpt_path:
        raise ConfigError(
            f"ckpt_path: {args.ckpt_path} is of one run, and seed names {len(seeds)}; to go on with all of them give the "
            "command again without it, to go on with one give its seed alone"
        )
    objects = parser.instantiate(args)  # what a constructor refuses, it refuses now
    method = method_name(objects.federation, objects.model)
    group = group_name(yaml.safe_load(resolved(args, parser)), method)
    point = args.name or group
    runs = []
    for seed in seeds:
        args.seed, args.name = seed, f"{point},seed={seed}"
        directory, config = Path(args.run_dir) / args.experiment / args.name, resolved(args, parser)
        runs.append(PlannedRun(args.name, point, "", {}, seed, directory, config, objects.federation.rounds))
    return runs


@contextmanager
def _explained(what: str, sources: Sources, parser: Parser) -> Iterator[None]:
    """Tell mistakes in the words of whoever wrote the YAML."""
    try:
        yield
    except ArgumentError as error:
        options = [action.dest for action in parser._actions]
        raise ConfigError(f"{what}: {explain(str(error), sources, options, short_names())}") from error
    except Exception as error:
        if not is_mistake(error):
            raise
        raise ConfigError(f"{what}: {explain(str(error), sources)}") from error


def _options(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted key, as options of the command line; a class stays whole."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if hasattr(value, "items") and value and "class_path" not in value:
            found |= _options(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _text(value: Any) -> str:
    """A value as the command line wants it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _short_names(keys: Sequence[str]) -> dict[str, str]:
    """Keys by as few of their last parts as tell them apart."""
    parts = {key: key.rstrip("+").replace(".init_args", "").split(".") for key in keys}
    short = {}
    for key, own in parts.items():
        others = [other for k, other in parts.items() if k != key] + [["seed"]]
        lengths = range(1, len(own) + 1)
        length = next((n for n in lengths if all(other[-n:] != own[-n:] for other in others)), len(own))
        short[key] = ".".join(own[-length:])
    return short


def _words(values: Sequence[Any]) -> list[str]:
    """Values in words that a folder's name may hold, different where the values are."""
    words: dict[str, str] = {}
    for value in values:
        text = _text(value)
        plain = re.sub(r'"(class_path|init_args)"', "", text)
        word = "-".join(re.findall(r"[\w.+-]+", plain))[:WORD_LENGTH] or "empty"
        taken = [w for t, w in words.items() if t != text]
        words[text] = word if word not in taken else f"{word}~{len(taken)}"
    return [words[_text(value)] for value in values]
