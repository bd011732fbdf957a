"""``fedlit site init``: folders of sites, servers and leads, and what NVFlare and systemd say to them."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml

from fedlit.sites.own_data import read_settings
from fedlit.sites.policy import Policy

DATA = "{class_path: PhantomCXR, init_args: {hospitals: 2, images: 80, image_size: 16}}"
ROLES = {
    "site": f"--name north --org north_hospital --data '{DATA}' --share '1 of 2'",
    "server": "--role server --name fl.example.org --org university --port 8102",
    "lead": "--role lead --name lead@example.org --org university --sites north south",
}


@pytest.fixture
def made(ran, tmp_path):
    """Writes the folder of a role."""

    def write(role: str) -> Path:
        out = ran(f"site init {tmp_path / role} --project chest {ROLES[role]}").out
        assert out.rstrip().endswith(f"the next steps are in {tmp_path / role / 'STEPS.txt'}")
        return tmp_path / role

    return write


def test_a_hospital_looks_first_at_its_data_and_the_rules_which_are_the_defaults(made, ran):
    folder = made("site")
    out = ran(f"site check {folder}").out
    assert out.rstrip().endswith("ready to join; the server was not checked: there is no certificate in startup/ yet")
    settings = read_settings(folder / "local" / "fedlit-site.yaml")
    assert (settings.name, settings.share) == ("north", "1 of 2")
    assert settings.folder.is_absolute()
    assert type(settings.data).__name__ == "PhantomCXR"
    assert settings.policy == Policy(rounds=500)


@pytest.mark.parametrize("role", ["site", "server"])
def test_nvflare_is_told_of_two_classes_of_no_code_and_of_no_logs(made, role):
    local = made(role) / "local"
    resources = json.loads((local / "resources.json").read_text())
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["class_allow_list"] == ["fedlit.sites.flare.Rounds", "fedlit.sites.flare.Site"]
    assert resources.get("allow_log_streaming", False) is False
    assert "log_stream" not in json.dumps(resources["components"])
    rights = json.loads((local / "authorization.json").read_text())["permissions"]
    assert {right[key] for right in rights.values() for key in ("byoc", "shell_commands")} == {"none"}
    assert {role for role, right in rights.items() if right.get("submit_job", "none") != "none"} == {"lead"}
    if role == "server":  # the default of NVFlare is one folder in /tmp for all servers of a machine
        said = (local / "resources.json").read_text()
        assert str(local.parent / "store" / "jobs") in said
        assert '"/tmp/nvflare' not in said


@pytest.mark.parametrize("role", ROLES)
def test_everything_in_a_folder_is_read_by_its_own_reader_and_written_once(made, fedlit_cli, role):
    for file in (folder := made(role)).rglob("*.yaml"):
        held = yaml.safe_load(file.read_text())
        assert held
        assert "#" in file.read_text()
        if file.name == "participant.yaml" and file.parent.name != "admin":
            (who,) = held["participants"]
            assert (held["name"], who["name"]) == ("chest", ROLES[role].partition("--name ")[2].split()[0])
            assert who["type"] == {"site": "client", "server": "server", "lead": "admin"}[role]
    (folder / "participant.yaml").write_text("mine")
    (folder / "STEPS.txt").unlink()
    fedlit_cli(f"site init {folder} --project chest {ROLES[role]}").refused(folder, "/participant.yaml")
    assert (folder / "participant.yaml").read_text() == "mine"
    assert not (folder / "STEPS.txt").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("F --name 'no rth' --org a", ("--name", "letters, digits, - and _")),
        ("F --name north --org a-b", ("--org", "letters, digits and _", "'a-b'")),
        ("F --name north --org a --project '../x'", ("--project",)),
        ("F --name lead --org a --role lead --sites north", ("--name", "an email address")),
        ("F --name fl_x.org --org a --role server", ("--name",)),
        ("F --name a@b.org --org a --role lead", ("the names of the sites that take part",)),
        ("F --name north --org a --port 8002", ("--port", "server", "site")),
        ("F --name fl --org a --role server --port 0", ("found 0",)),
        ("F --name fl --org a --role server --data '{class_path: NIHChestXray14}'", ("--data", "site")),
        ("'F F' --name north --org a", ("a path without spaces",)),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(fedlit_cli, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    fedlit_cli(f"site init {words}").refused(*said)
    assert not list(tmp_path.iterdir())


def test_names_that_yaml_would_take_for_something_else_stay_names(ran, tmp_path):
    ran(f"site init {tmp_path / 'f'} --name 007 --org no --data '{DATA}'")
    (who,) = yaml.safe_load((tmp_path / "f" / "participant.yaml").read_text())["participants"]
    assert (who["name"], who["org"]) == ("007", "no")
    assert read_settings(tmp_path / "f" / "local" / "fedlit-site.yaml").name == "007"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@pytest.mark.parametrize("whose", ["", "-user"])
@pytest.mark.parametrize("role", ["site", "server"])
def test_systemd_takes_the_unit(made, role, whose):
    folder = made(role)
    start = folder / "startup" / "sub_start.sh"
    start.parent.mkdir()
    start.write_text("#!/bin/sh\n")
    start.chmod(0o755)
    unit = folder / f"fedlit-{role}{whose}.service"
    manager = ["--user"] if whose else []
    command = ["systemd-analyze", *manager, "verify", "--man=no", str(unit)]
    with tempfile.TemporaryDirectory() as runtime:  # a short path: those of sockets have at most 107 characters
        environment = os.environ | {"XDG_RUNTIME_DIR": runtime}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("\nUser=" in unit.read_text()) == (not whose)


def test_a_folder_of_nobody_is_told(fedlit_cli, tmp_path):
    fedlit_cli(f"site check {tmp_path}").refused("expected the folder of a site, with local/fedlit-site.yaml,")
