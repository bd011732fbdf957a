"""``fedlit sweep``: the runs of a small grid, each complete in itself; what is finished is skipped, the rest goes on."""

import fcntl
import itertools
import json
import os
import re
import shutil
import signal
from argparse import ArgumentError
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml
from rich.console import Console
from rich.table import Table

from fedlit import checkpoint
from fedlit.cli import COMMANDS, DEFAULT_CLASSES, Parser, experiment_parser, is_mistake, resolved, short_names
from fedlit.errors import CheckpointError, ConfigError
from fedlit.jobs import Job, run_jobs
from fedlit.mistakes import Sources, SweepSources, explain
from fedlit.progress import SweepProgress
from fedlit.run import RESERVED, Result, config_difference
from fedlit.tracking.base import MetricsFile

Status = Literal["finished", "failed", "stopped", "waiting"]

OWN_KEYS = ("config", "seed", "experiment", "name", "run_dir", "ckpt_path", "fast_dev_run")
"""Keys that a sweep sets itself."""

LOG = "console.log"

STOPPED = {sign * (base + s) for s in (signal.SIGINT, signal.SIGTERM) for sign, base in ((1, 128), (-1, 0))}
"""Exit codes of a run that a signal ended."""

WORD_LENGTH = 40


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
    metric: str = "test/federation/auroc_macro"
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


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep.

    Attributes:
        group: its name without the seed.
        case: name, or "" where the sweep has none.
        point: the values of the grid, in words, by key.
        config: the whole configuration, as YAML.
        rounds: that it trains.
    """

    name: str
    group: str
    case: str
    point: Mapping[str, str]
    seed: int
    directory: Path
    config: str
    rounds: int

    def standing(self) -> Literal["new", "unfinished", "finished"]:
        """What an earlier call has left of the run.

        Raises:
            CheckpointError: a run of another configuration.
        """
        if not checkpoint.find(self.directory / "checkpoints", "last"):
            return "new"
        rows = config_difference(self.directory, self.config)
        before = yaml.safe_load((self.directory / "config.yaml").read_text())["federation"]["rounds"]
        if before > self.rounds:
            rows.append(f"federation.rounds: {before} there, {self.rounds} now")
        if rows:
            raise CheckpointError(
                f"run {self.name}: {self.directory} was started with another configuration:\n"
                + "\n".join(f"  {row}" for row in rows)
                + "\nundo the change, give the sweep another experiment, or move the directory away"
            )
        result = Result.read(self.directory)
        return "finished" if result and result.rounds == self.rounds else "unfinished"

    def reserve(self) -> None:
        """Make way for the run: nothing is left of one that died before its first checkpoint."""
        if not checkpoint.find(self.directory / "checkpoints", "last") and self.directory.exists():
            if not any((self.directory / name).exists() for name in ("config.yaml", LOG, RESERVED)):
                raise CheckpointError(f"{self.directory} is in the way, and is not a run's; move it away")
            shutil.rmtree(self.directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / RESERVED).write_text(self.config)

    def job(self) -> Job:
        """What to run; a run that has a checkpoint goes on."""
        words = ("fit", "--config", str(self.directory / RESERVED))
        if checkpoint.find(self.directory / "checkpoints", "last"):
            words += ("--ckpt_path", str(self.directory))
        return Job(self.name, words, self.directory / LOG)

    def release(self) -> None:
        """The directory is the run's, whatever became of it."""
        (self.directory / RESERVED).unlink(missing_ok=True)

    def metric(self, key: str) -> float:
        """A metric of the finished run; NaN where it has none of that name."""
        result = Result.read(self.directory)
        if result is None or key in result.metrics:
            return result.metrics[key] if result else float("nan")
        rows = MetricsFile(self.directory / "metrics.csv").rows()
        return next(iter(deque((value for _, name, value in rows if name == key), maxlen=1)), float("nan"))


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
    parser = experiment_parser(COMMANDS["fit"])
    parser.exit_on_error = False
    shared = [word for file in sweep.config for word in ("--config", file)]
    short, runs, made, same = _short_names(list(sweep.grid)), [], set(), {}
    values = {key: list(zip(values, _words(values), strict=True)) for key, values in sweep.grid.items()}
    for case, *point in itertools.product(sweep.cases or [""], *values.values()):
        chosen = dict(zip(values, point, strict=True))
        group = ",".join([case] * bool(case) + [f"{short[key]}={word}" for key, (_, word) in chosen.items()])
        settings = _options(sweep.set) | _options(sweep.cases.get(case, {}))
        for key, (value, _) in chosen.items():
            settings |= _options({key: value})
        sources = SweepSources(("fit", *shared), sweep.file, case)
        with _explained(f"run {group or sweep.experiment}", sources, parser):
            args = parser.parse_args([*DEFAULT_CLASSES, *shared, *(f"--{k}={_text(v)}" for k, v in settings.items())])
            parts = {part: str(args[part]) for part in ("data", "model", "federation", "logger")}
            if fresh := {(parts["data"], parts["model"]), parts["federation"], parts["logger"]} - made:
                parser.instantiate(args)  # what a constructor refuses, it refuses now
                made |= fresh
        args.experiment, args.run_dir, args.ckpt_path, args.fast_dev_run = sweep.experiment, sweep.run_dir, None, False
        tags = {"fedlit.sweep": sweep.experiment, "fedlit.group": group or sweep.experiment}
        tags |= {"fedlit.case": case} if case else {}
        args.tags = {**args.tags, **tags, **{key.rstrip("+"): word for key, (_, word) in chosen.items()}}
        for seed in sweep.seeds:
            args.seed, args.name = seed, None
            config = resolved(args, parser)
            name = ",".join([group] * bool(group) + [f"seed={seed}"])
            told = yaml.safe_dump(yaml.safe_load(config) | {"tags": None})
            if told in same:
                raise ConfigError(f"{name} and {same[told]} are the same run; remove one of them")
            same[told], args.name = name, name
            words = {key: word for key, (_, word) in chosen.items()}
            where, whole = sweep.directory / name, resolved(args, parser)
            runs.append(PlannedRun(name, group, case, words, seed, where, whole, args.federation.rounds))
    return runs


