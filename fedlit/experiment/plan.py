"""Plans of many runs, for `fedlit sweep` and `fedlit tune`: what their YAML files have."""

import copy
import os
import re
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.core.system.shipped import patched, placed
from fedlit.experiment.mistakes import Sources, SweepSources, explain, files_of
from fedlit.experiment.naming import OF_RUNS, as_option, check_name
from fedlit.experiment.parser import Parser
from fedlit.experiment.ranges import Range, combinations, read_range
from fedlit.experiment.rule import VALIDATION, Rule
from fedlit.tracking.names import TEST

RESERVED_KEYS = ("config", "seed", "experiment", "name", "run_dir", "ckpt_path", "fast_dev_run")
"""Keys that a plan sets for each run."""

METRIC = "test/federation/auroc_macro"
"""Default metric of the summary; with a grid, from which the user selects a point, it is the validation AUROC."""

INDIVIDUAL, POOLED = "individual", "pooled"
"""Baselines of a federation: the model of each client, and one model of all data."""

BASELINES = {INDIVIDUAL: {}, POOLED: {"data.pooled": True}}
"""Keys of the baselines' cases, which train without an algorithm; individual models have a client each."""

DATA_SEED = {"data.seed", "data.init_args.seed"}
"""Keys with which all seeds share one draw of the data."""

MODEL = ".safetensors"
"""Ending of the file of a model from whose weights runs may start."""

SECTIONS = ("set", "cases", "grid", "ranges")
"""Keys of a plan whose values stay as in the file, because they contain keys of `fedlit fit`."""

INTERNAL = {"file", "weights", "points", "tags", "given", "given_bodies", "root"}
"""Fields of a plan that are not keys of its file."""


