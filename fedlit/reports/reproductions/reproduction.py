"""A reproduction: starts the runs of its document, and writes their tables and figures."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from rich.console import Console

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.core.system.spreadsheets import write_csv
from fedlit.data.folders import found_below
from fedlit.experiment.grid import folders_of, plan
from fedlit.experiment.options import experiment_parser
from fedlit.experiment.plan import DATA_SEED, Plan, load_plan
from fedlit.experiment.planned_run import PlannedRun
from fedlit.experiment.sweep import run_sweep
from fedlit.reports.compare.styles import save
from fedlit.reports.reproductions import rates
from fedlit.reports.reproductions.announcement import announced
from fedlit.reports.reproductions.costs import Estimate
from fedlit.reports.reproductions.document import LINKED, Document, Scale, SweepPart, find, read_document
from fedlit.reports.reproductions.making import arguments, make, maker
from fedlit.reports.reproductions.places import Place
from fedlit.reports.reproductions.plans import fetches, run_plan, runs_of_plan, unfinished, with_bodies
from fedlit.reports.reproductions.published import Paper, read_paper
from fedlit.reports.reproductions.report import OTHER_DATA, Report, Reporter, own_kinds
from fedlit.reports.reproductions.seeds import SeedsReport
from fedlit.tracking.mlflow import noted_opening

REPORTS: dict[str, type[Reporter]] = {"seeds": SeedsReport}
"""Kinds of report by name; their fields are the other keys of ``report`` in a document.

