"""``fedlit site check``: what is well is shown, and what is not is told before anybody joins."""

import tempfile
from pathlib import Path

import pytest
import yaml

from fedlit.sites.checking import TRIED

PHANTOM = {
    "class_path": "PhantomCXR",
    "init_args": {"hospitals": 2, "images": 80, "image_size": 16, "batch_size": 8, "seed": 3},
}


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "fedlit-site.yaml"


def written(file: Path, **keys) -> Path:
    data = PHANTOM | {"init_args": PHANTOM["init_args"] | {"cache_dir": str(file.parent / "cache")}}
    file.write_text(yaml.safe_dump({"name": "north", "data": data, "state": str(file.parent / "state")} | keys))
    return file


def test_a_site_that_is_well(ran, file):
    _, out, err = ran(f"site check {written(file)}")
    assert out.rstrip().endswith("ready to join")
    assert "site 'north': fedlit" in out
    assert "client 'hospital-01': " in out
    assert "Atelectasis few/" in out  # fewer than ten positives
    assert "no scores of images leave; numbers of positives and negatives below 10 are not reported" in out
    assert "north reports no AUROC of " in out
    assert "a round of 2 steps: " in out
    assert "each round a site sends" in out
    assert ", evaluate: reply: 2 messages" in out
    assert "warning" not in err
    assert not (file.parent / "state").exists()


def test_a_configuration_with_short_names_is_refused_with_the_command_that_writes_whole_ones(fedlit_cli, file):
    config = file.parent / "mine.yaml"
    config.write_text("model: {class_path: ImageClassifier}\nfederation: {rounds: 1, aggregators: [FedBN]}\n")
    fedlit_cli(f"site check {written(file)} --config {config}").refused("'FedBN'", f"--config {config} --print_config")


@pytest.mark.slow
def test_a_whole_configuration_is_tried_under_the_policy(fedlit_cli, fit, file):
    fit("--federation.rounds 1", 2)
    config = file.parent / "default" / "one" / "config.yaml"
    toys = {"data": {"class_path": "toys.ToyData"}}
    code, _, err = fedlit_cli(f"site check {written(file, **toys)} --config {config}")
    assert code == 1
    assert "names 'toys.ToyNet'; to allow it, add allow: [toys.ToyNet] under policy" in err
    allowed = {"policy": {"allow": ["toys.ToyNet"], "floors": {"batch_size": 4, "examples": 8}}}
    out = fedlit_cli(f"site check {written(file, **toys, **allowed)} --config {config}").succeeded()
    assert "w [483]" in out


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"state": "/proc/nowhere"}, "state: cannot write to /proc"),
        ({"data": {"class_path": "NIHChestXray14", "init_args": {"root": "/nowhere"}}}, "/nowhere"),
        ({"policy": {"verbs": ["prepare"]}}, "verbs: expected one of prepare, found 'train'"),
        ({"accelerator": "gpus"}, "gpus"),
    ],
)
def test_what_is_not_well_is_told(fedlit_cli, file, keys, said):
    code, out, err = fedlit_cli(f"site check {written(file, **keys)}")
    assert code == 1
    assert said in err
    assert "ready to join" not in out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_told(fedlit_cli, file, monkeypatch):
    monkeypatch.setattr(
        tempfile,
        "TemporaryFile",
        lambda dir: open("/dev/full", "wb"),  # noqa: SIM115
    )
    fedlit_cli(f"site check {written(file)}").refused(file.parent)


def test_a_disk_on_which_only_a_part_fits_is_told(fedlit_cli, file):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (TRIED // 2, before[1]))
    try:
        code, _, err = fedlit_cli(f"site check {written(file)}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 1
    assert "state: cannot write to" in err


def test_a_file_that_is_not_there_is_told(fedlit_cli, file):
    fedlit_cli(f"site check {file}").refused("fedlit-site.yaml")
