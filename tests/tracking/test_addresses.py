"""Credentials in addresses: none is shown or kept, and a resumed run gets them from the environment."""

import pytest
import yaml
from refusals import refused

from fedlit.core.errors import ConfigError
from fedlit.tracking.addresses import completed, hidden, lacks_credentials, marked, without_credentials

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
)


@pytest.mark.parametrize(("address", "shown", "kept"), SECRET)
def test_no_part_of_a_credential_is_shown_or_kept(address, shown, kept):
    assert without_credentials(address) == shown
    assert yaml.safe_load(marked(f"logger:\n  uri: {address!r}\nseed: 1e-3\n"))["logger"]["uri"] == kept
    assert lacks_credentials(kept)
    assert without_credentials(kept) == shown
    assert without_credentials(f"cannot reach '{address}', 3 times") == f"cannot reach '{shown}', 3 times"


@pytest.mark.parametrize("address", PLAIN)
def test_what_holds_no_credential_stays(address):
    text = f"uri: {address!r}\n"
    assert without_credentials(address) == address
    assert marked(text) == text
    assert not lacks_credentials(address)


def test_the_rest_of_a_configuration_stays_to_the_letter():
    text = "a: 1e-3  # small\nb: |\n  http://anna:ge heim@HOST\n  x\nc: [http://anna:geheim@HOST, 2]\n"
    assert marked(text) == 'a: 1e-3  # small\nb: "http://***@HOST\\nx\\n"\nc: ["http://***@HOST", 2]\n'


def test_half_of_a_password_in_an_error_of_another_library_is_hidden():
    text = hidden('could not translate host name "heim%40x@HOST", heim@x', "postgresql://anna:ge@heim%40x@HOST/runs")
    assert text == 'could not translate host name "***@HOST", ***'


HERE = "http://***@HOST"


def test_a_resumed_run_takes_them_from_the_environment():
    assert completed("uri", "http://HOST", {}) == "http://HOST"
    assert completed("uri", HERE, {"MLFLOW_TRACKING_TOKEN": "t"}) == "http://HOST"
    assert completed("uri", HERE, {"MLFLOW_TRACKING_USERNAME": "a", "MLFLOW_TRACKING_PASSWORD": "b"}) == "http://HOST"
    assert completed("uri", HERE, {"MLFLOW_TRACKING_URI": "http://a:b@HOST"}) == "http://a:b@HOST"
    whole = {"MLFLOW_TRACKING_URI": "mysql://HOST/db?password=p"}
    assert completed("uri", "mysql://HOST/db?password=***", whole) == "mysql://HOST/db?password=p"


@pytest.mark.parametrize(
    ("address", "environment", "mistake"),
    [
        (HERE, {}, (ConfigError, "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")),
        (HERE, {"MLFLOW_TRACKING_USERNAME": "a"}, (ConfigError, "MLFLOW_TRACKING_PASSWORD is")),
        (HERE, {"MLFLOW_TRACKING_URI": "http://a:b@OTHER"}, (ConfigError, "--logger.tracking_uri ADDRESS")),
        ("mysql://***@HOST/db", {"MLFLOW_TRACKING_TOKEN": "t"}, (ConfigError, "set MLFLOW_TRACKING_URI to")),
    ],
    ids=["nothing", "half", "another-server", "a-database"],
)
def test_what_is_missing_is_said(address, environment, mistake):
    with refused(*mistake):
        completed("logger.tracking_uri", address, environment)
