"""`data check` says before what `fit` would refuse or warn of."""

import numpy as np
import pytest
from dicom_files import write_dicom
from own_tables import data_check as check
from own_tables import people, write_table
from PIL import Image

SITES = ["north", "north", "south", "south"]


@pytest.mark.parametrize(
    ("sites", "said"),
    [
        ([*SITES, "north", "nroth", *SITES[2:], *SITES * 8], "client 'nroth': expected at least 2 training images"),
        (["East", "East", "EAST", "EAST"] * 10, "client names 'EAST' and 'East' are the same"),
    ],
    ids=["a typo", "case"],
)
def test_sites_that_cannot_be_clients(tmp_path, fedlit_cli, sites, said):
    code, out = check(fedlit_cli, str(write_table(tmp_path, people(site=sites))))
    assert code == 1
    assert said in out


def test_twelve_of_sixteen_bits(tmp_path, fedlit_cli):
    deep = {n: Image.fromarray(np.asarray(noise(n)).astype(np.uint16) << 4) for n in range(40)}
    table = write_table(tmp_path, people(), deep)
    code, out = check(fedlit_cli, str(table))
    assert code == 0
    assert "if only 12 of their 16 bits are used, set data.depth to 12" in out
    assert "set data.depth" not in check(fedlit_cli, f"{table} --set '{{depth: 12}}'")[1]


def noise(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (64, 64), dtype=np.uint8))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"NumberOfFrames": 3}, "3 in MONOCHROME2"),
        ({"PhotometricInterpretation": "RGB", "SamplesPerPixel": 3}, "1 in RGB"),
        ({"Rows": None, "Columns": None, "BitsStored": None, "PixelData": None}, "one without pixels"),
    ],
)
def test_what_a_dicom_header_says(tmp_path, fedlit_cli, change, word):
    table = write_table(tmp_path, people())
    (tmp_path / "3.png").unlink()
    samples = change.get("NumberOfFrames", 1) * change.get("SamplesPerPixel", 1)
    write_dicom(tmp_path / "3.dcm", np.arange(576 * samples).astype(np.uint8).reshape(samples, 24, 24), **change)
    table.write_text(table.read_text().replace("3.png,", "3.dcm,", 1).replace("\n13.dcm", "\n13.png"))
    code, out = check(fedlit_cli, str(table))
    assert code == 1
    assert word in out
