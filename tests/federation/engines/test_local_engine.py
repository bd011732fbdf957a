"""The local engine: the same bits whatever the number of workers, and clear ends when a worker fails."""

import copy
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from awkward import Counting, NoisyData, Stumbling, WideNet
from runs import assert_same_tensors
from toys import ToyData, ToyNet

from fedlit.aggregators import Aggregator, FedBN, FedProx, Scaffold
from fedlit.core.errors import TrainingError
from fedlit.core.fabric import make_fabric
from fedlit.core.messages import ServerState
from fedlit.federation.assembly import assemble
from fedlit.federation.engines import base, pool
from fedlit.federation.engines.base import jobs_of
from fedlit.federation.engines.local import LocalEngine
from fedlit.federation.evaluation import client_views
from fedlit.federation.federation import Federation
from fedlit.federation.interrupts import Interrupted, Interrupts
from fedlit.federation.server import server_round
from fedlit.federation.session import Session
from fedlit.schedules import ConstantSchedule


class DefinedHere(ToyNet):
    """Holds what pickle alone refuses."""

    def __init__(self) -> None:
        super().__init__(drop=0.0)
        self.scale = lambda loss: 2 * loss

    def training_step(self, batch, batch_idx):
        return self.scale(super().training_step(batch, batch_idx))


@dataclass
class Ran:
    """What a federation leaves behind."""

    tensors: dict[str, torch.Tensor]
    cohorts: list[tuple[str, ...]]
    files: set[str]


def session(federation: Federation, module, data, workers: int) -> Session:
    federation.workers = workers
    return assemble(federation, copy.deepcopy(module), copy.deepcopy(data), make_fabric("cpu"))


def play_round(federation: Federation, made: Session, server: ServerState, index: int) -> tuple[str, ...]:
    rnd = made.round(index)
    total, reports = made.engine.run(rnd.cohort, made.broadcast(server, rnd), rnd)
    assert [report.client for report in reports] == list(rnd.cohort)
    server_round(federation.aggregators, server, total, rnd)
    made.engine.commit()
    return rnd.cohort


def everything(made: Session, server: ServerState) -> dict[str, torch.Tensor]:
    tensors = {"w": server.w, "stats": server.stats}
    tensors |= {f"server/{i}/{k}": v for i, state in enumerate(server.aggregators) for k, v in state.items()}
    for name, state in made.engine.client_states().items():
        tensors |= {f"{name}/{k}": v for k, v in state.tensors().items()}
    return {name: tensor.clone() for name, tensor in tensors.items()}


def play(federation: Federation, module, data, workers: int) -> Ran:
    """All rounds, then an evaluation: every tensor that a run leaves."""
    made = session(federation, module, data, workers)
    try:
        server, _, _ = made.restore(None)
        cohorts = [play_round(federation, made, server, index) for index in range(federation.rounds)]
        tensors = everything(made, server)
        down = made.broadcast(server, made.round(0))
        for scores in made.engine.evaluate(client_views(made.data, "val"), down):
            tensors |= {
                f"scores/{scores.view.client}": scores.scores,
                f"labels/{scores.view.client}": scores.labels,
                f"logged/{scores.view.client}": torch.tensor(list(scores.logged.values())),
            }
        folder = shared_folder(made.engine)
        return Ran(tensors, cohorts, {p.name for p in folder.iterdir()} if folder else set())
    finally:
        made.engine.close()


def shared_folder(engine: LocalEngine) -> Path | None:
    folder = getattr(engine._pool, "_folder", None)
    return folder.path if folder else None


