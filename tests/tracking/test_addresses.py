"""Credentials in addresses: none is shown or kept."""

import pytest

from fedlit.tracking.addresses import hidden, lacks_credentials, masked, without_credentials

SECRET = [
    ("http://anna:geheim@HOST", "http://HOST", "http://***@HOST"),
    ("https://anna:geheim@HOST:5000/base", "https://HOST:5000/base", "https://***@HOST:5000/base"),
    ("http://anna:ge@he@im@HOST", "http://HOST", "http://***@HOST"),
    ("http://anna:ge/he/im@HOST/base", "http://HOST/base", "http://***@HOST/base"),
    ("http://anna:ge/he@im@HOST", "http://HOST", "http://***@HOST"),
    ("http://anna:1/heim@HOST", "http://HOST", "http://***@HOST"),
    ("http://anna:ge?he#im@HOST", "http://HOST", "http://***@HOST"),
    ("http://anna@clinic.org:geheim@HOST", "http://HOST", "http://***@HOST"),
    ("http://:geheim@HOST", "http://HOST", "http://***@HOST"),
    ("http://geheim@HOST/base", "http://HOST/base", "http://***@HOST/base"),
    ("http://HOST?token=geheim", "http://HOST", "http://HOST?token=***"),
    ("http://HOST/x?token=ge&heim&timeout=3", "http://HOST/x?timeout=3", "http://HOST/x?token=***&timeout=3"),
    ("http://HOST/#access_token=geheim", "http://HOST/", "http://HOST/#access_token=***"),
    ("postgresql+psycopg2://anna:geheim@HOST/runs", "postgresql+psycopg2://HOST/runs",
     "postgresql+psycopg2://***@HOST/runs"),
    ("mysql://HOST/runs?user=anna&password=geheim&charset=utf8", "mysql://HOST/runs?charset=utf8",
     "mysql://HOST/runs?user=***&password=***&charset=utf8"),
    ("http:/anna:geheim@HOST", "http:/HOST", "http:/***@HOST"),
    ("http://anna:geheim${env:NAME}@HOST", "http://HOST", "http://***@HOST"),
    ("http://${env:NAME}:geheim@HOST", "http://HOST", "http://***@HOST"),
]  # fmt: skip

PLAIN = (
    "http://HOST:5000",
    "https://HOST/base/#/experiments/1",
    "sqlite:///mlflow.db",
    "sqlite:////home/a@b/c:d@e/mlflow.db?timeout=5",
    "postgresql://HOST/runs?sslmode=require",
    "sftp://anna@HOST:22/p@th",
    "abfss://container@account.dfs.core.windows.net/runs",
    "s3://bucket/a@b",
    "databricks://profile",
    "C:/runs/a:b@c",
    "val/loss: 3 @ 5",
    "postgresql://anna:${env:DB_PASSWORD}@HOST/runs",
    "postgresql://${env:DB_USER}:${env:DB_PASSWORD}@HOST/runs",
    "https://${env:TOKEN}@HOST",
    "https://HOST?token=${env:TOKEN}",
)


@pytest.mark.parametrize(("address", "shown", "kept"), SECRET)
def test_no_part_of_a_credential_is_shown_or_kept(address, shown, kept):
    assert without_credentials(address) == shown
    assert masked({"logger": [{"uri": address}], "seed": 1e-3}) == {"logger": [{"uri": kept}], "seed": 1e-3}
    assert lacks_credentials(kept)
    assert without_credentials(kept) == shown
    assert without_credentials(f"cannot reach '{address}', 3 times") == f"cannot reach '{shown}', 3 times"


@pytest.mark.parametrize("address", PLAIN)
def test_what_holds_no_credential_stays(address):
    assert without_credentials(address) == masked(address) == address
    assert not lacks_credentials(address)


def test_a_password_may_contain_blanks():
    assert masked(["http://anna:ge heim@HOST\nx\n"]) == ["http://***@HOST\nx\n"]


def test_half_of_a_password_in_an_error_of_another_library_is_hidden():
    text = hidden('could not translate host name "heim%40x@HOST", heim@x', "postgresql://anna:ge@heim%40x@HOST/runs")
    assert text == 'could not translate host name "***@HOST", ***'
