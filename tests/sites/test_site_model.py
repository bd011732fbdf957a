"""The best model comes to the hospital when a run ends, merged with what its client keeps, as the site allows."""

import csv
import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import refusals
import torch
import yaml
from at_sites import classifier
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from fedlit.core.errors import ConfigError
from fedlit.sites import engine
from fedlit.sites.envelope import Envelope
from fedlit.sites.messages import FAILED, REPLY
from fedlit.sites.storage import download_model

CONFIG = {
    "data": {
        "class_path": "PhantomCXR",
        "init_args": {"hospitals": 2, "images": 80, "image_size": 16, "batch_size": 8, "label_scheme": "split"},
    },
    "model": classifier(lr=0.05),
    "federation": {
        "rounds": 2,
        "workers": 1,
        "schedule": {"init_args": {"window": 2, "unit": "steps"}, "class_path": "ConstantSchedule"},
    },
    "fabric": {"accelerator": "cpu"},
    "logger": False,
    "name": "one",
}
OWN = {"floors": None, "leaves": {"scores": True, "counts_below": 0, "errors": True}}
"""Rules of a site that is tried on one machine."""


def written(folder: Path, *aggregators: str) -> Path:
    named = [{"class_path": name} for name in aggregators]
    file = folder / "x.yaml"
    file.write_text(yaml.safe_dump(CONFIG | {"federation": CONFIG["federation"] | {"aggregators": named}}))
    return file


