"""The local engine: results are bit-identical for any number of workers, and nothing remains after it is closed."""

import copy
import os
import signal
import threading
import time
from dataclasses import dataclass

import pytest
import torch
from awkward import Counting, NoisyData, Stumbling, WideNet
from engine_rounds import everything, opened, play_round, run, scored, shared_folder
from runs import assert_same_tensors, execute
from toys import ToyData, ToyNet

from fedlit.aggregators import FedBN, FedProx, Scaffold
from fedlit.core.fabric import make_fabric
from fedlit.core.system import processes
from fedlit.core.system.processes import GENTLE
from fedlit.federation.assembly import assemble
from fedlit.federation.engines import base, pool
from fedlit.federation.engines.base import jobs_of
from fedlit.federation.engines.pool import wanted_workers
from fedlit.federation.federation import Federation
from fedlit.federation.interrupts import Interrupted, Interrupts
from fedlit.schedules import ConstantSchedule


@dataclass
class Ran:
    """Results and remaining files of a federation."""

    tensors: dict[str, torch.Tensor]
    diagnostics: list[dict[str, float]]
    cohorts: list[tuple[str, ...]]
    files: set[str]


def play(federation: Federation, module, data, workers: int) -> Ran:
    """Run all rounds, then an evaluation."""
    with opened(federation, module, data, workers) as (session, server):
        diagnostics, cohorts = [], []
        for index in range(federation.rounds):
            rnd, total, reports = run(session, server, index)
            diagnostics.append(federation.close_round(server, total, rnd, session))
            cohorts.append(tuple(report.client for report in reports))
        tensors, folder = everything(session, server) | scored(session, server), shared_folder(session.engine)
        return Ran(tensors, diagnostics, cohorts, {p.name for p in folder.iterdir()} if folder else set())


