"""Locks of run directories."""

import json
import os
import socket
from pathlib import Path

import pytest
import refusals
from runs import execute, wait_until

from fedlit.core.errors import ConfigError
from fedlit.tracking.lock import HOLDER, LOCK, LockHolder, RunLock, is_held, refuse_held


def test_the_second_process_gets_an_error_that_names_the_first(tmp_path: Path):
    (tmp_path / "config.yaml").touch()
    first = RunLock(tmp_path)
    first.acquire()
    holder = json.loads((tmp_path / HOLDER).read_text())
    assert (holder["pid"], holder["host"]) == (os.getpid(), socket.gethostname())
    with refusals.refused(ConfigError, os.getpid(), "on host", socket.gethostname()):
        RunLock(tmp_path).acquire()
    assert is_held(tmp_path)
    first.release()
    assert not is_held(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    RunLock(tmp_path).acquire()


def test_an_otherwise_empty_directory_is_deleted_with_the_lock(tmp_path: Path):
    directory = tmp_path / "run"
    directory.mkdir()
    lock = RunLock(directory)
    lock.acquire()
    lock.release()
    lock.release()
    assert not directory.exists()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path):
    code = (
        "import sys, time; from pathlib import Path; from fedlit.tracking.lock import RunLock\n"
        "lock = RunLock(Path(sys.argv[1])); lock.acquire(); print('held', flush=True); time.sleep(60)"
    )
    started = execute(code, tmp_path, tmp_path)
    process = started.process
    assert wait_until(lambda: started.output == "held\n", started)
    with refusals.refused(ConfigError, process.pid):
        refuse_held(tmp_path)
    process.kill()
    process.join()
    assert LockHolder.read(tmp_path).pid == process.pid
    lock = RunLock(tmp_path)
    lock.acquire()
    assert LockHolder.read(tmp_path).pid == os.getpid()
    lock.release()


def test_a_lock_of_another_host_counts_until_its_file_is_deleted(tmp_path: Path):
    note = tmp_path / HOLDER
    note.write_text(json.dumps({"pid": 7, "host": "node-3", "started": "2026-01-02 03:04:05"}))
    with refusals.refused(ConfigError, note) as refused:
        RunLock(tmp_path).acquire()
    assert "2026-01-02 03:04:05" in str(refused.value)
    assert is_held(tmp_path)
    note.unlink()
    RunLock(tmp_path).acquire()


@pytest.mark.parametrize("left", ["", "{", "[]", '{"pid": 3}'])
def test_an_incomplete_file_is_not_a_lock(tmp_path: Path, left: str):
    (tmp_path / HOLDER).write_text(left)
    (tmp_path / LOCK).touch()
    lock = RunLock(tmp_path)
    lock.acquire()
    lock.release()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with refusals.refused(ConfigError, "file"):
        RunLock(tmp_path / "file").acquire()


def test_the_lock_of_a_dead_container_on_this_machine_is_taken_over(tmp_path: Path, monkeypatch):
    lock = RunLock(tmp_path)
    lock.acquire()
    left = (tmp_path / HOLDER).read_text()
    lock.release()
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / HOLDER).write_text(left)
    monkeypatch.setattr(socket, "gethostname", lambda: "another-container")
    if not LockHolder.read(tmp_path).boot:
        pytest.skip("the system has no name for its start")
    lock = RunLock(tmp_path)
    lock.acquire()
    assert LockHolder.read(tmp_path).host == "another-container"
    lock.release()
