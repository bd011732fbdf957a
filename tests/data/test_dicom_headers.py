"""DICOM files whose header is wrong, or not of a radiograph: read as a viewer shows them, or refused in words."""

import struct

import numpy as np
import pytest
from dicom_files import write_dicom
from refusals import refused

from fedlit.core.errors import ConfigError, DataError
from fedlit.data.pictures.dicom import read_dicom
from fedlit.data.pictures.images import read_image

RAMP = np.tile(np.arange(0, 4096, 128, dtype=np.uint16), (32, 1))
SHOWN = np.round((RAMP - RAMP.min()) * (255 / np.ptp(RAMP)))


def grey(path) -> np.ndarray:
    return np.asarray(read_dicom(path)).astype(int)


@pytest.mark.parametrize("slope", ["0.0001", "1e-6", "250"])
def test_the_range_counts_however_small_the_slope_is(tmp_path, slope):
    file = write_dicom(tmp_path / "x.dcm", RAMP, BitsStored=12, RescaleSlope=slope, RescaleIntercept=0)
    np.testing.assert_array_equal(grey(file), SHOWN)


@pytest.mark.parametrize("window", [{"WindowWidth": 9}, {"WindowCenter": 9}, {"WindowCenter": "", "WindowWidth": 9}])
def test_half_a_window_is_none(tmp_path, window):
    np.testing.assert_array_equal(grey(write_dicom(tmp_path / "x.dcm", RAMP, BitsStored=12, **window)), SHOWN)


@pytest.mark.parametrize("bits", [8, 10, 11])
def test_values_above_the_stored_bits_are_refused(tmp_path, bits):
    with refused(DataError, "BitsStored", bits, "3,968"):
        read_dicom(write_dicom(tmp_path / "x.dcm", RAMP, BitsStored=bits))


def test_bits_above_the_stored_ones_are_an_overlay_if_the_header_says_so(tmp_path):
    drawn = RAMP | (np.eye(32, dtype=np.uint16) << 12)
    file = write_dicom(tmp_path / "x.dcm", drawn, BitsStored=12)
    with refused(DataError, "bits (BitsStored), found"):
        read_dicom(file)
    import pydicom

    data = pydicom.dcmread(file)
    data.add_new(0x60000102, "US", 12)
    data.save_as(file)
    np.testing.assert_array_equal(grey(file), SHOWN)


def test_stored_bits_end_at_the_high_bit(tmp_path):
    file = write_dicom(tmp_path / "x.dcm", RAMP << 4, BitsStored=12, HighBit=15)
    np.testing.assert_array_equal(grey(file), SHOWN)
    with refused(DataError, "HighBit"):
        read_dicom(write_dicom(tmp_path / "y.dcm", RAMP, BitsStored=12, HighBit=7))


@pytest.mark.parametrize(("declared", "largest"), [(16, 4095), (16, 1023), (8, 4095), (12, 4095)])
def test_white_of_a_lookup_table_is_what_its_entries_need(tmp_path, declared, largest):
    import pydicom

    entries = np.linspace(0, largest, 4096).astype("<u2")
    table = pydicom.Dataset()
    table.LUTDescriptor = [len(entries), 0, declared]
    table.add_new("LUTData", "OW", entries.tobytes())
    file = write_dicom(tmp_path / "x.dcm", RAMP, BitsStored=12, VOILUTSequence=pydicom.Sequence([table]))
    np.testing.assert_array_equal(grey(file), np.round(entries[RAMP] / largest * 255))


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ({"Modality": "SEG"}, "modality SEG"),
        ({"SOPClassUID": "1.2.840.10008.5.1.4.1.1.66.4"}, "segmentation"),
        ({"SOPClassUID": "1.2.840.10008.5.1.4.1.1.481.2", "Modality": "RTDOSE"}, "radiotherapy"),
        ({"SOPClassUID": "1.2.840.10008.5.1.4.1.1.11.1"}, "presentation state"),
    ],
)
def test_objects_that_are_no_pictures_are_refused(tmp_path, header, found):
    with refused(DataError, found):
        read_dicom(write_dicom(tmp_path / "x.dcm", RAMP, **header))


def test_a_portal_image_is_a_radiograph(tmp_path):
    header = {"SOPClassUID": "1.2.840.10008.5.1.4.1.1.481.1", "Modality": "RTIMAGE"}
    np.testing.assert_array_equal(grey(write_dicom(tmp_path / "x.dcm", RAMP, **header)), SHOWN)


def test_a_mask_of_single_bits_is_refused(tmp_path):
    header = {"BitsAllocated": 1, "BitsStored": 1, "HighBit": 0}
    with refused(DataError, "single bits"):
        read_dicom(write_dicom(tmp_path / "x.dcm", np.zeros((8, 8), np.uint8), **header))


@pytest.mark.parametrize("content", [b"", None])
def test_no_pixels_are_named(tmp_path, content):
    with refused(DataError, "without pixels"):
        read_dicom(write_dicom(tmp_path / "x.dcm", RAMP, PixelData=content))


@pytest.mark.parametrize("keyword", ["WindowCenter", "WindowWidth", "RescaleSlope", "RescaleIntercept"])
@pytest.mark.parametrize("text", ["20,5", "n/a ", "nan "])
def test_a_number_that_is_none_is_named(tmp_path, keyword, text):
    numbers = {"WindowCenter": "9999", "WindowWidth": "9999", "RescaleSlope": "9999", "RescaleIntercept": "9999"}
    file = write_dicom(tmp_path / "x.dcm", RAMP, BitsStored=12, **(numbers | {keyword: "1111"}))
    file.write_bytes(file.read_bytes().replace(b"1111", text.encode(), 1))
    with refused(DataError, keyword, text.strip()):
        read_dicom(file)


@pytest.mark.parametrize("name", ["x.dcm", "IM0001"])
@pytest.mark.parametrize("implicit", [True, False])
def test_a_file_without_preamble_is_read(tmp_path, name, implicit):
    import pydicom

    whole = write_dicom(tmp_path / "whole.dcm", RAMP, BitsStored=12, SOPClassUID="1.2.840.10008.5.1.4.1.1.1.1")
    data = pydicom.dcmread(whole)
    bare = pydicom.Dataset({element.tag: element for element in data})
    pydicom.dcmwrite(tmp_path / name, bare, implicit_vr=implicit, little_endian=True)
    assert (tmp_path / name).read_bytes()[:2] == struct.pack("<H", 8)
    np.testing.assert_array_equal(read_image(tmp_path / name, 32)[0], SHOWN)


def test_a_text_with_the_suffix_of_dicom_is_named(tmp_path):
    (tmp_path / "x.dcm").write_text("No image was exported." * 20)
    with refused(DataError, "DICOM"):
        read_image(tmp_path / "x.dcm", 32)


def test_the_cure_of_a_missing_decoder_is_the_package_that_has_it(tmp_path):
    import pydicom

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