CASES = {
    "dropout, BatchNorm, noise, several clients a job": (
        ToyNet,
        lambda: Federation(
            [Scaffold(), FedProx(0.3), FedBN()], rounds=3, participation=0.6, schedule=ConstantSchedule(3, "steps")
        ),
    ),
    "Adam kept, large states": (
        lambda: WideNet(adam=True),
        lambda: Federation(
            [FedBN(), FedProx(0.1)], rounds=3, participation=0.8, optimizer_state="keep", weights="uniform"
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_results_do_not_depend_on_the_number_of_workers(case, monkeypatch):
    """Payloads are added within jobs first, in one process as in several."""
    make_module, make_federation = CASES[case]
    several = "several clients" in case
    monkeypatch.setattr(base, "JOBS", 3 if several else base.JOBS)
    torch.manual_seed(1)
    module, data = make_module(), NoisyData(clients=10 if several else 5, size=9)
    played = []
    for workers in (1, 2):
        torch.set_num_threads(2)  # of a machine with two cores: a sum over two threads is rounded otherwise
        played.append(play(make_federation(), module, data, workers))
    single, parallel = played
    assert any(
        not name.startswith(("scores", "labels", "logged")) and tensor.abs().max() > 1e-3
        for name, tensor in single.tensors.items()
    )
    assert (parallel.cohorts, parallel.diagnostics) == (single.cohorts, single.diagnostics)
    assert_same_tensors(parallel.tensors, single.tensors)
    in_shared_memory = {name for name in parallel.files if name.startswith("client-")}
    assert bool(in_shared_memory) == ("large" in case)


def test_jobs_follow_from_the_cohort_alone_and_are_single_clients_below_128():
    names = [str(number) for number in range(1000)]
    assert all(list(map(len, jobs_of(names[:k]))) == [1] * k for k in (0, 1, 64, 127))
    for k, size, number in ((128, 2, 64), (512, 8, 64), (1000, 15, 67)):
        jobs = jobs_of(names[:k])
        assert [name for job in jobs for name in job] == names[:k]
        assert (len(jobs), {len(job) for job in jobs[:-1]}) == (number, {size})


def test_noise_and_dropout_are_real_and_follow_the_seed():
    """Without seeds per client and round, the test above would show the order of execution."""
    torch.manual_seed(1)
    module, data = ToyNet(), NoisyData(clients=3, size=9)
    with opened(Federation([], rounds=1), module, data, 1) as (session, server):
        torch.manual_seed(5)
        rnd, forward, _ = run(session, server)
        forward = forward.clone()
    with opened(Federation([], rounds=1), module, data, 1) as (session, _):
        torch.manual_seed(6)
        down = session.broadcast(server, rnd)
        single = [session.engine.run([name], down, rnd)[0] for name in reversed(rnd.cohort)]
    for name in ("w", "stats"):
        torch.testing.assert_close(sum(p.vectors[name] for p in single), forward.vectors[name], rtol=1e-4, atol=1e-6)
    with opened(Federation([], rounds=1), module, ToyData(clients=3, size=9), 1) as (session, _):
        _, without, _ = run(session, server)
    assert (without.vectors["w"] - forward.vectors["w"]).abs().max() > 1e-4


MODULES = [
    pytest.param(ToyNet, id="inline", marks=pytest.mark.slow),
    pytest.param(lambda: WideNet(momentum=0.9), id="shared memory"),
]


@pytest.mark.parametrize("make_module", MODULES)
def test_uncommitted_states_are_not_used(make_module):
    """A round that the server does not accept has no effect, with states in messages or in shared memory."""
    torch.manual_seed(1)
    module, data, ends = make_module(), ToyData(clients=4, size=9), []
    for workers, abandoned in ((1, ()), (2, (0, 1, 1))):
        federation = Federation([Counting(), Scaffold(), FedBN()], rounds=2, optimizer_state="keep")
        with opened(federation, module, data, workers) as (session, server):
            for index in range(2):
                for _ in range(abandoned.count(index)):
                    before = everything(session, server)
                    run(session, server, index)
                    assert_same_tensors(everything(session, server), before)
                play_round(session, server, index)
            ends.append(everything(session, server))
    assert {name: int(t) for name, t in ends[0].items() if name.endswith("0/rounds")} == dict.fromkeys(
        (f"site-{k}/0/rounds" for k in range(4)), 2
    )
    assert_same_tensors(ends[1], ends[0])


@pytest.mark.parametrize("make_module", MODULES)
def test_states_of_one_engine_continue_in_another(make_module):
    """As through a checkpoint: from one process to workers, and back."""
    torch.manual_seed(1)
    module, data, server, states = make_module(), NoisyData(clients=4, size=9), None, {}
    federation = Federation([Scaffold(), FedBN()], rounds=3, participation=0.7, optimizer_state="keep")
    for index, workers in enumerate((1, 2, 1)):
        with opened(federation, module, data, workers) as (session, initial):
            server = server or initial
            session.engine.load_client_states(states)
            play_round(session, server, index)
            states = {name: copy.deepcopy(state) for name, state in session.engine.client_states().items()}
            found = everything(session, server)
    with opened(federation, module, data, 1) as (session, server):
        for index in range(3):
            play_round(session, server, index)
        assert_same_tensors(found, everything(session, server))


def test_a_signal_to_all_processes_of_a_job_is_not_a_dead_worker():
    """Schedulers end all processes of a job at once, so a signal to the workers also reaches the main process."""
    with opened(Federation([], rounds=1), ToyNet(), ToyData(), 2) as (session, server):
        os.kill(session.engine._pool._workers[0][0].pid, signal.SIGTERM)
        ours = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
        with Interrupts() as interrupts:
            ours.start()
            with pytest.raises(Interrupted), interrupts.may_abandon(alone=True):
                play_round(session, server)
            ours.join()
        assert interrupts.signum == signal.SIGTERM


def test_workers_leave_it_to_the_main_process_to_end_a_run():
    """A closed terminal, and the warning of a scheduler, reach all processes of a group."""
    with opened(Federation([], rounds=1), ToyNet(), ToyData(), 2) as (session, server):
        for process, _ in session.engine._pool._workers:
            for signum in GENTLE:
                os.kill(process.pid, signum)
        play_round(session, server)


def test_close_ends_the_workers_and_removes_the_shared_folder():
    with opened(Federation([], rounds=1), WideNet(momentum=0.5), ToyData(), 2) as (session, server):
        folder = shared_folder(session.engine)
        processes = [process for process, _ in session.engine._pool._workers]
        play_round(session, server)
        assert folder.is_dir()
        deadline = time.monotonic() + 20
        while list(folder.glob("program*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not list(folder.glob("program*"))  # data sets may be large, and this is memory
        assert all(process.is_alive() for process in processes)
        session.engine.close()
        assert not folder.exists()
        assert [process.exitcode for process in processes] == [0, 0]
    # Closing it again does no harm.


def test_closing_in_the_middle_of_a_round_leaves_nothing():
    """As after Ctrl-C: workers are busy, and their replies are no longer needed."""
    with opened(Federation([], rounds=1), Stumbling(what="sleep"), ToyData(clients=4), 2) as (session, server):
        folder = shared_folder(session.engine)
        processes = [process for process, _ in session.engine._pool._workers]
        rnd = session.round(0)
        next(session.engine._pool.train(rnd.cohort, {}, session.broadcast(server, rnd), rnd))
    assert not folder.exists()
    assert [process.exitcode for process in processes] == [0, 0]


@pytest.mark.slow
def test_fast_clients_wait_for_a_slow_first_one():
    """More replies wait than a worker has buffers, and are still added in cohort order."""
    data = ToyData(clients=2 * pool.REPLIES + 4, size=6, batch_size=1000)  # whole sets: only site-0's batch holds 6
    torch.manual_seed(1)
    module, ends = Stumbling(what="sleep", size=6), []
    for workers in (1, 2):
        federation = Federation([], rounds=1, schedule=ConstantSchedule(1, "steps"))
        with opened(federation, module, data, workers) as (session, server):
            play_round(session, server)
            ends.append(server.w)
    assert torch.equal(*ends)


SCRIPT = """
import torch
from toys import ToyNet

factor = 2.0


class OwnNet(ToyNet):
    def __init__(self):
        super().__init__()
        self.classes, self.noise = tuple(self.classes), torch.nn.Identity()  # the names of torch.classes
        self.scale = lambda loss: factor * loss

    def training_step(self, batch, batch_idx):
        return self.scale(super().training_step(batch, batch_idx))
"""


def test_a_class_of_a_script_s_own_main_travels():
    """Workers cannot import a script or a notebook, so its classes and functions are sent by value."""
    names = {"__name__": "__main__"}
    exec(SCRIPT, names)
    torch.manual_seed(1)
    module, data = names["OwnNet"](), ToyData()
    assert type(module).__module__ == "__main__"
    single, two = (play(Federation([], rounds=1), module, data, workers).tensors for workers in (1, 2))
    assert_same_tensors(single, two)


DEAF = """
import os, signal
from multiprocessing import resource_tracker
from runs import own_fork_server
own_fork_server()
resource_tracker.ensure_running()  # its start would end the deafness
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))  # as if a sweep started the fork server
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
def test_a_worker_hears_sigterm_whoever_started_the_fork_server(tmp_path):
    assert f"exit code -{int(signal.SIGTERM)}" in execute(DEAF, tmp_path).succeeded(120)


def test_without_a_number_there_is_a_worker_for_each_core(monkeypatch):
    monkeypatch.setattr(pool, "cores", lambda: 3)
    assert [wanted_workers(setting, make_fabric("cpu")) for setting in ("auto", 2)] == [3, 2]


class Telling(ToyNet):
    def training_step(self, batch, batch_idx):
        self.log("benchmark", float(torch.backends.cudnn.benchmark))
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(("benchmark", "workers"), [(True, 1), (True, 2), (None, 2)])
def test_it_is_set_where_clients_train(monkeypatch, benchmark, workers):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(processes, "can_be_copied", lambda: False)  # as with a GPU: a copy would inherit it
    federation = Federation([], schedule=ConstantSchedule(1, "steps"), workers=workers)
    session = assemble(federation, Telling(), ToyData(2), make_fabric("cpu", benchmark=benchmark))
    try:
        server, _, _ = session.restore(None)
        reports = play_round(session, server)
    finally:
        session.engine.close()
    assert {report.logged["benchmark"] for report in reports} == {float(bool(benchmark))}
