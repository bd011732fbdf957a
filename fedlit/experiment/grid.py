"""The runs of a plan, in order, with complete configurations whose objects have been made once."""

import itertools
from argparse import ArgumentError
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import LightningModule

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.core.system.fetching import without_fetching
from fedlit.core.system.shipped import patched
from fedlit.data.folders import found_below
from fedlit.experiment.choices import short_names
from fedlit.experiment.mistakes import Sources, SweepSources, explain
from fedlit.experiment.naming import OF_RUNS, Names, as_folders, as_option, check_name, check_names, shortest
from fedlit.experiment.options import DEFAULT_CLASSES, experiment_parser, of_seed, one_draw, opened, resolved
from fedlit.experiment.parser import Parser, is_mistake
from fedlit.experiment.plan import BASELINES, INDIVIDUAL, Plan, options_of, place_of
from fedlit.experiment.planned_run import PlannedRun
from fedlit.tracking.loggers import tracker_of
from fedlit.tracking.names import STAGE

WEIGHTS = "model.init_args.weights"
"""Key of the run, or file, from whose weights a model starts."""


@dataclass(frozen=True)
class Combination:
    """A case with one combination of the grid's values: runs that differ only in their seed."""

    group: str
    case: str
    origin: str  # Case of the plan; another name than ``case`` if the plan has ``names``.
    chosen: Mapping[str, tuple[Any, str]]  # Value, and its text, by key.
    settings: Mapping[str, Any]  # Merged sections by dotted key.
    labels: Mapping[str, Any]

    @property
    def words(self) -> list[str]:
        """Options of the command line."""
        return [f"--{key}={as_option(value)}" for key, value in self.settings.items()]

    @property
    def shown(self) -> dict[str, str | float | bool | None]:
        """Values of the grid by key, lists and classes as text."""
        return {k: word if isinstance(value, (list, dict)) else value for k, (value, word) in self.chosen.items()}

    @property
    def tags(self) -> dict[str, str]:
        """Tags of the case and of the values."""
        tags = {"fedlit.method": self.case} if self.case else {}
        return tags | {key.rstrip("+"): word for key, (_, word) in self.chosen.items()}


def plan(planned: Plan, parser: Parser | None = None, bodies: Sequence[PlannedRun] | None = None) -> list[PlannedRun]:
    """Return the runs of a plan in order, with complete configurations whose objects have been made once.

    No weights are fetched, and data are read only for the clients' names of individual baselines. Many plans may
    share a ``parser``, which takes half a second to make, and ``bodies``, the runs from whose weights theirs start.

    Raises:
        ConfigError: A run has a mistake; names the run and the key.
    """
    for file in planned.config:
        if not Path(file).is_file():
            raise ConfigError(f"config: there is no file {file}; write paths relative to the file of the plan")
    parser = parser or experiment_parser()
    parser.exit_on_error = False
    if bodies is None:
        bodies = plan(planned.bodies, parser) if planned.bodies else []
    weights = planned.weights | starting_weights(planned.seeds, bodies)
    shared = [word for file in planned.config for word in ("--config", file)]
    runs: list[PlannedRun] = []
    names: dict[tuple[str, bool, int], str] = {}
    made: dict[object, Any] = {}
    for point in _with_clients(combinations_of(planned), planned, shared, parser):
        sources = SweepSources(("fit", *shared), planned.file, point.origin)
        with _explained(f"run {point.group or planned.experiment}", sources, parser):
            args = parser.parse_args([*DEFAULT_CLASSES, *shared, *point.words])
            whole = opened(args, several=True)  # what the environment lacks is found now
            data, model, federation, logger = (str(args[p]) for p in ("data", "model", "federation", "logger"))
            parts = ((data, model), federation, logger)
            if not {*parts} <= made.keys():
                with without_fetching():  # mistakes that constructors refuse are found now
                    objects = parser.instantiate(whole)
                seen = _shapes(objects.model), objects.federation.rounds, tracker_of(objects.logger)
                made |= zip(parts, seen, strict=True)
            body, rounds, tracker = map(made.__getitem__, parts)
            if bodies:
                _check_start(args, body, bodies[0])
        args.experiment, args.run_dir = planned.experiment, planned.run_dir
        args.ckpt_path, args.fast_dev_run, args.name = None, False, None
        tags, args.tags = {**args.tags, **point.tags, **planned.tags}, {}
        # Sections of the plan are in the settings; as a source, `data: CLASS` would be the place of all its keys.
        kept = one_draw(Sources(("fit", *shared)), point.settings)
        run = PlannedRun(
            group=point.group, case=point.case, labels=point.labels, point=point.shown, directory=planned.directory,
            rounds=rounds, tracker=tracker, body=body, stage=planned.tags.get(STAGE, ""), settings=whole,
        )  # fmt: skip
        repeated = ["seeds"] if len({*planned.seeds}) < len(planned.seeds) else []
        where = _where(planned, *repeated, f"cases.{point.origin}", "grid", "seeds")
        of_group = resolved(args, parser)
        runs += _of_seeds(run, of_group, planned.seeds, kept=kept, tags=tags, weights=weights, names=names, where=where)
    return runs


