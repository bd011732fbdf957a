"""``fedlit compare`` from the command line to its files, and the page of runs written by hand."""

import base64
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pandas as pd
import pytest
from past_runs import CLASSES, config, predictions, write_run
from refusals import Cli

from fedlit.reports.compare.comparison import Comparison, compare_runs
from fedlit.reports.compare.report import write_report
from fedlit.reports.compare.runs import load_runs


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
    runs: Path, tmp_path: Path, fedlit_cli: Cli, monkeypatch: pytest.MonkeyPatch, blank_charts
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = fedlit_cli(f"compare {runs} --draws 200 --output {tmp_path / 'out'}").succeeded()
    assert max(map(len, out.replace(str(tmp_path), "").splitlines())) <= 80
    assert "replacing an earlier report" not in out
    for word in (*CLASSES, "FedAvg (baseline)", "Scaffold", "macro", "***", "beyond noise", "6 MB", "report.html"):
        assert word in out
    auroc = pd.read_csv(tmp_path / "out" / "auroc.csv")
    assert set(auroc["class"]) == {*CLASSES, "macro"}
    assert set(auroc["seeds"]) == {2}
    changes = pd.read_csv(tmp_path / "out" / "differences.csv").set_index("class")
    assert (changes["difference"] > 0).all()
    assert (changes["low"] > 0).all()
    both = auroc.pivot(index="class", columns="method", values="auroc")
    pd.testing.assert_series_equal(
        changes["difference"], both["Scaffold"] - both["FedAvg"], check_names=False, check_like=True
    )
    page = (tmp_path / "out" / "report.html").read_text()
    for words in ("ROC curves", "Settings that differ", "FedAvg-0", "beyond noise", "p (Holm)"):
        assert words in page
    charts = ("auroc", "differences", "roc", "steps", "bytes")
    files = {f"{n}.{s}" for n in charts for s in ("svg", "pdf")} | {"auroc.csv", "differences.csv", "report.html"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == files


def test_the_baseline_and_the_metric_are_chosen(runs: Path, tmp_path: Path, fedlit_cli: Cli, blank_charts) -> None:
    (tmp_path / "report.html").touch()
    options = f"--baseline Scaffold --metric drift/client_drift --draws 100 --level 0.9 --output {tmp_path}"
    out = fedlit_cli(f"compare {runs}/FedAvg-0 {runs}/Scaffold-0 {options}").succeeded()
    assert "below Scaffold" in out
    assert "replacing an earlier report" in out
    assert "90% int." in out
    assert "drift/client_drift against local steps" in (tmp_path / "report.html").read_text()
    assert set(pd.read_csv(tmp_path / "differences.csv")["baseline"]) == {"Scaffold"}


def test_runs_without_predictions_leave_curves(tmp_path: Path, fedlit_cli: Cli, blank_charts) -> None:
    write_run(tmp_path / "x" / "a", None, config())
    out = fedlit_cli(f"compare {tmp_path / 'x'} --output {tmp_path / 'out'}").succeeded()
    assert "no predictions" in out.replace("\n", " ")
    assert "fedlit test" in " ".join(out.split())
    assert {path.stem for path in (tmp_path / "out").glob("*.svg")} == {"steps", "bytes"}


EVIL = '<script>alert("x")</script> & co'
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Tree(HTMLParser):
    """Collects tags, attributes and text; fails where a tag is closed that is not open."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def compared(folder: Path, names: dict[str, float], classes: tuple[str, ...]) -> Comparison:
    """A comparison of methods with two seeds each; the first one's picture of its partition is there."""
    for name, strength in names.items():
        for seed in (0, 1):
            settings = config(("FedAvg",), seed, note=name) | {"tags": {"fedlit.method": name}}
            number = list(names).index(name)
            write_run(folder / "runs" / f"{number}-{seed}", predictions(strength, seed, 120, classes), settings)
    (folder / "runs" / "0-0" / "partition.png").write_bytes(b"png")
    runs, notes = load_runs([str(folder / "runs")], None, {}, "", folder)
    return compare_runs(runs, [*notes, *(f"{EVIL} note {n}" for n in range(4))], draws=100)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return write_report(compared(folder, {"FedAvg": 0.5, "CODASCA": 2.0}, ("Edema", "Mass")), folder / "out")


@pytest.fixture(scope="module")
def whole(report: Path) -> str:
    return report.read_text()


def test_page_is_well_formed_and_reaches_for_nothing(whole):
    tree = Tree(whole)
    assert not tree.of("script")
    assert not tree.of("link")
    references = [a[key] for _, a in tree.tags for key in ("src", "href", "xlink:href", "srcset", "data") if a.get(key)]
    assert references
    assert all(reference.startswith(("#", "data:")) for reference in references)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", whole))
    assert "@import" not in whole
    assert [a["content"] for a in tree.of("meta") if a.get("http-equiv") == "Content-Security-Policy"] == [
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    ]


def test_ids_are_unique_and_every_reference_has_its_own(whole):
    tree = Tree(whole)
    ids = [attributes["id"] for _, attributes in tree.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [a["href"][1:] for _, a in tree.tags if a.get("href", "").startswith("#")]
    targets += re.findall(r"url\(#([^)]*)\)", whole)
    assert any(target.startswith("chart-steps") for target in targets)
    assert set(targets) <= set(ids)
    contents = [a["href"][1:] for a in tree.of("a") if not a.get("download")]
    assert contents == ["auroc", "differences", "roc", "progress", "partitions", "runs", "how"]
    assert [a["id"] for a in tree.of("h2") if "id" in a] == contents


@pytest.mark.slow
def test_names_are_text_everywhere_and_the_page_is_equal_every_time(tmp_path):
    comparisons = {
        folder: compared(folder, {EVIL: 0.5, f"2 {EVIL}": 2.0}, ("Edema", f"class {EVIL}"))
        for folder in (tmp_path / "first", tmp_path / "again")
    }
    written, again = (
        write_report(comparison, folder / "out").read_text().replace(str(folder), "")
        for folder, comparison in comparisons.items()
    )
    assert written == again
    tree = Tree(written)
    assert "<script" not in written
    assert tree.text.count(f"class {EVIL}") >= 4
    assert tree.text.count(f"2 {EVIL}") >= 6
    assert [tree.text.count(f"{EVIL} note {n}") for n in range(4)] == [1] * 4


def test_a_chart_is_saved_as_it_was_drawn(report, whole):
    tree = Tree(whole)
    links = {a["download"]: a["href"] for a in tree.of("a") if a.get("download")}
    charts = ["auroc", "differences", "roc", "steps", "bytes"]
    assert list(links) == [*(f"{name}.svg" for name in charts), "partition-1.png"]
    for name in charts:
        data = links[f"{name}.svg"].removeprefix("data:image/svg+xml;base64,")
        assert base64.b64decode(data) == (report.parent / f"{name}.svg").read_bytes()
    labels = [a["aria-label"] for a in tree.of("svg") if a.get("class") != "swatch"]
    assert labels[3] == "val/auroc_macro of each method against local steps."
    assert all(a["role"] == "img" for a in tree.of("svg") if a.get("class") != "swatch")
    assert links["partition-1.png"] == "data:image/png;base64," + base64.b64encode(b"png").decode()
    assert "Runs: FedAvg (seed 0)." in tree.text


def test_template_and_stylesheet_are_in_the_package():
    root = Path(str(files("fedlit")))
    patterns = re.findall(r'"(reports/compare/[^"]+)"', (root.parent / "pyproject.toml").read_text())
    packaged = {path.name for pattern in patterns for path in root.glob(pattern)}
    assert {"report.html.jinja", "report.css"} <= packaged


def test_a_page_of_single_seeds_and_few_patients_claims_nothing_of_seeds_and_intervals(tmp_path, blank_charts):
    for name in ("fedavg", "fedprox"):
        settings = config(("FedAvg",), note=name) | {"tags": {"fedlit.method": name}}
        write_run(tmp_path / "runs" / name, predictions(1.0, 0, 60, per_patient=2), settings)
    runs, notes = load_runs([str(tmp_path / "runs")], None, {}, "", tmp_path)
    comparison = compare_runs(runs, [*notes, "fedavg: a note"], draws=100)
    text = Tree(write_report(comparison, tmp_path / "out").read_text()).text
    for claim in ("SD over", "(95% interval", "over seeds.", "Student's t-test", "Filled points", "Fedavg"):
        assert claim not in text
    assert "AUROC of one seed; none has an interval." in text
    assert "fedavg: a note" in text
