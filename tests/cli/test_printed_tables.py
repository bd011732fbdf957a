"""Tables that commands print."""

import io

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from fedlit.cli.tables import auroc_table, seeds_table, sets_table, shortened, sweep_table
from fedlit.experiment.plan import Plan
from fedlit.tracking.run import Result


def printed(*tables) -> str:
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    for table in tables:
        console.print(table)
    return console.file.getvalue()


def rows(*tables) -> list[list[str]]:
    lines = printed(*tables).splitlines()
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]


def test_the_table_tells_an_undefined_auroc_and_its_support():
    values = {
        "test/all/auroc/Mass": 0.75,
        "test/all/n_pos/Mass": 12.0,
        "test/all/n_neg/Mass": 88.0,
        "test/all/auroc/Hernia": float("nan"),
        "test/all/n_pos/Hernia": 0.0,
        "test/all/n_neg/Hernia": 100.0,
        "test/all/auroc_macro": 0.75,
    }
    assert rows(auroc_table(values, "test/all", "AUROC")) == [
        ["Mass", "0.7500", "12", "88"],
        ["Hernia", "undefined", "0", "100"],
        ["mean over defined classes", "0.7500", "", ""],
    ]


def test_several_sets_have_a_column_each():
    values = {
        "test/north/auroc/Mass": 0.75,
        "test/south/auroc/Mass": float("nan"),
        "test/north/auroc_macro": 0.75,
        "test/south/auroc_macro": float("nan"),
        "test/north/auroc_shared": 0.5,
        "test/south/auroc_shared": 0.25,
    }
    assert rows(sets_table(values, ["north", "south"], "AUROC")) == [
        ["Mass", "0.7500", "-"],
        ["mean over defined classes", "0.7500", "-"],
        ["mean over shared classes", "0.5000", "0.2500"],
    ]


LONG = "Enlarged cardiomediastinum and tortuous thoracic aorta"
SITES = [f"hospital-{number:02d}" for number in range(1, 21)]


def values_of(sets: list[str], classes: list[str]) -> dict[str, float]:
    metrics = {}
    for name in sets:
        for label in classes:
            metrics |= {f"test/{name}/auroc/{label}": 0.5, f"test/{name}/n_pos/{label}": 12345.0,
                        f"test/{name}/n_neg/{label}": 98765.0}  # fmt: skip
        metrics[f"test/{name}/auroc_macro"] = 0.5
    return metrics


FOURTEEN = [f"Finding number {number}" for number in range(1, 15)]


@pytest.mark.parametrize(
    ("sets", "classes", "shown"),
    [
        (["a"], [LONG, "Mass"], {"0.5000": 3}),
        (["a-hospital-with-a-long-name-1", "a-hospital-with-a-long-name-2"], [LONG, "Mass"], {"0.5000": 6}),
        (SITES, ["Mass"], {"0.5000": 20, "COLUMNS": 0}),
        (SITES, FOURTEEN, {"0.5000": 20, " .50": 280, "14 Finding number 14": 1}),
        (SITES, FOURTEEN * 2, {"0.5000": 20, " .50": 0, "COLUMNS=130": 1}),
    ],
    ids=["one set", "long names", "one class", "twenty sites", "too many classes"],
)
def test_any_number_of_sets_is_one_table_of_80_columns(sets, classes, shown):
    classes = [f"{name}{' again' * (number >= 14)}" for number, name in enumerate(classes)]
    text = printed(sets_table(values_of(sets, classes), sets, "AUROC"))
    assert max(map(len, text.splitlines())) <= 80
    assert {part: text.count(part) for part in shown} == shown
    assert [name for name in sets if shortened(name, 16) not in text and name not in text] == []
    assert len([line for line in text.splitlines() if line.startswith(("┏", "test set"))]) == 1


def test_the_baselines_of_a_sweep_have_a_row_each():
    sweep = Plan("x", baselines=["individual", "pooled"])
    cases = ["federated", "federated", "individual-north", "pooled", "diverged", "diverged"]
    runs = pd.DataFrame({"case": cases, sweep.metric: [0.7, 0.8, 0.5, 0.9, 1.0, np.inf]})
    assert rows(sweep_table(sweep, runs, "on one draw of the data")) == [
        ["federated", "0.7500", "0.0707", "2/2"],
        ["individual-north", "0.5000", "-", "1/1"],
        ["pooled", "0.9000", "-", "1/1"],
        ["diverged", "inf", "-", "2/2"],
    ]


def test_no_table_breaks_a_number_or_a_name_at_80_columns():
    sweep = Plan("x", cases={"fedavg-with-a-long-name": {}}, grid={"model.optimizer.init_args.lr": [0.1]})
    runs = pd.DataFrame({"case": ["fedavg-with-a-long-name"] * 2, "model.optimizer.init_args.lr": [0.1, 0.1],
                         sweep.metric: [0.123456, np.nan]})  # fmt: skip
    metrics = {f"test/a-test-set-from-elsewhere/auroc/{LONG}": 0.5, "test/a-test-set-from-elsewhere/auroc_macro": 0.5}
    tables = [
        auroc_table(values_of(["a"], [LONG]), "test/a", "AUROC"),
        sweep_table(sweep, runs, "on one draw of the data"),
        seeds_table([Result(1, 1, 1.0, metrics)] * 2, "on one draw of the data"),
    ]
    rows_of = {"98765": 2, "0.1235": 1, "0.5000": 2}
    for table, number in zip(tables, rows_of, strict=True):
        shown = printed(table)
        assert max(map(len, shown.splitlines())) <= 80
        assert number in shown
        assert len([line for line in shown.splitlines() if "│" in line]) == rows_of[number]