def starting_weights(seeds: Sequence[int], bodies: Sequence[PlannedRun]) -> dict[int, str]:
    """Return the directory of the run from whose weights the runs of each seed start; {} without bodies."""
    of_seed = {run.seed: run for run in reversed(bodies)}
    return {seed: str(of_seed.get(seed, bodies[0]).directory.absolute()) for seed in seeds if bodies}


def _shapes(model: LightningModule) -> dict[str, tuple[int, ...]]:
    return {name: tuple(each.shape) for name, each in model.named_parameters() if name.startswith("body.")}


def _check_start(args: Namespace, body: Mapping[str, tuple[int, ...]], start: PlannedRun) -> None:
    """Refuse a model that cannot start from the weights of a run that is planned before."""
    if WEIGHTS not in args:
        raise ConfigError(
            f"starts: expected a model with the argument weights, such as ImageClassifier, found "
            f"{args.model.class_path.rpartition('.')[2]}; leave starts out, or add the argument"
        )
    wrong = [name for name in {**body, **start.body} if body.get(name) != start.body.get(name)]
    if wrong:
        raise ConfigError(
            f"starts: expected the body of {start.directory}, whose {wrong[0]} is {start.body.get(wrong[0], 'absent')},"
            f" found {body.get(wrong[0], 'absent')} here; use the same backbone, norm, stem and channels"
        )


def _of_seeds(
    run: PlannedRun,
    of_group: str,
    seeds: Sequence[int],
    *,
    kept: bool,
    tags: Mapping[str, str],
    weights: Mapping[int, str] = {},
    names: dict[tuple[str, bool, int], str] | None = None,
    where: str = "",
) -> Iterator[PlannedRun]:
    """Yield a run of a group with each seed, and with the seed's draw of the data unless they are ``kept``.

    ``of_group`` is the configuration without name and tags, as YAML. ``names`` are those of earlier runs, by the
    group's configuration, draw and seed; the new ones are added.
    """
    names = {} if names is None else names
    settings = documents.parse(of_group)  # faster to write for each seed than from the parser
    data, model = settings["data"], settings["model"]
    for seed in seeds:
        settings["data"] = data if kept else of_seed(data, seed)
        if seed in weights:
            settings["model"] = model | {"init_args": model["init_args"] | {"weights": weights[seed]}}
        name = ",".join([run.group] * bool(run.group) + [f"seed={seed}"])
        check_name(f"{where}run {name[:80]}", name, OF_RUNS)
        if name in names.values():
            raise ConfigError(
                f"{where}run {name}: expected different values and seeds, found this run twice; remove one"
            )
        same = names.setdefault((of_group, kept or seed == 0, seed), name)
        if same != name:
            raise ConfigError(f"{where}runs {same} and {name} have the same configuration; remove one of them")
        settings |= {"seed": seed, "name": name, "tags": dict(tags)}
        yield replace(
            run, name=name, seed=seed, directory=run.directory / name, config=documents.dump(settings),
            data_seed=settings["data"].get("init_args", {}).get("seed"),
        )  # fmt: skip


