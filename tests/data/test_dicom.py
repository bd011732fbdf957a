"""DICOM radiographs: read as a viewer shows them, whatever their header says, or refused in words."""

import struct
import sys

import numpy as np
import pytest
from dicom_files import write_dicom
from refusals import refused, table

from fedlit.core.errors import ConfigError, DataError
from fedlit.data.own.image_paths import images_below
from fedlit.data.pictures.dicom import read_dicom
from fedlit.data.pictures.images import decode_images, read_image
from fedlit.data.xrays.check import inspect_image
from fedlit.predictions.scoring import image_files

pydicom = pytest.importorskip("pydicom", reason="needs pydicom: pip install 'fedlit[dicom]'")

RAMP = np.tile(np.arange(0, 4096, 128, dtype=np.uint16), (32, 1))
SHOWN = np.round((RAMP - RAMP.min()) * (255 / np.ptp(RAMP)))
COUNTED = np.arange(64).reshape(8, 8)


def grey(path) -> np.ndarray:
    image = read_dicom(path)
    assert image.mode == "L"
    return np.asarray(image).astype(int)


# Windows


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16])
def test_without_a_window_the_range_of_the_picture_is_used(tmp_path, dtype):
    pixels = (COUNTED + (-20 if dtype is np.int16 else 20)).astype(dtype)
    found = grey(write_dicom(tmp_path / "x.dicom", pixels))
    np.testing.assert_array_equal(found, np.round(COUNTED * 255 / 63))
    assert (grey(write_dicom(tmp_path / "flat.dicom", np.full((8, 8), 90, dtype))) == 0).all()


@pytest.mark.parametrize("slope", ["0.0001", "1e-6", "250"])
def test_the_range_counts_however_small_the_slope_is(tmp_path, slope):
    file = write_dicom(tmp_path / "x.dcm", RAMP, BitsStored=12, RescaleSlope=slope, RescaleIntercept=0)
    np.testing.assert_array_equal(grey(file), SHOWN)


def test_monochrome1_and_the_shape_inverse_invert_once(tmp_path):
    plain = grey(write_dicom(tmp_path / "plain.dicom", RAMP, BitsStored=12))
    np.testing.assert_array_equal(plain, SHOWN)
    for photometric, shape in (("MONOCHROME1", None), ("MONOCHROME1", "INVERSE"), ("MONOCHROME2", "INVERSE")):
        header = {"BitsStored": 12, "PresentationLUTShape": shape}
        found = grey(write_dicom(tmp_path / f"{photometric}.dicom", RAMP, photometric, **header))
        np.testing.assert_array_equal(found, 255 - plain)


def test_a_window_cuts_off_and_stretches_rescaled_values(tmp_path):
    pixels = np.arange(16, dtype=np.uint16).reshape(4, 4)
    # Values are 2x - 10; centre 5 and width 11 span -0.5 to 9.5 (DICOM PS3.3, C.11.2.1.2.1).
    window = {"RescaleSlope": 2, "RescaleIntercept": -10, "WindowCenter": 5, "WindowWidth": 11}
    found = grey(write_dicom(tmp_path / "x.dicom", pixels, **window)).ravel()
    expected = np.clip((2 * np.arange(16) - 14.5) / 10 + 0.5, 0, 1) * 255
    np.testing.assert_array_equal(found, np.round(expected))
    assert (found[:5] == 0).all()
    assert (found[10:] == 255).all()
    several = window | {"WindowCenter": [5, 3000], "WindowWidth": [11, 9]}
    np.testing.assert_array_equal(grey(write_dicom(tmp_path / "two.dicom", pixels, **several)).ravel(), found)


@pytest.mark.parametrize("window", [{"WindowWidth": 9}, {"WindowCenter": 9}, {"WindowCenter": "", "WindowWidth": 9}])
def test_half_a_window_is_none(tmp_path, window):
    np.testing.assert_array_equal(grey(write_dicom(tmp_path / "x.dcm", RAMP, BitsStored=12, **window)), SHOWN)


def test_window_functions(tmp_path):
    window = {"WindowCenter": 2048, "WindowWidth": 1024}
    exact = grey(write_dicom(tmp_path / "exact.dicom", RAMP, VOILUTFunction="LINEAR_EXACT", **window))
    np.testing.assert_array_equal(exact[0], np.round(np.clip((RAMP[0] - 2048.0) / 1024 + 0.5, 0, 1) * 255))
    sigmoid = grey(write_dicom(tmp_path / "sigmoid.dicom", RAMP, VOILUTFunction="SIGMOID", **window))
    np.testing.assert_array_equal(sigmoid[0], np.round(255 / (1 + np.exp(-4 * (RAMP[0] - 2048.0) / 1024))))


