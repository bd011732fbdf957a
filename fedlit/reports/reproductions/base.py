"""What a reproduction is: sweeps, and what is made of their runs.

A new one is a class on `Reproduction` with its parts (`Part`: a YAML and its cases) and `report`, which makes tables and
figures of the runs; `comparison` has the usual table.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console

from fedlit.errors import ConfigError
from fedlit.grid import LOG, PlannedRun, Sweep, plan
from fedlit.reports.compare.styles import save
from fedlit.reports.reproductions.published import read_paper
from fedlit.run import Result
from fedlit.sweep import run_sweep
from fedlit.tracking.base import MetricsFile


@dataclass(frozen=True)
class Case:
    """One configuration of a part; it runs with every seed.

    Attributes:
        keys: of the configuration.
        labels: what tables call it, such as method and window: columns of the runs.
    """

    keys: dict[str, Any]
    labels: dict[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One sweep: a federation, and runs that differ in a few keys.

    Attributes:
        name: experiment of the runs; reproductions share the runs of a part of one name.
        config: YAML.
        cases: by name; without any there is one run a seed.
        title: the federation as tables and figures call it.
        settings: keys of all cases beside the YAML's.
        body: the part, of one run, whose weights all runs start from.
        roots: keys of the configuration, and the path below ``--root`` that each names; none where data are built in.
        seeds: instead of the reproduction's.
        may_fail: runs that fail are left out, such as those of a rate that diverges.
        metric: that is told of a run when it ends.
    """

    name: str
    config: Path
    cases: dict[str, Case] = field(default_factory=dict)
    title: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    body: "Part | None" = None
    roots: dict[str, str] = field(default_factory=dict)
    seeds: tuple[int, ...] | None = None
    may_fail: bool = False
    metric: str = "test/federation/auroc_macro"


@dataclass(frozen=True)
class Scale:
    """What a reproduction takes.

    Attributes:
        data: that our numbers come from, in words.
        time: in words, on which machine.
        root: what ``--root`` has to name, in words; None where the data are built in.
    """

    data: str
    time: str
    root: str | None = None


@dataclass(frozen=True)
class Report:
    """What is made of the runs.

    Attributes:
        text: tables of our numbers as markdown.
        tables: by file name, without its ending.
        figures: likewise.
    """

    text: str
    tables: dict[str, pd.DataFrame]
    figures: dict[str, Figure] = field(default_factory=dict)


