"""Killed, stopped and resumed runs equal the uninterrupted one, bit for bit."""

import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kills import SETTINGS, Killing
from refusals import Printed
from runs import Kept, Place, assert_same_run, assert_same_tensors, wait_until

from fedlit.cli.main import main

ROUNDS = 12
OPTIONS = (
    "--data awkward.NoisyData --data.clients 4 --model awkward.Slow --model.seconds 0.004 --model.momentum 0.9 "
    "--federation.optimizer_state keep --federation.aggregators+=Scaffold --federation.aggregators+=FedBN "
    "--federation.participation 0.7 --name run --logger awkward.StatusFile"
)

FIRST_IS_BEST = "--federation.monitor train/loss --federation.monitor_mode max"
"""A loss that falls is best in the first round: later checkpoints are due to their cadence alone."""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Kept:
    """The run that all others must equal."""
    place = Place(tmp_path_factory.mktemp("whole"), OPTIONS)
    place.ended(f"--federation.rounds {ROUNDS}")
    return place.run("run")


@pytest.mark.slow
def test_more_rounds_on_resume_equal_a_longer_run(tmp_path, uninterrupted):
    place = Place(tmp_path, OPTIONS)
    place.ended("--federation.rounds 5")
    place.ended(f"--federation.rounds {ROUNDS} --ckpt_path {tmp_path}/default/run")
    kept = place.run("run")
    assert_same_tensors(kept.tensors(), uninterrupted.tensors())
    # the first part ended with a test and its totals, which remain
    extra = [row for row in kept.metrics() if row not in set(uninterrupted.metrics())]
    assert extra
    assert all(step == 5 and key.startswith(("test/", "total/")) for step, key, _ in extra)
    assert [row for row in kept.metrics() if row not in extra] == uninterrupted.metrics()


def test_ctrl_c_stops_cleanly(tmp_path, uninterrupted):
    place = Place(tmp_path, OPTIONS)
    kept = place.run("run")
    command = place.fit(f"--federation.rounds {ROUNDS} --federation.checkpoint_every 1000")
    assert wait_until(lambda: (kept.path / "metrics.csv").exists() and _steps(kept) >= {3}, command)
    assert (kept.path / "status.txt").read_text() == "RUNNING"
    os.kill(command.process.pid, signal.SIGINT)
    assert command.wait() == 130, command.output
    assert "Traceback" not in command.output
    completed = max(_steps(kept))
    assert f"stopped by Ctrl-C after round {completed}; to continue: --ckpt_path {kept.path}" in command.output
    assert (kept.path / "status.txt").read_text() == "KILLED"
    assert 3 <= completed < ROUNDS
    assert max(kept.rounds) == completed
    place.ended(f"--federation.rounds {ROUNDS} --ckpt_path {kept.path}")
    assert (kept.path / "status.txt").read_text() == "FINISHED"
    assert_same_run(kept, uninterrupted)


