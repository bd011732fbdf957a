"""Metrics that modules log, such as a Dice: by method, with their spread over seeds, and by client.

A logged value is one number for all test images of a run, so its difference from the baseline has a p over seeds, but
no interval and no claim. A table of cases, which a user writes in the folder of predictions, has one row per image and
one column per metric. Its means have intervals under test-set noise, and its differences are tested for both noises,
with the tests of an AUROC. Images of one patient count as one unit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import stats

from fedlit.core.errors import ConfigError
from fedlit.experiment.past_runs import monitored
from fedlit.metrics.auroc import slug
from fedlit.metrics.claim import Difference, claim, corrected, extra_variance
from fedlit.metrics.intervals import MIN_PATIENTS, Interval
from fedlit.predictions.table import FOLDER
from fedlit.reports.compare.alignment import overlap_of
from fedlit.reports.compare.methods import Method, paired_by_seed
from fedlit.reports.compare.past_run import Notes, PastRun
from fedlit.tracking.names import BY_CLIENT, CLIENT_MEAN, better

TEXTS = ("image", "patient", "client")
"""Columns of a table of cases that are not metrics; only the first must be there."""


@dataclass(frozen=True, eq=False)
class MethodMetric:
    """A metric of a method."""

    method: Method
    by_seed: np.ndarray  # `[S]` value of each run.
    interval: Interval  # Interval of the mean over these models, under test-set noise; NaN without cases.
    clients: Mapping[str, np.ndarray]  # `[S]` value of each run at each client.
    change: Difference | None = None  # Difference from the baseline; None for the baseline.

    @property
    def value(self) -> float:
        """Return the mean over seeds."""
        return float(self.by_seed.mean())

    @property
    def sd(self) -> float:
        """Return the standard deviation over seeds; NaN for one seed."""
        return float(self.by_seed.std(ddof=1)) if len(self.by_seed) > 1 else float("nan")


@dataclass(frozen=True, eq=False)
class LoggedMetric:
    """A metric that the modules of some methods log."""

    name: str
    best: str | None  # ``max`` or ``min``; None if its direction is not known.
    of_cases: bool  # Whether it is read from tables of cases.
    methods: tuple[MethodMetric, ...]  # The methods that have it.

    def table(self) -> pd.DataFrame:
        """Return one row per method, as in ``logged.csv``."""
        none = Interval(np.nan, np.nan, self.methods[0].interval.level)
        rows = []
        for each in self.methods:
            change = each.change or Difference(np.nan, none, np.nan, np.nan, np.nan)
            ends = (each.interval.low, each.interval.high, change.value, change.interval.low, change.interval.high)
            ps = (change.p_images, change.p_seeds, change.p, change.p_holm)
            rows.append((self.name, each.method.name, each.value, each.sd, len(each.by_seed), *ends, *ps))
        columns = ["metric", "method", "value", "sd_over_seeds", "seeds", "low", "high", "difference"]
        columns += ["difference_low", "difference_high", "p_images", "p_seeds", "p", "p_holm"]
        return pd.DataFrame(rows, columns=columns)


def logged_metrics(
    methods: Sequence[Method], baseline: Method, test_set: str, level: float, notes: Notes
) -> tuple[LoggedMetric, ...]:
    """Return what the modules of methods log on a test set; losses only if there is nothing else, and no AUROC.

    Raises:
        ConfigError: If a table of cases cannot be read.
    """
    runs = [run for method in methods for run in method.runs]
    tables = {run.where: table for run in runs if (table := cases_of(run, test_set)) is not None}
    names = shown_names(runs, test_set)
    columns = (str(name) for table in tables.values() for name in table if name not in TEXTS)
    found = [
        _metric(name, methods, baseline, test_set, tables, level=level, notes=notes)
        for name in dict.fromkeys((*names, *columns))
    ]
    tested = iter(corrected([each.change for metric in found for each in metric.methods if each.change is not None]))
    return tuple(
        replace(metric, methods=tuple(_corrected(each, tested) for each in metric.methods)) for metric in found
    )


def shown_names(runs: Sequence[PastRun], test_set: str) -> list[str]:
    """Return the metrics that modules have logged on a test set, in their order."""
    prefix = f"test/{slug(test_set)}/"
    keys = dict.fromkeys(key for run in runs for key in run.keys if key.startswith(prefix))
    names = [key[len(prefix) :] for key in keys if f"{key}{CLIENT_MEAN}" in keys]
    others = [name for name in names if better(f"val/{name}") != "min"]
    return others if others or any(key.startswith(f"{prefix}auroc") for key in keys) else names


def ranks(run: PastRun, test_set: str) -> bool:
    """Return False if a run has metrics of a test set but no AUROC, as its module scores no classes."""
    prefix = f"test/{slug(test_set)}/"
    return any(key.startswith(f"{prefix}auroc") for key in run.keys) or not shown_names([run], test_set)


def by_client(run: PastRun, test_set: str, name: str) -> dict[str, float]:
    """Return the value of a metric at each client, if the run has logged them."""
    prefix = f"test/{slug(test_set)}/{name}{BY_CLIENT}"
    return {key[len(prefix) :]: float(run.metric(key).iloc[-1]) for key in run.keys if key.startswith(prefix)}


def cases_of(run: PastRun, test_set: str) -> pd.DataFrame | None:
    """Read ``predictions/SET.cases.csv`` of a run, with one row per image; None if there is no such file.

    Raises:
        ConfigError: If it has no column ``image``, an image twice, or a column that is not numbers.
    """
    file = run.directory / FOLDER / f"{slug(test_set)}.cases.csv"
    if not file.is_file():
        return None
    table = pd.read_csv(file, dtype=str, keep_default_na=False)
    if "image" not in table:
        raise ConfigError(f"{file}: expected a column image, found {', '.join(map(str, table.columns[:8]))}")
    keys = [table[name] for name in ("client", "image") if name in table]
    table.index = pd.Index(["/".join(parts) for parts in zip(*keys, strict=True)])
    if not table.index.is_unique:
        twice = table.index[table.index.duplicated()][0]
        raise ConfigError(
            f"{file}: expected one row per image, found {twice!r} twice; add a column client if names repeat"
        )
    for name in table.columns.difference(TEXTS):
        try:
            table[name] = pd.to_numeric(table[name].replace("", "nan"))
        except ValueError as error:
            raise ConfigError(
                f"{file}, column {name}: expected numbers, found other text ({error}); remove the column"
            ) from error
    return table


def _metric(
    name: str,
    methods: Sequence[Method],
    baseline: Method,
    test_set: str,
    tables: Mapping[str, pd.DataFrame],
    level: float,
    notes: Notes,
) -> LoggedMetric:
    key = f"test/{slug(test_set)}/{name}"
    having = {run.where for method in methods for run in method.runs if len(run.metric(key))}
    of_cases = {where for where, table in tables.items() if name in table}
    if having - of_cases and of_cases:
        notes.append(f"{name}: some runs have no table of cases with it, so it has no intervals and no claims.")
        of_cases = set()
    counted = of_cases or having
    parts = [(m, tuple(run for run in m.runs if run.where in counted)) for m in methods]
    kept = [replace(method, runs=runs) for method, runs in parts if runs]
    first = next((method for method in kept if method.name == baseline.name), None)
    cases = _Cases.of(name, kept, tables) if of_cases else None
    if cases is not None and cases.patients < MIN_PATIENTS:
        notes.append(f"{name}: the runs share the cases of {cases.patients} patients, too few for intervals and tests.")
    rows = []
    for method in kept:
        if cases is None:
            values = np.array([run.metric(key).iloc[-1] for run in method.runs], dtype=float)
            clients = pd.DataFrame([by_client(run, test_set, name) for run in method.runs])
            interval = Interval(np.nan, np.nan, level)
        else:
            values, clients = cases.values(method), cases.clients(method)
            interval = cases.interval(method, level)
        rows.append(MethodMetric(method, values, interval, {str(k): clients[k].to_numpy() for k in clients}))
    theirs = next((each for each in rows if first is not None and each.method is first), None)
    if theirs is not None:
        rows = [each if each is theirs else replace(each, change=_change(each, theirs, cases, level)) for each in rows]
    return LoggedMetric(name, _direction(name, kept), bool(of_cases), tuple(rows))


def _change(ours: MethodMetric, theirs: MethodMetric, cases: "_Cases | None", level: float) -> Difference:
    extra, error, freedom = None, float("nan"), float("inf")
    if paired_by_seed(ours.method, theirs.method):
        extra = np.inf if cases is None else extra_variance(cases.overlap)
    if cases is not None:
        error, freedom = cases.error(ours.method, theirs.method), max(cases.patients - 1, 1)
    change = claim(ours.by_seed, theirs.by_seed, error, level, extra, freedom)
    return change if error == error else replace(change, p=np.nan)  # nothing is known of test-set noise


def _corrected(metric: MethodMetric, changes: Iterator[Difference]) -> MethodMetric:
    return metric if metric.change is None else replace(metric, change=next(changes))


def _direction(name: str, methods: Sequence[Method]) -> str | None:
    """Return the direction of a metric: that of the runs whose best model it selects, or that of its name."""
    for run in (run for method in methods for run in method.runs):
        settings = {key: run.settings.get(f"federation.{key}", "auto") for key in ("monitor", "monitor_mode")}
        metric, mode = monitored(settings, run.keys)
        if metric == f"val/{name}":
            return mode
    return better(f"val/{name}")


@dataclass(frozen=True, eq=False)
class _Cases:
    """The cases that all runs share, by draw of the data."""

    draws: tuple[pd.DataFrame, ...]  # For each draw: one row per case, one column per run, and patient and client.
    overlap: float  # Share of the cases that two draws have in common.

    @classmethod
    def of(cls, name: str, methods: Sequence[Method], tables: Mapping[str, pd.DataFrame]) -> "_Cases":
        same_draws = all(set(method.draws) == set(methods[0].draws) for method in methods)
        groups: dict[object, dict[str, pd.Series]] = {}
        for run in (run for method in methods for run in method.runs):
            column = tables[run.where][name].dropna()
            groups.setdefault(run.draw if same_draws else (), {})[run.where] = column
        wheres = [next(iter(columns)) for columns in groups.values()]
        ids = [{image: (str(p), b"") for image, p in _patients(tables[where]).items()} for where in wheres]
        if len(groups) > 1 and all(each == ids[0] for each in ids):
            groups = {(): {where: column for columns in groups.values() for where, column in columns.items()}}
        draws = []
        for columns in groups.values():
            shared = pd.DataFrame(columns).dropna()
            if not len(shared):
                raise ConfigError(
                    f"{name}: expected cases that all runs share, found none in {', '.join(columns)}; name images alike"
                )
            first = tables[next(iter(columns))]
            shared["patient"] = _patients(first)[shared.index]
            shared["client"] = first["client"][shared.index] if "client" in first else ""
            draws.append(shared)
        return cls(tuple(draws), overlap_of(ids) if len(groups) > 1 else 1.0)

    @property
    def patients(self) -> int:
        return min(each["patient"].nunique() for each in self.draws)

    def values(self, method: Method) -> np.ndarray:
        """Return `[S]`, the mean over cases of each run."""
        return np.array([table[run.where].mean() for run in method.runs for table in self.draws if run.where in table])

    def clients(self, method: Method) -> pd.DataFrame:
        """Return the mean over the cases of each client, a column each, in each run."""
        tables = [(run, table) for run in method.runs for table in self.draws if run.where in table]
        means = pd.DataFrame([table.groupby("client")[run.where].mean() for run, table in tables])
        return means.drop(columns="", errors="ignore").reset_index(drop=True)

    def interval(self, method: Method, level: float) -> Interval:
        value, reach = self.values(method).mean(), stats.t.ppf((1 + level) / 2, max(self.patients - 1, 1))
        reach *= self.error(method)
        return Interval(float(value - reach), float(value + reach), level)

    def error(self, method: Method, other: Method | None = None) -> float:
        """Return the standard error of a method's mean, or of its difference from another, under test-set noise."""
        if self.patients < MIN_PATIENTS:
            return float("nan")
        variance = 0.0
        for table in self.draws:
            weighed = _weighed(table, method) - (0 if other is None else _weighed(table, other))
            sums = (weighed - weighed.mean()).groupby(table["patient"]).sum()
            variance += (sums**2).sum() * len(sums) / (len(sums) - 1) / len(weighed) ** 2
        return float(variance**0.5)


def _weighed(table: pd.DataFrame, method: Method) -> pd.Series:
    """Return the share of each case of a draw in a method's mean over its runs."""
    return table[[run.where for run in method.runs if run.where in table]].sum(axis=1) / len(method.runs)


def _patients(table: pd.DataFrame) -> pd.Series:
    known = "patient" in table and (table["patient"] != "").all()
    return table["patient"] if known else pd.Series(table.index, index=table.index)
