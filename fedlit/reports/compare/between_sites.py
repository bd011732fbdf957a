"""Differences between sites: a metric on the test images of each site, the worst site, and the spread."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from fedlit.metrics.auroc import auroc
from fedlit.metrics.intervals import MIN_PATIENTS
from fedlit.metrics.support import independent
from fedlit.predictions.table import Predictions
from fedlit.reports.compare.logged import LoggedMetric
from fedlit.reports.compare.methods import Method
from fedlit.reports.compare.statistics import Statistics


@dataclass(frozen=True, eq=False)
class BySite:
    """A metric of methods at several sites."""

    metric: str
    best: str | None  # ``max`` or ``min``; None if its direction is not known.
    values: Mapping[str, pd.DataFrame]  # By method: one row per run and one column per site; NaN where undefined.

    def extremes(self, method: str) -> tuple[str, float, float, float]:
        """Return the worst site, its mean over seeds, that of the best site, and the standard deviation between sites.

        If it is not known whether higher values are better, there is only the deviation: the others are "" and NaN.
        """
        means = self.values[method].mean().sort_values(ascending=self.best != "min")
        if self.best is None:
            return "", np.nan, np.nan, float(means.std())
        return str(means.index[0]), float(means.iloc[0]), float(means.iloc[-1]), float(means.std())

    def table(self) -> pd.DataFrame:
        """Return one row per method and site, as in ``sites.csv``."""
        rows = [
            (self.metric, name, site, column.mean(), column.std(), column.count())
            for name, values in self.values.items()
            for site, column in values.items()
        ]
        return pd.DataFrame(rows, columns=["metric", "method", "site", "value", "sd_over_seeds", "seeds"])


def by_site(numbers: Statistics | None, logged: tuple[LoggedMetric, ...]) -> tuple[BySite, ...]:
    """Return the mean AUROC and each logged metric by site, if the test images are of several sites."""
    found = [] if numbers is None else [BySite("AUROC", "max", _auroc(numbers))]
    for metric in logged:
        clients = {each.method.name: pd.DataFrame(each.clients) for each in metric.methods}
        found.append(BySite(metric.name, metric.best, clients))
    several = ({name: table for name, table in each.values.items() if table.shape[1] > 1} for each in found)
    return tuple(BySite(each.metric, each.best, kept) for each, kept in zip(found, several, strict=True) if kept)


def _auroc(numbers: Statistics) -> dict[str, pd.DataFrame]:
    """Return the AUROC at each site, averaged over the classes with enough patients there."""
    tables, number = {}, 0
    for scored in numbers.scored:
        rows = []
        for _ in scored.method.runs:
            rows.append(_of_run(numbers, number))
            number += 1
        tables[scored.method.name] = pd.DataFrame(rows).dropna(axis=1, how="all")
    return tables


def _of_run(numbers: Statistics, number: int) -> dict[str, float]:
    scores, labels, units = numbers.shared.of_run(number)
    clients = numbers.shared.clients_of(number)
    values = {}
    for site in np.unique(clients[clients != ""]).tolist():
        here = clients == site
        enough = np.minimum(*independent(labels[here], units[here])) >= MIN_PATIENTS
        enough &= ~numbers.shared.unlearned
        areas = auroc(torch.from_numpy(scores[here][:, enough]), torch.from_numpy(labels[here][:, enough]))
        values[site] = float(areas.mean())
    return values


@dataclass(frozen=True, eq=False)
class CrossTest:
    """The own model of a site on the test images of a site."""

    model: str  # Site whose own model it is.
    tested_on: str  # Site that holds the images.
    by_seed: np.ndarray  # `[S]` mean AUROC over classes of each run; NaN without classes.
    classes: int  # Number of classes in the mean: with enough patients at the site, and learned by the model.


def cross_tests(alone: Mapping[str, Method], scored: Mapping[str, Predictions]) -> tuple[CrossTest, ...]:
    """Return each site's own model on the test images of each site, given its runs and their predictions."""
    cells = []
    for model, method in sorted(alone.items()):
        for site in sorted(alone):
            values, counts = zip(*(_tested(scored[run.where], site) for run in method.runs), strict=True)
            cells.append(CrossTest(model, site, np.array(values), max(counts)))
    return tuple(cells)


def _tested(found: Predictions, site: str) -> tuple[float, int]:
    here = found.take(found.clients == site)
    units = here.patients if (here.patients != "").all() else np.arange(len(here))
    used = np.minimum(*independent(here.labels.numpy(), units)) >= MIN_PATIENTS
    if found.trained_positives is not None:
        used &= np.array(found.trained_positives) > 0
    areas = auroc(here.scores[:, used], here.labels[:, used])
    return float(areas.mean()), int(used.sum())


def matrix_rows(cells: tuple[CrossTest, ...]) -> pd.DataFrame:
    """Return one row per model and site, as in ``matrix.csv``."""
    rows = [(c.model, c.tested_on, *pd.Series(c.by_seed).agg(["mean", "std", "count"]), c.classes) for c in cells]
    return pd.DataFrame(rows, columns=["model", "tested_on", "auroc", "sd_over_seeds", "seeds", "classes"])
