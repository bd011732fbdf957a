"""One picture under two patients of one table is found, as it is between two organisations."""

import shutil
from functools import partial

import own_tables
import pytest
import refusals
from own_tables import people, picture, write_table

from fedlit.core.errors import DataError
from fedlit.data import Organisations

SITES = ["north"] * 20 + ["south"] * 20
COPIES = {20 + n: picture(n) for n in range(6)}


opened = partial(own_tables.opened, site="site", image_size=32)


def test_copies_at_two_sites_of_one_table_are_refused(tmp_path):
    table = write_table(tmp_path, people(site=SITES), COPIES)
    with refusals.refused(DataError, "'ours'", "png and") as refused:
        opened(table).setup()
    (drawn,) = (tmp_path / "cache").glob("pairs-*.png")
    assert str(drawn) in str(refused.value)
    with refusals.refused(DataError, "6 images of 'ours'"):
        Organisations({"ours": opened(table)}, image_size=32, cache_dir=str(tmp_path / "cache")).setup()


def test_they_are_a_warning_where_they_are_allowed(tmp_path):
    table = write_table(tmp_path, people(site=SITES), COPIES)
    data = opened(table, duplicates="allow")
    with pytest.warns(UserWarning, match="6 images of 'ours' belong to more than one patient"):
        data.setup()


def test_two_pictures_of_one_patient_may_be_equal(tmp_path):
    data = opened(write_table(tmp_path, people(site=SITES), {1: picture(0)}))
    data.setup()
    assert len(data.assignment) == 40


def test_without_patients_every_copy_is_one_too_many(tmp_path):
    with refusals.refused(DataError, "'ours'"):
        opened(write_table(tmp_path, people(site=SITES), {1: picture(0)}), patient=None).setup()


def test_data_check_says_so(tmp_path, fedlit_cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = write_table(tmp_path, people(site=SITES), COPIES)
    shutil.copy(tmp_path / "12.png", tmp_path / "13.png")  # of one patient
    code, out, _ = fedlit_cli(f"data check {table} --decode")
    text = " ".join(out.split())
    assert code == 1
    assert "6 images belong to more than one patient" in text
    assert f"{tmp_path}/0.png (patient p0) is {tmp_path}/20.png (patient p10)" in text
    out = fedlit_cli(f"data check {table} --decode --set '{{duplicates: allow}}'").succeeded()
    assert "note: 6 images belong to more than one patient" in " ".join(out.split())
