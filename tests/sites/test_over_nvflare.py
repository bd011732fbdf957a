"""The whole path: a server and two sites of NVFlare with mutual TLS, a site's job and the server killed, and the run of
one process comes of it."""

import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from at_sites import Ended, assert_same, classifier
from flare_network import LEAD, SERVER, Network
from proxies import proxying
from runs import Place, wait_until

from fedlit.data import PhantomCXR

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DATA = {"class_path": "PhantomCXR", "init_args": {"hospitals": 2, "images": 120, "image_size": 32, "batch_size": 8}}
CONFIG = {
    "model": classifier(),
    "federation": {
        "aggregators": [{"class_path": name} for name in ("CODASCA", "SurgicalHeads", "FedBN")],
        "rounds": 3,
        "schedule": {"class_path": "ConstantSchedule", "init_args": {"window": 60, "unit": "steps"}},
        "checkpoint_every": 1,
        "workers": 1,
    },
    "fabric": {"accelerator": "cpu"},
}

pytest.importorskip("nvflare")


@pytest.fixture(scope="module")
def proxy():
    with proxying() as running:
        yield running


@pytest.fixture(scope="module")
def network(tmp_path_factory, proxy):
    """One network for all tests, which takes longer to start than its jobs; the sites go through the proxy."""
    made = Network.provision(tmp_path_factory.mktemp("network"))
    made.start(SERVER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("https_proxy", proxy.address)
        made.start(*made.sites)
    yield made
    made.stop()


def written(folder: Path, network: Network) -> Path:
    """Write the configuration, and the own files of the sites: each has one of the hospitals."""
    data = DATA | {"init_args": DATA["init_args"] | {"cache_dir": str(folder / "cache")}}
    for number, site in enumerate(network.sites, 1):
        state, rules = str(folder / "there" / "default" / "sites" / site), {"scores": True, "counts_below": 0}
        network.write_site(
            site,
            data=data,
            share=f"{number} of 2",
            state=state,
            accelerator="cpu",
            policy={"leaves": rules, "floors": {"batch_size": 2}},
        )
    own = {"run_dir": str(folder / "there"), "accelerator": "cpu"}  # the lead's own run_dir counts for nothing
    (network.workspace(SERVER) / "local" / "fedlit-server.yaml").write_text(yaml.safe_dump(own))
    file = folder / "x.yaml"
    file.write_text(yaml.safe_dump(CONFIG | {"data": data}))
    return file


def of_a_lead(file: Path) -> Path:
    """The same configuration without the data, as somebody writes it who has none."""
    data = {"classes": list(PhantomCXR(**DATA["init_args"]).classes), "batch_size": 8, "image_size": 32}
    lead = file.with_name("lead.yaml")
    lead.write_text(yaml.safe_dump(CONFIG | {"data": {"class_path": "HeldAtSites", "init_args": data}}))
    return lead


def test_a_killed_site_job_and_a_killed_server_change_nothing(tmp_path, network, monkeypatch, proxy, ran):
    """The lead repeats the command; the sites and the lead reach the server through a proxy."""
    file = written(tmp_path, network)
    monkeypatch.setenv("https_proxy", proxy.address)
    here = Place(tmp_path / "here", f"--config {file} --name one").fit()
    line = f"fit --config {of_a_lead(file)} --name one --run_dir {tmp_path / 'nowhere'} --sites {network.lead}"
    there = Place(tmp_path / "there").start(line)
    assert wait_until(lambda: "round 1/3" in there.output, there, pause=0.05, seconds=300), there.output
    (job,) = network.jobs("site-1")
    os.kill(job, signal.SIGKILL)
    assert here.wait(300) == 0, here.output
    assert there.wait(120) == 1, there.output
    assert "to resume from the last checkpoint: the same command with --name one --ckpt_path last" in there.output
    there = Place(tmp_path / "there").start(f"{line} --ckpt_path last")
    assert wait_until(lambda: "round 2/3" in there.output, there, pause=0.05, seconds=300), there.output
    assert "after 1 rounds" in there.output
    for job in network.jobs(SERVER):
        os.kill(job, signal.SIGKILL)
    network.kill(SERVER)
    network.start(SERVER)
    assert there.wait(120) == 1, there.output
    assert "the server does not answer" in there.output
    assert "the same command with --name one --ckpt_path last" in there.output
    there = Place(tmp_path / "there").start(f"{line} --ckpt_path last")
    assert there.wait(300) == 0, there.output
    assert "after 2 rounds" in there.output
    assert_same(Ended(tmp_path / "there"), Ended(tmp_path / "here"))
    assert not (tmp_path / "nowhere").exists()
    assert len(proxy.asked) >= 5  # two sites, a job of each, and the lead
    assert [file.parent.name for file in (tmp_path / "there" / "default").glob("*/config.yaml")] == ["one"]
    with closing(sqlite3.connect(network.workspace(SERVER) / "mlflow.db")) as store:
        assert store.execute("select status from runs").fetchall() == [("FINISHED",)]
    assert "the best model is at site-1, site-2: `fedlit site model` there" in there.output
    for number, site in enumerate(network.sites, 1):
        out = ran(f"site model {network.workspace(site)} --output {tmp_path / 'a.safetensors'}").out
        assert f"own model of client 'hospital-0{number}'" in out


def test_a_hospitals_own_privacy_filter_decides_what_leaves(tmp_path, network):
    """What it removes is a failure that names the site, the array and the filter; the ledger names the lead.

    Only this site takes part: each site is one more process that imports PyTorch.
    """
    file = written(tmp_path, network)
    lead = network.lead / "local" / "fedlit-lead.yaml"
    everyone = lead.read_text()
    lead.write_text(yaml.safe_dump({"sites": ["site-1"]}))
    scope = {"name": "all", "task_result_filters": [{"name": "ExcludeVars", "args": {"exclude_vars": ["vectors/w"]}}]}
    privacy = network.workspace("site-1") / "local" / "privacy.json"
    privacy.write_text(json.dumps({"scopes": [scope], "default_scope": "all"}))
    options = "--federation.schedule.window 5 --federation.on_site_error stop"
    there = Place(tmp_path / "there").start(
        f"fit --config {of_a_lead(file)} {options} --name two --sites {network.lead}"
    )
    code = there.wait(300)
    privacy.unlink()
    lead.write_text(everyone)
    assert code == 1, there.output
    words = "round 1: site 'site-1', client 'hospital-01' (train): its answer cannot be used: 'w' is missing"
    assert f"{words} (the site's own privacy filter ExcludeVars has removed 'vectors/w')" in there.output
    ledger = tmp_path / "there" / "default" / "sites" / "site-1" / "ledger.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert "train" in {line["verb"] for line in lines}
    assert {line["lead"] for line in lines} == {LEAD}
