"""Fixtures that several tests of data share."""

import pytest
import small_chexpert
import small_nih


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> dict:
    """Small downloads of both data sets, with official lists and tests."""
    folder = tmp_path_factory.mktemp("downloads")
    return {
        "NIH": small_nih.write_folder(folder / "nih", lists=True),
        "CheXpert": small_chexpert.write_folder(folder / "chexpert", test=True),
        "cache": folder / "cache",
    }
