"""FDAM's Tables 2 and 6 and surgical aggregation's Figure 4: what label files and images say that are there."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import timm
import torch
import yaml
from PIL import Image
from refusals import refused
from reproduced import derived, printed
from small_chexpert import HEADER, line
from small_nih import write_ten_labels

from fedlit.core.errors import ConfigError
from fedlit.reports.reproductions import reproduction
from fedlit.reports.reproductions.document import find
from fedlit.reports.reproductions.reproduction import Reproduction


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


def test_features_of_images_that_are_there_are_embedded(root, tmp_path, monkeypatch):
    """With a network of a local file, and the same places twice."""
    monkeypatch.setattr(reproduction, "save", lambda _, file: file.touch())  # drawing takes half a second
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "weights.pth")
    small = derived(tmp_path, "surgical-fig4b", scales={"paper": {"report": {"backbone": "test_resnet", "images": 8}}})
    made = Reproduction(small, scale="paper", root=root, output=tmp_path, weights=tmp_path / "weights.pth")
    report = made.report(None)
    points = report.tables["embedding"]
    assert points["source"].tolist() == ["NIH"] * 8
    assert np.isfinite(points[["x", "y"]].to_numpy()).all()
    assert "features of test_resnet" in report.text
    assert "Seeds" not in printed(made)
    assert (tmp_path / "surgical-fig4b" / "figure.png").is_file()
    again = pd.read_csv(tmp_path / "surgical-fig4b" / "embedding.csv")
    np.testing.assert_allclose(again[["x", "y"]], points[["x", "y"]], rtol=1e-6)


def test_hospitals_that_look_different_are_told_apart_and_equal_ones_are_not(tmp_path):
    whole = yaml.safe_load(find("surgical-fig4b").parent.joinpath("phantom.yaml").read_text())
    shares = []
    for exposures in ((0.9, -0.9), (0.0, 0.0)):
        sources = {
            name: {
                "class_path": "PhantomCXR",
                "init_args": {"hospitals": [{"name": name, "images": 40, "exposure": e}]},
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


@pytest.fixture
def label_files(tmp_path) -> Path:
    """NIH: 10 images, 1 cardiomegaly, 2 effusions. CheXpert: 8 images, 2 of them cardiomegaly, one more uncertain."""
    write_ten_labels(tmp_path / "NIH")
    (tmp_path / "CheXpert").mkdir()
    values = [{"Cardiomegaly": "1.0"}] * 2 + [{"Cardiomegaly": "-1.0", "Edema": "-1.0"}] + [{}] * 5
    for name, part in (("train", values), ("valid", [{}])):
        paths = [f"CheXpert-v1.0-small/{name}/patient{i:05d}/study1/view1_frontal.jpg" for i in range(len(part))]
        (tmp_path / "CheXpert" / f"{name}.csv").write_text("\n".join([HEADER, *map(line, paths, part)]) + "\n")
    return tmp_path


def test_shares_are_those_of_the_settings_and_no_image_is_needed(label_files, tmp_path):
    table = Reproduction("fdam-table6", root=label_files).report(None).tables["ratios"].set_index(["source", "class"])
    assert table.loc[("NIH", "Cardiomegaly"), "ours"] == pytest.approx(0.1)
    assert table.loc[("NIH", "Pleural Effusion"), "ours"] == pytest.approx(0.2)
    # 8 images of train.csv, 2 of them once more for cardiomegaly.
    # Uncertain edema is positive, uncertain cardiomegaly is not.
    assert table.loc[("CheXpert", "Cardiomegaly"), "images"] == 10
    assert table.loc[("CheXpert", "Cardiomegaly"), "ours"] == pytest.approx(4 / 10)
    assert table.loc[("CheXpert", "Edema"), "ours"] == pytest.approx(1 / 10)
    np.testing.assert_allclose(table.loc["CheXpert", "published"], [0.211, 0.342, 0.120, 0.310, 0.414])


def test_it_runs_nothing_and_says_what_differs_and_what_is_absent(label_files, tmp_path):
    out = tmp_path / "out"
    text = printed(Reproduction("fdam-table6", root=label_files, output=out, run_dir=tmp_path / "runs"))
    assert "Not as published, so another policy or other files: CheXpert, Cardiomegaly (0.400, published 0.211)" in text
    assert "Not below --root: PadChest, MIMIC, VinDr." in text
    assert "| ChestXray8 | 0.025 |" in text
    assert (out / "fdam-table6" / "ratios.csv").is_file()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("surgical-fig4a", (ConfigError, "CheXpert")),
        ("fdam-table6", (ConfigError, "CheXpert, NIH, PadChest, MIMIC-CXR-JPG, VinDr-CXR")),
    ],
)
def test_a_folder_without_any_of_them_is_refused(name, mistake, tmp_path):
    with refused(*mistake):
        Reproduction(name, scale="paper", root=tmp_path).report(None)