def images(folder: Path) -> Path:
    """Images that no federation has seen."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for number in range(5):
        Image.fromarray(draw.integers(0, 256, (40, 32), dtype=np.uint8)).save(folder / f"{number}.png")
    return folder


def state(folder: Path, site: str) -> Path:
    return folder / "default" / "sites" / site


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def notes(file: Path) -> dict[str, str]:
    with safe_open(file, "pt") as opened:
        return {key: value for key, value in opened.metadata().items() if key != "config"}


def scores(file: Path) -> np.ndarray:
    """Of a class that was not learned there is none."""
    with file.open() as opened:
        return np.array([[text or "nan" for text in row[1:]] for row in list(csv.reader(opened))[1:]], dtype=np.float32)


@pytest.mark.parametrize(
    ("aggregators", "own"), [pytest.param((), False, marks=pytest.mark.slow), (("PersonalHeads", "FedBN"), True)]
)
def test_it_predicts_at_the_hospital_what_the_servers_model_does_with_its_clients_part(
    ran, sites, tmp_path, monkeypatch, aggregators, own
):
    """The same run in one process, exported for each client, is what the hospital has to have.

    Clients with a part of their own are at one site.
    """
    monkeypatch.chdir(tmp_path)
    file, pictures = written(tmp_path, *aggregators), images(tmp_path / "images")
    for where, more in (("there", f"--sites loopback:{1 if own else 2}"), ("here", "")):
        out = ran(f"fit --config {file} --run_dir {where} {more}").out
        having = "site-1" if own else "site-1, site-2"
        assert (f"the best model is at {having}: `fedlit site model` there" in out) == bool(more)
    for number in (1, 2):
        client, site = f"hospital-0{number}", "site-1" if own else f"site-{number}"
        whose = f"--client {client}" if own else ""
        out = ran(f"site model {state(tmp_path / 'there', site)} {whose} --output a{number}.safetensors").out
        assert (client in out) == own
        ran(f"export --config {file} --run_dir here --ckpt_path best {whose} --output b{number}.safetensors")
        a, b = (load_file(f"{letter}{number}.safetensors") for letter in "ab")
        assert a.keys() == b.keys()
        counters = "num_batches_tracked"  # of BatchNorm decide nothing, and are in no checkpoint
        assert [name for name in b if not torch.equal(a[name], b[name]) and not name.endswith(counters)] == []
        assert notes(Path(f"a{number}.safetensors")) == notes(Path(f"b{number}.safetensors"))
    for model in ("a1", "b1", "a2"):
        ran(f"predict --model {model}.safetensors {pictures} --output {model}.csv --accelerator cpu")
    first, same, second = (scores(Path(f"{model}.csv")) for model in ("a1", "b1", "a2"))
    assert np.array_equal(first, same, equal_nan=True)
    assert np.array_equal(first, second, equal_nan=True) != own
    ledger = state(tmp_path / "there", "site-1") / "ledger.jsonl"
    lines = [line for line in map(json.loads, ledger.read_text().splitlines()) if line["verb"] == "model"]
    assert [line["client"] for line in lines] == (["hospital-01", "hospital-02"] if own else [""])
    assert {(line["answer"], line["nbytes"], len(line["question"]), len(line["config"])) for line in lines} == {
        (REPLY, 0, 64, 64)
    }


def test_a_site_that_does_not_take_it_says_so_and_the_run_ends_well(fedlit_cli, fit, sites, tmp_path):
    sites.rules["site-2"] = OWN | {
        "verbs": ["prepare", "start", "train", "measure", "evaluate"],
        "allow": ["toys.ToyNet"],
    }
    _, out, err = fit("--federation.rounds 1", 2)
    assert "the best model was not stored: site 'site-2'" in err
    assert "verbs: expected one of prepare, start, train, measure, evaluate, found 'model'" in err
    assert "the best model is at site-1:" in out
    assert len(list(state(tmp_path, "site-1").glob("models/*"))) == 1
    assert not (state(tmp_path, "site-2") / "models").exists()
    fedlit_cli(f"site model {state(tmp_path, 'site-2')}").refused("verbs", "models")


def test_a_server_whose_file_says_so_gives_it_to_nobody(fit, tmp_path, monkeypatch):
    made = engine.Sites.__post_init__

    def closed(self) -> None:
        made(self)
        self.models = False

    monkeypatch.setattr(engine.Sites, "__post_init__", closed)
    assert "no site gets the model (models: false in the server's file)" in fit("--federation.rounds 1", 2).out
    assert list(tmp_path.rglob("*.safetensors")) == []
    assert '"model"' not in (state(tmp_path, "site-1") / "ledger.jsonl").read_text()


def test_a_trial_run_leaves_no_model(fit, sites):
    exchanged = sites.recorded()
    assert "the best model" not in fit("--fast_dev_run true", 2).out
    asked = {envelope.verb for _, envelope, _ in exchanged}
    assert "train" in asked
    assert "model" not in asked


CHANGES = {
    "an array more": lambda c, v: (c, v | {"code": np.zeros(3, dtype=np.uint8)}),
    "an array less": lambda c, v: (c, {"w": v["w"]}),
    "fewer weights": lambda c, v: (c, v | {"w": v["w"][:-1]}),
    "other numbers": lambda c, v: (c, v | {"w": v["w"].astype(np.float64)}),
    "no number among the weights": lambda c, v: (c, v | {"w": np.full_like(v["w"], np.nan)}),
    "no number among the statistics": lambda c, v: (c, v | {"stats": np.full_like(v["stats"], np.nan)}),
    "a path as the run": lambda c, v: (c | {"run": "../../../x"}, v),
    "another run": lambda c, v: (c | {"run": "0" * 32}, v),
    "a path as the client": lambda c, v: (c | {"client": "../../x"}, v),
    "somebody else's client": lambda c, v: (c | {"client": "hospital-02"}, v),
    "nobody's own, of clients that keep a part": lambda c, v: (c | {"client": None}, v),
    "more rounds than planned": lambda c, v: (c | {"asked": c["asked"] | {"rounds": 3}}, v),
    "rounds below 0": lambda c, v: (c | {"asked": c["asked"] | {"rounds": -1}}, v),
    "fewer classes": lambda c, v: (c | {"asked": c["asked"] | {"learned": [True]}}, v),
    "a text as a class": lambda c, v: (c | {"asked": c["asked"] | {"learned": ["x"] * len(c["asked"]["learned"])}}, v),
    "a configuration": lambda c, v: (c | {"asked": c["asked"] | {"config": "x"}}, v),
    "a round": lambda c, v: (c | {"asked": {"index": 0, "cohort": [], "moments": True}}, v),
    "another state": lambda c, v: (c | {"accepted": 7}, v),
}


def test_a_server_that_lies_writes_nothing(ran, sites, tmp_path):
    """Each change of the one message is refused and leaves no file; the message itself is then taken."""
    refused = {}

    def between(site, envelope, answer):
        if envelope.verb == "model" and site == "site-1":
            before = files(tmp_path)
            for name, change in CHANGES.items():
                content, vectors = change(envelope.content, envelope.vectors)
                reply = Envelope.from_bytes(
                    answer(replace(envelope, content=content, vectors=vectors, sha256="").to_bytes())
                )
                assert reply.verb == FAILED, name
                refused[name] = reply.content["reason"]
                assert files(tmp_path) == before, name
            whole = envelope.to_bytes()
            broken = Envelope.from_bytes(answer(whole[:-1] + bytes([whole[-1] ^ 1])))
            assert "their SHA-256 does not match" in broken.content["reason"]
        return answer(envelope.to_bytes())

    sites.between = between
    ran(f"fit --config {written(tmp_path, 'PersonalHeads')} --run_dir {tmp_path} --sites loopback:2")
    assert refused.keys() == CHANGES.keys()
    assert "expected the vectors w and stats, found w, stats, code" in refused["an array more"]
    assert "expected numbers, found NaN" in refused["no number among the statistics"]
    assert "clients keep a part of the model" in refused["nobody's own, of clients that keep a part"]
    assert "expected 32 hexadecimal digits" in refused["a path as the run"]
    assert len(list(state(tmp_path, "site-1").glob("models/*"))) == 1
    left = [path for path in state(tmp_path, "site-1").rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in left} == {0o600}
    assert (state(tmp_path, "site-1") / "models").stat().st_mode & 0o777 == 0o700


def test_models_of_as_many_runs_as_the_site_allows_are_kept(fit, sites, tmp_path):
    sites.rules["site-1"] = OWN | {"limits": {"models": 1}, "allow": ["toys.ToyNet"]}
    assert "not stored" not in fit("--federation.rounds 1", 2).err
    (kept,) = state(tmp_path, "site-1").glob("models/*")
    before = kept.read_bytes()
    assert "which is never replaced" in fit("--federation.rounds 2 --ckpt_path last", 2).err  # it went on
    assert before == kept.read_bytes()
    for number in (1, 2):
        (state(tmp_path, f"site-{number}") / "models" / "mine.safetensors").write_bytes(b"not of a run")
    _, out, err = fit("--federation.rounds 1 --seed 1", 2)
    assert "there are models of 1 runs in models/ of its folder, as many as limits.models allows" in err
    assert "the best model is at site-2:" in out
    assert set(state(tmp_path, "site-1").glob("models/*")) == {kept, kept.with_name("mine.safetensors")}
    assert len(list(state(tmp_path, "site-2").glob("models/*"))) == 3


def test_a_full_disk_is_told_and_leaves_no_half(fit, tmp_path, monkeypatch):
    real = Path.write_bytes

    def full(self, content):
        if ".safetensors" not in self.name:
            return real(self, content)
        real(self, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    err = fit("--federation.rounds 1", 2).err
    assert "the model cannot be written to" in err
    assert "No space left on device; free disk space there" in err
    assert list(state(tmp_path, "site-1").glob("models/*")) == []


def test_which_model_is_meant(fedlit_cli, fit, tmp_path):
    """Two runs, and two clients of a site with a model of their own each."""
    there, new = state(tmp_path, "site-1"), "0" * 32
    fit("--federation.rounds 1 --federation.aggregators='[FedBN]'", 2)
    for file in list(there.glob("models/*")):
        old = file.name[:32]
        later = shutil.copy(file, file.with_name(file.name.replace(old, new)))
        os.utime(later, (file.stat().st_mtime + 30,) * 2)
    with refusals.refused(ConfigError, new, "site-"):
        download_model(there, None, None, None)
    with refusals.refused(ConfigError, "'x'", "site-0, site-2"):
        download_model(there, old[:8], "x", None)
    with refusals.refused(ConfigError, "'zz'", new, old):
        download_model(there, "zz", None, None)
    with refusals.refused(ConfigError, new, old, "type more characters"):
        download_model(there, "", None, None)
    with refusals.refused(ConfigError, "--output"):
        download_model(there, None, "site-0", tmp_path)
    for run in (old, new):
        file, told = download_model(there, run[:8], "site-2", tmp_path / "x.safetensors")
        assert file.read_bytes() == (there / "models" / f"{run}-site-2.safetensors").read_bytes()
        assert (told["run"], told["client"]) == (run, "site-2")
    (there / "models" / "mine.safetensors").write_bytes(b"x")  # not a model of a run
    resumed = there / "models" / f"{old}-site-0.safetensors"
    os.utime(resumed, (resumed.stat().st_mtime + 60,) * 2)
    assert download_model(there, None, "site-0", tmp_path / "x.safetensors")[1]["run"] == old
    (there / "models" / f"{new}-site-2.safetensors").write_bytes(b"x")
    fedlit_cli(f"site model {there} {new[:8]} --client site-2").refused(
        "expected a model written by `fedlit export`, found none"
    )
