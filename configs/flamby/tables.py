"""The report of a benchmark with public data and a fixed split: our results and the published ones in one table."""

from pathlib import Path
from typing import Literal

import pandas as pd
import torch
from torch import Tensor

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


def auroc(scores: Tensor, labels: Tensor) -> float:
    """Return the mean AUROC of the classes."""
    return class_auroc(scores, labels, [str(column) for column in range(scores.shape[1])]).mean


SCORES = {"accuracy": accuracy, "balanced accuracy": balanced_accuracy, "AUROC": auroc}


def make(
    runs: pd.DataFrame, table: str, score: Literal["accuracy", "balanced accuracy"], start: str = "seed"
) -> Report:
    """Make a table of methods by test sets, ours above the published row of the same method.

    Args:
        runs: The runs.
        table: Published table: method, seed, and one column for each test set, hospitals first.
        score: Published score.
        start: Column of the runs that names a published seed; its initial weights are also ours unless it is the seed.
    """
    paper = read_paper(Path(__file__).parent).tables[table]
    tests = list(paper.columns[2:])
    published = pd.DataFrame(paper.rows, columns=list(paper.columns)).astype(dict.fromkeys(tests, float))
    published[MEAN] = published[tests[:-1]].mean(axis=1)
    ours = pd.DataFrame(row for run in runs.to_dict("records") for row in measured(run, tests, str(run[start])))
    values, aurocs = (ours[ours["what"] == what].drop(columns="what") for what in (score, "AUROC"))
    columns = [*tests[:-1], MEAN, tests[-1]]
    lines, far = [], []
    for method, own in values.groupby("method", sort=False):
        theirs = published[published["method"] == method]
        lines += [[f"{method}, ours", *cells(own[columns])], [f"{method}, published", *cells(theirs[columns])]]
        away = (own[columns].mean() - theirs[columns].mean()).abs() > theirs[columns].std() + 5e-5  # four digits
        far += [f"{method} on {column}" for column in away.index[away]]
    outside = "Our mean is more than one published standard deviation away: " + ", ".join(far) if far else (
        "All our means are within one published standard deviation"
    )  # fmt: skip
    text = [
        *grid(["", *columns], lines), "",
        f"{score.capitalize()}, mean ± standard deviation over {values['seed'].nunique()} of our starts and "
        f"{published['seed'].nunique()} of the benchmark's; the same data and split. The mean of hospitals is not in "
        f"the benchmark's table. {outside}.",
    ]  # fmt: skip
    if start != "seed":
        both = values.merge(published, on=["method", "seed"], suffixes=("", " published"))
        differences = pd.concat([(both[test] - both[f"{test} published"]).abs() for test in tests])
        text.append(
            "Each start has the initial weights of the published seed, and our own order of batches. "
            f"{int((differences < 1e-4).sum())} of {len(differences)} values, one per method, start and test set, "
            f"equal the published ones to four digits; the largest difference is {differences.max():.4f}."
        )
    means = [[method, *cells(own[columns])] for method, own in aurocs.groupby("method", sort=False)]
    text += ["", "AUROC of the same models, which the benchmark does not publish:", "", *grid(["", *columns], means)]
    reading = "The same data and split: values can be compared, as above."
    tables = {"values": values, "published": published, "auroc": aurocs}
    return Report("\n".join([*text, ""]), tables, how_to_read=reading)


def measured(run: dict, tests: list[str], start: str) -> list[dict]:
    """Return the scores of a run by test set: of each hospital, with its rows in any set, and of the last set."""
    sets = {each.name: each for each in map(read, sorted((run["directory"] / FOLDER).glob("*.parquet")))}
    together = sets.pop(tests[-1], None)  # if the last test set has more than the rows of the others
    parts = {}
    for site in tests[:-1]:
        (one,) = (each for each in sets.values() if (each.sites == site).any())  # the test set with its rows
        rows = (one.sites == site).nonzero()[0]
        parts[site] = one.scores[rows], one.labels[rows]
    whole = tuple(torch.cat(each) for each in zip(*parts.values(), strict=True))
    parts[tests[-1]] = (together.scores, together.labels) if together is not None else whole
    rows = []
    for what, score in SCORES.items():
        scores = {test: score(*part) for test, part in parts.items()}
        scores[MEAN] = pd.Series(scores)[tests[:-1]].mean()
        rows.append({"method": run["method"], "seed": start, "run_seed": run["seed"], "what": what} | scores)
    return rows


def cells(values: pd.DataFrame) -> list[str]:
    """Return mean and standard deviation of each column."""
    return [f"{values[c].mean():.4f}" + (f" ± {values[c].std():.4f}" if len(values) > 1 else "") for c in values]
