"""Every DICOM file that pydicom, pydicom-data and pylibjpeg-data ship: its image, as pydicom shows it, or a reason."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from fedlit.core.errors import ConfigError, DataError
from fedlit.data.pictures.dicom import read_dicom
from fedlit.data.pictures.pixels import read_image

SOURCES = {"pylibjpeg-data": "git+https://github.com/pydicom/pylibjpeg-data"}
"""Where pip finds a package that is not on PyPI."""

FOLDERS = {"pydicom": "pydicom/data/test_files", "pydicom-data": "data_store/data", "pylibjpeg-data": "ljdata/ds"}
"""Folder of the files of each package, below its module."""

ARE_IMAGES = {"pydicom": 12, "pydicom-data": 20, "pylibjpeg-data": 20}
"""Least number of files of each package that are grey images which any installation can decode."""


def files_of(package: str) -> list[Path]:
    """The DICOM files of a package, by their content; the test is skipped if it is not installed."""
    module, _, folder = FOLDERS[package].partition("/")
    found = find_spec(module)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed: pip install {SOURCES.get(package, package)}")
    below = Path(found.origin).parent / folder
    return sorted(
        file for file in below.rglob("*") if file.is_file() and (file.suffix == ".dcm" or file.name == "image_dfl")
    )


def shown_by_pydicom(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Grey levels by pydicom's Modality LUT, VOI LUT and windows, and a mask of the pixels that are no padding."""
    from pydicom import dcmread
    from pydicom.pixels import apply_modality_lut, apply_voi, apply_windowing

    header = dcmread(file, force=True)
    stored = header.pixel_array
    kept = np.ones(stored.shape, bool)
    if (padding := header.get("PixelPaddingValue")) is not None:
        last = header.get("PixelPaddingRangeLimit", padding)
        low, high = sorted(int(np.array(int(end) & 0xFFFF, np.uint16).astype(stored.dtype)) for end in (padding, last))
        kept = (stored < low) | (stored > high)
    values = apply_modality_lut(stored, header)
    if header.get("VOILUTSequence"):
        looked_up = apply_voi(values, header)
        grey = looked_up / (2 ** int(np.max(header.VOILUTSequence[0].LUTData)).bit_length() - 1)
    elif header.get("WindowWidth"):
        bits, signed = header.BitsStored, header.PixelRepresentation
        ends = np.array([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1] if signed else [0, 2**bits - 1], float)
        if "RescaleSlope" in header:
            ends = ends * float(header.RescaleSlope) + float(header.RescaleIntercept)
        grey = (apply_windowing(values, header) - ends[0]) / (ends[1] - ends[0])
    else:
        shown = values[kept] if kept.any() else values
        grey = (values - shown.min()) / (np.ptp(shown) or 1)
    grey = np.clip(grey, 0, 1)
    return 255 * (1 - grey if header.PhotometricInterpretation == "MONOCHROME1" else grey), kept


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("package", FOLDERS)
def test_files_of_packages_are_shown_as_pydicom_shows_them_or_refused_in_words(package):
    pytest.importorskip("pydicom", reason="needs pydicom: pip install 'fedlit[dicom]'")
    equal, other, words = [], {}, {}
    for file in files_of(package):
        try:
            found = np.asarray(read_dicom(file)).astype(float)
            assert read_image(file, 32).shape == (1, 32, 32)
        except (DataError, ConfigError) as error:
            words[file.name] = str(error)
            continue
        expected, kept = shown_by_pydicom(file)
        difference = np.abs(found - expected)[kept].max(initial=0)
        if difference <= 1:
            equal.append(file.name)
        else:
            other[file.name] = difference
    assert not other
    assert len(equal) >= ARE_IMAGES[package]
    for name, text in words.items():
        assert len(text) > 20, name
        assert not any(word in text for word in ("Traceback", "force=True", "object has no attribute")), (name, text)