# Lookup tables


def lut(entries, first, bits):
    made = pydicom.Dataset()
    made.LUTDescriptor = [len(entries), first, bits]
    made.add_new("LUTData", "OW", np.array(entries, dtype="<u2").tobytes())
    return pydicom.Sequence([made])


def test_a_voi_lut_is_honoured_and_wins_over_a_window(tmp_path):
    entries = np.round(np.linspace(0, 1, 64) ** 2 * 4095).astype(int)
    pixels = (COUNTED + 100).astype(np.uint16)
    tables = {"VOILUTSequence": lut(entries.tolist(), 110, 12), "WindowCenter": 30, "WindowWidth": 9}
    found = grey(write_dicom(tmp_path / "x.dicom", pixels, BitsStored=12, **tables)).ravel()
    expected = entries[np.clip(np.arange(64) - 10, 0, 63)] / 4095 * 255
    np.testing.assert_array_equal(found, np.round(expected))
    inverted = grey(write_dicom(tmp_path / "y.dicom", pixels, "MONOCHROME1", BitsStored=12, **tables)).ravel()
    np.testing.assert_array_equal(inverted, 255 - found)


def test_a_modality_lut_comes_before_the_window(tmp_path):
    entries = list(range(1000, 0, -10))
    tables = {"ModalityLUTSequence": lut(entries, 0, 16), "WindowCenter": 600.5, "WindowWidth": 401}
    tables["ModalityLUTSequence"][0].ModalityLUTType = "US"
    found = grey(write_dicom(tmp_path / "x.dicom", COUNTED.astype(np.uint16), **tables)).ravel()
    values = np.array(entries)[np.arange(64)]
    np.testing.assert_array_equal(found, np.round(np.clip((values - 600) / 400 + 0.5, 0, 1) * 255))


@pytest.mark.parametrize(("declared", "largest"), [(16, 4095), (8, 4095), (12, 1023)])
def test_white_of_a_lookup_table_is_what_its_entries_need(tmp_path, declared, largest):
    entries = np.linspace(0, largest, 4096).astype("<u2")
    file = write_dicom(tmp_path / "x.dcm", RAMP, BitsStored=12, VOILUTSequence=lut(entries, 0, declared))
    np.testing.assert_array_equal(grey(file), np.round(entries[RAMP] / largest * 255))


# Padding and bits


@pytest.mark.parametrize("dtype", [np.uint16, np.int16])
@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_padding_is_black_and_no_part_of_the_range(tmp_path, dtype, photometric):
    pixels = COUNTED.astype(dtype)
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
    pixels = COUNTED.astype(np.uint16)
    found = grey(write_dicom(tmp_path / "x.dicom", pixels, PixelPaddingValue=3, PixelPaddingRangeLimit=0))
    assert (found.ravel()[:5] == 0).all()
    assert found.ravel()[5] == round(255 / 59)
    assert (grey(write_dicom(tmp_path / "y.dicom", pixels * 0 + 7, PixelPaddingValue=7)) == 0).all()


def test_bits_above_the_stored_ones_are_an_overlay_if_the_header_says_so(tmp_path):
    drawn = RAMP | (np.eye(32, dtype=np.uint16) << 12)
    file = write_dicom(tmp_path / "x.dcm", drawn, BitsStored=12)
    with refused(DataError, "bits (BitsStored), found"):
        read_dicom(file)
    data = pydicom.dcmread(file)
    data.add_new(0x60000102, "US", 12)
    data.save_as(file)
    np.testing.assert_array_equal(grey(file), SHOWN)
    np.testing.assert_array_equal(grey(write_dicom(file, RAMP << 4, BitsStored=12, HighBit=15)), SHOWN)


# Packed pixels

PACKED = {
    "JPEGLosslessSV1": "JPEGLosslessProcess14_1", "JPEGLSLossless": "JPEGLSLossless",
    "JPEG2000Lossless": "JPEG2000Lossless", "JPEGBaseline8Bit": "JPEGBaselineProcess1",
}  # fmt: skip
"""Transfer syntaxes of pydicom, and gdcm's names of them."""


