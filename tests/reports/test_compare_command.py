"""``fedlit compare`` from the command line to its files."""

from pathlib import Path

import pandas as pd
import pytest
from past_runs import CLASSES, config, predictions, write_run
from refusals import Cli


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with two seeds."""
    folder = tmp_path_factory.mktemp("runs") / "written"
    for name, strength in (("FedAvg", 0.5), ("Scaffold", 2.0)):
        for seed in (0, 1):
            found = predictions(strength, seed, 300, per_patient=2)
            write_run(folder / f"{name}-{seed}", found, config((name,), seed))
    return folder


def test_a_comparison_is_shown_and_written(
    runs: Path, tmp_path: Path, fedlit_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = fedlit_cli(f"compare {runs} --draws 200 --output {tmp_path / 'out'}").succeeded()
    assert max(map(len, out.replace(str(tmp_path), "").splitlines())) <= 80
    for word in (*CLASSES, "FedAvg (baseline)", "Scaffold", "macro", "***", "beyond noise", "6 MB", "report.html"):
        assert word in out
    auroc = pd.read_csv(tmp_path / "out" / "auroc.csv")
    assert set(auroc["class"]) == {*CLASSES, "macro"}
    assert set(auroc["seeds"]) == {2}
    changes = pd.read_csv(tmp_path / "out" / "differences.csv").set_index("class")
    assert (changes["difference"] > 0).all()
    assert (changes["low"] > 0).all()
    assert set(changes["images_test"]) == {"bootstrap"}
    both = auroc.pivot(index="class", columns="method", values="auroc")
    pd.testing.assert_series_equal(
        changes["difference"], both["Scaffold"] - both["FedAvg"], check_names=False, check_like=True
    )
    page = (tmp_path / "out" / "report.html").read_text()
    for words in ("ROC curves", "Client drift", "Settings that differ", "FedAvg-0", "beyond noise", "Shapiro-Wilk"):
        assert words in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<script" not in page
    charts = ("auroc", "differences", "roc", "rounds", "steps", "bytes", "drift")
    files = {f"{n}.{s}" for n in charts for s in ("svg", "pdf")} | {"auroc.csv", "differences.csv", "report.html"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == files


@pytest.mark.slow
def test_an_earlier_report_is_not_replaced_in_silence(runs: Path, tmp_path: Path, fedlit_cli: Cli) -> None:
    shown = [fedlit_cli(f"compare {runs} --draws 100 --output {tmp_path}")[1] for _ in range(2)]
    assert ["replacing an earlier report" in out for out in shown] == [False, True]


def test_the_baseline_and_the_metric_are_chosen(runs: Path, tmp_path: Path, fedlit_cli: Cli) -> None:
    options = f"--baseline Scaffold --metric drift/client_drift --draws 100 --level 0.9 --output {tmp_path}"
    out = fedlit_cli(f"compare {runs}/FedAvg-0 {runs}/Scaffold-0 {options}").succeeded()
    assert "below Scaffold" in out
    assert "90% int." in out
    assert "drift/client_drift against rounds" in (tmp_path / "report.html").read_text()
    assert set(pd.read_csv(tmp_path / "differences.csv")["baseline"]) == {"Scaffold"}


@pytest.mark.slow
def test_runs_without_predictions_leave_curves(tmp_path: Path, fedlit_cli: Cli) -> None:
    write_run(tmp_path / "x" / "a", None, config())
    out = fedlit_cli(f"compare {tmp_path / 'x'} --output {tmp_path / 'out'}").succeeded()
    assert "no predictions" in out.replace("\n", " ")
    assert "fedlit test" in " ".join(out.split())
    assert {path.stem for path in (tmp_path / "out").glob("*.svg")} == {"rounds", "steps", "bytes", "drift"}
