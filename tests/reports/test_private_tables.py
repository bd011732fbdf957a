"""The table of private training: which runs are in it, and an audit without a number."""

from pathlib import Path

import numpy as np
import pandas as pd
from reproduced import measured_run

from fedlit.core.system.shipped import CONFIGS
from fedlit.reports.reproductions.document import find, read_document
from fedlit.reports.reproductions.report import tables_of

TABLES = tables_of(CONFIGS / "privacy")


def row(folder: Path, case: str, seed: int, stage: str, auroc: float) -> dict[str, object]:
    run = measured_run(folder / f"{case}-{seed}-{stage}", {"test/federation/auroc_macro": auroc})
    return {"plan": "nih-head", "case": case, "seed": seed, "stage": stage, "directory": run}


def test_chosen_runs_count_with_the_interval_over_seeds(tmp_path, monkeypatch):
    attacks = iter([0.5, 0.6, 0.7, np.nan])
    monkeypatch.setattr(TABLES, "membership", lambda run: next(attacks))
    rows = [row(tmp_path, "none", seed, "chosen", 0.7 + 0.1 * seed) for seed in range(3)]
    rows += [row(tmp_path, "none", 3, "try", 0.1), row(tmp_path, "epsilon-1", 0, "chosen", 0.55)]
    report = TABLES.make(pd.DataFrame(rows))
    head = "| NIH, 240 patients, head |"
    tested, attacked = (line for line in report.text.splitlines() if line.startswith(head))
    assert tested == f"{head} 0.550 | - | - | 0.800 ± 0.248 |"  # 4.303 * 0.1 / sqrt(3)
    assert attacked == f"{head} - | - | - | 0.600 ± 0.248 |"
    assert len(report.tables["privacy"]) == 4


def test_its_plans_have_a_row_and_its_cases_a_column():
    document = read_document(find("privacy"))
    assert {Path(plan).stem for plan in document.scales["laptop"].plans} == set(TABLES.PLANS)