def test_a_signal_in_the_middle_of_a_round_abandons_it(tmp_path):
    """A client's round takes 30 s: a run that waited for it would be late."""
    options = (
        "--data toys.ToyData --model awkward.Slow --model.seconds 0.03 --name run --logger awkward.StatusFile "
        "--federation.schedule.window 1000"
    )
    place = Place(tmp_path, options)
    command = place.fit()
    assert wait_until(lambda: "parameters" in command.output, command)
    began = time.monotonic()
    os.kill(command.process.pid, signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM
    assert time.monotonic() - began < 10
    kept = place.run("run")
    assert kept.rounds == [0]
    assert (kept.path / "status.txt").read_text() == "KILLED"


@pytest.mark.parametrize(("when", "rounds", "signum"), [("start", [], signal.SIGTERM), ("test", [2], signal.SIGHUP)])
def test_a_signal_outside_of_the_rounds_sets_the_status_too(tmp_path, when, rounds, signum):
    options = (
        "--data toys.ToyData --model toys.ToyNet --name run --federation.rounds 2 --logger awkward.Sleepy "
        f"--logger.when {when}"
    )
    place = Place(tmp_path, options)
    command = place.fit("--federation.monitor train/loss")
    kept = place.run("run")
    assert wait_until(lambda: "sleeping" in command.output, command), command.output
    os.kill(command.process.pid, signum)
    assert command.wait() == 128 + signum, command.output
    assert (kept.path / "status.txt").read_text() == "KILLED"
    assert "Traceback" not in command.output
    assert kept.rounds[-1:] == rounds


def test_a_nan_keeps_the_last_good_round(tmp_path):
    """By default checkpoints are rare; none of the rounds before the trouble is lost."""
    options = (
        "--data toys.ToyData --model awkward.Diverging --model.after 5 --name run --logger awkward.StatusFile "
        f"--federation.checkpoint_every 1000 {FIRST_IS_BEST}"
    )
    place = Place(tmp_path, options)
    printed = place.ended(code=1)
    assert "client 'site-0', round 6, local step 1: the loss is nan" in printed
    kept = place.run("run")
    assert kept.rounds == [1, 5]
    assert all(torch.isfinite(tensor).all() for tensor in kept.tensors().values())
    assert (kept.path / "status.txt").read_text() == "FAILED"


TOYS = (
    f"--data toys.ToyData --model toys.ToyNet --name run --logger false --federation.workers 1 {FIRST_IS_BEST} "
    "--federation.rounds 4 --federation.aggregators+=Scaffold"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The folder of a run of 4 rounds, whose first is the best."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.raises(SystemExit):
        main(shlex.split(f"fit --run_dir {folder} {TOYS}"))
    assert Kept(folder / "default/run").rounds == [1, 4]
    return folder


@pytest.fixture
def again(finished, tmp_path, fedlit_cli) -> Callable[[str], Printed]:
    """A function that runs ``fit`` with more options on a copy of the run in ``tmp_path``."""
    shutil.copytree(finished / "default", tmp_path / "default")
    return lambda options: fedlit_cli(f"fit --run_dir {tmp_path} {TOYS} {options}")


def test_resuming_a_finished_run_adds_no_rows(again, tmp_path):
    kept = Kept(tmp_path / "default/run")
    before = kept.metrics()
    again("--ckpt_path last").succeeded()
    assert kept.metrics() == before
    assert len({row[:2] for row in before}) == len(before)


def test_an_earlier_checkpoint_repeats_the_same_rounds_with_the_same_result(finished, again, tmp_path):
    kept = Kept(tmp_path / "default/run")
    assert "after 1 rounds" in again("--ckpt_path best").succeeded()
    assert kept.rounds == [1, 4]
    assert_same_run(kept, Kept(finished / "default/run"))


def test_resuming_from_an_earlier_checkpoint_drops_the_later_ones(again, tmp_path):
    kept = Kept(tmp_path / "default/run")
    again(f"--ckpt_path {kept.path}/checkpoints/round-000001 --federation.rounds 2").succeeded()
    assert kept.rounds == [1, 2]
    assert {step for step, _, _ in kept.metrics()} == {1, 2}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("fit --ckpt_path last --model.lr 0.2", ["another configuration", "model.init_args.lr: 0.1 there, 0.2 now"]),
        ("fit --ckpt_path last --seed 1", ["seed: 0 there, 1 now"]),
        ("fit --ckpt_path last --federation.aggregators+=FedBN", ["aggregators.1", "FedBN"]),
        ("fit --ckpt_path nowhere", ["--ckpt_path nowhere", "manifest.json"]),
        ("fit --ckpt_path .", ["--ckpt_path .", "run directory"]),
        ("test --ckpt_path last --model awkward.WideNet", ["head.weight: [3, 144] there, absent here"]),
        ("test --ckpt_path last --federation.aggregators=[]", ["expected aggregators [], found ['Scaffold']"]),
    ],
)
def test_what_does_not_fit_is_refused(finished, fedlit_cli, words, named):
    before = sorted(finished.rglob("*.pt"))
    command, options = words.split(" ", 1)
    fedlit_cli(f"{command} --run_dir {finished} {TOYS} {options}").refused(*named)
    assert sorted(finished.rglob("*.pt")) == before


def test_a_torn_checkpoint_is_refused_and_an_older_one_can_be_named(finished, again, tmp_path):
    run = tmp_path / "default/run"
    file = run / "checkpoints/round-000004/clients-0.pt"
    file.write_bytes(file.read_bytes()[:500])
    older = f"--ckpt_path {run}/checkpoints/round-000001"
    again("--ckpt_path last").refused("round-000004/clients-0.pt", older)
    again(older).succeeded()
    assert_same_run(Kept(run), Kept(finished / "default/run"))


@pytest.mark.slow
def test_an_experiment_may_be_called_phases(tmp_path, fedlit_cli):
    """Its runs are not phases of a run, although they are in a folder of that name."""
    for rounds, more in ((1, ""), (2, "--ckpt_path last")):
        options = f"{TOYS} --experiment phases --federation.rounds {rounds} {more}"
        fedlit_cli(f"fit --run_dir {tmp_path} {options}").succeeded()
    assert (tmp_path / "phases/run/checkpoints/round-000002").is_dir()


def _steps(kept: Kept) -> set[int]:
    return {step for step, key, _ in kept.metrics() if key == "val/auroc_macro"}


KILLS = [
    ("pool", "group", 0.3), ("pool", "main", 0.8), ("pool", "worker", 0.5),
    ("ranks", "worker", 0.4), ("phases", "group", 0.25),
]  # fmt: skip
"""Some of the kills of `tests/benchmarks/kills.py`."""


@pytest.fixture(scope="module")
def killings(tmp_path_factory) -> dict[str, Killing]:
    return {name: Killing(setting, tmp_path_factory.mktemp(name)) for name, setting in SETTINGS.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "target", "moment"), KILLS)
def test_killed_in_the_middle_of_training(killings, setting, target, moment):
    outcome = killings[setting].kill(target, moment)
    while outcome is None:
        moment /= 2
        outcome = killings[setting].kill(target, moment)
    assert (outcome.differs, outcome.left) == ([], [])