@dataclass(frozen=True)
class Plan:
    """A list of named runs: one for each case, combination of the grid's values and seed.

    With ranges it is a tuning: settings of each case are tried, and the best ones run with the seeds, at every value of
    the grid. Keys are those of ``fedlit fit``, dotted as on its command line (``model.optimizer.lr``) or nested as in a
    YAML. The grid and the ranges override the case, the case overrides ``set``, and ``set`` overrides ``config``.

    Args:
        experiment: Name of the plan, and of the group of its runs, on disk and in MLflow.
        config: YAML files from which all runs start, relative to the file of the plan, or installed with fedlit.
        set: Keys for all runs.
        cases: Named alternatives, each with its own keys. In a tuning they are the methods, and their key ``ranges``
            has ranges of only this method; null removes a shared one. Their key ``labels`` has columns of the table.
        grid: Lists of values by key, or the keys of named alternatives by the name of what varies, as in ``window:
            {short: {federation.schedule.window: 8}, long: {federation.schedule.window: 64}}``; the runs take all
            combinations.
        names: Name of each combination of a case and the grid, which is then its case, such as ``"{case}-{window}"``.
        leave_out: Names of combinations that do not run.
        labels: Columns of the table for all runs, by name.
        roots: Keys of the folders of data, and the path below ``--root`` that each of them gets.
        ranges: Ranges for all methods: lists of values by key, ``{low: 0.001, high: 1, scale: log}``, or as in the grid
            the keys of named alternatives. The first try has the ``default`` of each range that has one.
        baselines: Cases that fedlit adds: ``individual``, a model for each client from its own data, and ``pooled``,
            one model from all data. The names of the clients are read from the data.
        seeds: Seeds of the runs; in a tuning those of the final runs, different from those of the rule. They set the
            key ``seed``, and are added to ``data.seed``, so that each seed has its own data, split and partition,
            unless the source fixes them. ``data.seed`` in any section keeps one draw for all seeds.
        starts: YAML of another plan, relative to this file, whose runs train first. A run starts from the weights of
            its run with the same seed, or of its first run. If that file names no seeds, it has those of this plan, or
            the first of them if all share a draw of the data. Or an exported model (``.safetensors``), from which all
            runs start.
        tries: Number of settings that are tried for every method. A grid tries all.
        rule: The rule by which settings are chosen.
        sampler: ``random``, each try from another of equal parts of each range; ``grid``, which tries all combinations;
            or ``tpe``, which after three random tries suggests others from the results.
        search_seed: Seed of the draws.
        metric: Metric of the summary: a test metric, or another metric in ``metrics.csv`` at the round of the best
            model. By default ``val/auroc_macro`` with a grid, and ``test/federation/auroc_macro`` without.
        run_dir: Folder of all runs: RUN_DIR/EXPERIMENT/NAME/.
        file: File of the plan, for messages.
        weights: Weights from which the runs of a seed start, by seed.
        points: Combinations of the grid's values that are run; None for all.
        tags: Tags of all runs, besides those of their case and values.
        given: Keys of the command line, which override those of every section.
        given_bodies: Those of the runs that train first.
        root: Folder of the data, which ``roots`` need.

    Raises:
        ConfigError: A list is empty, a range, a seed or a number of tries does not fit, a name cannot be that of a
            folder, or a key is one that the plan sets.
    """

    experiment: str
    config: list[str] = field(default_factory=list)
    set: dict[str, Any] = field(default_factory=dict)
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    grid: dict[str, list[Any] | dict[Any, dict[str, Any]]] = field(default_factory=dict)
    ranges: dict[str, Any] = field(default_factory=dict)
    names: str = ""
    leave_out: list[str] = field(default_factory=list)
    labels: dict[str, Any] = field(default_factory=dict)
    roots: dict[str, str] = field(default_factory=dict)
    baselines: list[Literal["individual", "pooled"]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=lambda: [0])
    starts: str | None = None
    tries: int | None = None
    rule: Rule = field(default_factory=Rule)
    sampler: Literal["random", "grid", "tpe"] = "random"
    search_seed: int = 0
    metric: str = ""
    run_dir: str = "runs"
    file: Path | None = None
    weights: dict[int, str] = field(default_factory=dict)
    points: Sequence[Mapping[str, Any]] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    given_bodies: Mapping[str, Any] = field(default_factory=dict)
    root: Path | None = None

    def __post_init__(self) -> None:
        for name, values in (("seeds", self.seeds), *((f"grid.{key}", values) for key, values in self.grid.items())):
            if not values:
                raise ConfigError(f"{name}: expected at least one value, found none; leave the key out, or add values")
        if not self.metric:
            object.__setattr__(self, "metric", VALIDATION if self.selects else METRIC)
        elif self.selects and self.metric.startswith(TEST):
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
        named = [keys for axis in self.grid.values() if isinstance(axis, Mapping) for keys in axis.values()]
        for section in (self.set, *self.cases.values(), self.grid, *named, self.rule.set, self.given):
            for key in options_of(section):
                if key in RESERVED_KEYS:
                    advice = "use seeds" if key == "seed" else "leave it out"
                    raise ConfigError(f"{key}: a sweep sets it for each run; {advice}")
        if self.is_tuning:
            self._check_tuning()

    def _check_tuning(self) -> None:
        if self.baselines:
            raise ConfigError("baselines: expected none in a plan with ranges; write them into a sweep of its own")
        of_finals = {"grid": self.grid, "names": self.names, "rule.experiment": self.rule.experiment}
        if self.rule.by == "seed" and (unfit := [name for name, value in of_finals.items() if value]):
            raise ConfigError(f"{unfit[0]}: expected none with rule.by: seed, whose final runs are tries; leave it out")
        if self.rule.experiment:
            if len({*map(self.experiment_of_tries, self.cases)}) < len(self.cases):
                raise ConfigError(
                    "rule.experiment: expected a name with {case}, as the tries of different methods have the same "
                    f"names, found {self.rule.experiment}; add it"
                )
            for case in self.cases:
                check_name("rule.experiment", self.experiment_of_tries(case), OF_RUNS)
        tried = [] if self.rule.by == "seed" else self.seeds_of_tries
        for key, values in (("cases", self.cases), ("rule.seeds", self.seeds_of_tries)):
            if not values:
                raise ConfigError(f"{key}: expected at least one, found none; add one")
        for key, values in (("seeds", self.seeds), ("rule.seeds", tried)):
            if len({*values}) < len(values):
                raise ConfigError(f"{key}: expected different seeds, found {values}; remove the repeated one")
        if both := sorted({*self.seeds} & {*tried}):
            raise ConfigError(
                f"seeds: expected final seeds that differ from rule.seeds, found {both[0]} in both; the final runs "
                "must not repeat what the choice has seen, so choose another seed, or let each seed choose with "
                "rule: {by: seed}"
            )
        if self.rule.by == "seed" and self.sampler == "tpe":
            raise ConfigError(
                "sampler: expected random or grid with rule.by: seed, found tpe, whose suggestions for one seed would "
                "follow from the results of the others; change one of them"
            )
        if self.sampler != "grid" and (self.tries is None or self.tries < 1):
            raise ConfigError(f"tries: expected a number of at least 1, found {self.tries}; or set sampler: grid")
        sizes = {case: combinations(ranges) for case, ranges in self.ranges_of.items()}
        if self.sampler == "grid" and len({*sizes.values()}) > 1:
            found = ", ".join(f"{case}: {size}" for case, size in sizes.items())
            raise ConfigError(
                f"ranges: expected grids of the same size, found {found}; every method gets the same number of tries, "
                "so set sampler: random and tries"
            )

    @property
    def seeds_of_tries(self) -> list[int]:
        """Seeds with which each setting is tried."""
        if self.rule.by == "seed":
            return self.seeds
        return [100] if self.rule.seeds is None else self.rule.seeds

    @property
    def is_tuning(self) -> bool:
        """True if settings are tried."""
        return bool(self.ranges) or any(keys.get("ranges") for keys in self.cases.values())

    @property
    def selects(self) -> bool:
        """True if the user selects a point of the grid by the summary."""
        return bool(self.grid and not self.names and not self.is_tuning)

    def experiment_of_tries(self, case: str) -> str:
        """Return the experiment of a method's tries.

        Raises:
            ConfigError: The rule's experiment has other names in braces.
        """
        try:
            return self.rule.experiment.format(experiment=self.experiment, case=case) or self.experiment
        except (LookupError, ValueError, AttributeError, TypeError) as error:
            raise ConfigError(
                "rule.experiment: expected names in braces among experiment and case, found "
                f"{self.rule.experiment!r}; correct it"
            ) from error

    @cached_property
    def ranges_of(self) -> dict[str, dict[str, Range]]:
        """The ranges of each method, by case and key.

        Raises:
            ConfigError: A method has no range, or one that is not valid.
        """
        ranges = {}
        for case, keys in self.cases.items():
            of_case = keys.get("ranges") or {}
            if not isinstance(of_case, Mapping):
                raise ConfigError(f"{self._where('ranges', case)}: expected ranges by key, found {as_option(of_case)}")
            merged = {key: value for key, value in {**self.ranges, **of_case}.items() if value is not None}
            if not merged:
                raise ConfigError(f"cases.{case}: expected at least one range, found none; add ranges")
            if reserved := [key for key in merged if key.split(".")[0] in RESERVED_KEYS]:
                raise ConfigError(f"{self._where(reserved[0], case)}: expected a setting of the method; leave it out")
            ranges[case] = {key: read_range(value, self._where(key, case)) for key, value in merged.items()}
        return ranges

    def _where(self, key: str, case: str) -> str:
        place = SweepSources((), self.file, case).where(key.replace(".init_args", "").rstrip("+"))
        return f"ranges.{key} ({place})" if place else f"ranges.{key}"

    @property
    def one_draw(self) -> bool:
        """True if ``data.seed`` is set for all runs, whose seeds then share one draw of the data."""
        return bool(DATA_SEED & {*self.set, *self.given})

    @property
    def directory(self) -> Path:
        """Folder of the runs."""
        return Path(self.run_dir) / self.experiment

    @property
    def table(self) -> Path:
        """File with one row per run."""
        return self.directory / ("tune.csv" if self.is_tuning else "sweep.csv")

    @property
    def start(self) -> Path | None:
        """File from which runs start: another plan, or a model.

        Raises:
            ConfigError: It does not exist.
        """
        if self.starts is None:
            return None
        file = Path(self.file or "").parent / self.starts
        if not file.is_file():
            raise ConfigError(
                f"starts: expected the YAML of a sweep or a model ({MODEL}), found no file {file}; write its path"
            )
        return file

    @cached_property
    def bodies(self) -> "Plan | None":
        """The plan that trains first, if runs start from the weights of its runs.

        Raises:
            ConfigError: It does not exist, or has a mistake.
        """
        file = self.start
        if file is None or file.suffix == MODEL:
            return None
        if self.file is not None and file.samefile(self.file):
            raise ConfigError(
                "starts: expected the YAML of another sweep, found this file; name the one that trains first"
            )
        bodies, seeds = load_plan(file, "sweep"), self.seeds[:1] if self.one_draw else self.seeds
        seeds = list(dict.fromkeys([*seeds, *(self.seeds_of_tries if self.is_tuning and not self.one_draw else ())]))
        bodies = replace(
            bodies, run_dir=self.run_dir, seeds=bodies.seeds if "seeds" in layered(file) else seeds, root=self.root,
            given=self.given_bodies, given_bodies=self.given_bodies,
        )  # fmt: skip
        if len(bodies.cases) > 1 or any(len(values) > 1 for values in bodies.grid.values()) or bodies.baselines:
            raise ConfigError(
                f"starts: expected one run for each seed, found several cases or a grid in {file}; leave one of them"
            )
        if bodies.experiment == self.experiment:
            raise ConfigError(
                f"experiment: expected another name than that of {file}, found {self.experiment}; rename it"
            )
        return bodies


