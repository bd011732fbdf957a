"""DICOM radiographs: rescaling, windows, MONOCHROME1, and what is refused."""

import sys

import numpy as np
import pytest
from dicom_files import write_dicom
from refusals import refused

from fedlit.core.errors import ConfigError, DataError
from fedlit.data.own.image_paths import images_below
from fedlit.data.pictures.dicom import read_dicom
from fedlit.data.pictures.images import decode_images, read_image
from fedlit.data.xrays.check import inspect_image
from fedlit.predictions.scoring import image_files

RAMP = np.tile(np.arange(0, 4096, 128, dtype=np.uint16), (32, 1))


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
    with refused(DataError, "expected a DICOM file with an image, found one without"):
        read_dicom(write_dicom(tmp_path / "header.dcm", RAMP, PixelData=None))
    text = tmp_path / "text.dcm"
    text.write_text("<html>404</html>")
    good = write_dicom(tmp_path / "good.dcm", RAMP)
    with pytest.raises(ValueError) as caught:
        decode_images([good, palette, frames, text], 16, cache_dir=tmp_path / "cache")
    message = str(caught.value)
    assert "3 of 4 image files cannot be decoded" in message
    assert f"{palette}: expected one image in MONOCHROME1 or MONOCHROME2, found 1 in PALETTE COLOR" in message
    assert f"{frames}: expected one image in MONOCHROME1 or MONOCHROME2, found 2 in MONOCHROME2" in message
    assert str(text) in message