def combinations_of(planned: Plan) -> Iterator[Combination]:
    """Yield each case with each combination of the grid's values."""
    short = shortest(list(planned.grid))
    words = {key: dict(zip(map(as_option, v), as_folders(v), strict=True)) for key, v in planned.grid.items()}
    every_name: set[str] = set()  # also those that are left out
    every = (dict(zip(planned.grid, values, strict=True)) for values in itertools.product(*planned.grid.values()))
    points = list(every) if planned.points is None else planned.points
    cases = {**planned.cases} or ({"federated": {}} if planned.baselines else {"": {}})
    cases |= {name: {"federation.aggregators": [], **BASELINES[name]} for name in dict.fromkeys(planned.baselines)}
    roots = folders_of(planned)
    for origin, point in itertools.product(cases, points):
        chosen = {key: (value, words[key][as_option(value)]) for key, value in point.items()}
        case, labels = origin, {**planned.labels, **cases[origin].get("labels", {})}
        group = ",".join([case] * bool(case) + [f"{short[key]}={word}" for key, (_, word) in chosen.items()])
        if planned.names:
            labels |= {short[key]: value for key, (value, _) in chosen.items()}
            group = case = _filled(planned, {"case": case, **{short[k]: word for k, (_, word) in chosen.items()}})
            chosen = {}
            every_name.add(case)
            if case in planned.leave_out:
                continue
        keys = {key: value for key, value in cases[origin].items() if key not in ("labels", "ranges")}
        settings = {key: str(folder) for key, folder in roots.items()} | options_of(planned.set) | options_of(keys)
        if planned.start and not planned.bodies:
            settings["model.weights"] = str(planned.start.absolute())
        for key, value in point.items():
            axis = planned.grid[key]
            settings |= options_of(axis[value] if isinstance(axis, Mapping) else {key: value})
        kept = {key: value for key, value in settings.items() if key not in planned.given}
        yield Combination(group, case, origin, chosen, {**kept, **planned.given}, labels)
    if unknown := [name for name in planned.leave_out if name not in every_name]:
        raise ConfigError(
            f"{_where(planned, 'leave_out')}leave_out: expected names among {', '.join(every_name)}, found {unknown[0]}"
        )


def folders_of(planned: Plan) -> dict[str, Path]:
    """Return the folders of the data below the plan's root by key.

    Raises:
        ConfigError: There is no root, or several folders below it hold the data.
    """
    missing = [key for key in planned.roots if key not in {*planned.given, *planned.set}]
    if missing and planned.root is None:
        raise ConfigError(f"roots: expected --root, the folder of the data for {', '.join(missing)}, found none")
    config: dict[str, Any] = {}
    for file in planned.config if missing else ():
        config = patched(config, documents.load_mapping(Path(file)))
    return {key: found_below(planned.root, planned.roots[key], config, key.removeprefix("data.")) for key in missing}


def _filled(planned: Plan, values: Mapping[str, str]) -> str:
    try:
        return planned.names.format(**values)
    except (LookupError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{_where(planned, 'names')}names: expected names in braces among {', '.join(values)}, found "
            f"{planned.names!r}"
        ) from error


def _where(planned: Plan, *keys: str) -> str:
    """Return the file of a plan and the line of the first of some keys that it has, before a message."""
    return f"{place_of(planned.file, *keys)}: " if planned.file else ""


def _with_clients(
    points: Iterable[Combination], planned: Plan, shared: Sequence[str], parser: Parser
) -> Iterator[Combination]:
    """Replace the point of individual models by one for each client of its data."""
    for point in points:
        if point.case != INDIVIDUAL or not planned.baselines:
            yield point
            continue
        with _explained(f"run {point.group}", SweepSources(("fit", *shared), planned.file, point.case), parser):
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
    check_names(args)
    (name, args.name), (tags, args.tags) = (args.name, None), (args.tags, {})
    whole, of_group = opened(args, several=True), resolved(args, parser)  # what the environment lacks is found now
    with without_fetching():
        objects = parser.instantiate(whole)  # mistakes that constructors refuse are found now
    names = Names.of(objects.federation, objects.model, documents.parse(of_group))
    run = PlannedRun(
        group=name or names.group, directory=Path(args.run_dir) / args.experiment,
        rounds=objects.federation.rounds, tracker=tracker_of(objects.logger),
    )  # fmt: skip
    return list(_of_seeds(run, of_group, seeds, kept=one_draw(parser.sources), tags=tags))


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
