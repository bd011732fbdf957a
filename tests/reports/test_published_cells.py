"""Every number in a paper's table has a counterpart in ours at ``paper`` scale, and what ours has beyond them is said."""

import re
from pathlib import Path

import pandas as pd
import pytest

from fedlit.reports.reproductions.published import read_paper
from fedlit.reports.reproductions.report import Report
from fedlit.reports.reproductions.reproduction import Reproduction
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.run import Result

METHODS = {"PFL Baseline": "PFL", "Vanilla FL": "Vanilla", "FL + PartialLoss": "PartialLoss", "FL + SurgAgg": "SurgAgg"}
BOTH_SITES = ("NIH", "CheXpert")


def reported(name: str, folder: Path, metrics, scale: str = "paper") -> tuple[Reproduction, Report]:
    """What a reproduction makes of made-up metrics; ``metrics`` gives those of a case."""
    reproduced, rows = Reproduction(name, scale=scale), []
    for part in reproduced.chosen.parts.values():
        for case, its in part.cases.items():
            made = folder / part.experiment / case
            made.mkdir(parents=True)
            found = metrics(reproduced.chosen, part, case)
            Result(1, 1, 1.0, {key: value for key, value in found.items() if key.startswith("test/")}).write(made)
            MetricsFile(made / "metrics.csv").append(found | {"val/auroc_macro": 0.5}, 1)
            rows.append({"part": part.experiment, "title": part.title, "case": case, **its.labels})
            rows[-1] |= {"seed": 0, "best_round": 1, "directory": made}
    return reproduced, reproduced._reporter().make(pd.DataFrame(rows), reproduced.chosen)


def cells(text: str, names: int) -> set[tuple[str, str]]:
    """The cells of the first table in markdown that have a number, as (row, column)."""
    lines = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    columns = lines[0][names:]
    return {
        (", ".join(line[:names]), column)
        for line in lines[1:]
        for column, cell in zip(columns, line[names:], strict=True)
        if re.match(r"\d", cell)
    }


def published(paper: str, title: str, names: int) -> set[tuple[str, str]]:
    table = read_paper(paper).tables[title]
    return {
        (", ".join(row[:names]), column)
        for row in table.rows
        for column, cell in zip(table.columns[names:], row[names:], strict=True)
        if cell is not None
    }


def of_surgical(chosen, part, case) -> dict[str, float]:
    """A site's test set and its own model have the classes of the site; the external set has all."""
    sites, classes = chosen.report["sites"], part.settings["data.classes"]
    values = {label: 0.6 + 0.01 * number + 0.001 * len(case) * (number % 3) for number, label in enumerate(classes)}
    learned = sites.get(case.removeprefix("individual-"), classes)
    found = {}
    for test_set, scored in (*sites.items(), ("MIMIC-LT", classes)):
        for label in set(scored) & set(learned) & set(classes):
            if not (case.startswith("pfl") and test_set == "MIMIC-LT"):
                found[f"test/{test_set}/auroc/{label}"] = values[label]
    if case.startswith("pfl"):
        found |= {f"test/MIMIC-LT by {s}/auroc/{c}": values[c] for s in sites for c in sites[s] if c in values}
    return found


def surgical_cell(title: str, row: str, column: str) -> tuple[str, str]:
    """Our cell for one of the paper's."""
    method, _, strategy = row.partition(" / ")
    ours = METHODS.get(method, method.replace("Baseline", "baseline"))
    if ours in METHODS.values():
        ours = f"{ours} {strategy or 'FedBN+'}"
    kind = re.match(r"(NIH|CheXpert) (shared|unique) classes", column)
    where = f"{kind[1]}, {kind[2]} classes" if kind else column.replace("MIMIC-LT ", "MIMIC-LT, ")
    return ours, "external (MIMIC-LT)" if where == "MIMIC-LT" else where


@pytest.mark.parametrize("scale", ["paper", "linked"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_surgical_tables(number, scale, tmp_path):
    title = f"Table {number}"
    reproduced, report = reported(f"surgical-table{number}", tmp_path, of_surgical, scale)
    ours = {(row, column) for row, column in cells(report.text, 1)}
    if number == 1:  # where all sites label the same, one row has three names; with ``linked`` Vanilla is PartialLoss
        parts = [(*row.rpartition(" "), column) for row, column in ours]
        ours = {(f"{one} {last}".strip(), column) for names, _, last, column in parts for one in names.split(", ")}
    if number == 1 and scale == "linked":
        ours |= {(row.replace("PartialLoss", "Vanilla"), column) for row, column in ours}
    theirs = {surgical_cell(title, row, column) for row, column in published("surgical", title, 1)}
    assert theirs - ours == set()
    more = reproduced.chosen.report["tables"][title].get("more", [])
    assert {(r, c) for r, c in ours - theirs if r not in more and not c.startswith(tuple(more) or ("-",))} == set()
    assert all(any(name in (r, c.partition(" ")[0]) for r, c in ours - theirs) for name in more)
    assert not more or f"Not in the paper's table: {', '.join(more)}." in report.text


def findings(chosen, part, case) -> dict[str, float]:
    metrics = chosen.report["metrics"]
    return dict.fromkeys([metrics] if isinstance(metrics, str) else metrics.values(), 0.7)


@pytest.mark.parametrize("scale", ["paper", "linked"])
@pytest.mark.parametrize("name", ["fdam-table3", "fdam-table4", "fdam-table5"])
def test_tables_of_fdam(name, scale, tmp_path):
    title, (_, report) = f"Table {name[-1]}", reported(name, tmp_path, findings, scale)
    theirs = published("fdam", title, 2 if name == "fdam-table3" else 1)
    if name == "fdam-table3":  # at I = 1 the two are one algorithm, and CODA+ stands for it
        theirs = {(row.replace(" and CODASCA", "").replace(", ", ", I = "), column) for row, column in theirs}
    else:
        theirs = {(f"K = {row}", column) for row, column in theirs}
    assert cells(report.text, 1) == theirs


def test_table_1_of_localscgdam(tmp_path):
    _, report = reported("localscgdam-table1", tmp_path, lambda *_: {"test/federation/auroc_macro": 0.7})
    assert cells(report.text, 1) == published("localscgdam", "Table 1", 2)
