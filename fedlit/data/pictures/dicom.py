"""Radiographs in DICOM files, read with the optional package pydicom."""

import re
from pathlib import Path

import numpy as np
from PIL import Image

from fedlit.core.errors import ConfigError, DataError

SUFFIXES = (".dicom", ".dcm")
PREAMBLE, MARK = 128, b"DICM"
"""A DICOM file has this mark after this number of bytes, independent of its name."""

OVERLAYS, BIT_POSITION = range(0x6000, 0x6020, 2), 0x0102
"""Groups of overlays, and their element that is not 0 if an overlay lies in unused bits of the pixels."""

STARTS = tuple(bytes((group, 0, element, 0)) for group in (2, 8) for element in (0, 1, 5, 8, 0x16, 0x18))
"""First tags of a file that was written without preamble and mark, as archives of the ACR-NEMA era are."""

CONVERT = "convert the files to PNG"
INSTALL = f"pip install 'fedlit[dicom]', or {CONVERT}"

NO_PICTURES = {
    "1.2.840.10008.5.1.4.1.1.66": "a segmentation, a registration or other raw data",
    "1.2.840.10008.5.1.4.1.1.30": "a parametric map",
    "1.2.840.10008.5.1.4.1.1.481": "a plan, structure or dose of radiotherapy",
    "1.2.840.10008.5.1.4.1.1.11": "a presentation state",
    "1.2.840.10008.5.1.4.1.1.88": "a report",
    "1.2.840.10008.5.1.4.1.1.104": "an encapsulated document",
}
"""Roots of SOP classes whose objects are not pictures of a patient, although they may have pixels."""

RT_IMAGE = "1.2.840.10008.5.1.4.1.1.481.1"
"""The one SOP class below these roots that is a radiograph."""

OTHER_MODALITIES = ("SEG", "REG", "RTDOSE", "RTPLAN", "RTSTRUCT", "PR", "KO", "SR", "DOC", "M3D", "PMAP")
"""Modalities of such objects, for files whose SOP class is missing or is a secondary capture."""


def is_dicom(file: Path) -> bool:
    """Return True if a file is DICOM, by its suffix or else by its content."""
    return file.suffix.lower() in SUFFIXES or has_mark(file)


def has_mark(file: Path) -> bool:
    """Return True if a file is DICOM by its content."""
    try:
        with file.open("rb") as opened:
            head = opened.read(PREAMBLE + len(MARK))
            return head[PREAMBLE:] == MARK or head.startswith(STARTS)
    except OSError:
        return False


def open_dicom(file: Path, **options):
    """Return the data set that pydicom's ``dcmread`` reads from a file, with or without its preamble.

    Raises:
        ConfigError: pydicom is not installed.
        DataError: It is not DICOM.
    """
    try:
        from pydicom import dcmread
        from pydicom.errors import InvalidDicomError
    except ModuleNotFoundError:
        raise ConfigError(f"{file}: DICOM needs pydicom: {INSTALL}") from None
    try:
        return dcmread(file, **options)
    except InvalidDicomError:
        return _without_preamble(file, dcmread, options)


def _without_preamble(file: Path, dcmread, options: dict):
    """Read a data set that begins with its first tag, in the encoding that pydicom guesses."""
    from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

    if hasattr(file, "seek"):
        file.seek(0)
    try:
        header = dcmread(file, force=True, **options)
        known = "SOPClassUID" in header or "Rows" in header
    except Exception:  # pydicom reads any bytes here, and its errors are of many kinds
        known = False
    if not known:
        raise DataError("expected a DICOM file, found other content")
    if "TransferSyntaxUID" not in header.file_meta:
        implicit, little = header.original_encoding
        explicit = ExplicitVRLittleEndian if little else ExplicitVRBigEndian
        header.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian if implicit else explicit
    return header


