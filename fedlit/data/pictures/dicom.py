"""Radiographs in DICOM files, read with the optional package pydicom."""

from pathlib import Path

import numpy as np
from PIL import Image

from fedlit.core.errors import ConfigError, DataError

SUFFIXES = (".dicom", ".dcm")
PREAMBLE, MARK = 128, b"DICM"
"""A DICOM file has this mark after this number of bytes, independent of its name."""

INSTALL = "pip install 'fedlit[dicom]', or convert the files to PNG"


def is_dicom(file: Path) -> bool:
    """Return True if a file is DICOM, by its suffix or else by its content."""
    return file.suffix.lower() in SUFFIXES or has_mark(file)


def has_mark(file: Path) -> bool:
    """Return True if a file is DICOM by its content."""
    try:
        with file.open("rb") as opened:
            return opened.read(PREAMBLE + len(MARK))[PREAMBLE:] == MARK
    except OSError:
        return False


def open_dicom(file: Path, **options):
    """Return the data set that pydicom's ``dcmread`` reads from a file with these options.

    Raises:
        ConfigError: pydicom is not installed.
    """
    try:
        from pydicom import dcmread
    except ModuleNotFoundError:
        raise ConfigError(f"{file}: DICOM needs pydicom: {INSTALL}", key="dicom-package-missing") from None
    return dcmread(file, **options)


def read_dicom(file: Path) -> Image.Image:
    """Read the image of a DICOM file as 8-bit grey, bright where the body is dense.

    Stored values of any depth are rescaled (RescaleSlope and RescaleIntercept, or the Modality LUT). They are then
    mapped to 0 to 255 by the first VOI LUT and the bits that it declares, or else by the first VOI window (DICOM PS3.3,
    C.11.2), or else by the range of the image. MONOCHROME1 and the presentation shape INVERSE are inverted. Padding
    (C.7.5.1.1.2) is black.

    Raises:
        ConfigError: pydicom, or the package that decodes such pixels, is not installed.
        ValueError: The file does not hold exactly one grey image, or its pixels are damaged.
    """
    header = open_dicom(file)
    refuse_other(header)
    photometric = header.PhotometricInterpretation
    values, padded = _values(file, header)
    width = _number(header, "WindowWidth", 0)
    if header.get("VOILUTSequence"):
        grey = _looked_up(values, header)
    elif width > 0:
        grey = _window(values, _number(header, "WindowCenter", 0), width, header.get("VOILUTFunction") or "LINEAR")
    else:
        shown = values if padded.all() else values[~padded]
        grey = np.clip((values - shown.min()) / max(np.ptp(shown), 1), 0, 1)
    pixels = np.round(255 * grey).astype(np.uint8)
    inverted = photometric == "MONOCHROME1" or header.get("PresentationLUTShape") == "INVERSE"
    return Image.fromarray(np.where(padded, 0, 255 - pixels if inverted else pixels).astype(np.uint8))


def refuse_other(header) -> None:
    """Check that a header describes exactly one grey image.

    Raises:
        DataError: It describes something else.
    """
    if "PixelData" not in header:
        raise DataError("expected a DICOM file with an image, found one without pixels", key="dicom-without-pixels")
    photometric = header.get("PhotometricInterpretation")
    if photometric not in ("MONOCHROME1", "MONOCHROME2") or int(header.get("NumberOfFrames") or 1) != 1:
        raise DataError(
            "expected one image in MONOCHROME1 or MONOCHROME2, "
            f"found {header.get('NumberOfFrames') or 1} in {photometric}: convert the file",
            key="dicom-not-one-grey-image",
        )


def _values(file: Path, header) -> tuple[np.ndarray, np.ndarray]:
    """Return the image after rescaling or the Modality LUT, and a mask of the padding, each [height, width]."""
    from pydicom.pixels import apply_modality_lut, get_decoder

    syntax = getattr(header.file_meta, "TransferSyntaxUID", None)
    if syntax is not None and syntax.is_compressed:
        try:
            decoder = get_decoder(syntax)
        except NotImplementedError:
            raise DataError(f"expected an image, found {syntax.name}: convert it", key="dicom-without-image") from None
        if not decoder.is_available:
            needs = " or ".join(sorted(decoder.missing_dependencies))
            raise ConfigError(
                f"{file}: pixels in {syntax.name} need a decoder that is not installed ({needs}): {INSTALL}",
                key="dicom-decoder-missing",
            )
    header.pixel_array_options(correct_unused_bits=False)  # padding may use bits beyond the stored ones
    try:
        stored = header.pixel_array
    except (RuntimeError, AttributeError) as error:  # of a decoder
        raise DataError(
            f"{syntax.name if syntax else 'pixels'}: {str(error).splitlines()[0]}", key="dicom-pixels-damaged"
        ) from error
    ends = header.get("PixelPaddingValue"), header.get("PixelPaddingRangeLimit", header.get("PixelPaddingValue"))
    padded = np.zeros(stored.shape, dtype=bool)
    if ends[0] is not None:
        low, high = sorted(int(np.array(int(end) & 0xFFFF, np.uint16).astype(stored.dtype)) for end in ends)
        padded = (stored >= low) & (stored <= high)
    unused = header.BitsAllocated - header.BitsStored
    return apply_modality_lut((stored << unused) >> unused, header), padded


def _looked_up(values: np.ndarray, header) -> np.ndarray:
    from pydicom.pixels import apply_voi

    bits = int(header.VOILUTSequence[0].LUTDescriptor[2])
    return np.clip(apply_voi(np.round(values).astype(np.int64), header) / (2**bits - 1), 0, 1)


def _window(values: np.ndarray, center: float, width: float, function: str) -> np.ndarray:
    if function == "SIGMOID":
        return 1 / (1 + np.exp(-4 * (values - center) / width))
    if function == "LINEAR":  # counts whole pixel values, so both ends belong to the window
        center, width = center - 0.5, max(width - 1, 1)
    return np.clip((values - center) / width + 0.5, 0, 1)


def _number(header, keyword: str, default: float) -> float:
    """Return a number of the header, the first if there are several, or the default if there is none."""
    value = header.get(keyword)
    return default if value is None or value == "" else float(np.ravel(value)[0])
