"""The papers' numbers that ship: as printed, and each with one of ours at ``paper`` scale."""

import json
import re
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from past_runs import scored
from reproduced import measured_run, table_of_plans

from fedlit.core.system.shipped import CONFIGS
from fedlit.experiment.grid import combinations_of
from fedlit.predictions.table import write
from fedlit.reports.reproductions import NAMES, heterogeneity
from fedlit.reports.reproductions.document import find, read_document
from fedlit.reports.reproductions.means import sent
from fedlit.reports.reproductions.published import read_paper
from fedlit.reports.reproductions.report import Report, tables_of
from fedlit.reports.reproductions.reproduction import Reproduction

SHIPPED = sorted(file.parent.name for file in CONFIGS.glob("*/published.json"))
METHODS = {"PFL Baseline": "PFL", "Vanilla FL": "Vanilla", "FL + PartialLoss": "PartialLoss", "FL + SurgAgg": "SurgAgg"}


def reported(name: str, folder: Path, metrics, scale: str = "paper") -> Report:
    """What a reproduction makes of made-up metrics; ``metrics`` gives those of a case."""
    reproduced = Reproduction(name, scale=scale)

    def measured(each, seed):
        found = metrics(reproduced.chosen, each.case)
        more = {"val/auroc_macro": 0.5, "test_curve/federation/auroc_macro": 0.5, "bytes/up": 1e6}
        return found, {1: found | more}

    return reproduced.report(table_of_plans(reproduced.plans, folder, measured, [0], tries=1))


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
    table = read_paper(CONFIGS / paper).tables[title]
    return {
        (", ".join(row[:names]), column)
        for row in table.rows
        for column, cell in zip(table.columns[names:], row[names:], strict=True)
        if cell is not None
    }


def of_surgical(sites: dict[str, list[str]], classes: list[str], case: str) -> dict[str, float]:
    """A site's test set and its own model have the classes of the site; the external set has all."""
    values = {label: 0.6 + 0.01 * number + 0.001 * len(case) * (number % 3) for number, label in enumerate(classes)}
    learned = sites.get(case.removeprefix("individual-"), classes)
    found = {}
    for test_set, labelled in (*sites.items(), ("MIMIC-LT", classes)):
        for label in set(labelled) & set(learned) & set(classes):
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
    title, reproduced = f"Table {number}", Reproduction(f"surgical-table{number}", scale=scale)
    sites = reproduced.chosen.report["sites"]

    def measured(each, seed):
        return (of_surgical(sites, each.settings["data.classes"], each.case),)

    report = reproduced.report(table_of_plans(reproduced.plans, tmp_path, measured, [0]))
    ours = {(row, column) for row, column in cells(report.text, 1)}
    if number == 1:  # where all sites label the same, one row has three names; with ``linked`` Vanilla is PartialLoss
        parts = [(*row.rpartition(" "), column) for row, column in ours]
        ours = {(f"{one} {last}".strip(), column) for names, _, last, column in parts for one in names.split(", ")}
    if number == 1 and scale == "linked":
        ours |= {(row.replace("PartialLoss", "Vanilla"), column) for row, column in ours}
    theirs = {surgical_cell(title, row, column) for row, column in published("surgical", title, 1)}
    assert theirs - ours == set()
    more = [each for each in tables_of(CONFIGS / "surgical").MORE.get(title, "").split(", ") if each]
    assert {(r, c) for r, c in ours - theirs if r not in more and not c.startswith(tuple(more) or ("-",))} == set()
    assert all(any(name in (r, c.partition(" ")[0]) for r, c in ours - theirs) for name in more)
    assert not more or f"Not in the paper's table: {', '.join(more)}." in report.text


def findings(chosen, case) -> dict[str, float]:
    metrics = chosen.report["metrics"]
    return dict.fromkeys([metrics] if isinstance(metrics, str) else metrics.values(), 0.7)


@pytest.mark.parametrize(
    ("name", "scale"),
    [("fdam-table3", "paper"), ("fdam-table3", "linked"), ("fdam-table4", "paper"), ("fdam-table5", "linked")],
)
def test_tables_of_fdam(name, scale, tmp_path):
    title, report = f"Table {name[-1]}", reported(name, tmp_path, findings, scale)
    theirs = published("fdam", title, 2 if name == "fdam-table3" else 1)
    if name == "fdam-table3":  # at I = 1 the two are one algorithm, and CODA+ stands for it
        theirs = {(row.replace(" and CODASCA", "").replace(", ", ", I = "), column) for row, column in theirs}
    else:
        theirs = {(f"K = {row}", column) for row, column in theirs}
    assert cells(report.text, 1) == theirs


def test_table_1_of_localscgdam(tmp_path):
    report = reported("localscgdam-table1", tmp_path, lambda *_: {"test/federation/auroc_macro": 0.7})
    assert cells(report.text, 1) == published("scgdam", "Table 1", 2)


