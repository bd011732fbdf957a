"""State that clients keep is carried over to the next phase, and shared elements come from the server."""

import re
import shlex
import shutil
import signal
import sys
from itertools import combinations
from pathlib import Path

import pytest
import torch
import yaml
from runs import Kept, Place, assert_same_run, assert_same_tensors, client_tensors
from toys import CLASSES

from fedlit.cli.main import main
from fedlit.core.checkpoints import checkpoint
from fedlit.models import ImageClassifier

PHASE, MAIN, SITES = 2, 2, 3
STEPS = {"class_path": "ConstantSchedule", "init_args": {"window": 1, "unit": "steps"}}
WARM_UP = {
    "name": "warm-up",
    "trainable": "head",
    "keep": "all",
    "aggregators": ["PersonalHeads"],
    "rounds": PHASE,
    "schedule": STEPS,
    "optimizer": {"class_path": "SGD", "init_args": {"lr": 0.001}},
}
STILL = {"class_path": "SGD", "init_args": {"lr": 0.0}}
"""Steps that change nothing."""


def config(phase: dict | None = None, aggregators: tuple = ("PersonalHeads",), **changes) -> dict:
    """A warm-up (with other values of a phase) before a main part (with other values of a model)."""
    model = {"backbone": "small_cnn", "optimizer": {"class_path": "SGD", "init_args": {"lr": 0.001}}} | changes
    return {
        "phases": [WARM_UP | (phase or {})],
        "data": {"class_path": "toys.ToyData"},
        "model": {"class_path": "ImageClassifier", "init_args": model},
        "federation": {"aggregators": list(aggregators), "rounds": MAIN, "schedule": STEPS},
    }


def place(path: Path, settings: dict) -> Place:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.yaml").write_text(yaml.safe_dump(settings))
    return Place(path / "runs", f"--config {path / 'config.yaml'} --name run")


def finished(path: Path, settings: dict, options: str = "") -> tuple[Kept, str]:
    """A run that ended well, and what it printed."""
    here = place(path, settings)
    return here.run("run"), here.ended(options)


def result(run: Kept, phase: str = "warm-up") -> Path:
    """The checkpoint of a phase from which a run continued."""
    folder = run.path / "phases" / phase / "checkpoints"
    return checkpoint.find(folder, "best") or checkpoint.find(folder, "last")


def weights(path: Path) -> dict[str, torch.Tensor]:
    """What each client keeps of the weights."""
    return {name: state["w"] for name, state in client_tensors(path).items()}


def differ(values: dict[str, torch.Tensor]) -> bool:
    return not any(torch.equal(one, other) for one, other in combinations(values.values(), 2))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Kept, str]:
    return finished(tmp_path_factory.mktemp("whole"), config())


@pytest.mark.slow
def test_the_first_forward_uses_each_clients_own_head(tmp_path, monkeypatch):
    """Heads as training_step sees them are those of the warm-up's checkpoint, and its body is the server's."""
    seen, plain = [], ImageClassifier.training_step

    def watched(self, batch, batch_idx):
        seen.append(torch.cat([p.detach().flatten().clone() for p in self.head.parameters()]))
        return plain(self, batch, batch_idx)

    monkeypatch.setattr(ImageClassifier, "training_step", watched)
    monkeypatch.setattr(sys, "path", [*sys.path])
    here = place(tmp_path, config())
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(f"fit {here.options} --run_dir {here.path} --logger false --federation.workers 1"))
    assert not ended.value.code
    heads = weights(result(here.run("run")))
    assert list(heads) == ["site-0", "site-1", "site-2"]
    assert differ(heads)
    assert len(seen) == SITES * (PHASE + MAIN)
    for head, first in zip(heads.values(), seen[SITES * PHASE :], strict=False):
        assert torch.equal(first, head)


@pytest.mark.slow
@pytest.mark.parametrize("step", [PHASE, PHASE + 1])
def test_killed_and_resumed(whole, tmp_path, step):
    """At the end of the warm-up, and in the main part."""
    here = place(tmp_path, config())
    command = here.fit(f"--federation.checkpoint_every 1 --logger awkward.Killer --logger.step {step}")
    assert command.wait() == -signal.SIGKILL, command.output
    here.ended("--ckpt_path last")
    assert_same_run(here.run("run"), whole[0])


def copied(run: Kept, path: Path) -> Place:
    trained = yaml.safe_load((run.path / "config.yaml").read_text())
    here = place(path, {k: trained[k] for k in ("phases", "data", "model", "federation")})
    shutil.copytree(run.path, here.path / "default/run")
    return here