@dataclass
class Reproduction:
    """A paper's figure or table.

    Args:
        root: folder of the data that are not built in.
        scale: ``laptop``, minutes on two cores, or ``paper``, the paper's own settings.
        seeds: of the runs; every arm has the same. By default three, for surgical-tables one.
        jobs: runs side by side.
        output: figure and tables go to OUTPUT/NAME/.
        run_dir: runs go to RUN_DIR/EXPERIMENT/; what is finished there is not run again.
    """

    root: Path | None = None
    scale: Literal["laptop", "paper"] = "laptop"
    seeds: list[int] | None = None
    jobs: int = 2
    output: Path = Path("reproductions")
    run_dir: Path = Path("runs")

    name: ClassVar[str]
    """On the command line."""
    paper: ClassVar[str]
    """File in ``papers/``."""
    tables: ClassVar[tuple[str, ...]]
    """Of the paper, whose numbers are printed below ours."""
    shows: ClassVar[str]
    """A line of what it is."""
    scales: ClassVar[dict[str, Scale]]
    """``laptop`` and ``paper``."""
    usual_seeds: ClassVar[tuple[int, ...]] = (0, 1, 2)

    def __post_init__(self) -> None:
        self.seeds = list(self.usual_seeds) if self.seeds is None else self.seeds

    def parts(self) -> Sequence[Part]:
        """The sweeps of the chosen scale."""
        raise NotImplementedError

    def following(self, runs: pd.DataFrame) -> Sequence[Part]:
        """Sweeps that depend on what the first ones have measured.

        Args:
            runs: of `parts`, as in `report`.
        """
        return ()

    def report(self, runs: pd.DataFrame) -> Report:
        """Tables and figures.

        Args:
            runs: one row a run: part, title, case, the cases' labels, seed, best_round, directory.
        """
        raise NotImplementedError

    def sweep(self, part: Part, start: Path | None = None) -> Sweep:
        """The sweep of a part.

        Args:
            start: directory of the run whose weights all start from.

        Raises:
            ConfigError: the data are not built in and there is no ``--root`` or no such folder, or the other way round.
        """
        self._check_root()
        settings = part.settings | {f"data.{key}": str(self.root / path) for key, path in part.roots.items()}
        return Sweep(
            part.name,
            [str(part.config)],
            settings | ({"model.weights": str(start.absolute())} if start else {}),
            {name: case.keys for name, case in part.cases.items()},
            seeds=list(part.seeds or self.seeds),
            metric=part.metric,
            run_dir=str(self.run_dir),
        )

    def plan(self) -> dict[str, list[PlannedRun]]:
        """The runs of every part, by its name; their configurations are whole, and nothing is trained."""
        parts = [each for part in self.parts() for each in (part.body, part) if each is not None]
        return {part.name: plan(self.sweep(part)) for part in parts}

    def run(self, console: Console) -> None:
        """Run what is missing, write figures and tables, and say where they are."""
        self._check_root()
        runs = pd.concat([self._runs(part, console) for part in self.parts()], ignore_index=True)
        more = [self._runs(part, console) for part in self.following(runs)]
        runs = pd.concat([runs, *more], ignore_index=True)
        report = self.report(runs)
        folder = self.output / self.name
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in (report.tables | {"runs": runs}).items():
            table.to_csv(folder / f"{name}.csv", index=False)
        for name, figure in report.figures.items():
            for ending in ("png", "svg"):
                save(figure, folder / f"{name}.{ending}")
        text = self._page(report)
        (folder / "report.md").write_text(text, encoding="utf-8")
        console.print(text)
        console.print(f"report, tables and figures: {folder}")

    def _runs(self, part: Part, console: Console) -> pd.DataFrame:
        start = None
        if part.body is not None:
            (start,) = self._runs(part.body, console)["directory"]
        sweep = self.sweep(part, start)
        table = run_sweep(sweep, self.jobs, console)
        if part.may_fail:
            table = table[table["status"] != "failed"]
        missing = table[table["status"] != "finished"]
        if len(missing):
            failed = missing.loc[missing["status"] == "failed", "directory"].tolist()
            why = f"the end of {Path(failed[0]) / LOG} says why; what is finished is kept" if failed else "run again"
            raise ConfigError(
                f"{len(missing)} runs of {sweep.directory} are not finished: {', '.join(missing['name'])}; {why}"
            )
        return pd.DataFrame(
            {"part": part.name, "title": part.title, "case": run.case}
            | (part.cases[run.case].labels if part.cases else {})
            | {"seed": run.seed, "best_round": run.best_round, "directory": Path(run.directory)}
            for run in table.itertuples()
        )

    def _page(self, report: Report) -> str:
        """Our numbers and the paper's, each under a heading of its own."""
        scale, paper = self.scales[self.scale], read_paper(self.paper)
        seeds = ", ".join(map(str, self.seeds))
        lines = [
            f"# {self.name}: {self.shows}",
            "",
            f"## Ours, at {self.scale} scale",
            "",
            f"From {scale.data}. Seeds: {seeds}.",
            "",
            report.text,
            "## Published",
            "",
            f"{paper.source}. The paper's own data and runs: compare the order of rows and the gaps between them, not values.",
            "",
            *(paper.tables[title].markdown() for title in self.tables),
        ]
        return "\n".join(lines)

    def _check_root(self) -> None:
        wanted = self.scales[self.scale].root
        if wanted is not None and self.root is None:
            raise ConfigError(f"--root is needed: {wanted}; nothing is downloaded")
        if wanted is None and self.root is not None:
            raise ConfigError("--root: the data of the laptop's scale are built in; leave it out, or add --scale paper")
        if self.root is not None and not self.root.is_dir():
            raise ConfigError(f"--root {self.root}: no such folder; expected {wanted}")


def measured(run: Path) -> dict[str, float]:
    """Metrics of a run's best model: of the tests, and of the validation and the clients in its round."""
    result = Result.read(run)
    rows = MetricsFile(run / "metrics.csv").rows()
    return {key: value for step, key, value in rows if step == result.best_round} | result.metrics


def curve(run: Path, metric: str) -> list[tuple[int, float]]:
    """(round, value) at each evaluation."""
    return [(step, value) for step, key, value in MetricsFile(run / "metrics.csv").rows() if key == metric]
