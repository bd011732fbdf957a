"""Checkpoints: complete or absent, linked, pruned, refused, and read safely."""

import os

import pytest
import torch
from refusals import raising, refused
from runs import assert_same_tensors
from torch import nn
from toy_checkpoints import KINDS, LAYOUT, checkpoints, client, rounds_in, save, server, small
from toys import CLASSES, ToyNet

from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.cadence import Cadence
from fedlit.core.checkpoints.checkpoint import Checkpoints
from fedlit.core.checkpoints.manifest import Best, Manifest, sha256
from fedlit.core.checkpoints.stored_states import stacked, unstacked
from fedlit.core.errors import CheckpointError
from fedlit.core.fabric import make_fabric
from fedlit.core.flat import FlatModel


def test_what_was_saved_is_what_is_loaded(tmp_path):
    states = {"site-0": small(3), "site-1": client(4), "site-2": small(5)}
    save(checkpoints(tmp_path), 12, states, Best(0.75, 12))
    loaded = checkpoint.load(tmp_path / "round-000012", LAYOUT, KINDS)
    assert (loaded.round, loaded.best) == (12, Best(0.75, 12))
    expected = server(12)
    assert torch.equal(loaded.server.w, expected.w)
    assert torch.equal(loaded.server.stats, expected.stats)
    assert torch.equal(loaded.server.aggregators[0]["c"], expected.aggregators[0]["c"])
    assert loaded.server.aggregators[1] == {}
    assert list(loaded.clients) == list(states)
    assert loaded.files == {"site-0": "clients-0.pt", "site-1": "client-00001.pt", "site-2": "clients-0.pt"}
    for name, state in states.items():
        assert_same_tensors(loaded.clients[name].tensors(), state.tensors())


def test_every_file_loads_with_weights_only_and_holds_no_more_than_its_tensors(tmp_path):
    save(checkpoints(tmp_path), 1, {"site-1": client(2), "site-2": small(2)})
    files = sorted((tmp_path / "round-000001").glob("*.pt"))
    assert [f.name for f in files] == ["client-00001.pt", "clients-0.pt", "server.pt"]
    for file in files:
        tensors = torch.load(file, weights_only=True)
        nbytes = sum(t.numel() * t.element_size() for t in tensors.values())
        assert file.stat().st_size < nbytes + 8_000


def test_small_states_share_one_file_whatever_they_hold(tmp_path):
    states = {"site-0": small(1, 8), "site-1": small(2, 0), "site-2": small(3, 8)}
    states["site-2"].buffers = {"count": torch.tensor(7), "seen": torch.tensor([True, False])}
    save(checkpoints(tmp_path), 1, states)
    assert sorted(f.name for f in (tmp_path / "round-000001").glob("*.pt")) == ["clients-0.pt", "server.pt"]
    loaded = checkpoint.load(tmp_path / "round-000001", LAYOUT, KINDS)
    for name, state in states.items():
        assert_same_tensors(loaded.clients[name].tensors(), state.tensors())


def test_a_state_that_grows_gets_a_file_of_its_own_and_one_that_shrinks_gives_it_up(tmp_path):
    to = checkpoints(tmp_path)
    for rounds, states in enumerate(({"site-0": small(1)}, {"site-0": client(2)}, {"site-0": small(3)}), start=1):
        save(to, rounds, states)
        loaded = checkpoint.load(tmp_path / f"round-{rounds:06d}", LAYOUT, KINDS)
        assert_same_tensors(loaded.clients["site-0"].tensors(), states["site-0"].tensors())
        assert list(loaded.files.values()) == ["client-00000.pt" if rounds == 2 else "clients-0.pt"]


def test_states_of_several_ranks_come_together(tmp_path):
    save(checkpoints(tmp_path), 1, {"site-0": small(1)})
    path = tmp_path / "round-000001"
    torch.save(stacked({1: small(2), 2: small(3)}), path / "clients-1.pt")
    manifest = Manifest.read(path)
    manifest.files.append("clients-1.pt")
    manifest.sha256["clients-1.pt"] = sha256(path / "clients-1.pt")
    manifest.write(path)
    loaded = checkpoint.load(path, LAYOUT, KINDS)
    assert {name: state.batches for name, state in loaded.clients.items()} == {"site-0": 1, "site-1": 2, "site-2": 3}
    torch.save(stacked({0: small(2)}), path / "clients-1.pt")
    manifest.sha256["clients-1.pt"] = sha256(path / "clients-1.pt")
    manifest.write(path)
    with refused(CheckpointError, "clients-1.pt", "number 0"):
        checkpoint.load(path, LAYOUT, KINDS)


def test_rows_that_are_nobodys_are_refused():
    for change, words in (
        ({"0/clients": None}, "lacks the tensor 'clients'"),
        ({"0/w": torch.zeros(3, 8)}, r"expected 2 rows of 'w', found shape \(3, 8\)"),
        ({"0/clients": torch.tensor([0, 3])}, "a client number 3 of 3"),
        ({"0/clients": torch.tensor([-1, 1])}, "a client number -1 of 3"),
        ({"0/clients": torch.tensor([1, 1])}, "a client number 1 twice"),
    ):
        stacks = stacked({0: small(1), 2: small(2)}) | change
        with pytest.raises(ValueError, match=words):
            unstacked({k: v for k, v in stacks.items() if v is not None}, 3, ("batches", "w", "stats"))


