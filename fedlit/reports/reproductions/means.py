"""A report that papers share: means over seeds with differences paired by seed, figures, and the choice of settings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedlit.core.errors import ConfigError
from fedlit.experiment.mistakes import near
from fedlit.metrics.claim import Difference, claim, corrected
from fedlit.metrics.levels import LEVEL
from fedlit.reports.reproductions.figures import draw_steps, draw_windows
from fedlit.reports.reproductions.published import grid
from fedlit.reports.reproductions.report import Report, curve, measured

CURVES = {"validation": "val/auroc_macro", "test": "test_curve/federation/auroc_macro"}
PICTURES: dict[str, Callable[[pd.DataFrame, str], Figure]] = {"windows": draw_windows, "steps": draw_steps}


def means(
    runs: pd.DataFrame,
    row: str,
    against: dict[str, Any],
    what: str,
    versus: str,
    column: str = "",
    metrics: str | dict[str, str] = "test/federation/auroc_macro",
    last: str = "",
    average: bool = False,
    order: str = "",
    picture: Literal["", "windows", "steps"] = "",
    curves: Literal["validation", "test"] = "validation",
    window: str = "window",
    within: float | None = None,
    settings: list[str] | None = None,
    choice: str = "",
) -> Report:
    """Make a table of rows by columns.

    Args:
        runs: The runs, and those of tries.
        row: Row of a run, with its labels in braces.
        against: Labels of the row to compare with, as far as they differ.
        what: Name of the metric, the first words below the table.
        versus: Name of the reference, as text.
        column: Column of a run, with its labels in braces; or "" if every metric is a column.
        metrics: Metrics of a run's best model by column, or the one metric of the table.
        last: Metric of each evaluation, whose last value also gets a column: that of the last iterate; or "".
        average: Whether a last column has the mean over the others.
        order: Label by which rows are sorted; by default they are in the order of the runs.
        picture: The figure, or "" for none.
        curves: Data of the figure's curves: ``validation``, or ``test`` with ``federation.test_curves``.
        window: Label with the number of local steps in a round, for the figure and I_max.
        within: Largest loss compared with the smallest window of a harmless window, for I_max; None for no I_max.
        settings: Columns of the settings that were tried.
        choice: Text on the choice of settings; ``{chosen}`` is replaced.

    Raises:
        ConfigError: A run lacks a label or a metric, or two runs with the same seed are in the same cell.
    """
    finals, tries = runs[runs["stage"] != "try"], runs[runs["stage"] == "try"]
    finals = (finals.sort_values(order, kind="stable") if order else finals).reset_index(drop=True)
    # Next to tries, which lack a label, its integers were read as decimals.
    finals = finals.apply(lambda each: each.astype(int) if each.dtype == float and (each % 1 == 0).all() else each)
    records, reference = [], {}
    for run in finals.to_dict("records"):
        title = _filled("row", row, run)
        reference[title] = _filled("row", row, run | against)
        named = {_filled("column", column, run): metrics} if isinstance(metrics, str) else metrics
        found = measured(run["directory"])
        if missing := [each for each in named.values() if each not in found]:
            hint = near(missing[0], found) or f"; expected {', '.join(found) or 'none'}"
            raise ConfigError(f"report.metrics: {run['directory']} has no {missing[0]!r}{hint}")
        records += [(title, name, run["seed"], found[metric]) for name, metric in named.items()]
    values = pd.DataFrame(records, columns=["row", "column", "seed", "auroc"])
    twice = values[values.duplicated(["row", "column", "seed"])]
    if len(twice):
        title, name, seed, _ = twice.iloc[0]
        raise ConfigError(
            f"report.row: two runs with seed {seed} are both {title!r}, {name!r}; add the difference to the row, such "
            "as {title}"
        )
    figures = {}
    if picture:
        steps = finals[window]
        pairs = zip(finals["directory"], steps, strict=True)
        drawn = finals.assign(
            window=steps, auroc=values["auroc"], column=values["column"],
            curve=[[(step * one, value) for step, value in curve(run, CURVES[curves])] for run, one in pairs],
            sent=[sent(run, [step for step, _ in curve(run, CURVES[curves])]) for run in finals["directory"]],
        )  # fmt: skip
        figures["figure"] = PICTURES[picture](drawn, curves)
    if average:
        mean = values.groupby(["row", "seed"], sort=False)["auroc"].agg(lambda each: each.mean(skipna=False))
        values = pd.concat([values, mean.reset_index().assign(column="average")], ignore_index=True)
    if last:
        ends = values.assign(auroc=[curve(run, last)[-1][1] for run in finals["directory"]])
        values = pd.concat([values, ends.assign(column=ends["column"] + ", last iterate")], ignore_index=True)
    table = compare(values, {title: other for title, other in reference.items() if title != other})
    text, tables = markdown(table, what, versus), {"values": values, "table": table}
    if within is not None:
        tables["largest-windows"] = largest = largest_windows(
            finals.assign(auroc=values["auroc"][: len(finals)]), window, within
        )
        text = f"{text}\n{_largest_text(largest, against['method'], within)}"
    if choice:
        method = next(iter(against))
        tables["grid"] = tries[["title", method, *settings, "score", "chosen"]]
        text = f"{text}\n{choice_text(tries, method, settings, choice)}\n"
    return Report(text, tables, figures)


def sent(run: Path, rounds: Sequence[int]) -> list[float]:
    """Return the megabytes that all clients of a run have sent until the end of each of these rounds."""
    of_rounds = curve(run, "bytes/up")
    return [sum(value for step, value in of_rounds if step <= each) / 1e6 for each in rounds]


def _filled(key: str, text: str, run: Mapping[str, Any]) -> str:
    try:
        return text.format(**run)
    except (LookupError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"report.{key}: expected labels in braces among {', '.join(map(str, run))}, found {text!r}"
        ) from error


def largest_windows(runs: pd.DataFrame, window: str, within: float) -> pd.DataFrame:
    """Return I_max: title, method, window, harmful (the next window, at which more is lost).

    A window is harmless if it and all smaller ones lose at most ``within`` compared with the smallest, in the mean over
    seeds. A method without a run at the smallest window is compared with the other one there, because with I = 1 all
    methods are the same algorithm.
    """
    means = runs.groupby(["title", "method", window], sort=False)["auroc"].mean()
    largest = []
    for title, of_title in means.groupby("title", sort=False):
        smallest = min(of_title.index.get_level_values(window))
        for method, of_method in of_title.groupby("method", sort=False):
            by_window = of_method.droplevel(["title", "method"]).sort_index()
            start = by_window.get(smallest, of_title.xs(smallest, level=window).mean())
            lost = (each for each, auroc in by_window.items() if not start - auroc <= within)
            harmful = next(lost, None)
            harmless = [each for each in by_window.index if harmful is None or each < harmful]
            largest.append((title, method, max([smallest, *harmless]), harmful))
    return pd.DataFrame(largest, columns=["title", "method", "window", "harmful"]).astype({"harmful": "Int64"})


def _largest_text(largest: pd.DataFrame, other: str, within: float) -> str:
    others = largest[largest["method"] == other].set_index("title")["window"]
    rows = []
    for row in largest.itertuples():
        alone = row.method == other or row.title not in others
        ratio = "" if alone else f"{row.window / others[row.title]:g}"
        harmful = "no window that was run" if pd.isna(row.harmful) else str(row.harmful)
        rows.append([row.title, row.method, str(row.window), ratio, harmful])
    said = (
        f"I_max is the largest window that, like all smaller ones, loses at most {within:g} compared with the smallest "
        "window of the same federation, in the mean over seeds. The paper names no threshold for it "
        '("does not degenerate too much"), and does not have the last column.'
    )
    head = ["federation", "method", "I_max", f"ratio to {other}", "more is lost at"]
    return "\n".join([*grid(head, rows), "", said, ""])


def choice_text(tries: pd.DataFrame, method: str, settings: Sequence[str], text: str) -> str:
    """Return the sentences of the report on the choice of settings by title and method."""
    chosen = tries[tries["chosen"].astype(bool)]
    listed = []
    for title, of_title in chosen.groupby("title", sort=False):
        said = [f"{row[method]} {_as_text(row, settings)}" for row in of_title.to_dict("records")]
        listed.append(f"{title}: {', '.join(said)}")
    text, edges = text.format(chosen="; ".join(listed)), "; ".join(_at_edge(tries, chosen, method, settings))
    return f"{text} At the end of their range, so a wider range may be better: {edges}." if edges else text


def _as_text(row: Mapping[str, Any], settings: Sequence[str]) -> str:
    rate, *others = settings
    text = ", ".join(f"{name} {row[name]:g}" for name in others if not pd.isna(row[name]))
    return f"{row[rate]:g}" + (f" ({text})" if text else "")


def _at_edge(tries: pd.DataFrame, chosen: pd.DataFrame, method: str, settings: Sequence[str]) -> Iterator[str]:
    """Yield each chosen setting that is the smallest or the largest of those that were tried."""
    ranges = {name: (tries[name].min(), tries[name].max()) for name in settings}
    for row in chosen.to_dict("records"):
        ends = [name for name in settings if row[name] in ranges[name] and ranges[name][0] < ranges[name][1]]
        if ends:
            yield f"{row['title']}, {row[method]}: {', '.join(f'{name} {row[name]:g}' for name in ends)}"


def compare(values: pd.DataFrame, against: Mapping[str, str]) -> pd.DataFrame:
    """Return one line per cell of the table, in the order of the values.

    Differences are claimed by the rule of `fedlit compare` for seeds that each have their own draw of the data.

    Args:
        values: The row, column, seed and auroc of every run; a column may be a class, a window or anything else.
        against: The row with which each row is compared, in the same column and with the same seed.

    Returns:
        A table with row, column, seeds, mean, std, difference, difference_std, within (half of the 95% interval of the
        difference, Student's over seeds), p_holm (of the paired t-test over seeds, corrected by Holm for all cells),
        and claimed: whether it is below 0.05. Values are NaN if a seed is NaN, if there is only one seed, if all
        differences are equal, or if there is no other row.
    """
    cells = {key: group.set_index("seed")["auroc"] for key, group in values.groupby(["row", "column"], sort=False)}
    changes = [ours - cells.get((against.get(row), column), np.nan) for (row, column), ours in cells.items()]
    table = []
    for (row, column), ours, change, tested in zip(cells, cells.values(), changes, _tested(changes), strict=True):
        mean, std = change.mean(skipna=False), change.std(skipna=False)
        numbers = (len(ours), ours.mean(skipna=False), ours.std(skipna=False), mean, std)
        table.append((row, column, *numbers, tested.interval.high - tested.value, tested.p_holm, tested.claimed))
    columns = ["row", "column", "seeds", "mean", "std", "difference", "difference_std", "within", "p_holm", "claimed"]
    return pd.DataFrame(table, columns=columns)


def _tested(changes: list[pd.Series]) -> list[Difference]:
    return corrected([claim(each.to_numpy(), np.zeros(len(each)), np.nan, LEVEL, 0.0) for each in changes])


def markdown(table: pd.DataFrame, what: str, versus: str) -> str:
    """Return the table of `compare` as Markdown, with a sentence on the metric and the reference below it."""
    columns = list(dict.fromkeys(table["column"]))
    cells = {(cell.row, cell.column): _cell(cell) for cell in table.itertuples()}
    rows = [[row, *(cells.get((row, column), "") for column in columns)] for row in dict.fromkeys(table["row"])]
    seeds, tests = table["seeds"].min(), table["p_holm"].notna().sum()
    spread = (
        f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "of one seed, which does not show the noise"
    )
    said = (
        f"{what}, {spread}. In brackets is the difference to {versus}, with the same seed, ± half of its 95% interval; "
        f"it is bold if p of its test over seeds is below 0.05 after Holm's correction for {tests} differences; the "
        "intervals are not corrected."
    )
    return "\n".join([*grid(["", *columns], rows), "", said, ""])


def _cell(cell) -> str:
    text = _number(cell.mean, cell.std, ".4f")
    if cell.difference != cell.difference:
        return text
    difference = _number(cell.difference, cell.within, "+.4f")
    return f"{text} (**{difference}**)" if cell.claimed else f"{text} ({difference})"


def _number(mean: float, std: float, form: str) -> str:
    if mean != mean:
        return "-"
    return f"{mean:{form}} ± {std:.4f}" if std == std else f"{mean:{form}}"