def run_sweep(sweep: Sweep, jobs: int = 1, console: Console | None = None) -> pd.DataFrame:
    """Run what is not finished; write and return one row a run, as in ``sweep.csv``.

    A signal ends the runs at a checkpoint, and then this process by ``SystemExit``.

    Args:
        sweep: what to run.
        jobs: runs side by side.
        console: to print to; standard output by default.

    Returns:
        name, case, a column for each key of the grid, seed, status (``finished``, ``failed``, ``stopped`` or
        ``waiting``), a column of the metric, best_round, directory.

    Raises:
        ConfigError: a mistake in any run; nothing has been started.
        CheckpointError: a run of this name has another configuration; nothing has been started.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs: expected at least 1, found {jobs}")
    console = console or Console(highlight=False, markup=False, soft_wrap=True)
    runs = plan(sweep)
    with _alone(sweep.directory):
        standings = {run.name: run.standing() for run in runs}
        statuses: dict[str, Status] = {n: "finished" if s == "finished" else "waiting" for n, s in standings.items()}
        todo = {run.name: run for run in runs if standings[run.name] != "finished"}
        console.print(f"{len(runs)} runs, {len(runs) - len(todo)} finished before: {sweep.directory}")
        progress = SweepProgress(len(runs), len(runs) - len(todo), jobs, console)

        def started(job: Job) -> None:
            todo[job.name].reserve()
            progress.started(job.name)

        def ended(job: Job, code: int) -> None:
            run = todo[job.name]
            run.release()
            statuses[run.name] = _status(run, code)
            if statuses[run.name] == "finished":
                outcome = f"{sweep.metric} {run.metric(sweep.metric):.4f}"
            else:
                outcome = f"{statuses[run.name]} (exit code {code})"
            progress.ended(run.name, outcome)
            if statuses[run.name] == "failed":
                console.print(f"the end of {job.log}:\n{_last_lines(job.log)}", style="red")
            _write(_table(sweep, runs, statuses), sweep)

        with progress:
            signum = run_jobs([run.job() for run in todo.values()], jobs, started, ended, progress.tick)
        table = _table(sweep, runs, statuses)
        _write(table, sweep)
    if signum:
        console.print("stopped by a signal; to continue, the same command again")
        raise SystemExit(128 + signum)
    return table


def summary(sweep: Sweep, table: pd.DataFrame) -> Table:
    """Mean and standard deviation of the metric over the seeds, by case and point of the grid."""
    by = [*(["case"] if sweep.cases else []), *sweep.grid]
    shown = Table(title=f"{sweep.metric}, mean over seeds", title_justify="left")
    for name in by:
        shown.add_column(name)
    for name in ("mean", "standard deviation", "runs"):
        shown.add_column(name, justify="right")
    groups = table.groupby(by, sort=False) if by else [((), table)]
    for point, rows in groups:
        values = rows[sweep.metric].dropna()
        numbers = (values.mean(), values.std())
        texts = (f"{number:.4f}" if number == number else "-" for number in numbers)
        shown.add_row(*map(str, point), *texts, f"{len(values)}/{len(rows)}")
    return shown


def _table(sweep: Sweep, runs: Sequence[PlannedRun], statuses: Mapping[str, Status]) -> pd.DataFrame:
    rows = []
    for run in runs:
        result = Result.read(run.directory) if statuses[run.name] == "finished" else None
        row = {"name": run.name, "case": run.case, **run.point, "seed": run.seed, "status": statuses[run.name]}
        row[sweep.metric] = run.metric(sweep.metric) if result else float("nan")
        rows.append(row | {"best_round": result.best_round if result else None, "directory": str(run.directory)})
    return pd.DataFrame(rows).astype({"best_round": "Int64"})


def _write(table: pd.DataFrame, sweep: Sweep) -> None:
    temporary = sweep.directory / ".sweep.csv"
    table.to_csv(temporary, index=False)
    os.replace(temporary, sweep.directory / "sweep.csv")


def _status(run: PlannedRun, code: int) -> Status:
    if code == 0 and Result.read(run.directory):
        return "finished"
    return "stopped" if code in STOPPED else "failed"


def _last_lines(log: Path, count: int = 15) -> str:
    with log.open(errors="replace") as file:
        return "".join(f"  {line}" for line in deque(file, maxlen=count)).rstrip()


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keep other sweeps out of a folder; the system forgets it when the process dies.

    Raises:
        ConfigError: another one is at work.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".sweep.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another fedlit sweep is at work in {directory}; wait for it, or stop it") from error
        yield


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
