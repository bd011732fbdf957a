"""Tensors that processes share: written by one, seen by another, gone afterwards; and those in messages."""

import errno
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import time
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from engine_rounds import opened, run, shared_folder
from refusals import raising
from runs import Place, context, execute
from toys import ToyData, ToyNet

from fedlit.aggregators import Aggregator
from fedlit.core.fabric import make_fabric
from fedlit.core.system.pickling import Pickler
from fedlit.federation.assembly import assemble
from fedlit.federation.engines import pool
from fedlit.federation.engines import shared_memory as shared
from fedlit.federation.engines.pool import packed
from fedlit.federation.engines.shared_memory import ALIGNMENT, Handle, SharedFolder
from fedlit.federation.federation import Federation
from fedlit.schedules import ConstantSchedule

STATE = {
    "w": torch.arange(1000, dtype=torch.float32),
    "double": torch.tensor([[1.5, -2.5], [float("nan"), float("inf")]], dtype=torch.float64),
    "step": torch.tensor(7),
    "flags": torch.tensor([True, False, True]),
    "nothing": torch.zeros(0),
    "half": torch.tensor([0.5, 0.25], dtype=torch.bfloat16),
}

FULL = raising(OSError(errno.ENOSPC, "No space left on device"))


@pytest.fixture
def folder():
    made = SharedFolder()
    yield made
    made.close()


def assert_written(found: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(found, STATE, rtol=0, atol=0, equal_nan=True)


def test_what_is_written_is_read_and_aligned(folder):
    handle, other = folder.write("a", STATE), folder.write("b", {"w": torch.zeros(5)})
    assert_written(folder.open(handle))
    assert torch.equal(folder.open(other)["w"], torch.zeros(5))
    for tensor in SharedFolder(folder.path).open(handle).values():
        assert tensor.data_ptr() % min(ALIGNMENT, 64) == 0 or not tensor.numel()


def test_what_is_made_where_it_will_lie_is_not_copied(folder):
    w = folder.memory("state", STATE["w"])
    assert (w.shape, w.dtype) == (STATE["w"].shape, STATE["w"].dtype)
    w.copy_(STATE["w"])
    for _ in range(2):  # the file grows once and is mapped again
        found = folder.open(folder.write("state", STATE | {"w": w}))
        assert_written(found)
        w = folder.memory("state", STATE["w"])
        assert w.data_ptr() == found["w"].data_ptr()


def test_a_file_that_grows_leaves_earlier_views_readable(folder):
    other = SharedFolder(folder.path)
    small = folder.write("a", {"w": torch.ones(10)})
    views = [folder.open(small)["w"], other.open(small)["w"]]
    large = folder.write("a", {"w": torch.full((100_000,), 2.0)})
    assert torch.equal(other.open(large)["w"], torch.full((100_000,), 2.0))
    assert all(torch.equal(view, torch.full((10,), 2.0)) for view in views)  # the same memory, seen through the old map
    assert torch.equal(folder.open(folder.write("a", {"w": torch.ones(3)}))["w"], torch.ones(3))


def double(path: str, handle: Handle, back: multiprocessing.connection.Connection) -> None:
    other = SharedFolder(Path(path))
    other.open(handle)["w"].mul_(2)
    back.send(other.write("reply", {"sum": other.open(handle)["w"].sum()}))
    other.close()


def test_another_process_reads_and_writes(folder):
    handle = folder.write("a", STATE)
    ours, theirs = context().Pipe()
    process = context().Process(target=double, args=(str(folder.path), handle, theirs))
    process.start()
    assert ours.poll(60)
    reply = ours.recv()
    process.join(60)
    assert process.exitcode == 0
    assert torch.equal(folder.open(handle)["w"], 2 * STATE["w"])
    assert torch.equal(folder.open(reply)["sum"], 2 * STATE["w"].sum())
    assert folder.path.is_dir()  # only the process that made the folder removes it


def test_close_removes_the_folder_and_views_stay_readable():
    folder = SharedFolder()
    view = folder.open(folder.write("a", STATE))["w"]
    assert folder.path.is_dir()
    folder.close()
    assert not folder.path.exists()
    assert torch.equal(view, STATE["w"])
    folder.close()


def test_no_room_says_what_to_do(folder, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", FULL)
    with pytest.raises(
        OSError, match=r"no room for 4 MiB of shared memory.*--shm-size.*federation.workers: 1"
    ) as caught:
        folder.write("a", {"w": torch.zeros(2**20)})
    assert caught.value.errno == errno.ENOSPC


def test_no_room_for_what_workers_begin_with_says_what_to_do(monkeypatch):
    monkeypatch.setattr(pool, "Pickler", type("Full", (Pickler,), {"dump": FULL}))
    federation = Federation([], rounds=1, schedule=ConstantSchedule(1, "steps"), workers=2)
    with pytest.raises(OSError, match=r"no room for the model and the data in shared memory: .*federation.workers: 1"):
        assemble(federation, ToyNet(), ToyData(3), make_fabric("cpu"))


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no memory file system")
def test_a_small_memory_file_system_is_left_alone(monkeypatch, tmp_path):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**26, 0, 2**26))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.warns(UserWarning, match="at least 1 GiB of free space"):
        folder = SharedFolder()
    assert folder.path.parent == tmp_path
    folder.close()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**34, 0, 2**34))
    folder = shared.SharedFolder()
    assert folder.path.parent == Path("/dev/shm")
    folder.close()


MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())


def folders_of(pid: int) -> list[Path]:
    return [*MEMORY.glob(f"*fedlit-{pid}-*")]


@pytest.mark.slow
def test_the_next_start_sweeps_what_a_killed_process_has_left_and_nothing_else(folder, tmp_path):
    code = (
        "import os, signal; from fedlit.federation.engines.shared_memory import SharedFolder\n"
        "folder = SharedFolder(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = execute(code, tmp_path)
    assert killed.wait() == -signal.SIGKILL
    (left,) = folders_of(killed.process.pid)
    strange = Path(tempfile.mkdtemp(prefix="fedlit-", dir=MEMORY))  # of an earlier version, or of something else
    linked = strange.with_name(f"{strange.name}-link")
    linked.symlink_to(left)
    try:
        other = SharedFolder()
        assert not left.exists()
        assert linked.is_symlink()
        assert strange.is_dir()
        assert folder.path.is_dir()  # of a living process
        assert other.path in folders_of(os.getpid())
        other.close()
    finally:
        linked.unlink()
        strange.rmdir()


@pytest.mark.slow
def test_a_folder_goes_with_a_process_that_ends_without_closing_it(tmp_path):
    code = "from fedlit.federation.engines.shared_memory import SharedFolder as S; folder = S(); raise SystemExit(143)"
    ended = execute(code, tmp_path)
    assert ended.wait() == 143
    assert folders_of(ended.process.pid) == []


@pytest.mark.parametrize("command", ["fit", pytest.param("predict", marks=pytest.mark.slow)])
def test_sigterm_before_the_first_round_leaves_nothing(tmp_path, command):
    place = Place(tmp_path, "--data toys.ToyData --model toys.ToyNet --name run --federation.workers 2")
    if command == "predict":
        place.ended("--federation.rounds 1")
    before = {path for path in tmp_path.rglob("*") if not path.name.startswith("log-")}
    started = place.fit("--federation.rounds 1 --ckpt_path last", command=command)
    deadline = time.monotonic() + 60
    while not folders_of(started.process.pid):
        assert time.monotonic() < deadline, started.output
        time.sleep(0.001)
    started.process.terminate()
    assert started.wait() == 143, started.output
    assert folders_of(started.process.pid) == []
    assert {path for path in tmp_path.rglob("*") if not path.name.startswith("log-")} == before
    assert "Traceback" not in started.output


TENSORS = (
    torch.tensor(3),
    torch.zeros(0),
    torch.zeros(2, 0, 3),
    torch.arange(12.0).view(3, 4).t(),
    torch.tensor([True, False]),
    torch.randn(5, generator=torch.Generator().manual_seed(0)).bfloat16(),
    torch.tensor([float("nan"), -0.0], dtype=torch.float64),
    torch.arange(100)[10:20],
)


def test_a_tensor_arrives_with_its_kind_shape_and_bits():
    for arrived, tensor in zip(pickle.loads(packed({"state": TENSORS}))["state"], TENSORS, strict=True):
        assert (arrived.dtype, arrived.shape) == (tensor.dtype, tensor.shape)
        assert pickle.dumps(arrived.tolist()) == pickle.dumps(tensor.tolist())
        arrived.zero_()  # it is the receiver's own


def test_a_view_takes_no_more_than_it_shows():
    assert len(packed(torch.zeros(1_000_000)[:4])) < 1_000


class FirstIsSlow(Aggregator):
    """The client whose reply is due first comes last."""

    def on_client_round_start(self, ctx) -> None:
        if ctx.client.name == ctx.rnd.cohort[0]:
            time.sleep(0.5)


def sums(workers: int) -> tuple[list[torch.Tensor], list[dict[str, int]]]:
    """The sum of the replies of three rounds, and the sizes of the reply files after each of them."""
    federation, found, files = Federation([FirstIsSlow()], schedule=ConstantSchedule(2, "steps")), [], []
    torch.manual_seed(0)
    with opened(federation, ToyNet(), ToyData(4), workers) as (session, server):
        for index in range(3):
            _, total, _ = run(session, server, index)
            session.engine.commit()
            server.w += total.vectors["w"]
            found.append(total.vectors["w"])
            if folder := shared_folder(session.engine):
                files.append({path.name: path.stat().st_size for path in sorted(folder.glob("reply-*"))})
    return found, files


@pytest.mark.slow
def test_what_a_worker_has_needed_to_run_ahead_is_free_after_the_round():
    alone, _ = sums(1)
    beside, files = sums(2)
    assert all(torch.equal(a, b) for a, b in zip(alone, beside, strict=True))
    assert len(files[0]) > 2  # a worker did run ahead
    for sizes in files:
        assert {name for name, size in sizes.items() if size} <= {"reply-0-0", "reply-1-0"}
