"""What the paper's experiments have in common: every method takes the best rate of one grid, then all run alike.

The grid runs at one period, with a seed that the table has not; the rate whose model is best in validation is the method's
in every column of the table. All runs of a federation take as many local steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pandas as pd

from fedlit.errors import ConfigError
from fedlit.reports.reproductions.base import Case, Part, Report, Reproduction, curve, measured
from fedlit.reports.reproductions.comparison import compare, markdown
from fedlit.reports.reproductions.localscgdam.curves import draw
from fedlit.reports.reproductions.localscgdam.federations import Data
from fedlit.reports.reproductions.localscgdam.methods import RATES, Method

METRIC, VALIDATION = "test/federation/auroc_macro", "val/auroc_macro"
GRID_PERIOD, GRID_SEED = 8, 1000
AGAINST = "LocalSCGDAM"


@dataclass(frozen=True)
class Column:
    """One of a table.

    Attributes:
        period: p, local steps between two communications.
        settings: keys of its runs beside.
    """

    period: int
    settings: dict[str, Any] = field(default_factory=dict)


class Tuned(Reproduction):
    """A table of methods by columns, each method at the rate that a grid has found for it."""

    paper = "localscgdam"
    experiment: ClassVar[str]
    """Of the table's runs, which all that name it share."""
    methods: ClassVar[dict[str, Method]]
    columns: ClassVar[dict[str, Column]]

    @property
    def federations(self) -> tuple[Data, ...]:
        """Of the chosen scale."""
        raise NotImplementedError

    def parts(self) -> Sequence[Part]:
        return [self._grid(data, name) for data in self.federations for name in self.methods]

    def following(self, runs: pd.DataFrame) -> Sequence[Part]:
        tried = runs.assign(validation=_validation(runs))
        return [self._table(data, _best(tried[tried["title"] == data.title])) for data in self.federations]

    def report(self, runs: pd.DataFrame) -> Report:
        tried, compared = runs[runs["column"].isna()], runs[runs["column"].notna()]
        compared = compared.assign(
            auroc=[measured(run)[METRIC] for run in compared["directory"]],
            row=_row(compared),
            curve=[
                [(step * self.columns[column].period, value) for step, value in curve(run, VALIDATION)]
                for run, column in zip(compared["directory"], compared["column"], strict=True)
            ],
        )
        values = compared[["row", "column", "seed", "auroc"]]
        against = {row: f"{title}, {AGAINST}" for row, title in zip(compared["row"], compared["title"], strict=True)}
        table = compare(values, {row: other for row, other in against.items() if row != other})
        text = markdown(table, "Test AUROC of the model that is best in validation", f"{AGAINST} in the same column")
        grid = tried[["title", "method", "rate"]].assign(validation=_validation(tried))
        return Report(
            f"{text}\n{self._told(grid)}",
            {"values": values, "table": table, "grid": grid},
            {"figure": draw(compared)},
        )

    def _grid(self, data: Data, name: str) -> Part:
        """The runs that a method's rate is chosen from; reproductions share them."""
        method, settings = self.methods[name], _budget(data, Column(GRID_PERIOD))
        cases = {f"rate-{rate:g}": Case(method.keys(rate) | settings, {"method": name, "rate": rate}) for rate in RATES}
        part = self._part(data, f"{data.name}-grid-{name.lower()}", cases)
        return replace(part, seeds=(GRID_SEED,), metric=VALIDATION, may_fail=True)

    def _table(self, data: Data, rates: dict[str, float]) -> Part:
        if diverged := [name for name in self.methods if name not in rates]:
            raise ConfigError(
                f"no rate of {RATES} trains {', '.join(diverged)} on {data.title}; the runs' console.log say why"
            )
        cases = {
            f"{name.lower()}-{label.replace(' = ', '')}": Case(
                method.keys(rates[name]) | _budget(data, column), {"method": name, "rate": rates[name], "column": label}
            )
            for label, column in self.columns.items()
            for name, method in self.methods.items()
        }
        return self._part(data, f"{self.experiment}-{data.name.removeprefix('localscgdam-')}", cases)

    def _part(self, data: Data, name: str, cases: dict[str, Case]) -> Part:
        return Part(name, data.config, cases, data.title, data.settings, roots={"root": data.folder})

    def _told(self, grid: pd.DataFrame) -> str:
        chosen = (
            f"{title}: " + ", ".join(f"{name} {rate:g}" for name, rate in _best(of_title).items())
            for title, of_title in grid.groupby("title", sort=False)
        )
        steps = ", ".join(sorted({f"{data.iterations:,}" for data in self.federations}))
        return (
            f"{steps} local steps a client in every run. Rates {', '.join(f'{rate:g}' for rate in RATES)} were tried with every "
            f"method at p = {GRID_PERIOD} and seed {GRID_SEED}, and the best in validation was taken: {'; '.join(chosen)}. A "
            "rate counts what momentum adds up: the learning rate of LocalSGDM is a tenth of it. A step of LocalSCGDAM draws two "
            "batches and takes the time of three to five others.\n"
        )


def _budget(data: Data, column: Column) -> dict[str, Any]:
    """Keys that give every period as many local steps and (but for rounding) evaluations."""
    return {
        "federation.schedule.init_args.window": column.period,
        "federation.schedule.init_args.iterations": data.iterations,
        "federation.schedule.init_args.decay_every": data.iterations * 3 // 4,
        "federation.eval_every": max(1, round(data.iterations / data.evaluations / column.period)),
        **column.settings,
    }


def _row(runs: pd.DataFrame) -> pd.Series:
    return runs["title"] + ", " + runs["method"]


def _validation(runs: pd.DataFrame) -> list[float]:
    """Of the best model of each run."""
    return [measured(run).get(VALIDATION, float("nan")) for run in runs["directory"]]


def _best(tried: pd.DataFrame) -> dict[str, float]:
    """Each method's rate with the best validation AUROC; of equals the smallest."""
    best = tried.sort_values(["validation", "rate"], ascending=[False, True]).groupby("method")["rate"].first()
    return {method: best[method] for method in dict.fromkeys(tried["method"])}
