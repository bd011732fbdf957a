"""``fedlit reproduce FILE.yaml``: a document of the user's own, with its paper and its kind of report."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml
from refusals import refused

from fedlit.reports.reproductions import seeds
from fedlit.reports.reproductions.document import HOME, find
from fedlit.reports.reproductions.fdam.figure import draw_windows
from fedlit.reports.reproductions.localscgdam.curves import draw_steps
from fedlit.reports.reproductions.reproduction import Reproduction
from fedlit.reports.reproductions.seeds import SeedsReport

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
SEEDS = {"kind": "seeds", "row": "{method}", "against": {}, "what": "", "versus": ""}
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
    (tmp_path / "stops.py").write_text("raise SystemExit(3)")
    (tmp_path / "fails.py").write_text("1 / 0")
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
        ({"report": SEEDS | {"row": "{methd}"}}, ("report.row", "'methd'")),
        ({"report": SEEDS | {"row": "{}"}}, ("report.row", "{}")),
        ({"report": SEEDS | {"row": "{method"}}, ("report.row", "{method")),
        ({"report": SEEDS | {"column": "{method:d}"}}, ("report.column", "{method:d}")),
        ({"report": SEEDS | {"row": 3}}, ("report.row", "expected a text, found 3")),
        ({"report": SEEDS | {"picture": "window"}}, ("report.picture", "'windows'", "found 'window'")),
        ({"report": SEEDS | {"picture": "steps"}}, ("report", "needs the label 'column'")),
        ({"report": SEEDS | {"within": 0.01}}, ("report", "needs the label 'window'")),
        ({"report": SEEDS | {"against": {"method": "c"}}}, ("report.against.method", "(a, b)", "found 'c'")),
        ({"report": SEEDS | {"against": {"methd": "a"}}}, ("report.against.methd", "found 'a'")),
        ({"report": {"kind": "ranks_of_doe.Counts"}}, ("report", "ranks_of_doe.Counts", "cannot be imported")),
        ({"report": {"kind": "stops.Count"}}, ("report", "stops.Count cannot be imported: SystemExit: 3")),
        ({"report": {"kind": "fails.Count"}}, ("report", "fails.Count cannot be imported: ZeroDivisionError")),
        ({"report": {"kind": "a..b"}}, ("report", "a..b cannot be imported")),
        ({"report": {"kind": "ranks_of_doe.Count", "unit": 3}}, ("report.unit", "expected a text, found 3")),
        ({"report": {"kind": "ranks_of_doe.dataclass"}}, ("report", "a method make")),
        ({"report": {"kind": "rows"}}, ("report", "seeds, classes", "found 'rows'")),
        ({"report": {"kind": "ranks_of_doe.Count", "units": "runs"}}, ("report.units", "there is no such key")),
        ({"tables": ["Table 2"]}, ("tables", "Table 1", "found 'Table 2'")),
        ({"paper": "roe"}, ("roe.json", "fdam", "found 'roe'")),
        ({"tables": "Table 1"}, ("tables", "expected a list of a text, found 'Table 1'")),
        ({"paper": ""}, ("tables", "expected a paper that has these tables")),
        ({"seeds": 3}, ("seeds", "expected a list of a whole number")),
        ({"scales": {}}, ("scales", "expected laptop or paper")),
        ({"scales": {"laptop": {}, "papr": {}}}, ("scales", "found laptop, papr")),
        ({"scales": {"laptop": {}, "linked": {}}}, ("scales.linked", "expected a scale paper")),
        ({"rates": "0.1"}, ("rates", "expected keys and values, found '0.1'")),
        ({"values": {"method": ["a"]}}, ("values.method", "expected keys and values")),
        ({"values": {"method": {"a": "FedAvg"}}}, ("values.method.a", "expected keys and values")),
        ({"settings": ["seed"]}, ("settings", "expected a dict")),
        ({"valus": {}}, ("valus", "did you mean values?")),
    ],
)  # fmt: skip
def test_mistakes_are_refused_before_anything_trains(change: dict, words: tuple, fedlit_cli, document: dict):
    code, _, err = reproduce(fedlit_cli, document | change)
    assert code == 1
    assert not Path("runs").exists()
    assert [word for word in words if word not in err] == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config": "smal.yaml"}, ("smal.yaml", "found none")),
        ({"config": "."}, ("expected a file", "found none")),
        ({"settings": "seed"}, ("settings", "expected keys and values")),
        ({"experiment": 3}, ("experiment", "expected a text, found 3")),
        ({"cases": {"{methd}": {"labels": {"method": ["a"]}}}}, ("{methd}", "among method, found 'methd'")),
        ({"cases": {"{": {"labels": {"method": ["a"]}}}}, ("among method", "found '{'")),
        ({"cases": {"x": {"labels": ["a"]}}}, ("labels", "expected a dict")),
        ({"cases": {"x": {"labels": {"method": ["c"]}}}}, ("labels.method", "no 'c'")),
        ({"cases": {"x": {"labels": {"method": [["a"]]}}}}, ("labels.method", "expected a value or a list of values")),
        ({"cases": {"x": {"labels": {"method": ["a", "b"]}}}}, ("two cases are named x",)),
        ({"cases": {"{method}": {"labels": {"method": ["a"]}, "leave_out": ["c"]}}}, ("leave_out", "found 'c'")),
    ],
)  # fmt: skip
def test_mistakes_in_a_part_are_refused(change: dict, words: tuple, fedlit_cli, document: dict):
    document["scales"]["laptop"]["parts"]["doe-table1"] |= change
    code, _, err = reproduce(fedlit_cli, document)
    assert code == 1
    assert not Path("runs").exists()
    assert [word for word in words if word not in err] == []


@pytest.mark.parametrize(
    "table",
    [
        ["Table 1"],
        {"columns": "m"},
        {"columns": ["m", "n"]},
        {"rows": [[0.9]]},
        {"rows": ["9"]},
        {"rows": [["0.9", "0.8"]]},
        {"caption": None},
        {"note": 1},
    ],
)
def test_published_cells_are_text_in_every_column(table: dict | list, fedlit_cli, document: dict):
    changed = PAPER["tables"]["Table 1"] | table if isinstance(table, dict) else table
    Path("doe.json").write_text(json.dumps(PAPER | {"tables": {"Table 1": changed}}))
    code, _, err = reproduce(fedlit_cli, document)
    assert code == 1
    assert "doe.json: expected JSON with source, and tables" in err


def test_a_base_in_another_folder_brings_its_files(fedlit_cli, document: dict):
    document["values"]["method"]["a"] = {"federation.aggregators": ["FedAvg"]}
    Path("elsewhere").mkdir()
    Path("doe-table1.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    Path("elsewhere/derived.yaml").write_text("base: ../doe-table1.yaml\nshows: the same\n")
    code, out, err = fedlit_cli("reproduce elsewhere/derived.yaml --dry_run true --seconds_per_step 0.1")
    assert code == 0, err
    assert "derived at laptop scale: the same" in out


def test_a_report_reads_the_file_that_the_derived_document_has(tmp_path: Path):
    whole = yaml.safe_load((HOME / "surgical" / "warmup.yaml").read_text())
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(whole | {"seed": 0}))
    changes = {"scales": {"laptop": {"report": {"config": "mine.yaml"}}}}
    (tmp_path / "mine-4a.yaml").write_text(yaml.safe_dump({"base": str(find("surgical-fig4a")), **changes}))
    assert Reproduction(str(tmp_path / "mine-4a.yaml"))._reporter().config == tmp_path / "mine.yaml"
    assert Reproduction("surgical-fig4a")._reporter().config == HOME / "surgical" / "warmup.yaml"


@pytest.mark.parametrize("base", ["itself.yaml", "other.yaml", "3", "[itself.yaml]", "none.yaml", "folder.yaml"])
def test_a_base_is_another_document(base: str, fedlit_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("folder.yaml").mkdir()
    Path("itself.yaml").write_text(f"base: {base}\n")
    Path("other.yaml").write_text("base: ./itself.yaml\n")
    code, _, err = fedlit_cli("reproduce itself.yaml")
    assert code == 1
    assert "expected" in err
    assert "itself.yaml" in err


def test_a_file_that_is_missing_is_named(fedlit_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    fedlit_cli("reproduce none.yaml").refused("document-unreadable", "none.yaml", "No such file")


def test_a_scale_that_a_document_lacks_is_named_with_those_that_it_has(fedlit_cli, document: dict):
    document["scales"] = {"paper": document["scales"]["laptop"]}
    code, _, err = reproduce(fedlit_cli, document)
    assert code == 1
    assert "--scale: expected paper" in err
    assert "found laptop" in err


def test_a_metric_that_no_run_has_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(seeds, "measured", lambda run: {"test/federation/auroc_macro": 0.5})
    report = SeedsReport("{method}", {}, "", "", column="all", metrics="test/federation/auroc_makro")
    runs = pd.DataFrame([{"method": "a", "seed": 0, "directory": tmp_path}])
    with refused("report-metric-missing", "metrics", "test/federation/auroc_macro"):
        report.make(runs, None)


@pytest.mark.parametrize("draw", [draw_windows, draw_steps])
def test_figures_show_methods_that_no_paper_has(draw):
    runs = pd.DataFrame(
        {"title": "Phantom", "column": "p", "method": method, "seed": seed, "window": window, "auroc": 0.5 + seed / 9,
         "curve": [(window, 0.5), (2 * window, 0.6)]}
        for method in ("mine", "CODA+") for seed in (0, 1) for window in (4, 8)
    )  # fmt: skip
    if draw is draw_steps:
        runs = runs[runs["window"] == 4]
    figure = draw(runs)
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    shown = {text.get_text().split(",")[0] for legend in legends if legend for text in legend.get_texts()}
    assert shown == {"mine", "CODA+"}