def load_plan(path: str | Path, command: Literal["sweep", "tune", "reproduce"]) -> Plan:
    """Read the YAML of a plan for a command; a key without a value counts as left out.

    Raises:
        ConfigError: The file cannot be read, a key is unknown, or a value has another type; names the place. Or it has
            ranges for ``sweep``, or none for ``tune``.
    """
    path, sources, parser = Path(path), Sources((command, "--config", str(path))), _parser()
    accepted = {*parser.get_defaults().keys()}
    try:
        content = {k: v for k, v in layered(path).items() if v is not None or k not in accepted}
    except OSError as error:
        raise ConfigError(f"{error.filename or path}: {error.strerror}") from error
    try:
        if content.get("cases") == {}:
            raise ConfigError("cases: expected at least one, found none; add one, or leave the key out")
        # Values stay as in the file, because the parser adds arguments to classes of other libraries.
        extra = {key: content[key] for key in SECTIONS if content.get(key)}
        keys = vars(parser.instantiate(parser.parse_object(copy.deepcopy(content)))) | extra
        if isinstance(rule := content.get("rule"), Mapping) and rule.get("set"):
            keys["rule"] = replace(keys["rule"], set=rule["set"])
        files = [placed(name, str(path.parent)) for name in keys["config"]]
        plan = Plan(**keys | {"config": files, "file": path})
        if plan.is_tuning and command == "sweep":
            raise ConfigError(
                "ranges: expected a grid, found ranges, whose values `fedlit tune` draws; use fedlit tune"
            )
        if not plan.is_tuning and command == "tune":
            case = next(iter(plan.cases), None)
            of = f"cases.{case}" if case else "cases"
            raise ConfigError(f"{of}: expected at least one range, found none; add ranges")
    except ArgumentError as error:
        options = [name for key in parser.get_defaults().keys(branches=True) for name in (key, key.rpartition(".")[2])]
        raise ConfigError(f"{path}: {explain(error, sources, options)}") from error
    except ConfigError as error:
        key = re.match(r"[\w.]*", str(error))[0]  # with which the message begins
        raise ConfigError(f"{place_of(path, key)}: {error}") from error
    return plan


