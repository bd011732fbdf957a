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
from attacker import submitted
from flare_network import LEAD, SERVER, Network
from proxies import proxying
from refusals import refused
from runs import Place, wait_until

from fedlit.core.errors import TrainingError
from fedlit.data import PhantomCXR
from fedlit.sites.submission import Lead, Submission

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DATA = {"class_path": "PhantomCXR", "init_args": {"hospitals": 2, "images": 120, "image_size": 32, "batch_size": 8}}
CONFIG = {
    "model": classifier(),
    "federation": {
        "aggregators": [{"class_path": name} for name in ("CODASCA", "SurgicalHeads", "FedBN")],
        "rounds": 4,
        "schedule": {"class_path": "ConstantSchedule", "init_args": {"window": 60, "unit": "steps"}},
        "checkpoint_every": 1,
        "workers": 1,
    },
    "fabric": {"accelerator": "cpu"},
}


Follower = pytest.importorskip("fedlit.sites.follower").Follower


@pytest.fixture
def network(tmp_path):
    made = Network.provision(tmp_path / "network")
    yield made
    made.stop()


@pytest.fixture
def proxy():
    with proxying() as running:
        yield running


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
    network.start(SERVER)
    monkeypatch.setenv("https_proxy", proxy.address)
    network.start(*network.sites)
    here = Place(tmp_path / "here", f"--config {file} --name one").fit()
    line = f"fit --config {of_a_lead(file)} --name one --run_dir {tmp_path / 'nowhere'} --sites {network.lead}"
    there = Place(tmp_path / "there").start(line)
    assert wait_until(lambda: "round 1/4" in there.output, there, pause=0.05, seconds=300), there.output
    (job,) = network.jobs("site-1")
    os.kill(job, signal.SIGKILL)
    assert here.wait(300) == 0, here.output
    assert there.wait(120) == 1, there.output
    assert "to resume from the last checkpoint: the same command with --name one --ckpt_path last" in there.output
    there = Place(tmp_path / "there").start(f"{line} --ckpt_path last")
    assert wait_until(lambda: "round 3/4" in there.output, there, pause=0.05, seconds=300), there.output
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
    assert "after 3 rounds" in there.output
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


def test_a_sites_table_and_a_hospitals_own_privacy_filter_decide_whatever_the_server_takes(tmp_path, network):
    """What the filter removes is a failure that names the site, the array and the filter."""
    file = written(tmp_path, network)
    server = network.workspace(SERVER) / "local" / "fedlit-server.yaml"
    server.write_text(yaml.safe_dump(yaml.safe_load(server.read_text()) | {"allow": ["fedlit.testing.ToyNet"]}))
    scope = {"name": "all", "task_result_filters": [{"name": "ExcludeVars", "args": {"exclude_vars": ["vectors/w"]}}]}
    privacy = network.workspace("site-1") / "local" / "privacy.json"
    privacy.write_text(json.dumps({"scopes": [scope], "default_scope": "all"}))
    network.start()
    config = submitted(model={"class_path": "fedlit.testing.ToyNet", "init_args": {}})
    advice = "write allow: [fedlit.testing.ToyNet] under policy"
    with refused(TrainingError, "site 'site-1': its policy does not allow fedlit.testing.ToyNet", advice):
        Follower(Lead.read(network.lead), Submission(config, "one"), print).run()
    ledger = tmp_path / "there" / "default" / "sites" / "site-1" / "ledger.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert {line["verb"] for line in lines} == {"hello"}
    assert lines[-1]["lead"] == LEAD
    there = Place(tmp_path / "there").start(f"fit --config {of_a_lead(file)} --name two --sites {network.lead}")
    assert there.wait(300) == 1, there.output
    words = "round 1: site 'site-1', client 'hospital-01' (train): its answer cannot be used: 'w' is missing"
    assert f"{words} (the site's own privacy filter ExcludeVars has removed 'vectors/w')" in there.output
