"""A reproduction: starts the runs of its document, and writes their tables and figures."""

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import pandas as pd
from rich.console import Console

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.core.system.files import write_csv
from fedlit.experiment.grid import folders_of, plan
from fedlit.experiment.naming import shortest
from fedlit.experiment.options import experiment_parser
from fedlit.experiment.parser import Parser
from fedlit.experiment.plan import Plan, load_plan
from fedlit.experiment.planned_run import LOG, PlannedRun
from fedlit.experiment.sweep import run_sweep
from fedlit.experiment.tuning import first_points_of, run_tuning, runs_of
from fedlit.reports.compare.styles import save
from fedlit.reports.reproductions.costs import Estimate, announced
from fedlit.reports.reproductions.document import LINKED, Document, Scale, find, read_document
from fedlit.reports.reproductions.published import Paper, read_paper
from fedlit.reports.reproductions.report import Report, arguments, make, maker
from fedlit.tracking.mlflow import noted_opening


@dataclass
class Reproduction:
    """A paper's figure or table.

    Args:
        name: Name of the figure or table, as ``fedlit list reproductions`` shows it, or your own YAML document.
        root: Folder of the data that are not built in, or the folder above if it holds them once.
        scale: ``laptop`` (minutes on two cores), ``paper`` (the settings of the paper's text) or ``linked`` (those of
            the authors' released code, if they differ). Runs and report of ``linked`` have folders of that name.
        seeds: Seeds of the runs, the same for every method. By default those of the plans.
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

    def __post_init__(self) -> None:
        self.document = read_document(find(self.name))
        if self.scale not in self.document.scales:
            scales = " or ".join(self.document.scales)
            raise ConfigError(f"--scale: expected {scales}, which {self.name} has, found {self.scale}; choose {scales}")
        self._maker()
        self._check_tables()
        if self.seconds_per_step is not None and not self.seconds_per_step > 0:
            raise ConfigError(f"--seconds_per_step: expected seconds above 0, found {self.seconds_per_step:g}")
        if self.weights is not None and not self.weights.exists():
            raise ConfigError(f"--weights {self.weights}: no such file")
        plans = [each for planned in self.plans.values() for each in with_bodies(planned)]
        fetched = self.chosen.report.get("backbone") or any("model.weights" in each.given for each in plans)
        if self.weights is not None and not fetched:
            raise ConfigError(
                f"--weights: nothing in {self.name} at {self.scale} scale starts from pretrained weights; leave it "
                "out, or choose them with --set '{model.weights: FILE}'"
            )
        if self.set_body and not any(planned.bodies for planned in self.plans.values()):
            raise ConfigError(f"--set_body: nothing in {self.name} trains a body before its runs; leave it out")

    @property
    def chosen(self) -> Scale:
        """The chosen scale of the document."""
        return self.document.scales[self.scale]

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
        seeds = planned.seeds if self.seeds is None else self.seeds
        return replace(
            planned, run_dir=str(self._apart(self.run_dir)), seeds=seeds, root=self.root or Path("ROOT"),
            given=given, given_bodies=of_bodies, grid=self._restricted(planned),
        )  # fmt: skip

    def _restricted(self, planned: Plan) -> dict[str, Any]:
        """Return a plan's grid with only the values that the document names."""
        grid, short = dict(planned.grid), {label: key for key, label in shortest([*planned.grid]).items()}
        for label, chosen in self.chosen.only.items():
            values = planned.grid.get(short.get(label), ())
            if missing := [value for value in chosen if value not in values]:
                raise self.document.place.below("scales", self.scale, "only", label).error(
                    f"expected values of the grid of {planned.file} ({', '.join(map(str, values)) or 'none'}), found "
                    f"{missing[0]!r}"
                )
            grid[short[label]] = {value: values[value] for value in chosen} if isinstance(values, dict) else chosen
        return grid

    def report(self, runs: pd.DataFrame | None) -> Report:
        """Make tables and figures of the runs of all plans, as `run_plan` returns them; None if there are no plans."""
        function, arguments = self._maker()
        return make(function, runs, arguments)

    def plan(self) -> dict[str, list[PlannedRun]]:
        """Return the runs by experiment, with complete configurations; of tunings, the tries. Nothing is trained."""
        parser, runs = experiment_parser(), defaultdict(dict)
        for planned in self.plans.values():
            for experiment, more in runs_of_plan(planned, parser).items():  # plans may share an experiment and runs
                runs[experiment] |= {run.name: run for run in more}
        return {experiment: list(every.values()) for experiment, every in runs.items()}

    def tables(self) -> dict[Path, Callable[[], list[PlannedRun]]]:
        """Return functions that return the planned runs, by the tables of the runs."""
        plans = [each for planned in self.plans.values() for each in with_bodies(planned)]
        tables = {each.experiment: each.table for each in plans}
        return {tables[experiment]: partial(list, runs) for experiment, runs in self.plan().items()}

    def announcement(self) -> str:
        """Return the planned runs and their cost as text; this needs no data and no network, and writes nothing."""
        plans = [each for planned in self.plans.values() for each in with_bodies(planned)]
        estimate = Estimate(self.chosen.images, self.seconds_per_step)
        folders = list(dict.fromkeys(folder for each in plans for folder in folders_of(each).values()))
        text = announced(self.chosen, plans, folders, estimate)
        title = f"# {self.document.name} at {self.scale} scale: {self.document.shows}"
        return "\n".join([title, "", *self._set_by_hand(), text])

    def run(self, console: Console) -> None:
        """Start missing runs, and write and print the report; with ``dry_run`` print only the announcement."""
        if self.dry_run:
            console.print(self.announcement())
            return
        self._check_root()
        with patch.dict(os.environ, self.document.environment):  # libraries read it when the fork server loads them
            of_plans = [run_plan(name, each, self.jobs, console) for name, each in self.plans.items()]
        runs = pd.concat([pd.DataFrame(), *of_plans], ignore_index=True)
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
        openings = [noted_opening(each) for each in (runs.groupby("plan")["directory"].first() if len(runs) else ())]
        for line in dict.fromkeys(line for opening in openings for line in opening.splitlines()):
            console.print(line)

    def _maker(self) -> tuple[Callable[..., Report], dict[str, Any]]:
        """Return the function of ``tables.py`` that makes the report, and its arguments besides the runs."""
        written, place = dict(self.chosen.report), self.document.place.below("scales", self.scale, "report")
        function = maker(self.document.homes, str(written.pop("make", "make")), place)
        others = {"root": self.root, "weights": self.weights}
        return function, arguments(function, written, others, self.document.file, place)

    def _check_tables(self) -> None:
        tables = self._paper().tables if self.document.tables else {}
        if unknown := [title for title in self.document.tables if title not in tables]:
            raise self.document.place.below("tables").error(f"expected {', '.join(tables)}, found {unknown[0]!r}")

    def _paper(self) -> Paper:
        return read_paper(*self.document.homes)

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
            lines += ["## Published", "", f"{paper.source}. {report.how_to_read}", ""]
            lines += [paper.tables[title].markdown() for title in self.document.tables]
        return "\n".join(lines)

    def _drawn(self) -> str:
        """Return a sentence on the seeds, and whether each has its own draw of the data."""
        if not self.plans:
            return ""
        kept = all(each.one_draw for each in self.plans.values())
        drawn = "on one draw of the data" if kept else "each with its own draw of what the data do not fix"
        plans: dict[str, list[str]] = defaultdict(list)
        for name, each in self.plans.items():
            plans[", ".join(map(str, each.seeds))].append(name)
        several = [f"{seeds} ({', '.join(names)})" for seeds, names in plans.items()]
        return f" Seeds: {'; '.join(several if len(plans) > 1 else plans)}, {drawn}."

    def _given(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        devices = {f"fabric.{name}": getattr(self, name) for name in ("accelerator", "devices", "precision")}
        devices |= {"federation.workers": self.workers}
        return {key: value for key, value in devices.items() if value is not None} | dict(keys)

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


def runs_of_plan(planned: Plan, parser: Parser) -> dict[str, list[PlannedRun]]:
    """Return the runs of a plan by experiment, its bodies first; of a tuning those that are tried first."""
    runs: dict[str, list[PlannedRun]] = {}
    if planned.bodies is not None:
        runs |= runs_of_plan(planned.bodies, parser)
    if planned.is_tuning:
        tries = runs_of(planned, "try", first_points_of(planned), parser)
        return runs | {planned.experiment: [run for of_case in tries.values() for run in of_case]}
    return runs | {planned.experiment: plan(planned, parser)}


def with_bodies(planned: Plan) -> list[Plan]:
    """Return a plan, and before it the plans from whose weights its runs start."""
    return [*(with_bodies(planned.bodies) if planned.bodies is not None else ()), planned]


def fetches(planned: Plan) -> bool:
    """Return whether runs of a plan start from pretrained weights of timm's hub and not from a body."""
    models = [documents.load_mapping(Path(file)).get("model") for file in planned.config if Path(file).is_file()]
    written = [(each.get("init_args") or {}).get("pretrained") for each in models if isinstance(each, dict)]
    asked = planned.set.get("model.pretrained", next((each for each in reversed(written) if each is not None), False))
    return bool(asked) and planned.starts is None


def run_plan(name: str, planned: Plan, jobs: int, console: Console) -> pd.DataFrame:
    """Run what is missing of a plan; return its table with the column ``plan``, in which failed tries are left out.

    Raises:
        ConfigError: A run has not finished; says where its output is.
    """
    if planned.is_tuning:
        run_tuning(planned, jobs, console)
    else:
        run_sweep(planned, jobs, console)
    table = pd.read_csv(planned.table, dtype={"case": str, "name": str}).assign(plan=name)
    table["case"] = table["case"].fillna("")
    table["stage"] = table.get("stage", "")
    missing = table[(table["status"] != "finished") & (table["stage"] != "try")]
    if len(missing):
        raise ConfigError(unfinished(planned.directory, missing))
    table = table[table["status"] == "finished"].astype({"best_round": int})
    table["directory"] = table["directory"].map(Path)
    first = ["plan", "stage"]
    return table[[*first, *(column for column in table if column not in (*first, "status"))]]


def unfinished(directory: Path, missing: pd.DataFrame) -> str:
    """Return which runs of a table have not finished, and what to do."""
    failed: Sequence[str] = missing.loc[missing["status"] == "failed", "directory"].tolist()
    why = f"the end of {Path(failed[0]) / LOG} says why; finished runs are kept" if failed else "run again"
    return f"{len(missing)} runs of {directory} are not finished: {', '.join(missing['name'])}; {why}"
