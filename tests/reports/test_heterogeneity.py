"""FDAM's Table 2, and label frequencies and embedding of surgical aggregation's Figure 4, for available data."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import timm
import torch
import yaml
from PIL import Image
from refusals import refused
from rich.console import Console
from small_nih import write_ten_labels

from fedlit.reports.reproductions import reproduction
from fedlit.reports.reproductions.document import find, read_document
from fedlit.reports.reproductions.reproduction import Reproduction
from fedlit.reports.reproductions.surgical.heterogeneity import _bars


@pytest.fixture
def root(tmp_path) -> Path:
    """Only NIH: ten images, one with cardiomegaly, two with effusion."""
    for i, name in enumerate(write_ten_labels(tmp_path / "NIH")):
        pixels = np.random.default_rng(i).integers(0, 255, (16, 16), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "NIH" / "images" / name)
    return tmp_path


def test_images_are_counted_beside_the_papers_number(root):
    report = Reproduction("fdam-table2", root=root).report(None)
    assert report.tables["counts"].values.tolist() == [["NIH", 10, 112120]]
    assert "| NIH | 10 | 112,120 | -112,110 |" in report.text
    assert "Not below --root: CheXpert, PadChest, MIMIC, VinDr." in report.text


def test_frequencies_are_those_of_the_labels_that_a_site_has(root):
    report = Reproduction("surgical-fig4a", scale="paper", root=root).report(None)
    shares = report.tables["frequencies"].set_index("class")["share"]
    assert shares["Pleural Effusion"] == pytest.approx(0.2)
    assert len(shares) == 14  # NIH's, and none that CheXpert alone labels
    assert "| **Pleural Effusion** | 0.2000 |" in report.text
    assert "| Support Devices |  |" in report.text


def test_frequencies_of_built_in_data_hide_what_a_hospital_does_not_label():
    report = Reproduction("surgical-fig4a").report(None)
    found = report.tables["frequencies"].groupby("source", sort=False)["class"].nunique()
    assert found.to_dict() == {"north": 7, "south": 7, "abroad": 10}
    (legend,) = report.figures["figure"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["north", "south", "abroad"]


def test_classes_that_all_sites_label_are_bold():
    figure = _bars(pd.DataFrame({"A": [0.1, 0.2]}, index=["x", "y"]), ["y"])
    labels = figure.axes[0].get_yticklabels()
    assert [(label.get_text(), label.get_fontweight()) for label in labels] == [("x", "normal"), ("y", "bold")]


def test_features_of_images_that_are_there_are_embedded(root, tmp_path, monkeypatch):
    """With a network of a local file, and the same places twice."""
    torch.save(timm.create_model("resnet10t").state_dict(), tmp_path / "weights.pth")
    changes = {"scales": {"paper": {"report": {"backbone": "resnet10t", "images": 8}}}}
    (tmp_path / "surgical-fig4b.yaml").write_text(yaml.safe_dump({"base": str(find("surgical-fig4b")), **changes}))
    document = read_document(tmp_path / "surgical-fig4b.yaml")
    monkeypatch.setattr(reproduction, "read_document", lambda file: document)
    made = Reproduction("surgical-fig4b", scale="paper", root=root, output=tmp_path, weights=tmp_path / "weights.pth")
    report = made.report(None)
    points = report.tables["embedding"]
    assert points["source"].tolist() == ["NIH"] * 8
    assert np.isfinite(points[["x", "y"]].to_numpy()).all()
    assert "features of resnet10t" in report.text
    with (tmp_path / "said.txt").open("w") as said:
        made.run(Console(file=said, width=300))
    assert (tmp_path / "surgical-fig4b" / "figure.png").is_file()
    again = pd.read_csv(tmp_path / "surgical-fig4b" / "embedding.csv")
    np.testing.assert_allclose(again[["x", "y"]], points[["x", "y"]], rtol=1e-6)
    assert "Seeds" not in (tmp_path / "said.txt").read_text()


def test_hospitals_that_look_different_are_told_apart_and_equal_ones_are_not(tmp_path):
    whole = yaml.safe_load(find("surgical-fig4b").parent.joinpath("phantom.yaml").read_text())
    shares = []
    for exposures in ((0.9, -0.9), (0.0, 0.0)):
        sources = {
            name: {
                "class_path": "PhantomCXR",
                "init_args": {"hospitals": [{"name": name, "images": 60, "exposure": e}]},
            }
            for name, e in zip("ab", exposures, strict=True)
        }
        whole["data"]["init_args"] |= {"sources": sources, "external": {}, "image_size": 16}
        (tmp_path / "two.yaml").write_text(yaml.safe_dump(whole))
        made = Reproduction("surgical-fig4b")
        made.chosen.report["config"] = str(tmp_path / "two.yaml")
        shares.append(int(made.report(None).text.split(" in ")[1].split("%")[0]))
    assert shares[0] > 85
    assert 30 < shares[1] < 70


def test_a_folder_without_any_of_them_is_refused(tmp_path):
    with refused("organisation-folders-missing", "CheXpert"):
        Reproduction("surgical-fig4a", scale="paper", root=tmp_path).report(None)