def read_dicom(file: Path) -> Image.Image:
    """Read the image of a DICOM file as 8-bit grey, bright where the body is dense.

    Stored values of any depth are rescaled (RescaleSlope and RescaleIntercept, or the Modality LUT). They are then
    mapped to 0 to 255 by the first VOI LUT and the bits of its largest entry, or else by the first VOI window (DICOM
    PS3.3, C.11.2) if it has a centre and a width, or else by the range of the image. MONOCHROME1 and the presentation
    shape INVERSE are inverted. Padding (C.7.5.1.1.2) is black.

    Raises:
        ConfigError: pydicom, or the package that decodes such pixels, is not installed.
        ValueError: The file does not hold exactly one grey image, or its pixels are damaged.
    """
    header = open_dicom(file)
    refuse_other(header)
    photometric = header.PhotometricInterpretation
    values, padded = _values(file, header)
    center, width = _number(header, "WindowCenter"), _number(header, "WindowWidth")
    if header.get("VOILUTSequence"):
        grey = _looked_up(values, header)
    elif center is not None and width is not None and width > 0:
        grey = _window(values, center, width, header.get("VOILUTFunction") or "LINEAR")
    else:
        shown = values if padded.all() else values[~padded]
        grey = np.clip((values - shown.min()) / (np.ptp(shown) or 1), 0, 1)
    pixels = np.round(255 * grey).astype(np.uint8)
    inverted = photometric == "MONOCHROME1" or header.get("PresentationLUTShape") == "INVERSE"
    return Image.fromarray(np.where(padded, 0, 255 - pixels if inverted else pixels).astype(np.uint8))


def refuse_other(header) -> None:
    """Check that a header describes exactly one grey image of a patient.

    Raises:
        DataError: It describes something else.
    """
    kind, modality = str(header.get("SOPClassUID") or ""), header.get("Modality")
    other = next((what for root, what in NO_PICTURES.items() if f"{kind}.".startswith(f"{root}.")), "")
    if (other and kind != RT_IMAGE) or modality in OTHER_MODALITIES or header.get("BitsAllocated") == 1:
        found = other or (f"the modality {modality}" if modality in OTHER_MODALITIES else "a mask of single bits")
        raise DataError(f"expected a picture of a patient, found {found}; leave it out")
    if not header.get("PixelData"):
        raise DataError("expected a DICOM file with an image, found one without pixels")
    photometric = header.get("PhotometricInterpretation")
    if photometric not in ("MONOCHROME1", "MONOCHROME2") or int(header.get("NumberOfFrames") or 1) != 1:
        raise DataError(
            "expected one image in MONOCHROME1 or MONOCHROME2, "
            f"found {header.get('NumberOfFrames') or 1} in {photometric}: convert the file"
        )


def _values(file: Path, header) -> tuple[np.ndarray, np.ndarray]:
    """Return the image after rescaling or the Modality LUT, and a mask of the padding, each [height, width]."""
    from pydicom.pixels import apply_modality_lut, get_decoder

    syntax = getattr(header.file_meta, "TransferSyntaxUID", None)
    if syntax is not None and syntax.is_compressed:
        try:
            decoder = get_decoder(syntax)
        except NotImplementedError:
            raise DataError(f"expected an image, found {syntax.name}: convert it") from None
        if not decoder.is_available:
            names = " or ".join(sorted({each.partition(" - ")[0] for each in decoder.missing_dependencies}))
            raise ConfigError(
                f"{file}: pixels in {syntax.name} need a decoder that is not installed ({names}): "
                f"{_cure(decoder.missing_dependencies)}"
            )
    header.pixel_array_options(correct_unused_bits=False)  # padding may use bits beyond the stored ones
    try:
        stored = header.pixel_array
    except Exception as error:  # of pydicom or of a decoder; each has kinds of its own
        name = syntax.name if syntax else "its pixels"
        reason = (
            str(error).strip().splitlines()[0].rstrip(":")
            if syntax and not syntax.is_compressed
            else ("none of the installed decoders can read it; the file is damaged or of an unusual depth")
        )
        raise DataError(f"{name}: {reason}; {CONVERT} or leave it out") from error
    ends = header.get("PixelPaddingValue"), header.get("PixelPaddingRangeLimit", header.get("PixelPaddingValue"))
    padded = np.zeros(stored.shape, dtype=bool)
    if ends[0] is not None:
        low, high = sorted(int(np.array(int(end) & 0xFFFF, np.uint16).astype(stored.dtype)) for end in ends)
        padded = (stored >= low) & (stored <= high)
    for keyword in ("RescaleSlope", "RescaleIntercept"):
        _number(header, keyword)
    return apply_modality_lut(_sample_values(header, stored, padded), header), padded


