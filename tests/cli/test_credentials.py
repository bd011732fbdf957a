"""Credentials in a configuration: no file of a run contains them, and a resume asks for them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedlit.tracking.base import Tracker

RUN = "--data toys.ToyData --data.clients 2 --model toys.ToyNet --federation.workers 1 --federation.rounds 1 --name run"
WEB = "--logger MLflowTracker --logger.finish_seconds 0 --logger.log_model false --logger.tracking_uri"
SECRETS = ("geheim", "ge%40heim", "ge@he", "im@", "anna:")
CONFIG = Path("runs/default/run/config.yaml")


class Remembering(Tracker):
    """A tracker that keeps its address."""

    addresses: list[str] = []

    def __init__(self, address: str, tags: dict[str, str] | None = None) -> None:
        self.addresses.append(address)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("USERNAME", "PASSWORD", "TOKEN", "URI"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    Remembering.addresses.clear()
    return tmp_path


def leaks(folder: Path) -> list[str]:
    """Return the files of a folder whose names or contents include a part of a credential."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if any(s in str(path) or s.encode() in path.read_bytes() for s in SECRETS)]


def test_no_file_and_no_message_holds_one_and_a_run_of_an_earlier_version_goes_on_without(here, fedlit_cli, caplog):
    printed, address = "", "http://anna:ge@he/im@127.0.0.1:9"
    tags = f"--tags.page {address} --tags.key http://127.0.0.1:9?token=geheim"
    for line in (f"fit {RUN} {WEB} {address} {tags}", f"export --config {CONFIG} --ckpt_path last"):
        (ended := fedlit_cli(line)).succeeded()
        printed += ended.out + ended.err + caplog.text
    assert CONFIG.with_name("model.safetensors").is_file()
    assert leaks(here) == []
    assert [secret for secret in SECRETS if secret in printed] == []
    assert "127.0.0.1:9" in printed
    CONFIG.write_text(CONFIG.read_text().replace("***@", "anna:geheim@"))
    assert leaks(here) == [str(here / CONFIG)]
    assert fedlit_cli(f"export {RUN} --ckpt_path last")[0] == 0
    assert fedlit_cli(f"fit {RUN} {WEB} {address} {tags} --ckpt_path last")[0] == 0
    assert leaks(here) == []


OF_THE_ENVIRONMENT = "--logger MLflowTracker --logger.finish_seconds 0 --logger.log_model false"


