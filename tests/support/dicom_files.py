"""DICOM files for tests; a test that writes one is skipped without pydicom."""

from pathlib import Path

import numpy as np
import pytest


def write_dicom(path: Path, pixels: np.ndarray, photometric: str = "MONOCHROME2", **header: object) -> Path:
    """Write an uncompressed digital X-ray with these stored values; None in the header removes an element."""
    pydicom = pytest.importorskip("pydicom", reason="needs pydicom: pip install 'fedlit[dicom]'")
    from pydicom.uid import ExplicitVRLittleEndian, generate_uid

    meta = pydicom.dataset.FileMetaDataset()
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[path.name])
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data = pydicom.dataset.FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    data.Rows, data.Columns = pixels.shape[-2:]
    data.SamplesPerPixel = 1
    data.PhotometricInterpretation = photometric
    data.BitsAllocated = 8 * pixels.itemsize
    data.BitsStored = header.get("BitsStored") or 8 * pixels.itemsize
    data.HighBit = data.BitsStored - 1
    data.PixelRepresentation = int(pixels.dtype.kind == "i")
    data.PixelData = pixels.tobytes()
    for keyword, value in header.items():
        if value is not None:
            setattr(data, keyword, value)
        elif keyword in data:
            delattr(data, keyword)
    pydicom.dcmwrite(path, data, enforce_file_format=True)
    return path