def packed(path, syntax: str, pixels):
    """A DICOM file whose pixels gdcm has packed."""
    gdcm = pytest.importorskip("gdcm", reason="needs python-gdcm: pip install 'fedlit[dicom]'")
    reader, change, writer = gdcm.ImageReader(), gdcm.ImageChangeTransferSyntax(), gdcm.ImageWriter()
    reader.SetFileName(str(write_dicom(path.with_suffix(".plain"), pixels)))
    assert reader.Read()
    change.SetTransferSyntax(gdcm.TransferSyntax(getattr(gdcm.TransferSyntax, PACKED[syntax])))
    change.SetInput(reader.GetImage())
    assert change.Change()
    writer.SetFileName(str(path))
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    assert writer.Write()
    return path


@pytest.mark.parametrize("syntax", PACKED)
def test_packed_pixels_are_those_that_were_packed(tmp_path, syntax):
    pixels = (RAMP // 16).astype(np.uint8) if syntax == "JPEGBaseline8Bit" else RAMP
    found = grey(packed(tmp_path / "x.dcm", syntax, pixels))
    plain = grey(write_dicom(tmp_path / "plain.dcm", pixels))
    assert np.abs(found - plain).max() <= (12 if syntax == "JPEGBaseline8Bit" else 0)


def rle(path):
    data = pydicom.dcmread(write_dicom(path, RAMP))
    data.compress(pydicom.uid.RLELossless)
    data.save_as(path)
    return path


def test_a_decoder_that_is_absent_is_named(tmp_path, monkeypatch):
    path = rle(tmp_path / "x.dcm")
    data = pydicom.dcmread(path)
    data.file_meta.TransferSyntaxUID = pydicom.uid.JPEG2000Lossless
    data.save_as(path)
    decoder = pydicom.pixels.get_decoder(pydicom.uid.JPEG2000Lossless)
    monkeypatch.setattr(decoder, "_available", {})
    monkeypatch.setattr(decoder, "_unavailable", {"gdcm": ("gdcm>=3.0.10",)})
    with refused(ConfigError, "x.dcm", "JPEG 2000", "gdcm", "fedlit[dicom]"):
        decode_images([path], 16, cache_dir=tmp_path / "cache")
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with refused(ConfigError, "x.dcm", "pip install 'fedlit[dicom]'"):
        decode_images([path] * 2, 16, cache_dir=tmp_path / "cache")
    assert {path.suffix for path in (tmp_path / "cache").glob("[!.]*")} == {".partial"}


def test_the_cure_of_a_missing_decoder_is_the_package_that_has_it(tmp_path):
    data = pydicom.dcmread(write_dicom(tmp_path / "x.dcm", RAMP))
    data.file_meta.TransferSyntaxUID = pydicom.uid.HTJ2KLossless
    data.PixelData = pydicom.encaps.encapsulate([b"\xff\x4f\xff\x51" + bytes(100)])
    data["PixelData"].is_undefined_length = True
    data.save_as(tmp_path / "x.dcm")
    if pydicom.pixels.get_decoder(pydicom.uid.HTJ2KLossless).is_available:
        pytest.skip("pylibjpeg-openjpeg is installed")
    with refused(ConfigError, "pip install pylibjpeg pylibjpeg-openjpeg") as caught:
        read_dicom(tmp_path / "x.dcm")
    assert "fedlit[dicom]" not in str(caught.value)


def test_all_files_that_cannot_be_read_are_named_together(tmp_path):
    good = rle(tmp_path / "good.dcm")
    assert grey(good).shape == (32, 32)
    data = pydicom.dcmread(good)
    data.PixelData = data.PixelData[:60]
    data.save_as(tmp_path / "cut.dcm")
    data.file_meta.TransferSyntaxUID = pydicom.uid.MPEG2MPML
    data.save_as(tmp_path / "film.dcm")
    write_dicom(tmp_path / "palette.dcm", RAMP, "PALETTE COLOR")
    write_dicom(tmp_path / "frames.dcm", RAMP, NumberOfFrames=2)
    (tmp_path / "text.dcm").write_text("No image was exported." * 20)
    files = [tmp_path / f"{name}.dcm" for name in ("good", "cut", "film", "palette", "frames", "text")]
    said = (
        "5 of 6 image files cannot be decoded",
        "film.dcm: expected an image, found MPEG2 Main Profile",
        "palette.dcm: expected one image in MONOCHROME1 or MONOCHROME2, found 1 in PALETTE COLOR",
        "frames.dcm: expected one image in MONOCHROME1 or MONOCHROME2, found 2 in MONOCHROME2",
    )
    with refused(DataError, *said, *files[1:]):
        decode_images(files, 16, cache_dir=tmp_path / "cache")


# What is a radiograph


def header(pixels=RAMP, **of):
    return lambda folder: read_dicom(write_dicom(folder / "x.dcm", pixels, **of))


def number(keyword: str, text: str):
    """Read a file with a number that is none."""

    def read(folder):
        numbers = dict.fromkeys(("WindowCenter", "WindowWidth", "RescaleSlope", "RescaleIntercept"), "9999")
        file = write_dicom(folder / "x.dcm", RAMP, BitsStored=12, **(numbers | {keyword: "1111"}))
        file.write_bytes(file.read_bytes().replace(b"1111", text.encode(), 1))
        read_dicom(file)

    return read


@table([
    *((f"values above {n} bits", header(BitsStored=n), DataError, "BitsStored", n, "3,968") for n in (8, 11)),
    ("a high bit below the stored ones", header(BitsStored=12, HighBit=7), DataError, "HighBit"),
    ("a mask", header(Modality="SEG"), DataError, "modality SEG"),
    ("a segmentation", header(SOPClassUID="1.2.840.10008.5.1.4.1.1.66.4"), DataError, "segmentation"),
    ("a dose", header(SOPClassUID="1.2.840.10008.5.1.4.1.1.481.2", Modality="RTDOSE"), DataError, "radiotherapy"),
    ("a presentation", header(SOPClassUID="1.2.840.10008.5.1.4.1.1.11.1"), DataError, "presentation state"),
    ("single bits", header(np.zeros((8, 8), np.uint8), BitsAllocated=1, BitsStored=1, HighBit=0), DataError,
        "single bits"),
    *((f"pixels that are {what}", header(PixelData=what), DataError, "without pixels") for what in (b"", None)),
    *((f"{keyword} {text}", number(keyword, text), DataError, keyword, text.strip()) for keyword, text in (
        ("WindowCenter", "20,5"), ("WindowWidth", "n/a "), ("RescaleSlope", "nan "), ("RescaleIntercept", "20,5"))),
])  # fmt: skip
def test_it_is_refused(provoke, kind, names, tmp_path):
    with refused(kind, *names):
        provoke(tmp_path)


def test_a_portal_image_is_a_radiograph(tmp_path):
    of = {"SOPClassUID": "1.2.840.10008.5.1.4.1.1.481.1", "Modality": "RTIMAGE"}
    np.testing.assert_array_equal(grey(write_dicom(tmp_path / "x.dcm", RAMP, **of)), SHOWN)


@pytest.mark.parametrize(("name", "implicit"), [("x.dcm", True), ("IM0001", False), ("IM0001", True)])
def test_a_file_without_preamble_is_read(tmp_path, name, implicit):
    whole = write_dicom(tmp_path / "whole.dcm", RAMP, BitsStored=12, SOPClassUID="1.2.840.10008.5.1.4.1.1.1.1")
    bare = pydicom.Dataset({element.tag: element for element in pydicom.dcmread(whole)})
    pydicom.dcmwrite(tmp_path / name, bare, implicit_vr=implicit, little_endian=True)
    assert (tmp_path / name).read_bytes()[:2] == struct.pack("<H", 8)
    np.testing.assert_array_equal(read_image(tmp_path / name, 32)[0], SHOWN)


@pytest.mark.parametrize("name", ["x.dicom", "X.DCM", "IM0001", "1.2.840.10008.7", "wrong.png"])
def test_dicom_is_recognised_by_its_suffix_or_content(tmp_path, name):
    write_dicom(tmp_path / name, RAMP)
    np.testing.assert_array_equal(read_image(tmp_path / name, 32)[0], SHOWN)
    assert read_image(tmp_path / name, 16, channels=3).shape == (3, 16, 16)
    picture = inspect_image(tmp_path / name, decode=True)
    assert picture.problem == ""
    if name != "wrong.png":
        assert picture.kind == "DICOM, 16-bit MONOCHROME2"
        (tmp_path / "notes.txt").write_text("no image")
        assert image_files(tmp_path) == [tmp_path / name]
        assert list(images_below(tmp_path)) == [name]
