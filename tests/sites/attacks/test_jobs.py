"""NVFlare accepts only jobs as fedlit writes them: JSON, exactly its files, bounded, no names that it replaces."""

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fedlit.sites.folders import server_rules, site_rules
from fedlit.sites.submission import SERVER_APP, SITE, Submission, write_job

pytest.importorskip("nvflare")

from nvflare.fuel.utils.zip_utils import unzip_all_from_bytes
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator

from fedlit.sites.jobs import Apps

READ = """
import sys
import fedlit.sites.jobs
from nvflare.fuel.utils.config_factory import ConfigFactory
for folder in sys.argv[1:]:
    found = ConfigFactory.load_config("meta.json", [folder])
    print("nothing" if found is None else found.to_dict())
"""


def job(folder: Path, name: str = "one") -> Path:
    return write_job(folder, ["north", "south"], Submission("{}", name))


def zipped(folder: Path) -> Path:
    """The upload of a job, as NVFlare's client makes it."""
    file = folder.with_suffix(".zip")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in folder.rglob("*"):
            archive.write(path, f"{folder.name}/{path.relative_to(folder)}")
    return file


def submitted(folder: Path) -> str:
    """What the server says of a job on its submission; a refused upload does not stay."""
    upload = zipped(folder)
    valid, reason, meta = JobMetaValidator().validate(folder.name, str(upload))
    assert upload.exists() == valid
    assert bool(meta) == valid
    return reason


def at_site(folder: Path) -> str:
    return Apps(server=False).validate(str(folder / "app_site"))[0]


def at_server(folder: Path) -> str:
    return Apps(server=True).validate(str(folder / "app_server"))[0]


def test_a_job_in_another_language_is_not_read_and_json_is_read_beside_one(tmp_path):
    folders = [tmp_path / ending for ending in ("conf", "yml", "yaml", "conf.default", "yaml.default", "both")]
    for folder in folders:
        folder.mkdir()
        text = 'name: "${?HOME}"' if folder.name.startswith("y") else "name = ${?HOME}"
        (folder / f"meta.{folder.name.replace('both', 'conf')}").write_text(text)
    (folders[-1] / "meta.json").write_text(json.dumps({"name": "fedlit"}))
    command = [sys.executable, "-c", READ, *map(str, folders)]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    assert made.stdout.strip().splitlines()[-6:] == [*["nothing"] * 5, "{'name': 'fedlit'}"]


def test_server_and_sites_load_the_check_at_their_start(tmp_path):
    for rules, server in ((server_rules(tmp_path), True), (site_rules(), False)):
        assert rules["resources.json"]["app_validator"] == {
            "path": "fedlit.sites.jobs.Apps",
            "args": {"server": server},
        }


def test_a_job_of_fedlit_is_accepted_with_the_signatures_of_its_lead(tmp_path):
    made = job(tmp_path / "fedlit")
    for folder in (made, *(path for path in made.rglob("*") if path.is_dir())):
        for name in (".__nvfl_sig.json", ".__nvfl_submitter.crt"):
            (folder / name).write_text("{}")
    assert [submitted(made), at_server(made), at_site(made)] == [""] * 3


@pytest.mark.parametrize(
    "name",
    ["app_site/config/config_fed_client.conf", "app_site/custom/x.py", "app_server/config/zeros.bin", "meta.yaml"],
)
def test_other_files_are_refused(tmp_path, name):
    made = job(tmp_path / "fedlit")
    (made / name).parent.mkdir(exist_ok=True)
    (made / name).write_text('include "http://10.0.0.1/"')
    assert "expected the files" in submitted(made)
    if name.startswith("app_site"):
        assert "expected the files" in at_site(made)
    if name.startswith("app_server"):
        assert "expected the files" in at_server(made)


@pytest.mark.parametrize(
    "changed",
    [
        SITE | {"name": "{$HOME}"},
        SITE | {"executors": [{"tasks": ["fedlit"], "executor": {"path": "x.{$HOME}", "args": {}}}]},
        SITE | {"components": [{"id": "x", "path": "fedlit.sites.flare.Door"}]},
        [SITE],
    ],
)
def test_a_site_starts_one_configuration_only(tmp_path, changed):
    made = job(tmp_path / "fedlit")
    (made / "app_site/config/config_fed_client.json").write_text(json.dumps(changed))
    assert "config_fed_client.json: expected what fedlit writes" in at_site(made)


@pytest.mark.parametrize("name", ["{WORKSPACE}", "a$b"])
def test_names_that_nvflare_would_replace_are_refused_at_the_server(tmp_path, name):
    made = job(tmp_path / "fedlit", name)
    assert "expected names without {, } and $" in at_server(made)
    made = write_job(tmp_path / "other", ["north", name], Submission("{}", "one"))
    assert "expected names without {, } and $" in at_server(made)


@pytest.mark.parametrize("key", ["workflows", "components", "determinism"])
def test_a_server_starts_the_rounds_only(tmp_path, key):
    made = job(tmp_path / "fedlit")
    file = made / "app_server" / SERVER_APP[0]
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: [{"id": "{$HOME}"}]}))
    assert "config_fed_server.json: expected what fedlit writes" in at_server(made)


@pytest.mark.parametrize("more", [{"stolen": "x"}, {"resource_spec": {"north": {"docker": {}}}}, {"launcher_spec": {}}])
def test_a_description_of_a_job_has_no_other_keys(tmp_path, more):
    made = job(tmp_path / "fedlit")
    (made / "meta.json").write_text(json.dumps(json.loads((made / "meta.json").read_text()) | more))
    assert "meta.json: expected the keys" in submitted(made)


def test_a_job_of_zeros_is_refused_before_it_is_unpacked(tmp_path):
    made = job(tmp_path / "fedlit")
    with (made / "app_server/config/fedlit.json").open("wb") as zeros:
        zeros.truncate(4_100_000)
    content = zipped(made).read_bytes()
    assert len(content) < 10**5
    assert "expected at most 4,000,000 bytes of files" in submitted(made)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
    (tmp_path / "there").mkdir()
    with pytest.raises(ValueError, match="expected at most 4,000,000 bytes"):
        unzip_all_from_bytes(content, str(tmp_path / "there"))
    assert list((tmp_path / "there").iterdir()) == []
