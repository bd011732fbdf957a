"""Checkpoints written while the next round trains: their contents, their time, and reports of failures."""

import threading

import pytest
import torch
from refusals import raising
from runs import assert_same_tensors
from toy_checkpoints import KINDS, LAYOUT, NAMES, checkpoints, client, rounds_in, server

from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.checkpoint import Contents
from fedlit.core.checkpoints.manifest import Best
from fedlit.core.checkpoints.stored_states import StateFolder


@pytest.fixture
def gate(monkeypatch) -> threading.Event:
    """Files are written after it is set."""
    opened, write = threading.Event(), checkpoint._write

    def waiting(tensors, path) -> None:
        assert opened.wait(60)
        write(tensors, path)

    monkeypatch.setattr(checkpoint, "_write", waiting)
    return opened


def later(to: checkpoint.Checkpoints, rounds: int, state, clients=None) -> None:
    to.save(Contents(rounds, state, clients or {}, Best(0.5, rounds), NAMES, KINDS), later=True)


def test_it_holds_what_the_server_had_when_it_was_begun(tmp_path, gate):
    to, state, kept = checkpoints(tmp_path), server(1), client(4)
    later(to, 1, state, {"site-1": kept})
    assert rounds_in(tmp_path) == []
    for tensor in (state.w, state.stats, state.aggregators[0]["c"]):
        tensor.fill_(7)
    state.aggregators[0] = {}
    gate.set()
    to.finish()
    loaded, wanted = checkpoint.load(tmp_path / "round-000001", LAYOUT, KINDS), server(1)
    assert torch.equal(loaded.server.w, wanted.w)
    assert torch.equal(loaded.server.stats, wanted.stats)
    assert torch.equal(loaded.server.aggregators[0]["c"], wanted.aggregators[0]["c"])
    assert loaded.best == Best(0.5, 1)
    assert_same_tensors(loaded.clients["site-1"].tensors(), kept.tensors())


def test_a_state_in_a_file_may_go_as_soon_as_it_is_begun(tmp_path, gate):
    (tmp_path / "states").mkdir()
    folder, to, kept = StateFolder(tmp_path / "states", 2), checkpoints(tmp_path / "checkpoints"), client(4)
    stored = folder.keep(kept)
    later(to, 1, server(1), {"site-1": stored})
    folder.drop([stored])
    assert not stored.file.exists()
    gate.set()
    to.finish()
    loaded = checkpoint.load(tmp_path / "checkpoints" / "round-000001", LAYOUT, KINDS)
    assert_same_tensors(loaded.clients["site-1"].tensors(), kept.tensors())


def test_the_next_waits_for_the_one_before(tmp_path, gate):
    to = checkpoints(tmp_path)
    later(to, 1, server(1))
    threading.Timer(0.2, gate.set).start()
    later(to, 2, server(2))  # returns once the first is there
    assert rounds_in(tmp_path)
    to.finish()
    assert checkpoint.rounds(checkpoint.find(tmp_path, "last")) == 2


def test_what_went_wrong_is_raised_once_where_it_is_waited_for(tmp_path, monkeypatch):
    to = checkpoints(tmp_path)
    monkeypatch.setattr(checkpoint, "_write", raising(OSError(28, "No space left on device")))
    later(to, 1, server(1))
    with pytest.raises(OSError, match="No space left on device"):
        to.finish()
    to.finish()
    assert rounds_in(tmp_path) == []
