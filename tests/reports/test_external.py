"""Predictions from elsewhere in a comparison: a CSV file with the columns that `fedlit predict` writes."""

from pathlib import Path

import pandas as pd
import pytest
from joining_runs import site_predictions, write_individual
from past_runs import CLASSES, config, predictions, write_run
from refusals import Cli, refused

from fedlit.predictions.table import write
from fedlit.reports.compare.comparison import compare_runs
from fedlit.reports.compare.external import read_external
from fedlit.reports.compare.joining import what_joining_brought
from fedlit.reports.compare.methods import differences
from fedlit.reports.compare.past_run import PastRun
from fedlit.reports.compare.runs import load_runs


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "FedAvg-0", predictions(0.5, 0, 300, per_patient=2), config())


def extern(folder: Path, drop: tuple[str, ...] = (), name: str = "extern.csv") -> Path:
    """A CSV file as `fedlit predict --format csv` writes it, without some columns."""
    file = write(predictions(2.0, 5, 300, per_patient=2), folder / name)
    table = pd.read_csv(file)
    table.drop(columns=[c for c in table if c.startswith(drop)]).to_csv(file, index=False)
    return file


@pytest.mark.parametrize("drop", [("nothing",), ("label/", "patient", "site", "client", "model")])
def test_a_file_is_a_method_whether_or_not_it_has_labels(run: Path, tmp_path: Path, drop: tuple[str, ...]):
    file = extern(tmp_path, drop)
    whole = PastRun.read(write_run(tmp_path / "Other-0", predictions(2.0, 5, 300, per_patient=2), config(("FedProx",))))
    expected = compare_runs([PastRun.read(run), whole], draws=100).statistics
    comparison = compare_runs(*load_runs([str(run), str(file)], None, {}, "", tmp_path), draws=100)
    found = comparison.statistics
    assert [scored.method.name for scored in found.scored] == ["FedAvg", "extern"]
    ours, theirs = found.against[0].macro, expected.against[0].macro
    assert (ours.value, ours.interval, ours.p_images) == (theirs.value, theirs.interval, theirs.p_images)
    notes = " ".join(comparison.notes)
    assert ("lacks patient, label/Effusion" in notes) == (len(drop) > 1)
    assert "extern: predictions from elsewhere" in notes
    assert differences(comparison.methods).empty  # a file has no settings


def test_several_files_may_be_seeds_of_one_method(run: Path, tmp_path: Path):
    files = [str(extern(tmp_path, name=f"other,seed={seed}.csv")) for seed in (0, 1)]
    comparison = compare_runs(*load_runs([str(run), *files], None, {}, "", tmp_path), draws=100)
    assert comparison.methods[1].name == "other"
    assert comparison.methods[1].seeds == (0, 1)


def test_a_file_has_gains_too(tmp_path: Path):
    found = site_predictions(0.6, 0)
    for site in ("east", "west"):
        write_individual(tmp_path / "runs", site, found, 0)
    file = write(site_predictions(1.4, 8), tmp_path / "extern.csv")
    pd.read_csv(file)[["image", "score/Mass", "score/Nodule"]].to_csv(file, index=False)
    runs, _ = load_runs([str(tmp_path / "runs"), str(file)], None, {}, "", tmp_path)
    (gains,) = what_joining_brought(runs, draws=100).methods
    assert [home.site for home in gains.home] == ["east", "west"]
    assert gains.home[0].gain.value > 0.05


@pytest.mark.slow
def test_the_command_takes_a_file(run: Path, tmp_path: Path, fedlit_cli: Cli):
    code, out, err = fedlit_cli(f"compare {run} {extern(tmp_path)} --draws 100 --output {tmp_path / 'out'}")
    assert code == 0, err
    assert "extern is" in out
    assert "from elsewhere" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        ("picture,score/Mass\na,0.1\n", ("external-column-missing", "column image")),
        ("image,Mass\na,0.1\n", ("external-column-missing", "score/CLASS", "only image, Mass")),
        ("image,score/Mass\n", ("external-column-missing", "no rows")),
        ("", ("external-not-csv",)),
        ("image,score/Mass\na,high\n", ("external-number-invalid", "score/Mass, line 2", "'high'")),
        ("image,score/Mass,label/Mass\na,0.1,0\nb,0.2,2\n", ("external-label-invalid", "label/Mass, line 3")),
    ],
)
def test_what_is_missing_is_named_with_file_and_column(content: str, mistake: tuple[str, ...], tmp_path: Path):
    (tmp_path / "extern.csv").write_text(content)
    with refused(*mistake, tmp_path / "extern.csv"):
        read_external(tmp_path / "extern.csv")


def test_other_images_are_refused_by_name(run: Path, tmp_path: Path):
    lines = ["image," + ",".join(f"score/{name}" for name in CLASSES), "x1,0.1,0.2,0.3", "x2,0.3,0.1,0.2"]
    (tmp_path / "extern.csv").write_text("\n".join(lines))
    with refused("no-shared-image", "extern"):
        compare_runs(*load_runs([str(run), str(tmp_path / "extern.csv")], None, {}, "", tmp_path))
