"""A site names its own classes; the list and its order are the server's."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from at_sites import Ended, classifier

from fedlit.data import PhantomCXR
from fedlit.sites import experiment

DATA = {"hospitals": 2, "images": 120, "image_size": 16, "batch_size": 8, "label_scheme": "split"}
OPTIONS = (
    "--federation.rounds 2 --federation.workers 1 --federation.aggregators='[SurgicalHeads, FedBN]' "
    "--federation.schedule ConstantSchedule --federation.schedule.window 2 --federation.schedule.unit steps "
    "--fabric.accelerator cpu --logger false --name one"
)


@pytest.fixture
def config(tmp_path) -> Path:
    data = {"class_path": "PhantomCXR", "init_args": DATA | {"cache_dir": str(tmp_path / "cache")}}
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump({"model": classifier(), "data": data}))
    return file


def naming(sites, monkeypatch, classes: dict[str, list[str]]) -> None:
    """The sites' own files name these classes."""

    def transport(files: dict[str, Path]):
        for name, file in files.items():
            values = yaml.safe_load(file.read_text())
            values["data"]["init_args"]["classes"] = classes[name]
            file.write_text(yaml.safe_dump(values))
        return sites.transport(files)

    monkeypatch.setattr(experiment, "Processes", transport)


def labelled(number: int) -> list[str]:
    """The classes of a hospital, in another order than that of the federation."""
    return list(reversed(PhantomCXR(**DATA).hospitals[number].classes))


def test_sites_that_name_only_their_own_classes_train_as_those_that_name_all(ran, sites, monkeypatch, config, tmp_path):
    """But for test sets, which keep all labels where a site names all classes."""
    assert set(labelled(0)) != set(labelled(1))
    ran(f"fit --config {config} {OPTIONS} --run_dir {tmp_path / 'here'}")
    naming(sites, monkeypatch, {"site-1": labelled(0), "site-2": labelled(1)})
    ran(f"fit --config {config} {OPTIONS} --run_dir {tmp_path / 'there'} --sites loopback:2")
    here, there = Ended(tmp_path / "here"), Ended(tmp_path / "there")
    assert here.server.keys() == there.server.keys()
    assert [name for name in here.server if not torch.equal(here.server[name], there.server[name])] == []
    assert there.states().keys() == {"hospital-01", "hospital-02"}
    one, other = ([row for row in ended.kept.metrics() if "test" not in row[1]] for ended in (here, there))
    assert one == other
    assert any("val/auroc/" in key for _, key, _ in one)


def test_a_class_that_the_run_lacks_is_named(fedlit_cli, sites, monkeypatch, config, tmp_path):
    classes = list(PhantomCXR(**DATA).classes)
    naming(sites, monkeypatch, {"site-1": classes, "site-2": classes})
    options = f"{OPTIONS} --data.classes='{json.dumps(classes[1:])}' --run_dir {tmp_path} --sites loopback:2"
    fedlit_cli(f"fit --config {config} {options}").refused("site 'site-1'", f"found {classes[0]!r}", "data.classes")