@cache
def _parser() -> Parser:
    parser = Parser(exit_on_error=False)
    parser.add_class_arguments(Plan, skip=INTERNAL)
    return parser


def place_of(file: Path, *keys: str) -> str:
    """Return ``FILE, line N`` of the first of some keys that a plan or its base has, or only the file."""
    files = [*files_of(file)]
    places = (Sources(("plan", "--config", str(each))).where(key) for key in keys for each in files)
    return next(filter(None, places), str(file))


def layered(file: Path, derived: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the content of a file of a plan, laid over that of its ``base``, another file or several, if it has one.

    Raises:
        ConfigError: The base is one of the files that are based on it, or is no path.
    """
    content = documents.load_mapping(file)
    if "base" not in content:
        return content
    named, derived, below = content.pop("base"), (*derived, file.resolve()), {}
    for name in named if isinstance(named, list) else [named]:
        if not isinstance(name, str) or (base := file.parent / name).resolve() in derived:
            raise ConfigError(f"{file}: base: expected the path of another plan, found {name!r}; correct it")
        layer = layered(base, derived)
        if base.parent != file.parent:
            away = Path(os.path.relpath(base.parent, file.parent))
            files = [str(away / each) if (base.parent / each).exists() else each for each in layer.get("config") or []]
            layer |= {"config": files} if files else {}
            layer |= {"starts": str(away / layer["starts"])} if layer.get("starts") else {}
        below = patched(below, layer)
    return patched(below, content)


def options_of(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings by dotted key, as options of the command line; classes stay mappings."""
    options: dict[str, Any] = {}
    for key, value in settings.items():
        if hasattr(value, "items") and value and "class_path" not in value:
            options |= options_of(value, f"{prefix}{key}.")
        else:
            options[prefix + key] = value
    return options
