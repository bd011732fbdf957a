"""The report of a benchmark with public data and a fixed split: our results and the published ones in one table."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor

from fedlit.core.errors import ConfigError
from fedlit.metrics.auroc import class_auroc
from fedlit.predictions.table import FOLDER, read
from fedlit.reports.reproductions.published import grid, read_paper
from fedlit.reports.reproductions.report import Report

MEAN = "mean of hospitals"


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Return the share of labels [N, C] that the sign of the logits [N, C] predicts."""
    return float(((scores > 0) == (labels == 1)).double().mean())


def balanced_accuracy(scores: Tensor, labels: Tensor) -> float:
    """Return the share of images [N, C] whose highest logit is their class's, averaged over the present classes."""
    of, said = labels.argmax(1), scores.argmax(1)
    return float(pd.Series((of == said).numpy()).groupby(of.numpy()).mean().mean())


SCORES: dict[str, Callable[[Tensor, Tensor], float]] = {"accuracy": accuracy, "balanced accuracy": balanced_accuracy}


@dataclass(frozen=True)
class Benchmark:
    """A table of methods by test sets, ours above the published row of the same method."""

    table: str  # Published table: method, seed, and one column per test set, hospitals first.
    score: str  # ``accuracy`` or ``balanced accuracy``.
    # Label of our runs that names a published seed, if both begin with the same weights; otherwise "".
    paired: str = ""

    how_to_read: ClassVar[str] = "The same data and split: values can be compared, as above."

    def make(self, runs: pd.DataFrame, scale: Any) -> Report:
        """Make the report of the runs.

        Raises:
            ConfigError: The score is unknown.
        """
        if self.score not in SCORES:
            raise ConfigError(f"report.score: expected {' or '.join(SCORES)}, found {self.score!r}")
        published = self._published()
        tests = [column for column in published if column not in ("method", "seed", MEAN)]
        ours = pd.DataFrame(row for run in runs.to_dict("records") for row in self._measured(run, tests))
        values = ours[ours["what"] == self.score].drop(columns="what")
        aurocs = ours[ours["what"] == "AUROC"].drop(columns="what")
        columns = [*tests[:-1], MEAN, tests[-1]]
        text = [*self._compared(values, published, columns), *self._paired(values, published, tests)]
        means = [[method, *_cells(own[columns])] for method, own in aurocs.groupby("method", sort=False)]
        text += ["", "AUROC of the same models, which the benchmark does not publish:", ""]
        text += [*grid(["", *columns], means), ""]
        return Report("\n".join(text), {"values": values, "published": published, "auroc": aurocs})

    def _published(self) -> pd.DataFrame:
        table = read_paper(Path(__file__).parent).tables[self.table]
        frame = pd.DataFrame(table.rows, columns=list(table.columns))
        frame = frame.astype({column: float for column in frame if column not in ("method", "seed")})
        frame[MEAN] = frame.iloc[:, 2:-1].mean(axis=1)
        return frame

    def _measured(self, run: dict, tests: list[str]) -> list[dict]:
        """Return both scores of a run by test set: of each hospital, with its rows in any set, and of the last set."""
        files = sorted((Path(run["directory"]) / FOLDER).glob("*.parquet"))
        sets = {each.name: each for each in map(read, files)}
        together = sets.pop(tests[-1], None)  # if the last test set has more than the rows of the others
        parts = {}
        for site in tests[:-1]:
            (one,) = (each for each in sets.values() if (each.sites == site).any())  # the test set with its rows
            rows = (one.sites == site).nonzero()[0]
            parts[site] = one.scores[rows], one.labels[rows]
        whole = tuple(torch.cat(each) for each in zip(*parts.values(), strict=True))
        parts[tests[-1]] = (together.scores, together.labels) if together is not None else whole
        start = str(run.get(self.paired, run["seed"]))
        names, rows = [str(column) for column in range(whole[0].shape[1])], []
        for what, score in (*SCORES.items(), ("AUROC", lambda scores, labels: class_auroc(scores, labels, names).mean)):
            scores = {test: score(*part) for test, part in parts.items()}
            scores[MEAN] = pd.Series(scores)[tests[:-1]].mean()
            rows.append({"method": run["method"], "seed": start, "run_seed": run["seed"], "what": what} | scores)
        return rows

    def _compared(self, values: pd.DataFrame, published: pd.DataFrame, columns: list[str]) -> list[str]:
        lines, far = [], []
        for method, ours in values.groupby("method", sort=False):
            theirs = published[published["method"] == method]
            lines += [[f"{method}, ours", *_cells(ours[columns])], [f"{method}, published", *_cells(theirs[columns])]]
            away = (ours[columns].mean() - theirs[columns].mean()).abs() > theirs[columns].std() + 5e-5  # four digits
            far += [f"{method} on {column}" for column in away.index[away]]
        said = (
            f"{self.score.capitalize()}, mean ± standard deviation over {values['seed'].nunique()} of our starts and "
            f"{published['seed'].nunique()} of the benchmark's; the same data and split. The mean of hospitals "
            "is not in the benchmark's table. "
        )
        outside = f"Our mean is more than one published standard deviation away: {', '.join(far)}." if far else (
            "All our means are within one published standard deviation."
        )  # fmt: skip
        return [*grid(["", *columns], lines), "", said + outside]

    def _paired(self, values: pd.DataFrame, published: pd.DataFrame, tests: list[str]) -> list[str]:
        """Compare value by value if both begin with the same weights."""
        if not self.paired:
            return []
        both = values.merge(published, on=["method", "seed"], suffixes=("", " published"))
        away = pd.concat([(both[test] - both[f"{test} published"]).abs() for test in tests])
        return [
            "Each start has the initial weights of the published seed, and our own order of batches. "
            f"{int((away < 1e-4).sum())} of {len(away)} values, one per method, start and test set, equal the "
            f"published ones to four digits; the largest difference is {away.max():.4f}."
        ]


def _cells(values: pd.DataFrame) -> list[str]:
    return [f"{values[c].mean():.4f}" + (f" ± {values[c].std():.4f}" if len(values) > 1 else "") for c in values]
