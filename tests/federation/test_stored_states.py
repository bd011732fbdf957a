"""Client states in files: the same results, exact on a resume, and an error if the disk is too small."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from awkward import NoisyData, WideNet
from engine_rounds import opened, shared_folder, unprobed
from refusals import refused
from runs import Kept, Place, assert_same_run, assert_same_tensors, wait_until

from fedlit.aggregators import FedBN, Scaffold
from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.stored_states import StateFolder, StoredState, in_bytes
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.fabric import make_fabric
from fedlit.core.flat import FlatModel
from fedlit.core.messages import ClientState
from fedlit.federation.assembly import assemble
from fedlit.federation.callbacks import Callback
from fedlit.federation.federation import Federation
from fedlit.schedules import ConstantSchedule
from fedlit.tracking.base import Tracker
from fedlit.tracking.run import Run

STATE = 20_000
"""Number of elements in a state that is not small."""


def state(value: float) -> ClientState:
    return ClientState(int(value), torch.full((STATE,), value), torch.zeros(0), {}, [{"c": torch.ones(3) * value}, {}])


class Looks(Callback):
    """Records the files of states after each round."""

    def __init__(self) -> None:
        self.files, self.kinds = [], set()

    def on_round_end(self, state) -> None:
        held = state.session.engine.client_states()
        self.kinds |= {type(kept) for kept in held.values()}
        self.files.append((len(list((state.run.directory / "states").glob("*/*.pt"))), len(held)))


def fit(place: Path, memory: str, workers: int = 1, resume: Path | None = None, rounds: int = 3) -> Looks:
    torch.manual_seed(0)
    federation = Federation(
        [Scaffold(), FedBN()], rounds=rounds, schedule=ConstantSchedule(2, "steps"), participation=0.7,
        optimizer_state="keep", workers=workers, state_memory=memory, checkpoint_every=1,
    )  # fmt: skip
    with unprobed():
        session = assemble(federation, WideNet(momentum=0.9), NoisyData(clients=5, size=9), make_fabric("cpu"))
    run, looks = Run(place / "toy" / "one", Tracker(), resume is not None), Looks()
    try:
        assert federation.fit(session, run, resume, callbacks=[looks]) == 0
    finally:
        session.engine.close()
        run.finish("FINISHED")
    return looks


def test_states_in_files_change_no_number(tmp_path):
    """Neither do they with workers, which read and write them."""
    in_memory, in_files = fit(tmp_path / "memory", "1GB"), fit(tmp_path / "files", "1kB", workers=2)
    assert_same_run(Kept(tmp_path / "memory/toy/one"), Kept(tmp_path / "files/toy/one"))
    assert (in_memory.kinds, in_files.kinds) == ({ClientState}, {StoredState})
    assert [files for files, _ in in_memory.files] == [0] * 3
    # One file per client that has trained: replaced files are deleted.
    assert [files for files, _ in in_files.files] == [held for _, held in in_files.files]
    assert not (tmp_path / "files/toy/one/states").exists()


def test_a_measuring_round_of_all_clients_makes_no_states():
    """States of all clients together would fit neither into memory nor into /dev/shm."""
    module, data = WideNet(momentum=0.9), NoisyData(clients=5, size=9)
    with opened(Federation([Scaffold()]), module, data, 2) as (session, server):
        session.measure(server, session.round(0))
        assert session.engine._waiting == {}
        shared = {file.name for file in shared_folder(session.engine).iterdir()}
        assert any(name.startswith("reply-") for name in shared)
        assert not any(name.startswith("client-") for name in shared)


def test_a_run_goes_on_from_files_to_memory_and_back(tmp_path):
    fit(tmp_path / "whole", "1GB")
    for rounds, memory in ((1, "1kB"), (2, "1GB"), (3, "1kB")):
        last = checkpoint.find(tmp_path / "parts/toy/one/checkpoints", "last")
        fit(tmp_path / "parts", memory, resume=last, rounds=rounds)
    assert_same_tensors(*(Kept(tmp_path / name / "toy/one").tensors() for name in ("whole", "parts")))


def test_a_checkpoint_stays_as_it_is_while_rounds_go_on(tmp_path):
    """Its hashes are checked: the best, of an early round, is linked to files that later rounds have replaced."""
    fit(tmp_path, "1kB", rounds=4)
    run = tmp_path / "toy/one"
    layout = FlatModel(WideNet()).layout
    for path in run.glob("checkpoints/round-*"):
        stored = checkpoint.load(path, layout, ["Scaffold", "FedBN"], stored=True)
        loaded = checkpoint.load(path, layout, ["Scaffold", "FedBN"])
        assert {type(kept) for kept in stored.clients.values()} == {StoredState}
        for name, kept in stored.clients.items():
            assert_same_tensors(kept.load().tensors(), loaded.clients[name].tensors())


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed_with_another_number_of_workers(tmp_path):
    """The first is the best round: kills also repeat rounds whose metrics were written, and are written once."""
    options = (
        "--data awkward.NoisyData --data.clients 4 --model awkward.WideNet --model.momentum 0.9 --federation.rounds 12 "
        "--federation.optimizer_state keep --federation.aggregators+=Scaffold --federation.aggregators+=FedBN "
        "--federation.participation 0.7 --name run --federation.monitor train/loss --federation.monitor_mode max "
        "--federation.checkpoint_every 3"
    )
    whole = Place(tmp_path / "whole", options)
    whole.ended()
    place = Place(tmp_path / "killed", options + " --federation.state_memory 1kB")
    for number, delay in enumerate(torch.rand(4, generator=torch.Generator().manual_seed(51)).tolist()):
        command = place.fit(f"--ckpt_path last --federation.workers {1 + number % 2}")
        # The first one dies before its first checkpoint: it stays behind, and is not the run that is resumed.
        if number and wait_until(lambda command=command: "clients' states: about" in command.output, command):
            command.process.join(delay * 0.3)
        command.process.kill()
        command.wait()
        assert all((path / "manifest.json").exists() for path in tmp_path.glob("killed/default/*/checkpoints/round-*"))
    place.ended("--ckpt_path last")
    (kept,) = (run for run in map(Kept, (tmp_path / "killed/default").iterdir()) if run.rounds)
    assert_same_run(kept, whole.run("run"))
    assert not (kept.path / "states").exists()


def test_a_disk_that_is_too_small_is_refused_before_training(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - 500, 500))
    with refused(ConfigError, "5 clients", "of 0", "the 4"):
        fit(tmp_path, "1kB")
    assert not (tmp_path / "toy/one/states").exists()
    assert not (tmp_path / "toy/one/checkpoints").exists()


def test_a_disk_that_fills_up_in_the_middle_is_told(tmp_path, monkeypatch):
    folder = StateFolder(tmp_path, 2)

    def full(tensors, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedlit.core.checkpoints.stored_states.write_tensors", full)
    with refused(TrainingError, "Free disk space, or raise federation.state_memory, and"):
        folder.keep(state(1))
    assert not list(tmp_path.iterdir())


def test_files_are_kept_adopted_and_dropped(tmp_path):
    folder, other = (StateFolder(tmp_path / name, 2) for name in ("one", "two"))
    folder.path.mkdir()
    other.path.mkdir()
    kept = folder.keep(state(3))
    assert kept.load().aggregators[0]["c"].tolist() == [3, 3, 3]
    small = ClientState(1, torch.ones(4), torch.zeros(0), {}, [{}, {}])
    assert folder.keep(small) is small
    adopted = other.adopt(kept)
    assert (folder.adopt(kept), adopted.file.samefile(kept.file)) == (kept, True)
    folder.drop([kept, small], [kept])
    assert kept.file.exists()
    other.drop([kept, small])
    assert kept.file.exists()  # it is another's
    folder.drop([kept, small])
    assert not kept.file.exists()
    assert adopted.load().batches == 3
    other.close()
    assert not other.path.exists()


def test_memory_as_people_write_it():
    given = ("auto", 0, "4GB", "1.5 GiB", "512mb")
    assert [in_bytes(value) for value in given] == [None, 0, 4 * 10**9, 3 * 2**29, 512 * 10**6]
