"""FDAM's Table 6: shares of positives of label files in their literal layout, beside the published ones."""

from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from rich.console import Console
from small_nih import write_ten_labels

from fedlit.reports.reproductions.reproduction import Reproduction

CHEXPERT = (
    "Path,Sex,Age,Frontal/Lateral,AP/PA,No Finding,Enlarged Cardiomediastinum,Cardiomegaly,Lung Opacity,Lung Lesion,"
    "Edema,Consolidation,Pneumonia,Atelectasis,Pneumothorax,Pleural Effusion,Pleural Other,Fracture,Support Devices"
)


@pytest.fixture
def root(tmp_path) -> Path:
    """NIH: 10 images, 1 cardiomegaly, 2 effusions. CheXpert: 8 images, 2 of them cardiomegaly, one more uncertain."""
    write_ten_labels(tmp_path / "NIH")
    columns = CHEXPERT.split(",")
    values = [{"Cardiomegaly": "1.0"}] * 2 + [{"Cardiomegaly": "-1.0", "Edema": "-1.0"}] + [{}] * 5
    for name, part in (("train", values), ("valid", [{}])):
        lines = [CHEXPERT]
        for i, found in enumerate(part):
            path = f"CheXpert-v1.0-small/{name}/patient{i:05d}/study1/view1_frontal.jpg"
            lines.append(",".join(({"Path": path, "Frontal/Lateral": "Frontal"} | found).get(c, "") for c in columns))
        (tmp_path / "CheXpert").mkdir(exist_ok=True)
        (tmp_path / "CheXpert" / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_shares_are_those_of_the_settings_and_no_image_is_needed(root, tmp_path):
    table = Reproduction("fdam-table6", root=root).report(None).tables["ratios"].set_index(["source", "class"])
    assert table.loc[("NIH", "Cardiomegaly"), "ours"] == pytest.approx(0.1)
    assert table.loc[("NIH", "Pleural Effusion"), "ours"] == pytest.approx(0.2)
    # 8 images of train.csv, 2 of them once more for cardiomegaly.
    # Uncertain edema is positive, uncertain cardiomegaly is not.
    assert table.loc[("CheXpert", "Cardiomegaly"), "images"] == 10
    assert table.loc[("CheXpert", "Cardiomegaly"), "ours"] == pytest.approx(4 / 10)
    assert table.loc[("CheXpert", "Edema"), "ours"] == pytest.approx(1 / 10)
    np.testing.assert_allclose(table.loc["CheXpert", "published"], [0.211, 0.342, 0.120, 0.310, 0.414])


def test_it_runs_nothing_and_says_what_differs_and_what_is_absent(root, tmp_path):
    out = tmp_path / "out"
    with (tmp_path / "said.txt").open("w") as said:
        Reproduction("fdam-table6", root=root, output=out, run_dir=tmp_path / "runs").run(Console(file=said, width=400))
    text = (tmp_path / "said.txt").read_text()
    assert "Not as published, so another policy or other files: CheXpert, Cardiomegaly (0.400, published 0.211)" in text
    assert "Not below --root: PadChest, MIMIC, VinDr." in text
    assert "| ChestXray8 | 0.025 |" in text
    assert (out / "fdam-table6" / "ratios.csv").is_file()
    assert not (tmp_path / "runs").exists()


def test_a_folder_without_any_of_them_is_refused(tmp_path):
    with refused("ratio-folders-missing", "CheXpert, NIH, PadChest, MIMIC-CXR-JPG, VinDr-CXR"):
        Reproduction("fdam-table6", root=tmp_path).report(None)