@pytest.mark.filterwarnings("error::pandas.errors.PerformanceWarning")
def test_largest_windows_of_figure_1(tmp_path):
    """Each federation has the paper's two windows and their ratio; what else is there is said not to be the paper's."""
    harmful = ("codaplus-64", "codasca-512")

    def harmed(_, case):
        return {"test/federation/auroc_macro": 0.5 if case in harmful else 0.7}

    report = reported("fdam-fig1", tmp_path, harmed)
    assert "| ImageNet-IH (10%), K = 16 | CODA+ | 32 |  | 64 |" in report.text
    assert "| ImageNet-IH (10%), K = 16 | CODASCA | 128 | 4 | 512 |" in report.text
    lines = [line[2:-2].split(" | ") for line in report.text.splitlines() if line.startswith("| ")]
    start = next(number for number, line in enumerate(lines) if line[:3] == ["federation", "method", "I_max"])
    assert lines[start][3:] == ["ratio to CODA+", "more is lost at"]
    ours = set()
    for title, method, window, ratio, _ in lines[start + 1 :]:
        number = title.rpartition(" = ")[2]
        ours |= {(number, column) for column, cell in ((method, window), ("ratio", ratio)) if re.match(r"\d", cell)}
    assert ours == published("fdam", "Figure 1", 1)
    assert "does not have the last column" in report.text
    values = report.tables["values"]
    last = values["column"].str.endswith(", last iterate")
    assert (values[last]["auroc"] == 0.5).all()
    assert set(values[~last]["auroc"]) == {0.5, 0.7}
    assert last.sum() == len(values) / 2


def test_bytes_are_added_up_over_rounds(tmp_path):
    run = measured_run(tmp_path / "run", {}, {1: {"bytes/up": 2e6}, 2: {"bytes/up": 1e6}, 3: {"bytes/up": 1e6}})
    assert sent(run, [2, 3]) == [3.0, 4.0]


def test_table_2_of_fdam(tmp_path, monkeypatch):
    _, rows = everything_there("fdam-table2", tmp_path, monkeypatch)
    assert len(rows) == len(read_paper(CONFIGS / "fdam").tables["Table 2"].rows)
    numbers = [row[2] for row in rows]
    assert sorted(numbers) == sorted(row[2] for row in read_paper(CONFIGS / "fdam").tables["Table 2"].rows)


def test_table_6_of_fdam(tmp_path, monkeypatch):
    _, rows = everything_there("fdam-table6", tmp_path, monkeypatch)
    columns = read_paper(CONFIGS / "fdam").tables["Table 6"].columns[1:]
    named = {"NIH": "ChestXray8", "MIMIC": "MIMIC-CXR", "VinDr": "ChestXrayAD"}
    ours = {
        (named.get(source, source), column)
        for source, _, *cells in rows
        for column, _ in zip(columns, cells, strict=True)
    }
    assert ours == published("fdam", "Table 6", 1)


def everything_there(name: str, root: Path, monkeypatch) -> tuple[Reproduction, list[list[str]]]:
    """The rows of a table of all data sets, as if the label files of each held one image."""
    for folder in ("CheXpert", "NIH", "PadChest", "MIMIC-CXR-JPG", "VinDr-CXR"):
        (root / folder).mkdir()
    monkeypatch.setattr(tables_of(CONFIGS / "fdam"), "shares", lambda reader, classes: (1, dict.fromkeys(classes, 0.2)))
    source = lambda name, reader, size: heterogeneity.Source(name, np.ones((1, 1)), ("x",), None)  # noqa: E731
    monkeypatch.setattr(heterogeneity, "_read", source)
    reproduced = Reproduction(name, scale="paper", root=root)
    lines = reproduced.report(None).text.splitlines()
    return reproduced, [line[2:-2].split(" | ") for line in lines if line.startswith("| ")][1:]


@pytest.mark.parametrize(
    ("name", "table"), [("flamby-heart", "Fed-Heart-Disease"), ("flamby-isic2019", "Fed-ISIC2019")]
)
def test_every_number_of_the_benchmark(name, table, tmp_path):
    """A number of ours for each method, start and test set; the mean of hospitals and AUROC are said to be ours."""
    reproduced, runs = Reproduction(name, scale="paper"), []
    tests = read_paper(CONFIGS / "flamby").tables[table].columns[2:-1]
    (planned,) = reproduced.plans.values()
    for each, seed in product(combinations_of(planned), planned.seeds):
        runs.append({**each.labels, "seed": seed, "directory": predicted(tmp_path / f"{each.case}-{seed}", tests)})
    report = reproduced.report(pd.DataFrame(runs))
    values = report.tables["values"].set_index(["method", "seed"]).drop(columns=["run_seed", "mean of hospitals"])
    ours = {(f"{method}, {seed}", test) for (method, seed), row in values.iterrows() for test in row.dropna().index}
    assert ours == published("flamby", table, 2)
    shown = cells(report.text, 1)
    assert {column for _, column in shown} == {*tests, "mean of hospitals", "pooled-test"}
    assert "The mean of hospitals is not in the benchmark's table" in report.text
    assert "which the benchmark does not publish" in report.text


