"""The tutorial notebook: its cells run in order, in an empty folder, and lead to a report."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

NOTEBOOK = Path(__file__).parent.parent / "docs/first-federation.ipynb"


def cells(kind: str) -> list[str]:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == kind]


def run_cell(source: str, names: dict) -> str:
    """Run a cell as Jupyter does; return what its commands print. A command that fails is an error."""
    if not source.startswith("!"):
        exec(compile(source, str(NOTEBOOK), "exec"), names)
        return ""
    printed = ""
    for line in source.splitlines():
        command = line.removeprefix("!fedlit ")
        assert command != line, f"expected a command of fedlit, found {line}"
        environment = os.environ | {"COLUMNS": "120", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run([sys.executable, "-m", "fedlit", *command.split()], capture_output=True, text=True,
                              timeout=240, env=environment)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        printed += done.stdout
    return printed


def test_the_notebook_is_stored_without_outputs():
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in content["cells"])
    assert max(len(line) for kind in ("markdown", "code") for cell in cells(kind) for line in cell.splitlines()) <= 120


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_cell_runs_and_the_report_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    printed = [run_cell(source, names) for source in cells("code")]
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
