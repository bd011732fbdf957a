"""``fedlit reproduce FILE.yaml``: a document of the user's own, with its paper and its report."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest
import yaml
from refusals import refused
from reproduced import derived, table_of_plans

from fedlit.core.errors import ConfigError
from fedlit.core.system.shipped import CONFIGS
from fedlit.reports.reproductions.figures import draw_steps, draw_windows
from fedlit.reports.reproductions.reproduction import Reproduction

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
TABLES = """
from fedlit.reports.reproductions.report import Report

def make(runs, unit: str):
    return Report(f"{len(runs)} {unit} of {', '.join(sorted(set(runs['method'])))}", {"counted": runs})
"""
SAYS = """
import os
from fedlit.federation.callbacks import Callback

class Says(Callback):
    def on_fit_start(self, state):
        print("said", os.environ["SAID"])
"""
MEANS = """
from fedlit.reports.reproductions.means import means
"""
OF_MEANS = {"make": "means", "row": "{method}", "against": {"method": "a"}, "what": "", "versus": ""}


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """A document with everything that it needs next to it."""
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(CONFIG))
    (tmp_path / "published.json").write_text(json.dumps(PAPER))
    (tmp_path / "tables.py").write_text(TABLES)
    monkeypatch.chdir(tmp_path)
    cases = {"a": {"labels": {"method": "a"}}, "b": {"labels": {"method": "b"}, "federation.aggregators": ["Scaffold"]}}
    plan = {"experiment": "doe-table1", "config": ["small.yaml"], "cases": cases, "labels": {"title": "Phantom"}}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    return {
        "shows": "how to reproduce a table of Doe",
        "tables": ["Table 1"],
        "report": {"unit": "runs"},
        "scales": {"laptop": {"data": "PhantomCXR", "time": "seconds", "plans": ["plan.yaml"]}},
    }


def written(document: dict) -> str:
    Path("doe-table1.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return "doe-table1.yaml"


@pytest.mark.slow
def test_it_runs_once_and_its_paper_and_report_are_found(fedlit_cli, document: dict):
    """Its runs start from a body, and in its environment."""
    Path("says.py").write_text(SAYS)
    Path("body.yaml").write_text(yaml.safe_dump({"experiment": "body", "config": ["small.yaml"]}))
    plan = yaml.safe_load(Path("plan.yaml").read_text())
    del plan["cases"]["b"]
    plan |= {"starts": "body.yaml", "set": {"callbacks": [{"class_path": "says.Says"}]}}
    Path("plan.yaml").write_text(yaml.safe_dump(plan))
    command = f"reproduce {written(document | {'environment': {'SAID': 'in the environment'}})} --jobs 1"
    out = fedlit_cli(command).succeeded()
    folder = Path("reproductions/doe-table1")
    text = (folder / "report.md").read_text()
    assert "1 runs of a" in text
    assert "Doe et al., 2031" in text
    assert "| 0.9 |" in text
    assert text in out
    assert {file.name for file in folder.iterdir()} == {"counted.csv", "report.md", "runs.csv"}
    runs = pd.read_csv(folder / "runs.csv")
    assert list(zip(runs["method"], runs["seed"], strict=True)) == [("a", 0)]
    configs = [yaml.safe_load(Path(run, "config.yaml").read_text()) for run in runs["directory"]]
    assert {config["model"]["init_args"]["weights"] for config in configs} == {str(Path("runs/body/seed=0").absolute())}
    assert all("said in the environment\n" in Path(run, "console.log").read_text() for run in runs["directory"])
    assert "SAID" not in os.environ
    assert "1 runs, 1 finished before" in fedlit_cli(command).succeeded()


def test_it_is_planned_without_a_paper_and_so_is_a_document_in_another_folder_that_is_based_on_it(document: dict):
    document.pop("tables")
    Path("elsewhere").mkdir()
    Path("elsewhere/derived.yaml").write_text(f"base: ../{written(document)}\nshows: the same\n")
    text = Reproduction("elsewhere/derived.yaml", dry_run=True, seconds_per_step=0.1).announcement()
    assert "derived at laptop scale: the same" in text
    assert "| doe-table1 | 2 |" in text


def test_its_printed_jobs_begin_with_its_environment(fedlit_cli, document: dict):
    out = fedlit_cli(f"reproduce {written(document | {'environment': {'NAME': 'a b'}})} --print_jobs true").succeeded()
    assert out.startswith("export NAME='a b'\nfedlit job ")


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        ({"environment": {"NAME": 1}}, (ConfigError, "environment", "NAME", "found 1")),
        ({"tables": ["Table 2"]}, (ConfigError, "tables", "Table 1", "'Table 2'")),
        ({"paper": "doe"}, (ConfigError, "paper", "no such key")),
        ({"tables": "Table 1"}, (ConfigError, "tables", "found 'Table 1'")),
        ({"scales": {}}, (ConfigError, "scales", "laptop or paper")),
        ({"scales": {"laptop": {}, "papr": {}}}, (ConfigError, "scales", "laptop, papr")),
        ({"scales": {"laptop": {}, "linked": {}}}, (ConfigError, "scales.linked")),
        ({"scales": {"laptop": 3}}, (ConfigError, "scales.laptop", "found 3")),
        ({"plan": {}}, (ConfigError, "plan", "did you mean plans?")),
        ({"report": {"unit": 3}}, (ConfigError, "report.unit", "found 3")),
    ],
)
def test_mistakes_are_refused_before_anything_trains(change: dict, mistake: tuple, document: dict):
    with refused(*mistake):
        Reproduction(written(document | change))


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        ({"row": "{methd}"}, ("report.row", "method", "{methd}")),
        ({"row": "{method"}, ("report.row", "{method")),
        ({"column": "{method:d}"}, ("report.column", "{method:d}")),
        ({"metrics": "test/federation/auroc_makro"}, ("report.metrics", "did you mean test/federation/auroc_macro")),
        ({"row": "{title}"}, ("report.row", "two runs with seed 0", "'Phantom'")),
    ],
)
def test_a_row_a_column_or_a_metric_that_no_run_has_is_named(change: dict, mistake: tuple, document: dict, tmp_path):
    Path("tables.py").write_text(MEANS)
    made = Reproduction(written(document | {"report": OF_MEANS | {"column": "all"} | change}))
    runs = table_of_plans(made.plans, tmp_path / "runs", lambda *_: ({"test/federation/auroc_macro": 0.5},))
    with refused(ConfigError, *mistake):
        made.report(runs)


def test_rows_are_sorted_by_a_label_that_stays_an_integer(document: dict, tmp_path):
    Path("tables.py").write_text(MEANS)
    keys = {"row": "{method}, K = {k}", "column": "all", "order": "k"}
    made = Reproduction(written(document | {"report": OF_MEANS | keys}))
    runs = table_of_plans(made.plans, tmp_path / "runs", lambda *_: ({"test/federation/auroc_macro": 0.5},))
    runs = pd.concat([runs.assign(k=2.0), runs.assign(k=1.0)])
    values = made.report(runs).tables["values"]
    assert values["row"].tolist() == ["a, K = 1", "b, K = 1", "a, K = 2", "b, K = 2"]


@pytest.mark.parametrize(
    "table",
    [
        ["Table 1"], {"columns": "m"}, {"columns": ["m", "n"]}, {"rows": [[0.9]]}, {"rows": ["9"]},
        {"rows": [["0.9", "0.8"]]}, {"caption": None}, {"note": 1},
    ],
)  # fmt: skip
def test_published_cells_are_text_in_every_column(table: dict | list, document: dict):
    changed = PAPER["tables"]["Table 1"] | table if isinstance(table, dict) else table
    Path("published.json").write_text(json.dumps(PAPER | {"tables": {"Table 1": changed}}))
    with refused(ConfigError, "published.json"):
        Reproduction(written(document))


def test_a_report_reads_the_file_that_the_derived_document_has(tmp_path: Path):
    whole = yaml.safe_load((CONFIGS / "surgical/laptop-warmup.yaml").read_text())
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(whole | {"seed": 0}))
    mine = derived(tmp_path, "surgical-fig4a", scales={"laptop": {"report": {"config": "mine.yaml"}}})
    for name, file in ((mine, tmp_path / "mine.yaml"), ("surgical-fig4a", CONFIGS / "surgical/laptop-warmup.yaml")):
        _, taken = Reproduction(name)._maker()
        assert taken["config"] == file


@pytest.mark.parametrize(
    ("base", "kind"),
    [
        ("itself.yaml", ConfigError), ("other.yaml", ConfigError),
        ("3", ConfigError), ("[itself.yaml]", ConfigError),
        ("none.yaml", ConfigError), ("folder.yaml", ConfigError),
    ],
)  # fmt: skip
def test_a_base_is_another_document(base: str, kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("folder.yaml").mkdir()
    Path("itself.yaml").write_text(f"base: {base}\n")
    Path("other.yaml").write_text("base: ./itself.yaml\n")
    with refused(kind, "itself.yaml"):
        Reproduction("itself.yaml")


def test_a_scale_that_a_document_lacks_is_named_with_those_that_it_has(document: dict):
    document["scales"] = {"paper": document["scales"]["laptop"]}
    with refused(ConfigError, "expected paper", "found laptop"):
        Reproduction(written(document))


@pytest.mark.parametrize("draw", [draw_windows, draw_steps])
def test_figures_show_methods_that_no_paper_has_and_all_windows(draw):
    runs = pd.DataFrame(
        {"title": "Phantom", "column": "p", "method": method, "seed": seed, "window": window, "auroc": 0.5 + seed / 9,
         "curve": [(window, 0.5), (2 * window, 0.6)], "sent": [1.5, 3.0]}
        for method in ("mine", "CODA+") for seed in (0, 1) for window in range(1, 8)
    )  # fmt: skip
    figure = draw(runs[runs["window"] == 4] if draw is draw_steps else runs)
    assert len(figure.axes[0].lines) == (2 if draw is draw_steps else 2 * 7)
    if draw is draw_windows:
        assert all(list(line.get_xdata()) == [1.5, 3.0] for line in figure.axes[1].lines)
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    shown = {text.get_text().split(",")[0] for legend in legends if legend for text in legend.get_texts()}
    assert shown == {"mine", "CODA+"}


def test_methods_that_look_alike_in_two_papers_differ_in_one_figure():
    rows = [("Phantom", "p", method, [(1, 0.5), (2, 0.6)]) for method in ("CODASCA", "LocalSCGDAM", "CODA+", "CoDA")]
    figure = draw_steps(pd.DataFrame(rows, columns=["title", "column", "method", "curve"]))
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in figure.axes[0].lines}
    assert len(looks) == 4