def predicted(run: Path, tests: tuple[str, ...]) -> Path:
    """A run with two predictions, of either class, at each hospital."""
    labels = torch.eye(2).repeat(len(tests), 1)
    found = scored(labels, labels, ("a", "b"), sites=np.repeat(np.array(tests), 2))
    return write(found, run / "predictions" / "federation.parquet").parents[1]


def row(paper: str, title: str, *start: str) -> tuple[str | None, ...]:
    found = [cells for cells in read_paper(CONFIGS / paper).tables[title].rows if cells[: len(start)] == start]
    assert len(found) == 1
    return found[0][len(start) :]


@pytest.mark.parametrize("name", SHIPPED)
def test_no_cell_is_empty_and_every_row_and_column_has_a_name_of_its_own(name):
    for table in read_paper(CONFIGS / name).tables.values():
        assert len(set(table.columns)) == len(table.columns)
        assert "" not in {cell for cells in table.rows for cell in cells}
        headings = [cells[:2] if table.columns[1] in ("I", "method", "seed") else cells[:1] for cells in table.rows]
        assert len(set(headings)) == len(headings)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_files_hold_nothing_that_is_not_read(name):
    found = json.loads((CONFIGS / name / "published.json").read_text(encoding="utf-8"))
    assert set(found) == {"source", "tables"}
    assert all(set(table) <= {"caption", "columns", "rows", "note"} for table in found["tables"].values())


def test_numbers_are_those_of_the_papers():
    """Corners of each table, typed from the papers."""
    assert row("fdam", "Table 3", "CODA+ and CODASCA", "1") == ("0.8472", "0.8499", "0.7406", "0.7475", "0.8688")
    assert row("fdam", "Table 3", "CODASCA", "1024") == ("0.8363", "0.8444", "0.7346", "0.7481", "0.8674")
    assert row("fdam", "Table 4", "1") == ("0.9007", "0.9536", "0.9542", "0.9090", "0.9571", "0.9353")
    assert row("fdam", "Table 4", "5") == ("0.9066", "0.9583", "0.9544", "0.9101", "0.9584", "0.9376")
    assert row("fdam", "Table 5", "3") == ("0.9008", "0.9603", "0.9568", "0.9127", "0.9505", "0.9356")
    assert row("fdam", "Table 6", "ChestXrayAD") == ("0.153", "0.000", "0.024", "0.012", "0.069")
    assert row("fdam", "Figure 1", "16") == ("32", "128", "4")
    assert row("fdam", "Figure 1", "8") == ("128", "512", "4")
    assert row("scgdam", "Table 1", "CATvsDOG", "CoDA") == ("0.895 ± 0.000", "0.892 ± 0.000", "0.883 ± 0.001")
    assert row("scgdam", "Table 1", "Melanoma", "LocalSGDM_RL")[2] == "0.773 ± 0.001"
    assert row("surgical", "Table 1", "NIH Baseline") == ("0.84 ± 0.05 ns", "0.70 ± 0.07 **", "0.73 ± 0.10 **")
    assert row("surgical", "Table 2", "CheXpert Baseline") == (None, "0.74 ± 0.07 *", None)
    assert row("surgical", "Table 4", "FL + SurgAgg / FedBN+") == ("0.76 ± 0.10", "0.70 ± 0.12")
    assert row("flamby", "Fed-Heart-Disease", "SCAFFOLD", "42") == ("0.7500", "0.6966", "0.6875", "0.6222", "0.7520")
    assert row("flamby", "Fed-ISIC2019", "FedAvg", "46")[-2:] == ("0.4865", "0.3305")


OURS = ["canon", "canon-heads", "privacy"]
"""Fedlit's own comparisons, of no paper."""

NOT_PUBLISHED = ["surgical-sites", *OURS]
"""With a condition of a paper on its own, which no table of it shows."""


def test_every_reproduction_prints_tables_that_ship():
    assert [name for name in NAMES if not read_document(find(name)).tables] == NOT_PUBLISHED
    for name in [name for name in NAMES if name not in OURS]:
        document = read_document(find(name))
        assert document.name == name
        assert set(document.tables) <= set(read_paper(find(name).parent).tables)
        assert {"laptop", "paper"} <= set(document.scales) <= {"laptop", "paper", "linked"}
        assert document.scales["paper"].root is not None