def test_no_file_holds_one_of_the_environment(here, fedlit_cli, caplog, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://anna:geheim@127.0.0.1:9")
    (ended := fedlit_cli(f"fit {RUN} {OF_THE_ENVIRONMENT}")).succeeded()
    printed = ended.out + ended.err + caplog.text
    assert "MLflow at http://127.0.0.1:9 was not reached" in printed
    assert [secret for secret in SECRETS if secret in printed] == leaks(here) == []


@pytest.mark.slow
def test_several_seeds_read_those_of_the_environment(here):
    """In a process of its own: the fork server of the tests has another environment."""
    environment = {"MLFLOW_TRACKING_URI": "http://anna:geheim@127.0.0.1:9", "NAME": "anna", "WORD": "geheim",
                   "DEVICE": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}  # fmt: skip
    own = "--tags.page http://${env:NAME}:${env:WORD}@HOST --fabric.accelerator ${env:DEVICE}"
    code = "import gc; gc.disable(); from fedlit.cli.main import main; main()"
    line = [sys.executable, "-c", code, *f"fit {RUN} {OF_THE_ENVIRONMENT} {own} --seed 0,1".split()]
    subprocess.run(line, check=True, cwd=here, env=os.environ | environment, timeout=240)
    for seed in (0, 1):
        log = (here / f"runs/default/run,seed={seed}/console.log").read_text()
        assert "MLflow at http://127.0.0.1:9 was not reached" in log
    assert "accelerator: ${env:DEVICE}" in (here / "runs/default/run,seed=1/config.yaml").read_text()
    assert leaks(here) == []


@pytest.mark.slow
def test_a_tracker_of_ones_own_gets_the_whole_address_and_files_do_not(here, fedlit_cli):
    address, again = "https://anna:geheim@HOST/x?key=geheim", f"--config {CONFIG} --ckpt_path last"
    logger = f"--logger test_credentials.Remembering --logger.address {address}"
    assert fedlit_cli(f"fit {RUN} {logger} --logger.tags.page {address}")[0] == 0
    assert Remembering.addresses == [address]
    assert leaks(here) == []
    fedlit_cli(f"fit {again}").refused("logger.address", "https://HOST/x", "${env:NAME}")
    assert fedlit_cli(f"test {again}")[0] == 0  # no tracker there
    assert fedlit_cli(f"fit {again} --logger.tags null --logger.address {address}2")[0] == 0
    assert Remembering.addresses[-2:] == [address, f"{address}2"]
    assert leaks(here) == []


OF_A_VARIABLE = "--logger test_credentials.Remembering --logger.address"


def test_a_value_of_the_environment_reaches_objects_and_no_file(here, fedlit_cli, caplog, monkeypatch):
    monkeypatch.setenv("ADDRESS", "geheim")
    (ended := fedlit_cli(f"fit {RUN} {OF_A_VARIABLE} ${{env:ADDRESS}} --tags.key ${{env:ADDRESS}}")).succeeded()
    assert Remembering.addresses == ["geheim"]
    assert leaks(here) == []
    assert "geheim" not in ended.out + ended.err + caplog.text
    assert "address: ${env:ADDRESS}" in CONFIG.read_text()
    assert fedlit_cli(f"fit --config {CONFIG} --ckpt_path last")[0] == 0
    monkeypatch.setenv("ADDRESS", "im@")
    ended = fedlit_cli(f"fit {RUN} --data.clients 0 {OF_A_VARIABLE} ${{env:ADDRESS}}")
    assert "im@" not in ended.out + ended.err


def test_an_error_shows_the_reference_in_place_of_the_value(here, fedlit_cli, monkeypatch):
    monkeypatch.setenv("PLACE", "/geheim/images")
    ended = fedlit_cli("fit --model.backbone small_cnn --data NIHChestXray14 --data.root '${env:PLACE}/nih'")
    ended.refused("${env:PLACE}/nih: no such folder")
    assert "geheim" not in ended.out + ended.err


def test_an_artifact_location_with_a_password_is_refused(here, fedlit_cli):
    ended = fedlit_cli(f"fit {RUN} {WEB} http://127.0.0.1:9 --logger.artifact_location ftp://anna:geheim@HOST/x")
    ended.refused("artifact_location")
    assert "geheim" not in ended.out + ended.err
    assert not (here / "runs").exists()


def test_the_configuration_that_is_printed_holds_none(here, fedlit_cli):
    out = fedlit_cli(f"fit {RUN} {WEB} http://anna:geheim@HOST --print_config").succeeded()
    assert "tracking_uri: http://***@HOST" in out
    assert "geheim" not in out


def test_a_mistake_beside_one_does_not_tell_it(here, fedlit_cli):
    code, out, err = fedlit_cli(f"fit {RUN} --logger.tracking_url http://anna:geheim@HOST --federation.round 3")
    assert code == 2
    assert "geheim" not in out + err


@pytest.mark.slow
def test_mlflow_s_own_database_holds_none(here, fedlit_cli):
    logger = "--logger MLflowTracker --logger.log_model false"
    tags = "--tags.page http://anna:geheim@HOST/x --logger.tags.key http://H?token=geheim"
    fedlit_cli(f"fit {RUN} {logger} {tags}").succeeded()
    assert b"http://***@HOST/x" in (here / "mlflow.db").read_bytes()
    assert b"http://H?token=***" in (here / "mlflow.db").read_bytes()
    assert leaks(here) == []
