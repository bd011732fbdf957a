"""The notebooks and the example of segmentation: they run in order, in an empty folder, and lead to a result."""

import json
import re
import runpy
from pathlib import Path

import pandas as pd
import pytest
from runs import execute

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs").glob("*.ipynb"))
COMMAND = """
import os, sys
os.environ |= {"COLUMNS": "120", "PYTHONWARNINGS": "ignore"}
from fedlit.cli.main import main
from fedlit.federation.engines import pool
pool.cores = lambda: 1  # two workers cost a third of such a run
main(sys.argv[1:])
"""


def cells(notebook: Path, kind: str) -> list[str]:
    content = json.loads(notebook.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == kind]


def run_cell(source: str, names: dict, folder: Path) -> str:
    """Run a cell as Jupyter does; return what its commands print. A command that fails is an error."""
    if not source.startswith("!"):
        exec(compile(source, "a cell", "exec"), names)
        return ""
    printed = ""
    for line in source.splitlines():
        command = line.removeprefix("!fedlit ")
        assert command != line, f"expected a command of fedlit, found {line}"
        printed += execute(COMMAND, folder, *command.split()).succeeded(240)
    return printed


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict, list[str]]:
    """Run a notebook in a folder; return the names that it defines, and what the commands of each cell print."""
    monkeypatch.chdir(folder)
    names: dict = {}
    (notebook,) = (notebook for notebook in NOTEBOOKS if notebook.stem == name)
    return names, [run_cell(source, names, folder) for source in cells(notebook, "code")]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_is_stored_without_outputs(notebook: Path):
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in content["cells"])
    texts = [cell for kind in ("markdown", "code") for cell in cells(notebook, kind)]
    assert max(len(line) for cell in texts for line in cell.splitlines()) <= 120


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_links_of_a_notebook_lead_somewhere(notebook: Path):
    links = [link for cell in cells(notebook, "markdown") for link in re.findall(r"\]\((?!https?:)([^)#]+)", cell)]
    assert links
    assert [link for link in links if not (notebook.parent / link).exists()] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_first_federation_leads_to_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names, printed = run("first-federation", tmp_path, monkeypatch)
    check, ranking = printed[1], printed[-3]
    proposed = [line.strip() for line in check.splitlines()]
    for line in ("image: File", "patient: Patient", "site: Hospital"):
        assert any(line in each for each in proposed), f"the proposal lacks {line}:\n{check}"
    assert "fedavg" in ranking
    assert "fedbn" in ranking
    assert (tmp_path / "first-federation/comparison/report.html").stat().st_size > 10_000
    auroc = pd.read_csv(tmp_path / "first-federation/comparison/auroc.csv")
    assert {"FedAvg", "FedAvg+FedBN"} <= set(auroc["method"])
    for method in ("fedavg", "fedbn"):
        assert names["curves"][method].max() > 0.7


@pytest.mark.slow
def test_an_own_aggregator_leads_to_a_table_with_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names, _ = run("own-aggregator", tmp_path, monkeypatch)
    assert "attributes changed during training" in names["problem"]
    assert names["runs"]["FedExP,seed=0"].metrics["drift/eta"].max() > 1
    auroc = pd.read_csv(tmp_path / "own-aggregator/comparison/auroc.csv")
    assert {"FedAvg", "FedExP"} == set(auroc["method"])
    assert auroc[["low", "high"]].notna().all(axis=None)


@pytest.mark.slow
def test_two_hospitals_agree_with_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names, printed = run("two-hospitals", tmp_path, monkeypatch)
    assert "2 sites" in printed[1]
    assert len(names["values"]) == 6  # the notebook compares them
    assert {"train", "evaluate"} <= set(names["ledger"]["verb"])


@pytest.mark.slow
def test_the_example_of_segmentation_selects_by_dice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("monai")
    monkeypatch.chdir(tmp_path)
    fitted = runpy.run_path(str(Path(__file__).parent.parent / "docs/segmentation.py"))["main"]()
    dice = fitted.metrics["val/dice"]
    assert dice.max() > 0.5 > dice.iloc[0]
    assert fitted.best_round == dice.idxmax()
    assert {"client/north/dice", "client/east/dice"} <= set(fitted.metrics)
    assert fitted.test["test/federation/dice"] > 0.5
