"""A site audits the model that came home, and gets the numbers that the whole run in one process has for its client."""

import json
from pathlib import Path

import yaml
from test_site_model import CONFIG, files, state, written


def site_file(folder: Path, runs: Path, number: int, **keys: object) -> Path:
    """The own file of a site of the loopback."""
    whole = {"name": f"site-{number}", "data": CONFIG["data"], "share": f"{number} of 2", "accelerator": "cpu"}
    file = folder / "fedlit-site.yaml"
    file.write_text(yaml.safe_dump(whole | {"state": str(state(runs, f"site-{number}"))} | keys))
    return file


def test_a_site_gets_the_numbers_of_its_client_in_the_whole_run(ran, sites, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = written(tmp_path, "PersonalHeads", "FedBN")
    for where, more in (("there", "--sites loopback:2"), ("here", "")):
        ran(f"fit --config {config} --run_dir {where} {more} --data.images 240")
    data = {**CONFIG["data"], "init_args": CONFIG["data"]["init_args"] | {"images": 240}}
    ran("audit here/default/one --draws 100")
    results = json.loads(Path("here/default/one/audit/audit.json").read_text())["results"]
    before = files(tmp_path / "there")
    ran(f"site audit {site_file(tmp_path, Path('there'), 2, data=data)} --draws 100 --output mine")
    mine = json.loads(Path("mine/audit.json").read_text())["results"]
    assert mine[0]["auroc"]["value"] is not None
    (whole,) = [row for row in results if row["value"] == "hospital-02"]
    assert mine[0] == whole | {"of": "all", "value": ""}
    assert files(tmp_path / "there") == before  # the ledger and the states are as they were


def test_a_folder_without_the_sites_own_file_is_refused(fedlit_cli, tmp_path):
    fedlit_cli(f"site audit {tmp_path}").refused("local/fedlit-site.yaml")


def test_a_site_without_a_model_is_refused(fedlit_cli, tmp_path):
    fedlit_cli(f"site audit {site_file(tmp_path, tmp_path, 1)}").refused(state(tmp_path, "site-1"), "found none")
