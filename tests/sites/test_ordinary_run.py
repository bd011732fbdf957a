"""An ordinary experiment under the rules that ``fedlit site init`` writes: no floor is met, and recovery is
unharmed."""

from pathlib import Path

import pytest
import torch
import yaml
from at_sites import Ended, classifier, dying, failing

import fedlit

TEMPLATE = Path(fedlit.__file__).parent / "sites" / "templates" / "site" / "local" / "fedlit-site.yaml"
RULES = yaml.safe_load(TEMPLATE.read_text().partition("policy:")[2])
"""The policy of a new site."""

PRETRAIN = {
    "name": "pretrain",
    "rounds": 2,
    "aggregators": [{"class_path": "Scaffold"}],
    "objective": {"class_path": "BCE"},
}
CONFIG = {
    "data": {
        "class_path": "PhantomCXR",
        "init_args": {"hospitals": 3, "images": 900, "image_size": 16, "batch_size": 16, "label_scheme": "split"},
    },
    "model": classifier("AUCSaddle", lr=0.05),
    "federation": {
        "aggregators": [{"class_path": name} for name in ("CODASCA", "SurgicalHeads", "FedBNPlus")],
        "rounds": 2,
        "workers": 1,
        "checkpoint_every": 1,
    },
    "phases": [PRETRAIN],
    "logger": False,
}

pytestmark = pytest.mark.slow


@pytest.fixture
def run(ran, sites, tmp_path):
    """Runs the experiment at three sites with these rules; returns what it left and what it said."""
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    sites.rules = {f"site-{number}": RULES for number in (1, 2, 3)}

    def fit(name: str, more: str = "") -> tuple[Path, str]:
        _, out, err = ran(f"fit --config {file} --name one --run_dir {tmp_path / name} --sites loopback:3 {more}")
        assert "floors" not in err
        assert "refused" not in err
        return tmp_path / name, out + err

    return fit


def test_a_trial_run_takes_the_steps_that_floors_ask_for(run):
    _, said = run("trial", "--fast_dev_run true")
    assert "mean over defined classes" in said


def test_no_floor_is_met_and_repeats_and_resumes_ask_the_same_questions(run, sites):
    """A site that dies in a round and a run that goes on give the bits of one that nothing has happened to."""
    whole, said = run("whole")
    assert [float(value) for _, key, value in Ended(whole).kept.metrics() if key == "round/clients"] == [3] * 2
    assert "site-1, site-2, site-3: scores of single images do not leave" in said
    sites.between = failing("site-2", 1, 2, dying)
    run("again", "--federation.rounds 1")
    again, _ = run("again", "--federation.rounds 2 --ckpt_path last")
    one, other = Ended(whole).server, Ended(again).server
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    rows = [row for row in Ended(whole).kept.metrics() if row[1].startswith("val/")]
    assert rows == [row for row in Ended(again).kept.metrics() if row[1].startswith("val/")]