@pytest.mark.slow
def test_killed_between_the_warm_up_and_the_main_part(whole, tmp_path):
    here = copied(whole[0], tmp_path)
    shutil.rmtree(here.path / "default/run/checkpoints")
    here.ended("--ckpt_path last")
    assert_same_run(here.run("run"), whole[0])


def test_fedlit_test_shows_what_the_run_ended_with(whole, tmp_path):
    printed = copied(whole[0], tmp_path).ended("--ckpt_path best", "test")
    table = re.findall(r"│.*│", printed)
    assert len(table) >= 4
    assert table == re.findall(r"│.*│", whole[1])


@pytest.mark.slow
def test_a_client_that_has_not_trained_since_has_its_head(tmp_path):
    """One of three trains in the main part, on the first batch of its stream; all have what they had."""
    settings = config({"participation": 1.0}, optimizer=STILL)  # else it is the main part's
    settings["federation"] |= {"participation": 0.34, "rounds": 1}
    run, _ = finished(tmp_path, settings)
    assert sorted(int(state["batches"]) for state in client_tensors(run.last).values()) == [0, 0, 1]
    assert_same_tensors(weights(run.last), weights(result(run)))


FEDBN = {"trainable": "all", "aggregators": ["FedBN"]}


@pytest.mark.parametrize("keep", [pytest.param("all", marks=pytest.mark.slow), "body"])
def test_normalisation_of_fedbn_goes_on(tmp_path, keep):
    run, _ = finished(tmp_path, config(FEDBN | {"keep": keep}, ("FedBN",), optimizer=STILL))
    assert differ(weights(result(run)))
    assert_same_tensors(weights(run.last), weights(result(run)))


@pytest.mark.slow
def test_heads_start_afresh_where_the_body_alone_is_kept(tmp_path):
    run, _ = finished(tmp_path, config({"keep": "body"}, optimizer=STILL))
    plain = config(optimizer=STILL) | {"phases": []}
    assert differ(weights(result(run)))
    assert_same_tensors(weights(run.last), weights(finished(tmp_path / "fresh", plain)[0].last))


@pytest.mark.slow
def test_after_a_phase_that_shared_all_heads_start_from_the_servers(tmp_path):
    run, _ = finished(tmp_path, config({"aggregators": []}, optimizer=STILL))
    server = checkpoint.tensors(result(run))
    head = torch.cat([server["head.weight"].flatten(), server["head.bias"]])
    after = weights(run.last)
    assert len(after) == SITES
    assert all(torch.equal(kept, head) for kept in after.values())


@pytest.mark.slow
def test_the_objective_is_measured_anew_and_the_rest_is_the_clients(tmp_path):
    """FedBN keeps statistics, among which p lies: the prior of one client is not that of three."""
    saddle = {"class_path": "AUCSaddle"}
    phase = FEDBN | {"clients": ["site-1"], "objective": saddle}
    run, _ = finished(tmp_path, config(phase, ("FedBN",), optimizer=STILL, objective=saddle))
    before, after = client_tensors(result(run)), client_tensors(run.last)
    assert torch.equal(after["site-1"]["w"], before["site-1"]["w"])
    assert not torch.equal(after["site-0"]["w"], after["site-1"]["w"])
    p = [state["stats"][-len(CLASSES) :] for state in after.values()]
    assert torch.equal(p[0], p[1])
    assert not torch.equal(p[1], before["site-1"]["stats"][-len(CLASSES) :])
    assert torch.equal(p[0], checkpoint.tensors(run.last)["objective.p"])


def test_a_fixed_body_has_the_servers_statistics(tmp_path):
    """Its features are the same for all, and so is the body of an exported model."""
    settings = config(FEDBN, ("FedBN", "PersonalHeads"), optimizer=STILL, trainable="head")
    run, _ = finished(tmp_path, settings)
    assert differ({name: state["stats"] for name, state in client_tensors(result(run)).items()})
    after = client_tensors(run.last)
    server = torch.load(run.last / "server.pt", weights_only=True)["stats"]
    assert all(torch.equal(state["stats"], server) for state in after.values())


@pytest.mark.slow
def test_what_the_main_part_freezes_is_trained_in_the_phase(tmp_path):
    """FedBNPlus of the main part uses the normalisation that the phase has trained, even after a resume."""
    settings = config({"trainable": "all", "aggregators": []}, ("FedBNPlus",))
    run, _ = finished(tmp_path / "whole", settings)
    assert "body.bn1.weight" in checkpoint.tensors(result(run))
    assert "body.bn1.weight" not in checkpoint.tensors(run.last)
    here = copied(run, tmp_path / "again")
    shutil.rmtree(here.path / "default/run/checkpoints")
    here.ended("--ckpt_path last")
    assert_same_run(here.run("run"), run)