A paper's own kinds are the dataclasses with a method ``make`` in ``tables.py`` of its folder.
"""


@dataclass
class Reproduction:
    """A paper's figure or table.

    Args:
        name: Name of the figure or table, as ``fedlit list reproductions`` shows it, or your own YAML document.
        root: Folder of the data that are not built in, or the folder above if it holds them once.
        scale: ``laptop`` (minutes on two cores), ``paper`` (the settings of the paper's text) or ``linked`` (those of
            the authors' released code, if they differ). Runs and report of ``linked`` have folders of that name.
        seeds: Seeds of the runs, the same for every method. By default three, for surgical-tables one.
        jobs: Number of runs at the same time.
        output: Folder for the figure and the tables, which are written to OUTPUT/NAME/.
        run_dir: Folder for the runs, which are written to RUN_DIR/EXPERIMENT/; finished runs are not repeated.
        set: Keys for all runs, which override those of the reproduction: ``--set '{data.image_size: 128}'``. The report
            lists them. An existing run with other settings is an error: choose another ``--run_dir``.
        set_body: Keys for the bodies from which runs start; ``set`` does not apply to bodies.
        weights: Local file of weights for the backbone, instead of pretrained ones from timm's hub.
        workers: Number of worker processes of each run, as ``federation.workers``.
        accelerator: Accelerator of all runs, as ``fabric.accelerator``.
        devices: Devices of each run, as ``fabric.devices``.
        precision: Precision of all runs, as ``fabric.precision``.
        dry_run: Print the runs, their steps, the required files and the estimated cost, and exit. This needs neither
            data nor a network connection.
        seconds_per_step: Time of a local step for this estimate, in seconds; by default a few steps are timed here.

    Raises:
        ConfigError: The reproduction does not exist; ``weights`` do not exist, or are given although the reproduction
            fetches none; or a time is not above 0.
    """

    name: str
    root: Path | None = None
    scale: Literal["laptop", "paper", "linked"] = "laptop"
    seeds: list[int] | None = None
    jobs: int = 2  # The command sets a cluster in its place.
    output: Path = Path("reproductions")
    run_dir: Path = Path("runs")
    set: dict[str, Any] = field(default_factory=dict)
    set_body: dict[str, Any] = field(default_factory=dict)
    weights: Path | None = None
    workers: int | None = None
    accelerator: str | None = None
    devices: int | str | None = None
    precision: str | None = None
    dry_run: bool = False
    seconds_per_step: float | None = None
    document: Document = field(init=False, repr=False)
    seeds_given: list[int] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.document = read_document(find(self.name))
        if self.scale not in self.document.scales:
            scales = " or ".join(self.document.scales)
            raise ConfigError(f"--scale: expected {scales}, which {self.name} has, found {self.scale}; choose {scales}")
        self.seeds_given = self.seeds
        self.seeds = self.document.seeds if self.seeds is None else self.seeds
        if self._makes:
            self._maker()
        elif isinstance(reporter := self._reporter(), SeedsReport):
            reporter.check_cases(self.chosen, self.document.place.below("scales", self.scale, "report"))
        self._check_tables()
        if self.seconds_per_step is not None and not self.seconds_per_step > 0:
            raise ConfigError(f"--seconds_per_step: expected seconds above 0, found {self.seconds_per_step:g}")
        if self.weights is not None and not self.weights.exists():
            raise ConfigError(f"--weights {self.weights}: no such file")
        plans = [each for planned in self.plans.values() for each in with_bodies(planned)]
        fetched = (
            any(self._fetches(part) for part in self._all_parts())
            or self.chosen.report.get("backbone")
            or any("model.weights" in each.given for each in plans)
        )
        if self.weights is not None and not fetched:
            raise ConfigError(
                f"--weights: nothing in {self.name} at {self.scale} scale starts from pretrained weights; leave it "
                "out, or choose them with --set '{model.weights: FILE}'"
            )

    @property
    def chosen(self) -> Scale:
        """The chosen scale of the document."""
        return self.document.scales[self.scale]

    @property
    def _makes(self) -> bool:
        """True if a function of ``tables.py`` makes the report, and not a kind of report."""
        return not self.chosen.parts and "kind" not in self.chosen.report

    @cached_property
    def plans(self) -> dict[str, Plan]:
        """The plans of the scale, by the names of their files without ending.

        Raises:
            ConfigError: A file does not exist or has a mistake, or two have the same name.
        """
        plans: dict[str, Plan] = {}
        for name in self.chosen.plans:
            planned = load_plan(self.document.file(name), "reproduce")
            if plans.setdefault(Path(name).stem, planned) is not planned:
                raise self.document.place.below("scales", self.scale, "plans").error(
                    f"expected files of different names, found two of {Path(name).stem}; rename one"
                )
        return {name: self._of_command(planned) for name, planned in plans.items()}

    def _of_command(self, planned: Plan) -> Plan:
        """Return a plan with what the command sets: its folder, keys and seeds, and those of its bodies."""
        *bodies, _ = with_bodies(planned)
        local = {"model.pretrained": False, "model.weights": str(self.weights.absolute())} if self.weights else {}
        given = self._given(self.set) | (local if fetches(planned) else {})
        of_bodies = self._given(self.set_body) | (local if any(map(fetches, bodies)) else {})
        seeds = planned.seeds if self.seeds_given is None else self.seeds_given
        return replace(
            planned, run_dir=str(self._apart(self.run_dir)), seeds=seeds, root=self.root or Path("ROOT"),
            given=given, given_bodies=of_bodies,
        )  # fmt: skip

    def parts(self) -> list[SweepPart]:
        """Return the first sweeps: all parts, or the runs from which rates are chosen."""
        return rates.tried_parts(self.chosen) if self.chosen.rates else list(self.chosen.parts.values())

    def following(self, runs: pd.DataFrame) -> list[SweepPart]:
        """Return the sweeps that depend on the results of the first ones: the runs of `parts`, as in `report`."""
        return rates.chosen_parts(runs, self.chosen) if self.chosen.rates else []

    def report(self, runs: pd.DataFrame) -> Report:
        """Make tables and figures of runs: part, title, case, the case's labels, seed, best_round, directory."""
        if self._makes:
            function, arguments = self._maker()
            return make(function, runs, arguments)
        if not self.chosen.rates:
            return self._reporter().make(runs, self.chosen)
        of_parts = runs["part"].isin([part.experiment for part in self.chosen.parts.values()])
        report = self._reporter().make(runs[of_parts], self.chosen)
        tried = rates.with_validation(runs[~of_parts], self.chosen.rates)
        text = f"{report.text}\n{rates.choice_text(tried, self.chosen.rates)}\n"
        return Report(text, report.tables | {"grid": tried}, report.figures)

    def sweep(self, part: SweepPart, starts: Mapping[int, Path] | None = None) -> Plan:
        """Return the sweep of a part; ``starts`` has for each seed the run from whose weights its runs start."""
        settings = part.settings | {f"data.{key}": str(folder) for key, folder in self._folders(part).items()}
        weights = {seed: str(start.absolute()) for seed, start in (starts or {}).items()}
        settings |= {"model.weights": next(iter(weights.values()))} if weights else {}
        if self.weights is not None and self._fetches(part):
            settings |= {"model.pretrained": False, "model.weights": str(self.weights.absolute())}
        of_user = self._keys_of_user(part)
        return Plan(
            part.experiment,
            [str(self.document.file(part.config))],
            settings | of_user,
            {name: case.keys | of_user for name, case in part.cases.items()},
            seeds=list(part.seeds or self.seeds),
            metric=part.metric,
            run_dir=str(self._apart(self.run_dir)),
            weights=weights,
        )

    def _folders(self, part: SweepPart) -> dict[str, Path]:
        root, config = self.root or Path("ROOT"), documents.load_mapping(self.document.file(part.config))
        return {key: found_below(root, path, config, key) for key, path in part.roots.items()}

    def plan(self) -> dict[str, list[PlannedRun]]:
        """Return the runs of every part by experiment, with complete configurations; nothing is trained."""
        parts = [each for part in self.parts() for each in (self._body(part), part) if each is not None]
        parser = experiment_parser()
        runs = {part.experiment: plan(self.sweep(part), parser) for part in parts}
        for planned in self.plans.values():
            for experiment, more in runs_of_plan(planned, parser).items():  # plans may share an experiment and runs
                every = {run.name: run for run in (*runs.get(experiment, ()), *more)}
                runs[experiment] = list(every.values())
        return runs

    def tables(self) -> dict[Path, Callable[[], list[PlannedRun]]]:
        """Return functions that return the planned runs, by the tables of the runs."""
        return {
            runs[0].directory.parent / ("tune.csv" if runs[0].stage else "sweep.csv"): partial(list, runs)
            for runs in self.plan().values()
        }

    def announcement(self) -> str:
        """Return the planned runs and their cost as text; this needs no data and no network, and writes nothing."""
        parts = list({part.experiment: part for part in self._all_parts()}.values())
        plans = [*map(self.sweep, parts), *(each for planned in self.plans.values() for each in with_bodies(planned))]
        estimate = Estimate(self.chosen.images, self.seconds_per_step)
        folders = list(dict.fromkeys(folder for part in parts for folder in self._folders(part).values()))
        folders = list(dict.fromkeys([*folders, *(f for each in plans for f in folders_of(each).values())]))
        text = announced(self.chosen, plans, folders, estimate)
        title = f"# {self.document.name} at {self.scale} scale: {self.document.shows}"
        return "\n".join([title, "", *self._set_by_hand(), text])

    def run(self, console: Console) -> None:
        """Start missing runs, and write and print the report; with ``dry_run`` print only the announcement."""
        if self.dry_run:
            console.print(self.announcement())
            return
        self._check_root()
        runs = pd.concat([pd.DataFrame(), *(self._runs(part, console) for part in self.parts())], ignore_index=True)
        more = [self._runs(part, console) for part in self.following(runs)]
        planned = [run_plan(name, each, self.jobs, console) for name, each in self.plans.items()]
        runs = pd.concat([runs, *more, *planned], ignore_index=True)
        report = self.report(runs)
        folder = self._apart(self.output / self.document.name)
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in (report.tables | {"runs": runs}).items():
            write_csv(table, folder / f"{name}.csv")
        for name, figure in report.figures.items():
            for ending in ("png", "svg"):
                save(figure, folder / f"{name}.{ending}")
        text = self._page(report)
        (folder / "report.md").write_text(text, encoding="utf-8")
        console.print(text)
        console.print(f"report, tables and figures: {folder}")
        by = "plan" if self.plans else "part"
        openings = [noted_opening(each) for each in (runs.groupby(by)["directory"].first() if len(runs) else ())]
        for line in dict.fromkeys(line for opening in openings for line in opening.splitlines()):
            console.print(line)

    def _maker(self) -> tuple[Callable[..., Report], dict[str, Any]]:
        """Return the function of ``tables.py`` that makes the report, and its arguments besides the runs."""
        written, place = dict(self.chosen.report), self.document.place.below("scales", self.scale, "report")
        function = maker(self.document.homes, str(written.pop("make", "make")), place)
        others = {"root": self.root, "weights": self.weights}
        return function, arguments(function, written, others, self.document.file, place)

    def _reporter(self) -> Reporter:
        """Make the report of the kind, and with the fields, that the document names; paths are those of its files."""
        keys, place = dict(self.chosen.report), self.document.place.below("scales", self.scale, "report")
        kind = str(keys.pop("kind", None))
        reporter = REPORTS.get(kind) or self._own_reporter(kind, place)
        every = {"root": self.root, "weights": self.weights}
        others = {each.name: every[each.name] for each in fields(reporter) if each.name in every}
        files = [each.name for each in fields(reporter) if each.type is Path and isinstance(keys.get(each.name), str)]
        others |= {name: self.document.file(keys[name]) for name in files}
        return place.checked(reporter, keys, **others)

    def _own_reporter(self, kind: str, place: Place) -> type[Reporter]:
        """Return a kind of report from ``tables.py`` of the document's folder, or of those of its bases."""
        try:
            own = own_kinds(self.document.homes)
        except (Exception, SystemExit) as error:  # the user's own file may fail in any way
            why = f"{type(error).__name__}: {error}"
            raise place.error(f"kind: tables.py of its folder cannot be imported: {why}; correct it") from error
        if not is_dataclass(own.get(kind)):
            kinds = ", ".join([*REPORTS, *own])
            raise place.error(
                f"expected a kind of {kinds}, or a dataclass with a method make in tables.py, found {kind!r}"
            )
        return own[kind]

    def _check_tables(self) -> None:
        tables = self._paper().tables if self.document.tables else {}
        if unknown := [title for title in self.document.tables if title not in tables]:
            raise self.document.place.below("tables").error(f"expected {', '.join(tables)}, found {unknown[0]!r}")

    def _paper(self) -> Paper:
        return read_paper(*self.document.homes)

    def _runs(self, part: SweepPart, console: Console) -> pd.DataFrame:
        starts = {}
        if part.body is not None:
            bodies = self._runs(self._body(part), console)
            starts = dict(zip(bodies["seed"], bodies["directory"], strict=True))
            starts = {seed: starts.get(seed, bodies["directory"].iloc[0]) for seed in part.seeds or self.seeds}
        sweep = self.sweep(part, starts)
        table = run_sweep(sweep, self.jobs, console)
        if part.may_fail:
            table = table[table["status"] != "failed"]
        missing = table[table["status"] != "finished"]
        if len(missing):
            raise ConfigError(unfinished(sweep.directory, missing))
        return pd.DataFrame(
            {"part": part.experiment, "title": part.title, "case": run.case}
            | (part.cases[run.case].labels if part.cases else {})
            | {"seed": run.seed, "best_round": run.best_round, "directory": Path(run.directory)}
            for run in table.itertuples()
        )

    def _page(self, report: Report) -> str:
        lines = [
            f"# {self.document.name}: {self.document.shows}",
            "",
            f"## Ours, at {self.scale} scale",
            "",
            f"From {self.chosen.data}.{self._drawn()}",
            "",
            *self._set_by_hand(),
            report.text,
        ]
        if self.document.tables:
            paper = self._paper()
            reading = report.how_to_read if self._makes else getattr(self._reporter(), "how_to_read", OTHER_DATA)
            lines += ["## Published", "", f"{paper.source}. {reading}", ""]
            lines += [paper.tables[title].markdown() for title in self.document.tables]
        return "\n".join(lines)

    def _drawn(self) -> str:
        """Return a sentence on the seeds, and whether each has its own draw of the data."""
        if not (self.chosen.parts or self.plans):
            return ""
        kept = all(map(self._one_draw, self._all_parts())) and all(each.one_draw for each in self.plans.values())
        drawn = "on one draw of the data" if kept else "each with its own draw of what the data do not fix"
        of_plans = {name: each.seeds for name, each in self.plans.items()} or {"": self.seeds}
        plans: dict[str, list[str]] = defaultdict(list)
        for name, seeds in of_plans.items():
            plans[", ".join(map(str, seeds))].append(name)
        several = [f"{seeds} ({', '.join(names)})" for seeds, names in plans.items()]
        return f" Seeds: {'; '.join(several if len(plans) > 1 else plans)}, {drawn}."

    def _all_parts(self) -> list[SweepPart]:
        """Return all sweeps, bodies before the sweeps that start from them; rates are those of the configuration."""
        later = self.chosen.parts.values() if self.chosen.rates else ()
        return [each for part in (*self.parts(), *later) for each in (self._body(part), part) if each is not None]

    def _body(self, part: SweepPart) -> SweepPart | None:
        """Return the part of the bodies: one per seed, on its draw of the data, or only one if all share a draw."""
        kept = part.body is None or self._one_draw(part)
        return part.body if kept else replace(part.body, seeds=list(part.seeds or self.seeds))

    def _one_draw(self, part: SweepPart) -> bool:
        return bool(DATA_SEED & {*self.set, *part.settings})

    def _given(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of the command: those of its device and workers, and others."""
        devices = {f"fabric.{name}": getattr(self, name) for name in ("accelerator", "devices", "precision")}
        devices |= {"federation.workers": self.workers}
        return {key: value for key, value in devices.items() if value is not None} | dict(keys)

    def _keys_of_user(self, part: SweepPart) -> dict[str, Any]:
        """Return the keys that the user set for the runs of a part."""
        bodies = {each.body.experiment for each in self.chosen.parts.values() if each.body is not None}
        return self._given(self.set_body if part.experiment in bodies else self.set)

    def _fetches(self, part: SweepPart) -> bool:
        """Return whether runs of a part start from pretrained weights of timm's hub and not from a body."""
        model = documents.load_mapping(self.document.file(part.config)).get("model")
        arguments = model.get("init_args") or {} if isinstance(model, dict) else {}
        fetched = part.settings.get("model.pretrained", arguments.get("pretrained", False))
        return bool(fetched) and part.body is None

    def _apart(self, folder: Path) -> Path:
        """Return a folder, or its subfolder for the scale ``linked``, in which the same names have other settings."""
        return folder / LINKED if self.scale == LINKED else folder

    def _set_by_hand(self) -> list[str]:
        settings = [(runs, keys) for runs, keys in (("runs", self.set), ("bodies", self.set_body)) if keys]
        lines = [
            f"Set by hand for all {runs}: {', '.join(f'{k}: {v}' for k, v in keys.items())}." for runs, keys in settings
        ]
        return [*lines, ""] if lines else []

    def _check_root(self) -> None:
        wanted = self.chosen.root
        if wanted is not None and self.root is None:
            raise ConfigError(f"--root is needed: {wanted}; nothing is downloaded")
        if wanted is None and self.root is not None:
            others = [name for name, scale in self.document.scales.items() if scale.root is not None]
            advice = f", or add --scale {others[0]}" if others else ""
            raise ConfigError(f"--root: the data of the scale {self.scale} are built in; leave it out{advice}")
        if self.root is not None and not self.root.is_dir():
            raise ConfigError(f"--root {self.root}: no such folder; expected {wanted}")
