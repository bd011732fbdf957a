"""Images of three hospitals, described only by a YAML: from a spreadsheet's CSV with DICOM and PNG to a federation."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from dicom_files import write_dicom
from PIL import Image

from fedlit.tracking.base import MetricsFile

HOSPITALS = ("Zürich", "Genève", "Bern")


@pytest.fixture
def project(folder: Path) -> Path:
    """A table as a German spreadsheet writes it, and images of two formats in a folder a study."""
    rng = np.random.default_rng(0)
    lines = ["Studie;Ansicht;Patient;Krankenhaus;Alter;Ödem;Raumforderung"]
    for n in range(90):
        hospital, ill = HOSPITALS[n % 3], n % 4 == 0
        study = folder / "bilder" / f"S{n // 2}"
        study.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 120, (24, 24)).astype(np.uint16)
        pixels[8:16, 8:16] += 100 * ill
        if n % 3 == 1:
            write_dicom(study / f"{n % 2}.dcm", pixels, BitsStored=12, WindowCenter=128, WindowWidth=256)
        else:
            Image.fromarray(pixels.astype(np.uint8)).save(study / f"{n % 2}.png")
        unknown = "" if n % 7 == 0 else ("ja" if n % 5 == 0 else "nein")
        lines.append(f"S{n // 2};{n % 2};{n // 2:05d};{hospital};{40 + n},5;{'1' if ill else '0'};{unknown}")
    (folder / "fälle.csv").write_bytes(("\r\n".join(lines) + "\r\n").encode("latin-1"))
    (folder / "ours.yaml").write_text(
        "experiment: ours\nlogger: false\n"
        "data:\n  class_path: ImageTable\n  init_args:\n"
        "    {table: fälle.csv, root: bilder, image: '{Studie}/{Ansicht}', patient: Patient, site: Krankenhaus,\n"
        "     labels: [Ödem, Raumforderung], values: {ja: positive, nein: negative}, image_size: 16, cache_dir: "
        "cache}\nmodel: {class_path: ImageClassifier, init_args: {backbone: small_cnn}}\n"
        "federation: {rounds: 1, workers: 1}\n",
        encoding="utf-8",
    )
    return folder


def test_a_table_becomes_a_trained_federation_with_yaml_alone(project: Path, fedlit_cli):
    out = fedlit_cli("fit --config ours.yaml").succeeded()
    assert "fälle.csv: semicolons between cells, Windows-1252, decimal commas" in out
    (directory,) = (project / "runs" / "ours").iterdir()
    partition = pd.read_csv(directory / "partition.csv")
    assert partition["client"].value_counts().to_dict() == dict.fromkeys(HOSPITALS, 30)
    assert partition.groupby("patient")["split"].nunique().max() == 1
    counts = pd.read_csv(directory / "classes.csv")
    assert sorted(counts["class"].unique()) == ["Raumforderung", "Ödem"]
    labels = pd.read_csv(directory / "labels.csv").query("labelled").groupby("class")[["positives", "negatives"]].sum()
    table = pd.read_csv(project / "fälle.csv", sep=";", encoding="cp1252")
    for name in ("Raumforderung", "Ödem"):
        cells = table[name].astype(str)
        assert labels.loc[name].tolist() == [cells.isin(words).sum() for words in (("1", "ja"), ("0", "nein"))]
    rows = {key: value for _, key, value in MetricsFile(directory / "metrics.csv").rows()}
    assert 0 <= rows["test/federation/auroc/Ödem"] <= 1
