"""Killed, stopped and resumed runs equal the uninterrupted one, bit for bit."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from runs import TESTS, Command, Kept, Place, assert_same_run, assert_same_tensors, wait_until

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


def assert_whole(kept: Kept) -> None:
    """There is no checkpoint without a manifest, even if the process dies at any moment."""
    assert all((path / "manifest.json").exists() for path in kept.path.glob("checkpoints/round-*"))


def kill_until_finished(place: Place, kill: Callable[[Command, int], bool], options: str) -> list[int]:
    """Start, kill and resume until a run ends by itself; returns the rounds that kills found completed."""
    kept, deaths = place.run("run"), []
    for number in range(40):
        command = place.fit(f"--federation.rounds {ROUNDS} --ckpt_path last {options}")
        if not kill(command, number):
            assert command.wait() == 0, command.output
            return deaths
        assert command.wait() == -signal.SIGKILL, command.output
        assert_whole(kept)
        deaths.append(max(kept.rounds, default=-1))
    raise AssertionError(f"not finished after {len(deaths)} kills: {deaths}")


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path, uninterrupted):
    """Every third time after start, otherwise after training has begun."""
    delays = torch.rand(8, generator=torch.Generator().manual_seed(51))

    def kill(command: Command, number: int) -> bool:
        if number == len(delays):
            return False
        if number % 3 and not wait_until(lambda: "parameters" in command.output, command):
            return False
        command.process.join(float(delays[number]) * 0.15)
        if not command.process.is_alive():
            return False
        command.process.kill()
        return True

    place = Place(tmp_path, OPTIONS)
    deaths = kill_until_finished(place, kill, "--federation.checkpoint_every 3")
    assert len(deaths) >= 3
    # a run that was killed before its first checkpoint stays behind, and is not the one that is resumed
    finished = [d for d in (tmp_path / "default").iterdir() if Kept(d).rounds]
    assert len(finished) == 1
    assert_same_run(Kept(finished[0]), uninterrupted)


@pytest.mark.slow
def test_rounds_after_the_last_checkpoint_are_done_again(tmp_path):
    """Their metrics were written already, and are written once."""
    rare = f"{OPTIONS} {FIRST_IS_BEST} --federation.rounds {ROUNDS} --federation.checkpoint_every 1000"
    place, whole = Place(tmp_path, rare), Place(tmp_path / "whole", rare)
    kept = place.run("run")
    command = place.fit()
    assert wait_until(lambda: (kept.path / "metrics.csv").exists() and max(_steps(kept), default=0) > 3, command)
    command.process.kill()
    command.wait()
    assert kept.rounds == [1]
    place.ended("--ckpt_path last")
    whole.ended()
    assert_same_run(kept, whole.run("run"))


@pytest.mark.slow
def test_real_command_line_with_another_number_of_workers(tmp_path, uninterrupted):
    """``python -m fedlit fit`` with two workers is killed, and resumes with one worker."""
    kept = Place(tmp_path, OPTIONS).run("run")
    words = f"{OPTIONS} --federation.rounds {ROUNDS} --federation.workers 2 --federation.checkpoint_every 1"
    command = [sys.executable, "-m", "fedlit", "fit", "--run_dir", str(tmp_path), *words.split()]
    with subprocess.Popen(command, cwd=TESTS, stdout=subprocess.DEVNULL, start_new_session=True) as real:
        deadline = time.monotonic() + 120
        while not kept.rounds or max(kept.rounds) < 3:
            assert real.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.002)
        real.kill()
    assert_whole(kept)
    again = Place(tmp_path, OPTIONS).ended(f"--federation.rounds {ROUNDS} --ckpt_path last")
    assert "resuming" in again
    assert_same_run(kept, uninterrupted)


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


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_in_the_middle_of_a_round_abandons_it(tmp_path, signum):
    """A client's round takes 30 s: a run that waited for it would be late."""
    options = (
        "--data toys.ToyData --model awkward.Slow --model.seconds 0.3 --name run --logger awkward.StatusFile "
        "--federation.schedule.window 100"
    )
    place = Place(tmp_path, options)
    command = place.fit()
    assert wait_until(lambda: "parameters" in command.output, command)
    began = time.monotonic()
    os.kill(command.process.pid, signum)
    assert command.wait() == 128 + signum
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


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Place:
    """A run of 4 rounds, whose first is the best."""
    options = (
        "--data toys.ToyData --model toys.ToyNet --federation.rounds 4 --name run "
        f"--federation.aggregators+=Scaffold {FIRST_IS_BEST}"
    )
    place = Place(tmp_path_factory.mktemp("finished"), options)
    place.ended()
    assert place.run("run").rounds == [1, 4]
    return place


def copy_of(place: Place, path: Path) -> Place:
    shutil.copytree(place.path / "default", path / "default")
    return Place(path, place.options)


