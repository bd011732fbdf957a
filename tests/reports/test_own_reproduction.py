"""``fedlit reproduce FILE.yaml``: a document of the user's own, with its paper and its kind of report."""

import json
from pathlib import Path

import pytest
import yaml

CONFIG = {
    "data": {"class_path": "PhantomCXR", "init_args": {"images": 90, "image_size": 16, "hospitals": 2}},
    "model": {"class_path": "ImageClassifier", "init_args": {"backbone": "small_cnn"}},
    "federation": {"rounds": 1, "workers": 1},
    "logger": False,
}
PAPER = {
    "source": "Doe et al., 2031",
    "tables": {"Table 1": {"caption": "AUROC.", "columns": ["m"], "rows": [["0.9"]]}},
}
KIND = """
from dataclasses import dataclass
from fedlit.reports.reproductions.report import Report

@dataclass(frozen=True)
class Count:
    unit: str

    def make(self, runs, scale):
        return Report(f"{len(runs)} {self.unit} of {', '.join(sorted(set(runs['method'])))}", {"counted": runs})
"""


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """A document with everything that it needs next to it."""
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(CONFIG))
    (tmp_path / "doe.json").write_text(json.dumps(PAPER))
    (tmp_path / "ranks_of_doe.py").write_text(KIND)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    part = {"config": "small.yaml", "title": "Phantom", "cases": {"{method}": {"labels": {"method": ["a", "b"]}}}}
    return {
        "shows": "how to reproduce a table of Doe",
        "paper": "doe",
        "tables": ["Table 1"],
        "report": {"kind": "ranks_of_doe.Count", "unit": "runs"},
        "values": {"method": {"a": {"seed": 0}, "b": {"federation.aggregators": ["Scaffold"]}}},
        "scales": {"laptop": {"data": "PhantomCXR", "time": "seconds", "parts": {"doe-table1": part}}},
    } | {"seeds": [0]}


def reproduce(fedlit_cli, document: dict, *words: str) -> tuple[int, str, str]:
    Path("doe-table1.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return fedlit_cli(" ".join(["reproduce", "doe-table1.yaml", "--jobs", "1", *words]))


@pytest.mark.slow
def test_it_runs_and_its_paper_and_kind_of_report_are_found(fedlit_cli, document: dict):
    document["values"]["method"]["a"] = {"federation.aggregators": ["FedAvg"]}
    code, out, err = reproduce(fedlit_cli, document)
    assert code == 0, err
    text = Path("reproductions/doe-table1/report.md").read_text()
    assert "2 runs of a, b" in text
    assert "Doe et al., 2031" in text
    assert "| 0.9 |" in text
    assert text in out


def test_it_is_planned_without_a_paper(fedlit_cli, document: dict):
    document.pop("paper"), document.pop("tables")
    document["values"]["method"]["a"] = {"federation.aggregators": ["FedAvg"]}
    code, out, err = reproduce(fedlit_cli, document, "--dry_run true --seconds_per_step 0.1")
    assert code == 0, err
    assert "doe-table1 at laptop scale: how to reproduce a table of Doe" in out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"report": {"kind": "seeds", "row": "{methd}", "against": {}, "what": "", "versus": ""}},
            ("report.row", "'methd'"),
        ),
        ({"report": {"kind": "ranks_of_doe.Counts"}}, ("report", "ranks_of_doe.Counts", "cannot be imported")),
        ({"report": {"kind": "ranks_of_doe.dataclass"}}, ("report", "a method make")),
        ({"report": {"kind": "rows"}}, ("report", "seeds, classes", "found 'rows'")),
        ({"report": {"kind": "ranks_of_doe.Count", "units": "runs"}}, ("report.units", "there is no such key")),
        ({"tables": ["Table 2"]}, ("tables", "Table 1", "found 'Table 2'")),
        ({"paper": "roe"}, ("roe.json", "fdam", "found 'roe'")),
        ({"scales": {}}, ("scales", "expected laptop or paper")),
    ],
)  # fmt: skip
def test_mistakes_are_refused_before_anything_trains(change: dict, words: tuple, fedlit_cli, document: dict):
    code, _, err = reproduce(fedlit_cli, document | change)
    assert code == 1
    assert not Path("runs").exists()
    assert [word for word in words if word not in err] == []


def test_a_file_that_is_missing_is_named(fedlit_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = fedlit_cli("reproduce none.yaml")
    assert code == 1
    assert "none.yaml" in err
