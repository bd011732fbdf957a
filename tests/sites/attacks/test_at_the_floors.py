"""Floors are not privacy: what `protection.md` says of it is what the attacks at the floors recover."""

import re
import sys
from pathlib import Path

import pytest
import torch
from at_sites import classifier
from attacker import HOSPITAL

from fedlit.data import PhantomCXR
from fedlit.sites.messages import REPLY

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "fedlit" / "sites" / "protection.md"
sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))
import floors  # noqa: E402


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not floors.NIH.is_dir(), reason="the 1,000 NIH X-rays are not beside this checkout")
def test_most_images_of_the_smallest_round_are_read(tmp_path, capsys):
    """A site with the rules of ``site init`` answers, and most images of its smallest round are read from the
    answer."""
    hospital = floors.open_hospital(tmp_path / "plain")
    try:
        floors.images_table(tmp_path, hospital, True)
    finally:
        hospital.server.close()
    printed = capsys.readouterr().out
    row = re.search(r"^\| one step of 64 \| 64 \| (\d+) \|", printed, re.MULTILINE)
    assert row, printed
    assert int(row[1]) > 32, printed
    assert "one step of 64" in PAGE.read_text()


def test_an_update_with_constant_predictions_tells_every_count(attack):
    """Of hidden classes too: the change of the head's bias is the rate times the mean of (p - y)."""
    site = attack(leaves={"counts_below": 42})
    told = site.site_info.clients[0]
    hidden = [name for name, count in zip(site.classes, told.counts["train"][0], strict=True) if count is None]
    assert hidden
    rate = 1.0
    model = classifier(lr=rate)
    step = {"class_path": "ConstantSchedule", "init_args": {"window": 1, "unit": "steps"}}
    assert site.prepare(model=model, batch_size=told.train, schedule=step).verb == REPLY
    change = site.train(w=torch.zeros_like(site.model.w)).tensors()["vectors/w"]
    (bias,) = (entry for entry in site.model.layout.parameters if entry.name == "head.bias")
    found = told.train * (0.5 + bias.view(change) * len(site.classes) / rate)
    data = PhantomCXR(**HOSPITAL["init_args"])
    data.setup("fit")
    truth = (next(iter(data.clients.values())).train.labels == 1).sum(0)
    assert found.round().long().tolist() == truth.tolist()
    assert (found - truth).abs().max() < 0.01