def test_resuming_a_finished_run_adds_no_rows(finished, tmp_path):
    place = copy_of(finished, tmp_path)
    before = place.run("run").metrics()
    place.ended("--ckpt_path last")
    assert place.run("run").metrics() == before
    assert len({row[:2] for row in before}) == len(before)


@pytest.mark.parametrize(("which", "rounds"), [("last", 4), ("best", 1), ("{run}/checkpoints/round-000001", 1)])
def test_what_ckpt_path_may_name(finished, tmp_path, which, rounds):
    """Resuming from an earlier checkpoint repeats the same rounds, with the same result."""
    place = copy_of(finished, tmp_path)
    printed = place.ended(f"--ckpt_path {which}".format(run=tmp_path / "default/run"))
    assert f"after {rounds} rounds" in printed
    assert place.run("run").rounds == [1, 4]
    assert_same_run(place.run("run"), finished.run("run"))


def test_resuming_from_an_earlier_checkpoint_drops_the_later_ones(finished, tmp_path):
    place = copy_of(finished, tmp_path)
    first = tmp_path / "default/run/checkpoints/round-000001"
    place.ended(f"--ckpt_path {first} --federation.rounds 2")
    kept = place.run("run")
    assert kept.rounds == [1, 2]
    assert {step for step, _, _ in kept.metrics()} == {1, 2}


def test_test_and_best_agree(finished):
    """``fedlit test`` of the best checkpoint shows the table that the run ended with."""
    first = finished.path / "log-1.txt"
    tables = []
    for which in ("best", "last"):
        printed = finished.ended(f"--ckpt_path {which}", "test")
        tables.append(re.findall(r"│.*│", printed))
    assert len(tables[0]) == 4
    assert tables[0] == re.findall(r"│.*│", first.read_text())
    assert tables[0] != tables[1]


def test_last_without_a_run_starts_a_new_one_and_says_so(tmp_path):
    place = Place(tmp_path, "--data toys.ToyData --model toys.ToyNet --federation.rounds 1")
    printed = place.ended("--ckpt_path last --name fresh")
    assert "no run of the name fresh in" in printed
    assert "starting a new one" in printed
    assert place.run("fresh").rounds == [1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--model.lr 0.2", ["another configuration", "model.init_args.lr: 0.1 there, 0.2 now", "rounds, workers"]),
        ("--seed 1", ["seed: 0 there, 1 now"]),
        ("--federation.aggregators+=FedBN", ["another configuration", "aggregators.1", "FedBN"]),
        ("--ckpt_path nowhere", ["--ckpt_path nowhere", "found no manifest.json there"]),
        ("--ckpt_path .", ["--ckpt_path .", "run directory"]),
    ],
)
def test_what_does_not_fit_is_refused(finished, options, words):
    before = sorted(finished.path.rglob("*.pt"))
    printed = finished.ended(f"--ckpt_path last {options}", code=1)
    for word in words:
        assert word in printed
    assert sorted(finished.path.rglob("*.pt")) == before


def test_another_model_or_other_aggregators_are_refused_by_test(finished):
    plain = Place(finished.path, "--data toys.ToyData --ckpt_path last")
    other = plain.fit("--model awkward.WideNet --federation.aggregators+=Scaffold", "test")
    none = Place(finished.path / "logs", f"{plain.options} --run_dir {finished.path}").fit(
        "--model toys.ToyNet", "test"
    )
    assert (other.wait(), none.wait()) == (1, 1)
    assert "another model" in other.output
    assert "head.weight: [3, 144] there, absent here" in other.output
    assert "expected aggregators [], found ['Scaffold']; use the run's config.yaml" in none.output


def test_a_torn_checkpoint_is_refused_and_an_older_one_can_be_named(finished, tmp_path):
    place = copy_of(finished, tmp_path)
    file = tmp_path / "default/run/checkpoints/round-000004/clients-0.pt"
    file.write_bytes(file.read_bytes()[:500])
    torn = place.ended("--ckpt_path last", code=1)
    assert "round-000004/clients-0.pt" in torn
    assert f"--ckpt_path {tmp_path}/default/run/checkpoints/round-000001" in torn
    place.ended(f"--ckpt_path {tmp_path}/default/run/checkpoints/round-000001")
    assert_same_run(place.run("run"), finished.run("run"))


def _steps(kept: Kept) -> set[int]:
    return {step for step, key, _ in kept.metrics() if key == "val/auroc_macro"}


@pytest.mark.slow
def test_an_experiment_may_be_called_phases(tmp_path):
    """Its runs are not phases of a run, although they are in a folder of that name."""
    place = Place(tmp_path, f"{OPTIONS} --experiment phases --name run")
    place.ended("--federation.rounds 1")
    place.ended("--federation.rounds 2 --ckpt_path last")
    assert (tmp_path / "phases/run/checkpoints/round-000002").is_dir()