CASES = {
    "dropout, BatchNorm, noise, partial participation": (
        lambda: ToyNet(),
        lambda: Federation(
            [Scaffold(), FedProx(0.3), FedBN()], rounds=4, participation=0.6, schedule=ConstantSchedule(3, "steps")
        ),
    ),
    "momentum kept, large states": (
        lambda: WideNet(momentum=0.9),
        lambda: Federation([FedBN(), Scaffold()], rounds=3, participation=0.8, optimizer_state="keep"),
    ),
    "Adam kept, large states": (
        lambda: WideNet(adam=True),
        lambda: Federation([FedProx(0.1)], rounds=3, optimizer_state="keep", weights="uniform"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_workers_give_the_same_bits(case):
    make_module, make_federation = CASES[case]
    torch.manual_seed(1)
    module, data = make_module(), NoisyData(clients=5, size=9)
    alone, *side_by_side = (play(make_federation(), module, data, workers) for workers in (1, 2, 3))
    assert any(
        not name.startswith(("scores", "labels", "logged")) and tensor.abs().max() > 1e-3
        for name, tensor in alone.tensors.items()
    )
    for ran in side_by_side:
        assert ran.cohorts == alone.cohorts
        assert_same_tensors(ran.tensors, alone.tensors)
        in_shared_memory = {name for name in ran.files if name.startswith("client-")}
        assert bool(in_shared_memory) == ("large" in case)


def test_several_clients_a_job_give_the_same_bits_whatever_the_number_of_workers(monkeypatch):
    """Sums within jobs come before the sum of the jobs, in one process as in several."""
    monkeypatch.setattr(base, "JOBS", 3)
    torch.manual_seed(1)
    module, data = ToyNet(), NoisyData(clients=10, size=9)
    alone, *side_by_side = (
        play(Federation([Scaffold(), FedBN()], rounds=2, participation=0.9), module, data, workers)
        for workers in (1, 2, 3)
    )
    for ran in side_by_side:
        assert ran.cohorts == alone.cohorts
        assert_same_tensors(ran.tensors, alone.tensors)


def test_jobs_follow_from_the_cohort_alone_and_are_single_clients_below_128():
    names = [str(number) for number in range(1000)]
    assert all(list(map(len, jobs_of(names[:k]))) == [1] * k for k in (0, 1, 64, 127))
    for k, size, number in ((128, 2, 64), (512, 8, 64), (1000, 15, 67)):
        jobs = jobs_of(names[:k])
        assert [name for job in jobs for name in job] == names[:k]
        assert (len(jobs), {len(job) for job in jobs[:-1]}) == (number, {size})


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_client_in_the_middle_of_a_job_is_named_and_those_before_are_not_kept(workers, monkeypatch):
    monkeypatch.setattr(base, "JOBS", 1)
    made = session(Federation([], rounds=1), Stumbling(what="raise"), ToyData(clients=3), workers)
    try:
        server, _, _ = made.restore(None)
        rnd = made.round(0)
        words = "training client 'site-1' failed in a worker process" if workers > 1 else "has had enough"
        with pytest.raises((RuntimeError, ArithmeticError), match=words):
            made.engine.run(rnd.cohort, made.broadcast(server, rnd), rnd)
        assert made.engine.client_states() == {}
    finally:
        made.engine.close()


def test_noise_and_dropout_are_real_and_follow_the_seed():
    """A guard of the test above: without seeding per client and round, orders of execution would show."""
    torch.manual_seed(1)
    module, data = ToyNet(), NoisyData(clients=3, size=9)
    first, second = (session(Federation([], rounds=1), module, data, 1) for _ in range(2))
    server, _, _ = first.restore(None)
    rnd = first.round(0)
    down = first.broadcast(server, rnd)
    torch.manual_seed(5)
    forward, _ = first.engine.run(rnd.cohort, down, rnd)
    torch.manual_seed(6)
    one = [second.engine.run([name], down, rnd)[0] for name in reversed(rnd.cohort)]
    for name in ("w", "stats"):
        torch.testing.assert_close(sum(p.vectors[name] for p in one), forward.vectors[name], rtol=1e-4, atol=1e-6)
    plain = session(Federation([], rounds=1), module, ToyData(clients=3, size=9), 1)
    without, _ = plain.engine.run(rnd.cohort, down, rnd)
    assert (without.vectors["w"] - forward.vectors["w"]).abs().max() > 1e-4


@pytest.mark.parametrize(
    "make_module",
    [
        pytest.param(ToyNet, id="inline", marks=pytest.mark.slow),
        pytest.param(lambda: WideNet(momentum=0.9), id="shared memory"),
    ],
)
def test_uncommitted_states_are_not_used(make_module):
    """A round that the server never accepted leaves no trace, once or twice, with states inside messages or beside."""
    torch.manual_seed(1)
    module, data, ends = make_module(), ToyData(clients=4, size=9), []
    for abandoned in ((), (1,), (0, 1, 1, 2, 2, 2)):
        federation = Federation([Counting(), Scaffold(), FedBN()], rounds=3, optimizer_state="keep")
        made = session(federation, module, data, 2)
        try:
            server, _, _ = made.restore(None)
            for index in range(3):
                rnd = made.round(index)
                for _ in range(abandoned.count(index)):
                    before = everything(made, server)
                    made.engine.run(rnd.cohort, made.broadcast(server, rnd), rnd)
                    assert_same_tensors(everything(made, server), before)
                play_round(federation, made, server, index)
            ends.append(everything(made, server))
        finally:
            made.engine.close()
    assert {name: int(t) for name, t in ends[0].items() if name.endswith("0/rounds")} == dict.fromkeys(
        (f"site-{k}/0/rounds" for k in range(4)), 3
    )
    for end in ends[1:]:
        assert_same_tensors(end, ends[0])


@pytest.mark.parametrize(
    "make_module",
    [
        pytest.param(ToyNet, id="inline", marks=pytest.mark.slow),
        pytest.param(lambda: WideNet(momentum=0.9), id="shared memory"),
    ],
)
def test_states_of_one_engine_go_on_in_another(make_module):
    """What a checkpoint does: from one process to workers, and back."""
    torch.manual_seed(1)
    module, data = make_module(), NoisyData(clients=4, size=9)

    def made_for(workers: int) -> Session:
        federation = Federation([Scaffold(), FedBN()], rounds=3, participation=0.7, optimizer_state="keep")
        return session(federation, module, data, workers)

    ends = []
    for workers in ((1, 1, 1), (1, 2, 1), (2, 1, 3)):
        server, states = None, {}
        for index, number in enumerate(workers):
            made = made_for(number)
            server = server or made.restore(None)[0]
            made.engine.load_client_states(states)
            play_round(made.federation, made, server, index)
            states = {name: copy.deepcopy(state) for name, state in made.engine.client_states().items()}
            ends.append(everything(made, server))
            made.engine.close()
    for end in ends[5::3]:
        assert_same_tensors(end, ends[2])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_nan_loss_names_client_round_and_step(workers):
    # site-1 has 14 images in batches of 4: its fourth batch holds 2
    federation = Federation([Scaffold()], rounds=2)
    made = session(federation, Stumbling(what="nan"), ToyData(), workers)
    try:
        server, _, _ = made.restore(None)
        rnd = made.round(1)
        with pytest.raises(TrainingError, match="client 'site-1', round 2, local step 4: the loss is nan"):
            made.engine.run(rnd.cohort, made.broadcast(server, rnd), rnd)
        assert made.engine.client_states() == {}
    finally:
        made.engine.close()


class Exploding(Aggregator):
    """Makes one client's update infinite."""

    def on_client_round_end(self, ctx):
        return {"boom": torch.full((3,), torch.inf if ctx.client.name == "site-2" else 1.0)}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_infinite_update_names_client_round_and_vector(workers):
    federation = Federation([Exploding()], rounds=2)
    made = session(federation, ToyNet(), ToyData(), workers)
    try:
        server, _, _ = made.restore(None)
        rnd = made.round(0)
        with pytest.raises(
            TrainingError, match=r"client 'site-2', round 1: 'boom' of Exploding.on_client_round_end is not finite"
        ):
            made.engine.run(rnd.cohort, made.broadcast(server, rnd), rnd)
    finally:
        made.engine.close()


def test_an_exception_in_a_worker_names_the_client_and_shows_its_traceback():
    federation = Federation([], rounds=1)
    made = session(federation, Stumbling(what="raise"), ToyData(), 2)
    try:
        server, _, _ = made.restore(None)
        rnd = made.round(0)
        with pytest.raises(RuntimeError, match="training client 'site-1' failed in a worker process") as caught:
            made.engine.run(rnd.cohort, made.broadcast(server, rnd), rnd)
        assert "ArithmeticError: this client has had enough" in str(caught.value)
        assert "awkward.py" in str(caught.value)
    finally:
        made.engine.close()


def test_a_killed_worker_is_an_error_and_no_hang():
    federation = Federation([], rounds=1)
    made = session(federation, Stumbling(what="kill"), ToyData(), 2)
    try:
        server, _, _ = made.restore(None)
        rnd = made.round(0)
        with pytest.raises(TrainingError, match=r"worker process \d died \(exit code -9\).*federation.workers"):
            made.engine.run(rnd.cohort, made.broadcast(server, rnd), rnd)
    finally:
        made.engine.close()


@pytest.mark.slow
def test_a_worker_killed_while_idle_is_an_error_at_the_next_round():
    federation = Federation([], rounds=2)
    made = session(federation, ToyNet(), ToyData(), 2)
    try:
        server, _, _ = made.restore(None)
        play_round(federation, made, server, 0)
        process = made.engine._pool._workers[1][0]
        os.kill(process.pid, signal.SIGKILL)
        process.join(10)
        with pytest.raises(TrainingError, match="worker process 1 died"):
            play_round(federation, made, server, 1)
    finally:
        made.engine.close()


def test_a_signal_to_all_processes_of_a_job_is_a_signal_and_no_dead_worker():
    """Schedulers end a job's processes all at once: what reaches the workers first reaches the main process too."""
    federation = Federation([], rounds=1)
    made = session(federation, ToyNet(), ToyData(), 2)
    try:
        server, _, _ = made.restore(None)
        os.kill(made.engine._pool._workers[0][0].pid, signal.SIGTERM)
        ours = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
        with Interrupts() as interrupts:
            ours.start()
            with pytest.raises(Interrupted), interrupts.may_abandon(alone=True):
                play_round(federation, made, server, 0)
            ours.join()
        assert interrupts.signum == signal.SIGTERM
    finally:
        made.engine.close()


def test_close_ends_the_workers_and_removes_the_shared_folder():
    made = session(Federation([], rounds=1), WideNet(momentum=0.5), ToyData(), 2)
    server, _, _ = made.restore(None)
    folder = shared_folder(made.engine)
    processes = [process for process, _ in made.engine._pool._workers]
    play_round(made.federation, made, server, 0)
    assert folder.is_dir()
    deadline = time.monotonic() + 20
    while list(folder.glob("program*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(folder.glob("program*"))  # data sets may be large, and this is memory
    assert all(process.is_alive() for process in processes)
    made.engine.close()
    assert not folder.exists()
    assert not any(process.is_alive() for process in processes)
    assert [process.exitcode for process in processes] == [0, 0]
    made.engine.close()  # once more is harmless


def test_closing_in_the_middle_of_a_round_leaves_nothing():
    """As Ctrl-C does: workers are busy, their answers are wanted no more."""
    made = session(Federation([], rounds=1), Stumbling(what="sleep"), ToyData(clients=4), 2)
    server, _, _ = made.restore(None)
    folder = shared_folder(made.engine)
    processes = [process for process, _ in made.engine._pool._workers]
    rnd = made.round(0)
    replies = made.engine._pool.train(rnd.cohort, {}, made.broadcast(server, rnd), rnd)
    next(replies)
    made.engine.close()
    assert not folder.exists()
    assert [process.exitcode for process in processes] == [0, 0]


@pytest.mark.slow
def test_fast_clients_wait_for_a_slow_first_one():
    """More replies wait than a worker has buffers for; they are still added in cohort order."""
    data = ToyData(clients=2 * pool.REPLIES + 4, size=6, batch_size=1000)  # whole sets: only site-0's batch holds 6
    torch.manual_seed(1)
    module, ends = Stumbling(what="sleep", size=6), []
    for workers in (1, 2):
        federation = Federation([], rounds=1, schedule=ConstantSchedule(1, "steps"))
        made = session(federation, module, data, workers)
        try:
            server, _, _ = made.restore(None)
            play_round(federation, made, server, 0)
            ends.append(server.w)
        finally:
            made.engine.close()
    assert torch.equal(*ends)


def test_a_module_of_the_test_file_with_a_lambda_travels():
    torch.manual_seed(1)
    module, data = DefinedHere(), ToyData()
    alone, two = (play(Federation([], rounds=2), module, data, workers).tensors for workers in (1, 2))
    assert_same_tensors(alone, two)


SCRIPT = """
from toys import ToyNet

factor = 2.0


class OwnNet(ToyNet):
    def training_step(self, batch, batch_idx):
        return factor * super().training_step(batch, batch_idx)
"""


def test_a_class_of_a_script_s_own_main_travels():
    """Workers cannot import a script or a notebook: what it defines comes by value."""
    names = {"__name__": "__main__"}
    exec(SCRIPT, names)
    torch.manual_seed(1)
    module, data = names["OwnNet"](), ToyData()
    assert type(module).__module__ == "__main__"
    alone, two = (play(Federation([], rounds=2), module, data, workers).tensors for workers in (1, 2))
    assert_same_tensors(alone, two)


DEAF = """
import os, signal
from multiprocessing import resource_tracker
resource_tracker.ensure_running()  # its start would end the deafness
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))  # as where a sweep starts the fork server
from fedlit.core.fabric import make_fabric
from fedlit.federation.federation import Federation
from fedlit.federation.assembly import assemble
from fedlit.federation.session import Session
from fedlit.testing import ToyData, ToyNet
made = assemble(Federation([], rounds=1, workers=2), ToyNet(), ToyData(), make_fabric("cpu"))
server, _, _ = made.restore(None)
rnd = made.round(0)
made.engine.run(rnd.cohort, made.broadcast(server, rnd), rnd, lambda report: None)
worker = made.engine._pool._workers[0][0]
os.kill(worker.pid, signal.SIGTERM)
worker.join(20)
print("exit code", worker.exitcode)
made.engine.close()
"""


@pytest.mark.slow
def test_a_worker_hears_sigterm_whoever_started_the_fork_server():
    done = subprocess.run([sys.executable, "-c", DEAF], capture_output=True, text=True, timeout=120)
    assert f"exit code -{int(signal.SIGTERM)}" in done.stdout, done.stderr
