"""Radiographs in DICOM files, read with the optional package pydicom."""

from pathlib import Path

import numpy as np
from PIL import Image

from fedlit.core.errors import ConfigError

SUFFIXES = (".dicom", ".dcm")


def open_dicom(file: Path, **options):
    """Return what pydicom's ``dcmread`` reads from a file with its options.

    Raises:
        ConfigError: pydicom is not installed.
    """
    try:
        from pydicom import dcmread
    except ModuleNotFoundError:
        raise ConfigError(
            f"{file}: DICOM files need pydicom, which is not installed: pip install 'fedlit[dicom]', "
            "or convert the files to PNG"
        ) from None
    return dcmread(file, **options)


def read_dicom(file: Path) -> Image.Image:
    """Read the picture of a DICOM file as 8-bit grey, bright where the body is dense.

    Stored values of any depth are rescaled (RescaleSlope, RescaleIntercept). Then the first VOI window becomes 0 to 255
    (DICOM PS3.3, C.11.2), or the range of the picture if there is no window. MONOCHROME1 is inverted. Lookup tables
    (Modality LUT, VOI LUT Sequence) are not applied.

    Raises:
        ConfigError: pydicom is not installed.
        ValueError: The file does not hold exactly one grey picture.
    """
    header = open_dicom(file)
    if "PixelData" not in header:
        raise ValueError("expected a DICOM file with a picture, found one without pixels")
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
    """Return a number of the header, or the first if there are several."""
    value = header.get(keyword)
    return default if value is None or value == "" else float(np.ravel(value)[0])
