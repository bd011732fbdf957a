"""Two commands on the same run: the second fails, and a dead process holds no lock."""

import os
import re
import signal

import pytest
from runs import Command, Place, wait_until

from fedlit.cli.commands import test as test_command
from fedlit.tracking.lock import RunLock

OPTIONS = (
    "--data awkward.NoisyData --data.clients 2 --model awkward.Slow --model.seconds 0.02 --name run "
    "--federation.rounds 200 --ckpt_path last"
)


def started(place: Place) -> Command:
    command = place.fit()
    assert wait_until(lambda: "round 2/" in command.output, command), command.output
    return command


def test_the_second_fit_is_refused_and_names_the_first(tmp_path):
    place = Place(tmp_path, OPTIONS)
    first = started(place)
    rows = (tmp_path / "default/run/metrics.csv").read_text().splitlines()[:10]
    second = place.ended(code=1)
    assert f"process {first.process.pid} on host {os.uname().nodename}" in second
    first.process.kill()
    assert first.wait() == -signal.SIGKILL
    third = place.fit("--federation.rounds 3 --federation.checkpoint_every 1")
    third.wait()
    assert "another process" not in third.output
    assert re.search(r"resuming .*run after \d+ rounds", third.output)
    assert (tmp_path / "default/run/metrics.csv").read_text().splitlines()[:10] == rows
    assert [path.name for path in (tmp_path / "default/run").glob(".*")] == []


@pytest.mark.slow
def test_test_keeps_off_where_a_run_would_write(tmp_path):
    place = Place(tmp_path, OPTIONS)
    first = started(place)
    own = place.ended(command="test", code=1)
    assert f"process {first.process.pid} on host" in own
    place.ended(f"--output {tmp_path / 'predictions'}", command="test")
    first.process.terminate()
    assert first.wait() == 143, first.output
    assert [path.name for path in (tmp_path / "default/run").glob(".*")] == []


@pytest.mark.slow
def test_a_checkpoint_that_a_run_at_work_replaces_meanwhile_is_no_error(tmp_path, fedlit_cli, monkeypatch):
    place = Place(tmp_path, OPTIONS.replace("200", "2"))
    place.ended()
    last = place.run("run").last
    gone, find = iter([last.with_name("round-000001")]), test_command.required_checkpoint
    monkeypatch.setattr(test_command, "required_checkpoint", lambda experiment: next(gone, None) or find(experiment))
    lock = RunLock(tmp_path / "default/run")
    lock.acquire()
    code, out, err = fedlit_cli(f"test --run_dir {tmp_path} {place.options} --output {tmp_path / 'predictions'}")
    lock.release()
    assert code == 0, err
    assert f"{last.name}: the best and last model" in out


@pytest.mark.slow
def test_a_run_that_died_before_its_first_checkpoint_is_passed_over(tmp_path):
    place = Place(tmp_path, OPTIONS.replace("200", "1"))
    dead = tmp_path / "default/run-9"
    dead.mkdir(parents=True)
    (dead / "config.yaml").write_text("seed: 0\n")
    assert f"passed over {dead}: it ended before its first checkpoint" in place.ended()
    assert place.run("run").rounds == [1]


@pytest.mark.slow
def test_all_ranks_are_refused_and_none_waits(tmp_path):
    place = Place(tmp_path, OPTIONS.replace("200", "1"))
    place.ended()
    lock = RunLock(tmp_path / "default/run")
    lock.acquire()
    ranks = place.ranks("--federation.rounds 2")
    assert [rank.wait() for rank in ranks] == [1, 1], ranks[0].output
    assert all(f"process {os.getpid()} on host" in rank.output for rank in ranks)
    lock.release()
