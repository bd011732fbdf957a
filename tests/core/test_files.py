"""Writing whole files and folders: the state after a failed write, or the death of the process."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import raising

from fedlit.core.system import files
from fedlit.core.system.files import whole


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_the_block_ends_and_nothing_beside_it(tmp_path):
    path = tmp_path / "deep" / "result.json"
    with whole(path) as draft:
        draft.write_text("one")
        assert not path.exists()
        assert draft.parent == path.parent
    assert path.read_text() == "one"
    with whole(path) as draft:
        draft.write_text("two")
        assert path.read_text() == "one"
    assert path.read_text() == "two"
    assert names(path.parent) == ["result.json"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_whatever_ends_the_block_early_leaves_the_old_file_alone(tmp_path, error):
    path = tmp_path / "result.json"
    path.write_text("old")

    with pytest.raises(error), whole(path) as draft:
        draft.write_text("half") and raising(error())()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["result.json"]


def test_a_full_disk_at_the_last_moment_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    path.write_text("old")

    monkeypatch.setattr(os, "fsync", raising(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space left"), whole(path, durable=True) as draft:
        draft.write_text("new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["result.json"]
    with whole(path) as draft:  # who does not ask for it, does not wait for the disk
        draft.write_text("new")
    assert path.read_text() == "new"


def test_what_is_durable_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    calls = []  # no kill of a process shows this, only a loss of power
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, o=original: (calls.append(n), o(*a)))
    with whole(tmp_path / "a", durable=True) as draft:
        draft.write_text("new")
    assert calls == ["fsync", "replace"]


def test_a_block_that_writes_nothing_is_a_mistake(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(FileNotFoundError), whole(tmp_path / "a"):
        pass
    assert (tmp_path / "a").read_text() == "old"


def test_a_folder_appears_whole_in_the_place_of_another(tmp_path):
    folder = tmp_path / "model"
    for content in ("one", "two"):
        with whole(folder) as draft:
            draft.mkdir()
            (draft / content).write_text(content)
        assert names(folder) == [content]
    with pytest.raises(FileNotFoundError), whole(folder) as draft:
        os.mkdir(draft) or (draft / "no folder" / "three").write_text("half")
    assert names(folder) == ["two"]
    assert names(tmp_path) == ["model"]


def test_a_file_that_appeared_meanwhile_can_be_left(tmp_path, monkeypatch):
    path = tmp_path / "mlflow.db"
    with whole(path, replace=False) as draft:
        draft.write_text("mine")
        path.write_text("the other's")
    assert path.read_text() == "the other's"
    path.unlink()
    with whole(path, replace=False) as draft:
        draft.write_text("mine")
    assert path.read_text() == "mine"
    path.unlink()

    monkeypatch.setattr(os, "link", raising(OSError(errno.EPERM, "no links here")))
    with whole(path, replace=False) as draft:
        draft.write_text("a copy")
    assert path.read_text() == "a copy"
    assert names(tmp_path) == ["mlflow.db"]


KILLED = """
import os, signal, sys
from pathlib import Path
from fedlit.core.system.files import whole

with whole(Path(sys.argv[1])) as draft:
    draft.write_text("half")
    print(draft, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_the_old_file_and_a_hidden_draft(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    path.write_text("old")
    killed = subprocess.run([sys.executable, "-c", KILLED, path], capture_output=True, text=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    draft = Path(killed.stdout.strip())
    assert path.read_text() == "old"
    assert draft.parent == tmp_path
    assert draft.name.startswith(".")
    assert draft.read_text() == "half"
    # A later process of the same number, as in a container, starts anew.
    monkeypatch.setattr(files.os, "getpid", lambda: int(draft.name.split(".")[-2]))
    with whole(path) as again:
        assert (again, again.exists()) == (draft, False)
        again.write_text("new")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["result.json"]
