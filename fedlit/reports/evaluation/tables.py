"""Tables of an evaluation, for the page and the terminal."""

import re
from collections.abc import Sequence

import pandas as pd

from fedlit.metrics.claim import p_text
from fedlit.metrics.measures import AT_THRESHOLD, MEASURES
from fedlit.reports.evaluation.evaluation import ALL, Evaluation
from fedlit.reports.evaluation.points import FEDERATION
from fedlit.reports.table import ABSENT, Number, Table, interval_text, number, short

RANKING = ("auroc", "auprc", "sensitivity", "specificity")
CALIBRATION = ("intercept", "slope", "brier", "net_benefit")
BY_GROUP = ("auroc", "auprc", "intercept", "slope", "sensitivity", "specificity")
SUPPORT = ("positives (patients)", "negatives (patients)")
MOST_NAMED = 6


def tables(evaluation: Evaluation) -> dict[str, list[Table]]:
    """Return the tables of each section of the page."""
    by_section: dict[str, list[Table]] = {"ranking": [], "calibration": [], "groups": [], "points": []}
    of = "trainings, each with its own draw of the data" if evaluation.sets[0].draws > 1 else "trainings"
    spread = f"± standard deviation over {of}, " if len(evaluation.method.runs) > 1 else ""
    level = f"{spread}{100 * evaluation.request.level:g}% intervals for other test patients below the values"
    for images in evaluation.sets:
        ours = evaluation.estimates[evaluation.estimates["set"] == images.name]
        everyone, where = ours[ours["by"] == ALL], f"Test set {images.name}"
        for section, measures in (("ranking", RANKING), ("calibration", CALIBRATION)):
            by_section[section].append(_measured(f"{where}; {level}", everyone, ("class",), measures, evaluation))
        for kind in evaluation.kinds:
            of_kind = ours[ours["by"] == kind].sort_values(["class", "group"], key=_in_order, kind="stable")
            if len(of_kind):
                caption = f"{where} by {kind}; {level}"
                by_section["groups"].append(_measured(caption, of_kind, ("class", "group"), BY_GROUP, evaluation))
    if evaluation.gaps.get("p", pd.Series()).notna().any():
        by_section["groups"].append(_gap_table(evaluation))
    if len(evaluation.points):
        by_section["points"] += _point_tables(evaluation)
    return by_section


def _in_order(names: pd.Series) -> pd.Series:
    """Return keys that sort bands of numbers such as ``5-17`` and ``18-39`` by their first number."""
    return names.map(lambda name: re.sub(r"^\d+", lambda number: number[0].zfill(9), name))


def verdict(evaluation: Evaluation) -> str:
    """Return sentences about the gaps between groups that are beyond noise, and about those that were not tested."""
    gaps = evaluation.gaps
    if not len(gaps):
        return "Groups of patients were not compared."
    tested = gaps["p"].notna()
    if not tested.any():
        return "No gap between groups can be tested, as groups have too few patients. This supports no claim."
    noise = "other test images and other trainings" if len(evaluation.method.runs) > 1 else "other test images"
    claimed = gaps[gaps["beyond_noise"]].sort_values("p_holm")
    tests = f"{int(tested.sum())} tests, corrected together by Holm"
    missing = int((~tested).sum())
    left = f" {missing} more could not be tested: too few patients or no variation." if missing else ""
    if claimed.empty:
        return (
            f"No gap between groups is beyond the noise of {noise} ({tests}). This does not show that there is no "
            f"gap: the intervals say how large a gap may be.{left}"
        )
    named = [
        f"{_what(row)} of {row['class']}, {row.by} {row.group} minus {row.reference}: {row.gap:+.3f} "
        f"[{row.low:+.3f}, {row.high:+.3f}]"
        for _, row in claimed.head(MOST_NAMED).iterrows()
    ]
    more = f"; {len(claimed) - MOST_NAMED} more are in the table" if len(claimed) > MOST_NAMED else ""
    return f"Gaps beyond the noise of {noise} ({tests}): {'; '.join(named)}{more}.{left}"


def _what(row: pd.Series) -> str:
    return f"{MEASURES[row['measure']].title}{', threshold for ' + row['at'] if row['at'] else ''}"


def _measured(
    caption: str, frame: pd.DataFrame, names: tuple[str, ...], measures: Sequence[str], evaluation: Evaluation
) -> Table:
    rows = []
    for place, part in frame.groupby(list(names), sort=False):
        first, values = part.iloc[0], part.set_index("measure")
        rows.append((*map(str, place), *_support(first), *(_cell(values.loc[name]) for name in measures)))
    return Table(caption, names, (*SUPPORT, *(_title(name, evaluation) for name in measures)), rows)