def test_files_of_clients_that_did_not_train_are_links(tmp_path):
    to, states = checkpoints(tmp_path), {"site-0": client(1), "site-1": client(1)}
    save(to, 1, states, Best(0.5, 1))
    states = states | {"site-1": client(2)}
    save(to, 2, states, Best(0.5, 1))

    def node(rounds: int, name: str) -> int:
        return (tmp_path / f"round-{rounds:06d}" / name).stat().st_ino

    assert node(1, "client-00000.pt") == node(2, "client-00000.pt")
    assert node(1, "client-00001.pt") != node(2, "client-00001.pt")
    save(to, 3, states, Best(0.9, 3))
    assert rounds_in(tmp_path) == [3]
    loaded = checkpoint.load(tmp_path / "round-000003", LAYOUT, KINDS)
    assert {name: state.batches for name, state in loaded.clients.items()} == {"site-0": 1, "site-1": 2}


def test_a_file_system_without_links_gets_copies(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", raising(OSError("no links here")))
    to, states = checkpoints(tmp_path), {"site-0": client(1)}
    save(to, 1, states)
    save(to, 2, states)
    assert checkpoint.load(tmp_path / "round-000002", LAYOUT, KINDS).clients["site-0"].batches == 1


def test_the_newest_and_the_best_are_kept(tmp_path):
    to, best = checkpoints(tmp_path), Best()
    kept = []
    for rounds, value in enumerate([float("nan"), 0.6, 0.5, 0.7, 0.7, 0.1]):
        if best.improved_by(value, "max"):
            best = Best(value, rounds)
        save(to, rounds, best=best)
        kept.append(rounds_in(tmp_path))
        assert checkpoint.find(tmp_path, "last") == tmp_path / f"round-{rounds:06d}"
        assert checkpoint.find(tmp_path, "best") == (tmp_path / f"round-{best.round:06d}" if rounds else None)
    assert kept == [[0], [1], [1, 2], [3], [3, 4], [3, 5]]
    assert not [p for p in tmp_path.iterdir() if not p.name.startswith("round-")]


@pytest.mark.parametrize("value", [0.6, 0.5, 0.4, float("nan")])
def test_better(value):
    assert Best(0.5, 1).improved_by(value, "max") == (value > 0.5)
    assert Best(0.5, 1).improved_by(value, "min") == (value < 0.5)
    assert Best().improved_by(value, "max") == Best().improved_by(value, "min") == (value == value)


class Died(BaseException):
    """Represents SIGKILL: nothing catches it."""


def dying_at(step: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make the process die at its step-th change of the file system; return the changes so far."""
    changes: list[str] = []

    def wrap(module: object, name: str) -> None:
        plain = getattr(module, name)

        def changed(*args, **kwargs):
            if len(changes) == step:
                raise Died
            changes.append(name)
            return plain(*args, **kwargs)

        monkeypatch.setattr(module, name, changed)

    for name in ("link", "replace", "unlink", "rmdir", "fsync"):
        wrap(os, name)
    wrap(torch, "save")
    return changes


def test_killed_at_any_change_of_the_file_system_a_whole_checkpoint_is_left(tmp_path):
    """After death at any change, what is found loads, is the old or the new state, and saving continues."""
    first, second = (
        {"site-0": client(1), "site-1": client(1), "site-2": small(1)},
        {"site-1": client(2), "site-2": small(2)},
    )
    seen, step, finished = set(), 0, False
    while not finished:
        folder = tmp_path / str(step)
        to = checkpoints(folder)
        save(to, 1, first, Best(0.4, 1))
        save(to, 2, first, Best(0.5, 2))
        with pytest.MonkeyPatch.context() as patch:
            changes = dying_at(step, patch)
            try:
                save(to, 3, first | second, Best(0.6, 3))
                finished = True
            except Died:
                pass
        assert all((path / "manifest.json").exists() for path in folder.glob("round-*"))
        last, best = (checkpoint.find(folder, which) for which in ("last", "best"))
        assert last == best
        loaded = checkpoint.load(last, LAYOUT, KINDS)
        assert float(loaded.server.w[0]) == loaded.round
        batches = {name: state.batches for name, state in loaded.clients.items()}
        moved = loaded.round - 1
        assert batches == {"site-0": 1, "site-1": moved, "site-2": moved}
        seen.add(loaded.round)
        again = checkpoints(folder, loaded.round)
        save(again, 4, loaded.clients, loaded.best)
        assert rounds_in(folder) == sorted({loaded.round, 4})
        assert not list(folder.glob(".*"))
        step += 1
    assert seen == {2, 3}
    assert {"link", "replace", "unlink", "rmdir", "fsync", "save"} <= set(changes)


def test_resuming_does_not_touch_the_checkpoint_it_starts_from(tmp_path):
    save(checkpoints(tmp_path), 3, {"site-0": client(1)})
    before = (tmp_path / "round-000003" / "server.pt").stat().st_ino
    again = checkpoints(tmp_path, 3)
    save(again, 3, {"site-0": client(1)})
    assert (tmp_path / "round-000003" / "server.pt").stat().st_ino == before


def test_resuming_from_an_older_one_drops_the_later(tmp_path):
    to = checkpoints(tmp_path)
    save(to, 2, best=Best(0.5, 2))
    save(to, 5, best=Best(0.5, 2))
    assert rounds_in(tmp_path) == [2, 5]
    (tmp_path / ".writing-000006").mkdir()
    checkpoints(tmp_path, 2)
    assert rounds_in(tmp_path) == [2]
    assert not list(tmp_path.glob(".*"))
    assert checkpoint.find(tmp_path, "best") == tmp_path / "round-000002"


def narrow() -> nn.Module:
    module = ToyNet()
    module.head = nn.Linear(4 * 6 * 6, 3, bias=False)
    return module


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: ToyNet().double(), ("dtype torch.float64", "found torch.float32")),
        (lambda: ToyNet(("Edema", "Effusion")), ("['Edema', 'Effusion']", f"found {list(CLASSES)}")),
        (narrow, ("head.bias: [3] there, absent here",)),
    ],
)
def test_another_model_is_refused_saying_what_differs(tmp_path, make, names):
    save(checkpoints(tmp_path), 1)
    with refused(CheckpointError, *names):
        checkpoint.load(tmp_path / "round-000001", FlatModel(make()).layout, KINDS)


def test_other_aggregators_are_refused(tmp_path):
    save(checkpoints(tmp_path), 1)
    with refused(CheckpointError, "['FedAvg']", "['Scaffold', 'FedBN']"):
        checkpoint.load(tmp_path / "round-000001", LAYOUT, ["FedAvg"])


def test_torn_and_strange_files_are_checkpoint_errors(tmp_path):
    """Files cut, emptied, overwritten or removed raise an error that names the checkpoint, never another exception."""
    generator = torch.Generator().manual_seed(0)
    path = tmp_path / "round-000001"
    save(checkpoints(tmp_path), 1, {"site-0": client(1), "site-1": small(1)})
    for name in ("manifest.json", "server.pt", "client-00000.pt", "clients-0.pt"):
        file = path / name
        whole = file.read_bytes()
        cuts = torch.randint(1, len(whole) - 1, (5,), generator=generator).tolist()
        damages = [whole[:cut] for cut in (0, 1, *cuts)] + [b"garbage" * 9, b"\x80\x02N.", b"[]", b"{}", b"\xff\xfe"]
        for damage in (*damages, None):
            file.unlink() if damage is None else file.write_bytes(damage)
            with pytest.raises(CheckpointError, match="round-000001"):
                checkpoint.load(path, LAYOUT, KINDS)
        file.write_bytes(whole)
    torch.save({"w": "not a tensor"}, path / "server.pt")
    with refused(CheckpointError, "round-000001"):
        checkpoint.load(path, LAYOUT, KINDS)


def test_a_malicious_file_runs_nothing(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "evil"),)

    save(checkpoints(tmp_path), 1)
    torch.save({"w": Evil()}, tmp_path / "round-000001" / "server.pt")
    with pytest.raises(CheckpointError):
        checkpoint.load(tmp_path / "round-000001", LAYOUT, KINDS)
    assert not (tmp_path / "evil").exists()


def test_the_cadence_in_rounds_and_by_time(tmp_path, monkeypatch):
    fixed = Checkpoints(tmp_path, make_fabric("cpu"), Cadence(rounds=5))
    assert [rounds for rounds in range(1, 16) if fixed.due(rounds)] == [5, 10, 15]
    clock = [1000.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: clock[0])
    timed = Checkpoints(tmp_path, make_fabric("cpu"), Cadence(seconds=60.0))
    assert not timed.due(1)
    clock[0] += 60
    assert timed.due(1)
    plain = checkpoint._write
    clock[0] = 1000.0

    def slow(tensors, path):
        clock[0] += 1.5
        plain(tensors, path)

    monkeypatch.setattr(checkpoint, "_write", slow)
    auto = Checkpoints(tmp_path, make_fabric("cpu"))
    spent, saved = 0.0, 0
    for rounds in range(400):
        clock[0] += 1.0
        if rounds == 0 or auto.due(rounds):
            before = clock[0]
            save(auto, rounds)
            spent, saved = spent + clock[0] - before, saved + 1
    assert saved > 3
    assert spent / (clock[0] - 1000.0) < 0.025


def test_the_cadence_is_read_from_rounds_seconds_or_auto():
    assert Cadence.parse("auto") == Cadence()
    assert Cadence.parse(5) == Cadence.parse("5") == Cadence(rounds=5)
    assert Cadence.parse("60s") == Cadence(seconds=60.0)
