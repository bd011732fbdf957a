"""Names of metrics in trackers: the most important first, costs last, and no counts."""

import pandas as pd
import pytest

from fedlit.tracking.base import MetricsFile, Tracker
from fedlit.tracking.names import is_count, key_of, shown, shown_name
from fedlit.tracking.run import Run, write_counts

IN_ORDER = [
    "val/auroc_macro", "val/auroc/Edema", "val/auroc/Support Devices",
    "test/federation/auroc/Edema", "test/federation/auroc_macro", "test/north/auroc_macro", "test/federation/loss",
    "train/loss", "val/auroc_client_mean_macro", "val/loss", "client/north/auroc/Edema", "client/north/auroc_macro",
    "objective/alpha/Edema", "own/moved", "drift/client_drift", "round/lr", "bytes/up", "client/north/seconds",
    "client/q25/seconds", "time/round_s", "total/bytes_up",
]  # fmt: skip


def test_auroc_comes_first_and_bytes_and_seconds_last():
    names = [shown_name(key) for key in reversed(IN_ORDER)]
    assert [key_of(name) for name in sorted(names)] == IN_ORDER
    assert sorted(names)[0] == "1-val/auroc_macro"


@pytest.mark.parametrize("key", [*IN_ORDER, "loss", "1-mine", "2024"])
def test_a_name_leads_back_to_its_key(key: str):
    assert key_of(shown_name(key)) == key


@pytest.mark.parametrize("name", ["val/auroc_macro", "4-fold/accuracy", "loss", "x"])
def test_names_that_are_not_ours_stay(name: str):
    assert key_of(name) == name


def test_counts_are_shown_nowhere():
    metrics = {"val/loss": 0.5, "val/n_pos/Edema": 7.0, "test/north/n_neg/Edema": 3.0, "val/auroc_macro": 0.7}
    assert list(shown(metrics)) == ["1-val/auroc_macro", "4-val/loss"]
    assert not is_count("val/n_pos")


def test_counts_become_one_table(tmp_path):
    file = MetricsFile(tmp_path / "metrics.csv")
    for step in (1, 2):
        file.append({"val/n_pos/Edema": 7.0, "val/n_neg/Edema": 3.0, "val/loss": 0.1}, step)
    file.append({"test/north/n_pos/Mass": 0.0, "test/north/n_neg/Mass": 9.0}, 2)
    assert write_counts(file.rows(), tmp_path / "counts.csv")
    table = pd.read_csv(tmp_path / "counts.csv")
    expected = [("val", "Edema", 7, 3), ("test/north", "Mass", 0, 9)]
    assert list(table.itertuples(index=False, name=None)) == expected
    assert table.columns.tolist() == ["set", "class", "positives", "negatives"]


class Artifacts(Tracker):
    """Keeps the names of files."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def log_artifact(self, path, folder: str = "") -> None:
        self.names.append(path.name)


@pytest.mark.parametrize("counts", [{}, {"val/n_pos/Edema": 7.0, "val/n_neg/Edema": 3.0}])
def test_a_run_keeps_its_counts_as_a_file_and_in_its_metrics(counts, tmp_path):
    run = Run(tmp_path / "run", Artifacts(), config="seed: 0\n")
    run.start({}, 0)
    run.log(counts, 1)
    run.finish("KILLED")
    assert run.tracker.names == ["config.yaml", *["counts.csv"] * bool(counts)]
    assert [key for _, key, _ in run.metrics.rows()] == [*counts]