def _title(name: str, evaluation: Evaluation) -> str:
    stated = evaluation.request.stated
    at = {
        "sensitivity": f"sensitivity at specificity {stated.specificity:g}",
        "specificity": f"specificity at sensitivity {stated.sensitivity:g}",
        "net_benefit": f"net benefit at {stated.risk:g}",
    }
    return at.get(name, MEASURES[name].title)


def _cell(row: pd.Series) -> Number:
    spread = short(row["sd_over_seeds"]) if row["sd_over_seeds"] == row["sd_over_seeds"] else ""
    ends = interval_text(row["low"], row["high"]) if row["low"] == row["low"] else ""
    return Number(short(row["value"]), spread, ends)


def _gap_table(evaluation: Evaluation) -> Table:
    several = len(evaluation.method.runs) > 1
    noise = "other test images and other trainings" if several else "other test images, as there is one training"
    tested = evaluation.gaps[evaluation.gaps["p"].notna()]
    left = len(evaluation.gaps) - len(tested)
    several_sets = len(evaluation.sets) > 1
    names = ("class", "measure", "group", "reference", *("test set",) * several_sets)
    head = ("gap", f"{100 * evaluation.request.level:g}% interval", "p, images", "p, seeds", "p (Holm)")
    rows = [
        (
            row["class"], _what(row), f"{row['by']} {row['group']}", row["reference"], *(row["set"],) * several_sets,
            number(row["gap"], "+.3f"), interval_text(row["low"], row["high"], "+.3f"),
            p_text(row["p_images"]), p_text(row["p_seeds"]),
            Number(p_text(row["p_holm"]), stars="*" * bool(row["beyond_noise"]), bold=bool(row["beyond_noise"])),
        )
        for _, row in tested.iterrows()
    ]  # fmt: skip
    more = f"; gaps.csv has {left} more, with too few patients or no variation for a test" if left else ""
    caption = (
        f"Gaps: each group minus the reference, the largest group of its kind; intervals cover {noise}, and are not "
        f"corrected; * is beyond noise{more}"
    )
    return Table(caption, names, head, rows)


def _point_tables(evaluation: Evaluation) -> list[Table]:
    """Return the rates at every threshold on the test sets, and matrices of thresholds from one site at another."""
    points = evaluation.points
    everyone, by_group = points[points["by"] == ALL], points[points["by"].isin(evaluation.kinds)]
    source = evaluation.points["chosen_on"].iloc[0]
    level = f"{100 * evaluation.request.level:g}% intervals for other test patients"
    title = "Thresholds that were chosen on validation images and used on test images"
    parts = [_rates(f"{title}; {level}, and the same thresholds", everyone, ("set",))]
    if len(by_group):
        by_group = by_group[by_group["chosen_on"] == source]
        parts.append(_rates(f"{title}, by group; chosen on: {source}; {level}", by_group, ("set", "by", "group")))
    clients = points[(points["by"] == "client") | ((points["by"] == ALL) & (points["set"] != FEDERATION))]
    if len(clients):
        parts.append(_transport(clients))
    return parts


def _transport(points: pd.DataFrame) -> Table:
    """Return a matrix of thresholds that were chosen at one site and used at another."""
    used = points["group"].where(points["by"] == "client", "test set " + points["set"])
    rates = (
        points.assign(used=used).set_index(["class", "at", "chosen_on", "used", "measure"])["value"].unstack("measure")
    )
    texts = rates["sensitivity"].map(short) + " / " + rates["specificity"].map(short)
    cells, sites = texts.unstack("used", fill_value=ABSENT), sorted(set(used))
    rows = [(*map(str, place), *row) for place, *row in cells[sites].itertuples(name=None)]
    caption = (
        "Sensitivity / specificity of a threshold that was chosen on the validation images of one site (federation: of "
        "all), on the test images of the site of each column; without intervals"
    )
    return Table(caption, ("class", "chosen for", "chosen on"), tuple(sites), rows)


def _rates(caption: str, frame: pd.DataFrame, where: tuple[str, ...]) -> Table:
    rows = []
    for (name, at, source, *place), part in frame.groupby(["class", "at", "chosen_on", *where], sort=False):
        values, tested = part.set_index("measure"), " ".join(place)
        cells = [_cell(values.loc[rate]) for rate in AT_THRESHOLD]
        rows.append((name, at, source, tested, f"{part.iloc[0]['threshold']:.4f}", *cells, *_support(part.iloc[0])))
    head = ("threshold", *(each.title for each in AT_THRESHOLD.values()), *SUPPORT)
    return Table(caption, ("class", "chosen for", "chosen on", "tested on"), head, rows)


def _support(row: pd.Series) -> tuple[str, ...]:
    return tuple(f"{row[f'n_{side}']:,} ({row[f'patients_{side}']:,})" for side in ("pos", "neg"))
