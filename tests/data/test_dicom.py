"""DICOM radiographs: rescaling, windows, MONOCHROME1, and what is refused."""

import sys

import numpy as np
import pytest

from fedlit.core.errors import ConfigError
from fedlit.data.dicom import read_dicom
from fedlit.data.images import decode_images, read_image

RAMP = np.tile(np.arange(0, 4096, 128, dtype=np.uint16), (32, 1))


def write_dicom(path, pixels, photometric="MONOCHROME2", **header):
    """An uncompressed digital X-ray with these stored values."""
    pydicom = pytest.importorskip("pydicom", reason="needs pydicom: pip install 'fedlit[dicom]'")
    from pydicom.uid import ExplicitVRLittleEndian, generate_uid

    meta = pydicom.dataset.FileMetaDataset()
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[path.name])
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data = pydicom.dataset.FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    data.Rows, data.Columns = pixels.shape[:2]
    data.SamplesPerPixel = 1
    data.PhotometricInterpretation = photometric
    data.BitsAllocated = 8 * pixels.itemsize
    data.BitsStored = header.pop("BitsStored", 8 * pixels.itemsize)
    data.HighBit = data.BitsStored - 1
    data.PixelRepresentation = int(pixels.dtype.kind == "i")
    for keyword, value in header.items():
        setattr(data, keyword, value)
    data.PixelData = pixels.tobytes()
    pydicom.dcmwrite(path, data, enforce_file_format=True)
    return path


def grey(path) -> np.ndarray:
    image = read_dicom(path)
    assert image.mode == "L"
    return np.asarray(image).astype(int)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16])
def test_without_a_window_the_range_of_the_picture_is_used(tmp_path, dtype):
    pixels = (np.arange(64).reshape(8, 8) + (-20 if dtype is np.int16 else 20)).astype(dtype)
    found = grey(write_dicom(tmp_path / "x.dicom", pixels))
    np.testing.assert_array_equal(found, np.round(np.arange(64).reshape(8, 8) * 255 / 63))


def test_a_flat_picture_is_black(tmp_path):
    assert (grey(write_dicom(tmp_path / "x.dicom", np.full((8, 8), 900, np.uint16))) == 0).all()


def test_monochrome1_is_inverted(tmp_path):
    plain = grey(write_dicom(tmp_path / "plain.dicom", RAMP, BitsStored=12))
    inverted = grey(write_dicom(tmp_path / "inverted.dicom", RAMP, "MONOCHROME1", BitsStored=12))
    assert plain[0, 0] == 0 < plain[0, -1] == 255
    np.testing.assert_array_equal(inverted, 255 - plain)


def test_a_window_cuts_off_and_stretches_rescaled_values(tmp_path):
    pixels = np.arange(16, dtype=np.uint16).reshape(4, 4)
    # Values are 2x - 10; centre 5 and width 11 span -0.5 to 9.5 (DICOM PS3.3, C.11.2.1.2.1).
    window = {"RescaleSlope": 2, "RescaleIntercept": -10, "WindowCenter": 5, "WindowWidth": 11}
    found = grey(write_dicom(tmp_path / "x.dicom", pixels, **window)).ravel()
    values = 2 * np.arange(16) - 10
    expected = np.clip((values - 4.5) / 10 + 0.5, 0, 1) * 255
    np.testing.assert_array_equal(found, np.round(expected))
    assert (found[:5] == 0).all()
    assert (found[10:] == 255).all()


def test_the_first_of_several_windows_counts(tmp_path):
    one = write_dicom(tmp_path / "one.dicom", RAMP, WindowCenter=1000, WindowWidth=500)
    two = write_dicom(tmp_path / "two.dicom", RAMP, WindowCenter=[1000, 3000], WindowWidth=[500, 9])
    np.testing.assert_array_equal(grey(one), grey(two))


def test_window_functions(tmp_path):
    window = {"WindowCenter": 2048, "WindowWidth": 1024}
    exact = grey(write_dicom(tmp_path / "exact.dicom", RAMP, VOILUTFunction="LINEAR_EXACT", **window))
    np.testing.assert_array_equal(exact[0], np.round(np.clip((RAMP[0] - 2048.0) / 1024 + 0.5, 0, 1) * 255))
    sigmoid = grey(write_dicom(tmp_path / "sigmoid.dicom", RAMP, VOILUTFunction="SIGMOID", **window))
    np.testing.assert_array_equal(sigmoid[0], np.round(255 / (1 + np.exp(-4 * (RAMP[0] - 2048.0) / 1024))))


@pytest.mark.parametrize("name", ["x.dicom", "x.dcm", "X.DCM"])
def test_suffixes(tmp_path, name):
    path = write_dicom(tmp_path / name, RAMP)
    np.testing.assert_array_equal(read_image(path, 32)[0], grey(path))
    assert read_image(path, 16, channels=3).shape == (3, 16, 16)


def test_other_pictures_are_refused_by_name(tmp_path):
    palette = write_dicom(tmp_path / "palette.dcm", RAMP, "PALETTE COLOR")
    frames = write_dicom(tmp_path / "frames.dcm", RAMP, NumberOfFrames=2)
    text = tmp_path / "text.dcm"
    text.write_text("<html>404</html>")
    good = write_dicom(tmp_path / "good.dcm", RAMP)
    with pytest.raises(ValueError) as caught:
        decode_images([good, palette, frames, text], 16, cache_dir=tmp_path / "cache")
    message = str(caught.value)
    assert "3 of 4 image files cannot be decoded" in message
    assert f"{palette}: expected one picture in MONOCHROME1 or MONOCHROME2, found 1 in PALETTE COLOR" in message
    assert f"{frames}: expected one picture in MONOCHROME1 or MONOCHROME2, found 2 in MONOCHROME2" in message
    assert str(text) in message


def test_without_pydicom_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pydicom", None)
    (tmp_path / "x.dicom").write_bytes(b"any")
    with pytest.raises(ConfigError, match=r"x\.dicom: DICOM files need pydicom.* pip install 'fedlit\[dicom\]'"):
        decode_images([tmp_path / "x.dicom"] * 2, 16, cache_dir=tmp_path / "cache")
    assert list((tmp_path / "cache").glob("*.npy")) == []
