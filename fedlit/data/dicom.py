"""Radiographs in DICOM files, read with the optional package pydicom."""

from pathlib import Path

import numpy as np
from PIL import Image

from fedlit.errors import ConfigError

SUFFIXES = (".dicom", ".dcm")


def read_dicom(file: Path) -> Image.Image:
    """The picture of a DICOM file as 8-bit grey, bright where the body is dense.

    Stored values of any depth are rescaled (RescaleSlope, RescaleIntercept), then the first VOI window is what becomes
    0 to 255 (DICOM PS3.3, C.11.2); without a window it is the range of the picture. MONOCHROME1 is inverted. Lookup
    tables (Modality LUT, VOI LUT Sequence) are not applied.

    Raises:
        ConfigError: pydicom is not installed.
        ValueError: not one grey picture.
    """
    try:
        from pydicom import dcmread
    except ModuleNotFoundError:
        raise ConfigError(
            f"{file}: DICOM files need pydicom, which is not installed: pip install 'fedlit[dicom]', "
            "or convert the files to PNG"
        ) from None
    header = dcmread(file)
    photometric = header.get("PhotometricInterpretation")
    if photometric not in ("MONOCHROME1", "MONOCHROME2") or int(header.get("NumberOfFrames") or 1) != 1:
        raise ValueError(
            "expected one picture in MONOCHROME1 or MONOCHROME2, "
            f"found {header.get('NumberOfFrames') or 1} in {photometric}: convert the file"
        )
    values = header.pixel_array * _number(header, "RescaleSlope", 1) + _number(header, "RescaleIntercept", 0)
    width = _number(header, "WindowWidth", 0)
    if width > 0:
        grey = _window(values, _number(header, "WindowCenter", 0), width, header.get("VOILUTFunction") or "LINEAR")
    else:
        grey = (values - values.min()) / max(np.ptp(values), 1)
    pixels = np.round(255 * grey).astype(np.uint8)
    return Image.fromarray(255 - pixels if photometric == "MONOCHROME1" else pixels)


def _window(values: np.ndarray, center: float, width: float, function: str) -> np.ndarray:
    if function == "SIGMOID":
        return 1 / (1 + np.exp(-4 * (values - center) / width))
    if function == "LINEAR":  # counts whole pixel values, so both ends belong to the window
        center, width = center - 0.5, max(width - 1, 1)
    return np.clip((values - center) / width + 0.5, 0, 1)


def _number(header, keyword: str, default: float) -> float:
    """A number of the header; the first where it has several."""
    value = header.get(keyword)
    return default if value is None or value == "" else float(np.ravel(value)[0])