def test_without_pydicom_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pydicom", None)
    (tmp_path / "x.dicom").write_bytes(b"any")
    with refused(ConfigError, "x.dicom", "pip install 'fedlit[dicom]'"):
        decode_images([tmp_path / "x.dicom"] * 2, 16, cache_dir=tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache").glob("[!.]*")] == [".partial"]


# Lookup tables


def lut(pydicom, entries, first, bits):
    table = pydicom.Dataset()
    table.LUTDescriptor = [len(entries), first, bits]
    table.add_new("LUTData", "OW", np.array(entries, dtype="<u2").tobytes())
    return pydicom.Sequence([table])


def test_a_voi_lut_is_honoured_and_wins_over_a_window(tmp_path):
    pydicom = pytest.importorskip("pydicom")
    entries = np.round(np.linspace(0, 1, 64) ** 2 * 4095).astype(int)
    pixels = np.arange(64, dtype=np.uint16).reshape(8, 8) + 100
    tables = {"VOILUTSequence": lut(pydicom, entries.tolist(), 110, 12), "WindowCenter": 30, "WindowWidth": 9}
    found = grey(write_dicom(tmp_path / "x.dicom", pixels, BitsStored=12, **tables)).ravel()
    expected = entries[np.clip(np.arange(64) - 10, 0, 63)] / 4095 * 255
    np.testing.assert_array_equal(found, np.round(expected))
    inverted = grey(write_dicom(tmp_path / "y.dicom", pixels, "MONOCHROME1", BitsStored=12, **tables)).ravel()
    np.testing.assert_array_equal(inverted, 255 - found)


def test_a_modality_lut_comes_before_the_window(tmp_path):
    pydicom = pytest.importorskip("pydicom")
    entries = list(range(1000, 0, -10))
    pixels = np.arange(64, dtype=np.uint16).reshape(8, 8)
    tables = {"ModalityLUTSequence": lut(pydicom, entries, 0, 16), "WindowCenter": 600.5, "WindowWidth": 401}
    tables["ModalityLUTSequence"][0].ModalityLUTType = "US"
    found = grey(write_dicom(tmp_path / "x.dicom", pixels, BitsStored=12, **tables)).ravel()
    values = np.array(entries)[np.arange(64)]
    np.testing.assert_array_equal(found, np.round(np.clip((values - 600) / 400 + 0.5, 0, 1) * 255))


# Packed pixels

PACKED = {
    "JPEGLosslessSV1": "JPEG Lossless", "JPEGLSLossless": "JPEG-LS Lossless", "JPEG2000Lossless": "JPEG 2000",
    "JPEGBaseline8Bit": "JPEG Baseline",
}  # fmt: skip


def packed(path, syntax: str, pixels):
    """A DICOM file whose pixels gdcm has packed."""
    gdcm = pytest.importorskip("gdcm", reason="needs python-gdcm: pip install 'fedlit[dicom]'")
    reader, change, writer = gdcm.ImageReader(), gdcm.ImageChangeTransferSyntax(), gdcm.ImageWriter()
    reader.SetFileName(str(write_dicom(path.with_suffix(".plain"), pixels)))
    assert reader.Read()
    to = {"JPEGLosslessSV1": "JPEGLosslessProcess14_1", "JPEGBaseline8Bit": "JPEGBaselineProcess1"}.get(syntax, syntax)
    change.SetTransferSyntax(gdcm.TransferSyntax(getattr(gdcm.TransferSyntax, to)))
    change.SetInput(reader.GetImage())
    assert change.Change()
    writer.SetFileName(str(path))
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    assert writer.Write()
    return path


@pytest.mark.parametrize("syntax", PACKED)
def test_packed_pixels_are_those_that_were_packed(tmp_path, syntax):
    depth = np.uint8 if syntax == "JPEGBaseline8Bit" else np.uint16
    pixels = (RAMP // 16).astype(depth) if depth is np.uint8 else RAMP
    found = grey(packed(tmp_path / "x.dcm", syntax, pixels))
    plain = grey(write_dicom(tmp_path / "plain.dcm", pixels))
    assert np.abs(found - plain).max() <= (12 if syntax == "JPEGBaseline8Bit" else 0)


def rle(path):
    pydicom = pytest.importorskip("pydicom")
    data = pydicom.dcmread(write_dicom(path, RAMP))
    data.compress(pydicom.uid.RLELossless)
    data.save_as(path)
    return path, pydicom


@pytest.mark.parametrize(("syntax", "name"), PACKED.items())
def test_a_decoder_that_is_absent_is_named(tmp_path, monkeypatch, syntax, name):
    path, pydicom = rle(tmp_path / "x.dcm")
    data = pydicom.dcmread(path)
    data.file_meta.TransferSyntaxUID = getattr(pydicom.uid, syntax)
    data.save_as(path)
    decoder = pydicom.pixels.get_decoder(getattr(pydicom.uid, syntax))
    monkeypatch.setattr(decoder, "_available", {})
    monkeypatch.setattr(decoder, "_unavailable", {"gdcm": ("gdcm>=3.0.10",)})
    with refused(ConfigError, "x.dcm", name, "gdcm", "fedlit[dicom]"):
        decode_images([path], 16, cache_dir=tmp_path / "cache")


def test_pixels_that_no_decoder_takes_and_damaged_ones(tmp_path):
    path, pydicom = rle(tmp_path / "x.dcm")
    assert grey(path).shape == (32, 32)
    data = pydicom.dcmread(path)
    data.PixelData = data.PixelData[:60]
    data.save_as(tmp_path / "cut.dcm")
    data.file_meta.TransferSyntaxUID = pydicom.uid.MPEG2MPML
    data.save_as(tmp_path / "film.dcm")
    with pytest.raises(ValueError) as caught:
        decode_images([tmp_path / "cut.dcm", tmp_path / "film.dcm"], 16, cache_dir=tmp_path / "cache")
    assert "2 of 2 image files cannot be decoded" in str(caught.value)
    assert "film.dcm: expected an image, found MPEG2 Main Profile" in str(caught.value)


# Without a suffix


@pytest.mark.parametrize("name", ["IM0001", "1.2.840.10008.7", "wrong.png"])
def test_dicom_is_recognised_by_its_content(tmp_path, name):
    pixels = grey(write_dicom(tmp_path / "x.dcm", RAMP))
    (tmp_path / "x.dcm").rename(tmp_path / name)
    np.testing.assert_array_equal(read_image(tmp_path / name, 32)[0], pixels)
    picture = inspect_image(tmp_path / name, decode=True)
    assert picture.problem == ""
    if name != "wrong.png":
        assert picture.kind == "DICOM, 16-bit MONOCHROME2"
        (tmp_path / "notes.txt").write_text("no image")
        assert image_files(tmp_path) == [tmp_path / name]
        assert list(images_below(tmp_path)) == [name]


@pytest.mark.parametrize("dtype", [np.uint16, np.int16])
@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_padding_is_black_and_no_part_of_the_range(tmp_path, dtype, photometric):
    pixels = np.arange(64).reshape(8, 8).astype(dtype)
    plain = grey(write_dicom(tmp_path / "plain.dicom", pixels[:, 2:], photometric))
    pixels[:, :2] = np.iinfo(dtype).max if dtype is np.uint16 else -2000
    header = {"PixelPaddingValue": int(pixels[0, 0])}
    found = grey(write_dicom(tmp_path / "x.dicom", pixels, photometric, **header))
    assert (found[:, :2] == 0).all()
    np.testing.assert_array_equal(found[:, 2:], plain)


@pytest.mark.parametrize(
    ("dtype", "value"), [(np.uint16, 65535), (np.uint16, 63536), (np.int16, -2000), (np.int16, -32768)]
)
def test_padding_that_the_stored_bits_do_not_hold_is_padding_and_white_is_white(tmp_path, dtype, value):
    white = 2047 if dtype is np.int16 else 4095
    pixels = np.linspace(0, white, 64).reshape(8, 8).astype(dtype)
    plain = grey(write_dicom(tmp_path / "plain.dicom", pixels[:, 2:], BitsStored=12))
    pixels[:, :2] = value
    found = grey(write_dicom(tmp_path / "x.dicom", pixels, BitsStored=12, PixelPaddingValue=value))
    assert (found[:, :2] == 0).all()
    np.testing.assert_array_equal(found[:, 2:], plain)
    assert plain.max() == 255


def test_a_range_of_padding_and_nothing_but_padding(tmp_path):
    pixels = np.arange(64, dtype=np.uint16).reshape(8, 8)
    found = grey(write_dicom(tmp_path / "x.dicom", pixels, PixelPaddingValue=3, PixelPaddingRangeLimit=0))
    assert (found.ravel()[:5] == 0).all()
    assert found.ravel()[5] == round(255 / 59)
    assert (grey(write_dicom(tmp_path / "y.dicom", pixels * 0 + 7, PixelPaddingValue=7)) == 0).all()


def test_the_shape_inverse_inverts_once(tmp_path):
    plain = grey(write_dicom(tmp_path / "plain.dicom", RAMP, BitsStored=12))
    for photometric in ("MONOCHROME1", "MONOCHROME2"):
        header = {"BitsStored": 12, "PresentationLUTShape": "INVERSE"}
        found = grey(write_dicom(tmp_path / f"{photometric}.dicom", RAMP, photometric, **header))
        np.testing.assert_array_equal(found, 255 - plain)