def _cure(missing: list[str]) -> str:
    """Return what to install for one of pydicom's decoders, which names its packages as ``NAME - requires ...``."""
    if any(each.startswith("gdcm") for each in missing):
        return INSTALL
    packages = sorted({each for text in missing for each in re.findall(r"[\w-]+(?=>=)", text)})
    return f"pip install {' '.join(packages)}, or {CONVERT}" if packages else CONVERT


def _sample_values(header, stored: np.ndarray, padded: np.ndarray) -> np.ndarray:
    """Return the values of pixels out of their cells: BitsStored bits that end at HighBit (PS3.5, 8.1.1).

    Raises:
        DataError: A pixel has bits above HighBit that are neither padding nor an overlay.
    """
    allocated, bits = int(header.BitsAllocated), int(header.BitsStored)
    high = int(header.get("HighBit", bits - 1))
    if not bits <= high + 1 <= allocated:
        raise DataError(f"expected BitsStored - 1 <= HighBit < BitsAllocated, found {bits}, {high} and {allocated}")
    above = allocated - 1 - high
    values = (stored << above) >> (allocated - bits)
    positions = [header[tag] for tag in list(header.keys()) if tag >> 16 in OVERLAYS and tag & 0xFFFF == BIT_POSITION]
    overlay = any(position.value for position in positions)
    if not overlay and ((((stored << above) >> above) != stored) & ~padded).any():
        raise DataError(
            f"expected pixels of {bits} bits (BitsStored), found {int(stored[~padded].min()):,} to "
            f"{int(stored[~padded].max()):,}: the header is wrong; correct it, or {CONVERT}"
        )
    return values


def _looked_up(values: np.ndarray, header) -> np.ndarray:
    """Return values in [0, 1] by the first VOI LUT.

    White is the largest value of the bits that its entries need. Many writers declare 16 bits for entries that end at
    4,095, which would be black, or 8 bits for entries above 255.
    """
    table = header.VOILUTSequence[0]
    count, first = int(table.LUTDescriptor[0]) or 2**16, int(table.LUTDescriptor[1])
    entries = table.LUTData
    if isinstance(entries, bytes):
        order = "<" if header.original_encoding[1] else ">"
        entries = np.frombuffer(entries, np.uint8 if len(entries) < 2 * count else f"{order}u2")
    entries = np.asarray(entries)[:count]
    if not len(entries):
        raise DataError("VOILUTSequence: expected entries, found none; correct the header")
    at = np.clip(np.round(values).astype(np.int64) - first, 0, len(entries) - 1)
    return entries[at] / max(2 ** int(entries.max()).bit_length() - 1, 1)


def _window(values: np.ndarray, center: float, width: float, function: str) -> np.ndarray:
    if function == "SIGMOID":
        return 1 / (1 + np.exp(-4 * (values - center) / width))
    if function == "LINEAR":  # counts whole pixel values, so both ends belong to the window
        center, width = center - 0.5, max(width - 1, 1)
    return np.clip((values - center) / width + 0.5, 0, 1)


def _number(header, keyword: str) -> float | None:
    """Return a number of the header, the first if there are several, or None if there is none.

    Raises:
        DataError: It is not a number.
    """
    element = header.get_item(keyword)
    raw = element.value if element is not None else None
    try:
        value = header.get(keyword)
        if value is None or value == "" or (hasattr(value, "__len__") and not len(value)):
            return None
        number = float(np.ravel(value)[0])
        if np.isfinite(number):
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    text = raw.decode("ascii", "replace").strip("\0 ") if isinstance(raw, bytes) else raw
    raise DataError(f"{keyword}: expected a number, found {str(text)!r}; correct the header")
