"""The page of a run in MLflow: its name, charts, parameters and link."""

import re
from pathlib import Path

import pandas as pd
import pytest
import yaml
from mlflow.entities import Run

from fedlit.tracking.base import MetricsFile
from fedlit.tracking.mlflow import CHARTS
from fedlit.tracking.names import is_count, key_of
from fedlit.tracking.store import connect

TOY = {
    "data": {"class_path": "toys.ToyData"},
    "model": {"class_path": "toys.ToyNet"},
    "federation": {"rounds": 2, "workers": 1, "aggregators": ["Scaffold"]},
    "seed": 3,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture
def opened(place: Path, monkeypatch: pytest.MonkeyPatch, fedlit_cli) -> tuple[Run, Path, str]:
    """A run as MLflow has it, its directory, and what was printed."""
    monkeypatch.chdir(place)
    if not Path("toy.yaml").exists():
        Path("toy.yaml").write_text(yaml.safe_dump(TOY))
        out = fedlit_cli("fit --config toy.yaml").succeeded()
        Path("printed.txt").write_text(out)
    (directory,) = Path("runs/default").iterdir()
    (run,) = connect(f"sqlite:///{place}/mlflow.db").search_runs(["1"])
    return run, directory, Path("printed.txt").read_text()


def test_the_run_and_its_directory_are_named_by_method_and_seed(opened):
    run, directory, _ = opened
    assert re.fullmatch(r"Scaffold-seed3-\d{8}-\d{4}", run.info.run_name)
    assert directory.name == run.info.run_name


def test_the_printed_address_opens_the_charts(opened):
    run, _, printed = opened
    address = f"http://127.0.0.1:5000/#/experiments/1/runs/{run.info.run_id}/{CHARTS}"
    assert printed.splitlines()[-2:] == ["mlflow ui --backend-store-uri sqlite:///mlflow.db", address]


def test_all_metrics_but_counts_are_there_and_auroc_comes_first(opened):
    run, directory, _ = opened
    keys = {key for _, key, _ in MetricsFile(directory / "metrics.csv").rows()}
    assert {key_of(name) for name in run.data.metrics} == {key for key in keys if not is_count(key)}
    names = sorted(run.data.metrics)
    assert names[0] == "1-val/auroc_macro"
    assert names[1].startswith("2-val/auroc/")
    assert {name[:6] for name in names[-9:]} <= {"9-byte", "9-clie", "9-time", "9-tota"}


def test_counts_are_a_file_of_the_run(opened, place: Path):
    run, directory, printed = opened
    client = connect(f"sqlite:///{place}/mlflow.db")
    assert "counts.csv" in {entry.path for entry in client.list_artifacts(run.info.run_id)}
    counts = pd.read_csv(directory / "counts.csv").set_index(["set", "class"])
    for name, row in counts.loc["test/federation"].iterrows():
        assert re.search(rf"│ {name} +│ +[\d.-]+ │ +{row.positives} │ +{row.negatives} │", printed)


def test_parameters_are_few_and_the_configuration_is_whole(opened, place: Path):
    run, directory, _ = opened
    assert len(run.data.params) <= 40
    wanted = {"method": "Scaffold", "aggregator": "Scaffold", "seed": "3", "rounds": "2", "with.Scaffold.eta_g": "1.0"}
    assert wanted.items() <= run.data.params.items()
    stored = Path(run.info.artifact_uri.removeprefix("file://")) / "config.yaml"
    assert stored.read_bytes() == (directory / "config.yaml").read_bytes()
