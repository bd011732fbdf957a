"""The engine of one machine, and its worker processes, which train clients in parallel."""

import copyreg
import errno
import io
import multiprocessing
import os
import pickle
import shutil
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedlit.core.checkpoints.stored_states import StateFolder, is_small
from fedlit.core.errors import ConfigError, DataError, FedlitError, TrainingError, WorkerError
from fedlit.core.fabric import FederationFabric, make_fabric
from fedlit.core.messages import Broadcast, ClientReport, ClientState, Payload, Round
from fedlit.core.system import processes
from fedlit.core.system.pickling import Pickler, dumps
from fedlit.core.system.processes import context, cores, end_with_parent, keep_freed_memory, let_go, starting
from fedlit.federation.engines.base import AnyState, Engine, InProcessPool, Program, Reply, Worker, jobs_of
from fedlit.federation.engines.scores import Scores, View
from fedlit.federation.engines.shared_memory import Handle, SharedFolder, no_room

REPLIES = 4
"""Number of reply buffers per worker: how far it may run ahead of a slower worker whose reply is due first."""

START = "start-up"
"""Name of a worker's activity before its first job."""

DEATHS = {-9: "a lack of memory", -7: "a lack of shared memory (/dev/shm)"}
"""Usual causes of the exit codes of dead workers."""


def wanted_workers(setting: int | Literal["auto"], fabric: FederationFabric) -> int:
    """Return the number of workers for the setting ``federation.workers``, before it is limited to the clients."""
    if setting != "auto":
        return setting
    return cores() if fabric.device.type == "cpu" else 1


class LocalEngine(Engine):
    """Engine that simulates a federation in one process or in ``workers`` parallel processes.

    On a CPU two clients with one thread each are faster than one client with two threads. Replies are added in cohort
    order, so results are bit-identical for any number of workers.
    """

    def __init__(self, program: Program, fabric: FederationFabric, workers: int = 1) -> None:
        alone = workers > 1 and not processes.may_have_children()
        workers = 1 if alone else workers
        super().__init__(ProcessPool(program, fabric, workers) if workers > 1 else InProcessPool(program, fabric))
        self.where = f"{workers} workers" if workers > 1 else f"one worker on {fabric.device}"
        if alone:
            self.where += " (this process belongs to a multiprocessing pool and cannot start workers)"


@dataclass(frozen=True)
class RoundStart:
    """Message to all workers at the start of a round or an evaluation."""

    down: Handle
    rnd: Round | None
    folder: StateFolder | None = None


SentState = AnyState | Handle | None
"""A client state in a message: itself if it is small or a file, a large one in shared memory, or none."""


@dataclass(frozen=True)
class WorkerJob:
    """Message to a worker: train clients or score views.

    Attributes:
        number: Position of the job in its round.
        of: Names of clients, or views.
        states: State of each client or view.
        keep_in: Names of files for the clients' new states, if these are large.
        reply_in: Name of the file for the sum of the clients' payloads; "" if views are scored.
    """

    number: int
    of: Sequence[str] | Sequence[View]
    states: list[SentState]
    keep_in: list[str]
    reply_in: str = ""


@dataclass(frozen=True)
class TrainReply:
    """Message from a worker: the sum of a job's payloads, and each client's new state and report."""

    number: int
    vectors: Handle
    weight: float
    mask_weight: torch.Tensor
    clients: list[tuple[SentState, ClientReport]]


@dataclass(frozen=True)
class ScoreReply:
    """Message from a worker: the scores of a job's views."""

    number: int
    scores: list[Scores]


@dataclass(frozen=True)
class FailureReply:
    """Message from a worker: a job failed; ``kind`` is None unless the error is a deliberate one of fedlit."""

    job: str
    reason: str
    kind: type[FedlitError] | None = None


class ProcessPool:
    """Pool of ``workers`` processes with one model each; jobs go to idle workers, and replies are in cohort order.

    Weights, replies and large client states are in shared memory; messages contain only names. Workers exit with this
    process.
    """

    def __init__(self, program: Program, fabric: FederationFabric, workers: int) -> None:
        self._aggregators = len(program.aggregators)
        self._folder = SharedFolder()
        program_file = self._folder.path / "program.pkl"
        _pickle(program, program_file, self._folder)
        device = fabric.device
        origin = context(alike=program.threads == 1 and device.type == "cpu")
        options = {
            "accelerator": device.type,
            "devices": 1 if device.index is None else [device.index],
            "precision": fabric.strategy.precision.precision,
            "benchmark": torch.backends.cudnn.benchmark,
        }
        self._workers: list[tuple[BaseProcess, Connection]] = []
        for index in range(workers):
            ours, theirs = origin.Pipe()
            link = program_file.with_name(f"program-{index}.pkl")  # the last worker to remove its link frees the memory
            os.link(program_file, link)
            process = origin.Process(
                target=_serve,
                args=(theirs, str(link), options, origin.get_start_method() == "fork"),
                daemon=True,
                name=f"fedlit-worker-{index}",
            )
            with starting():
                process.start()
            theirs.close()
            self._workers.append((process, ours))
        program_file.unlink()
        self._stored: dict[str, tuple[ClientState, Handle]] = {}
        self._number = {name: i for i, name in enumerate(program.clients)}

    def train(
        self,
        cohort: Sequence[str],
        states: Mapping[str, AnyState],
        down: Broadcast,
        rnd: Round,
        folder: StateFolder | None = None,
        singly: bool = False,
    ) -> Iterator[Reply]:
        """Yield replies in cohort order; without ``singly`` a payload after the first is valid until the next reply."""
        self._begin(down, replace(rnd, participation=torch.tensor(1.0)), folder)
        free = [deque(f"reply-{w}-{i}" for i in range(REPLIES)) for w in range(len(self._workers))]
        jobs = [
            WorkerJob(
                number, names, [self._refer(n, states.get(n)) for n in names], [self._next_file(n) for n in names]
            )
            for number, names in enumerate(jobs_of(cohort, singly))
        ]
        for w, answer in self._answered(jobs, free):
            payload = Payload(self._folder.open(answer.vectors), answer.weight, answer.mask_weight)
            trained = [(self._state(report.client, state), report) for state, report in answer.clients]
            yield payload if answer.number and not singly else payload.clone(), trained
            free[w].appendleft(Path(answer.vectors.path).name)  # unused files take no memory
        for names in free:
            for name in sorted(names)[1:]:  # keep one per worker for the next round
                self._folder.empty(name)

    def evaluate(self, views: Sequence[View], states: Mapping[str, AnyState], down: Broadcast) -> Iterator[Scores]:
        """Yield scores in the order of the views."""
        self._begin(down, None)
        jobs = [
            WorkerJob(number, seen, [self._refer(view.client, states.get(view.client)) for view in seen], [])
            for number, seen in enumerate(jobs_of(views))
        ]
        for _, answer in self._answered(jobs):
            yield from answer.scores

    def _answered(
        self, jobs: Sequence[WorkerJob], free: Sequence[deque[str]] = ()
    ) -> Iterator[tuple[int, TrainReply | ScoreReply]]:
        """Yield worker and reply in the order of the jobs; training jobs need ``free`` reply files."""
        waiting, idle, done = deque(jobs), set(range(len(self._workers))), {}
        for number in range(len(jobs)):
            while number not in done:
                for w in sorted(idle):
                    if waiting and (not free or free[w]):
                        job = waiting.popleft()
                        self._send(w, replace(job, reply_in=free[w].popleft()) if free else job)
                        idle.discard(w)
                for w, answer in self._answers():
                    idle.add(w)
                    done[answer.number] = w, answer
            yield done.pop(number)

    def close(self) -> None:
        """Stop the worker processes and free the shared memory."""
        for process, connection in self._workers:
            connection.close()
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        self._workers.clear()
        self._stored.clear()
        self._folder.close()

    def _begin(self, down: Broadcast, rnd: Round | None, folder: StateFolder | None = None) -> None:
        message = RoundStart(self._folder.write("down", down.tensors()), rnd, folder)
        for w in range(len(self._workers)):
            self._send(w, message)

    def _send(self, w: int, message: object) -> None:
        try:
            self._workers[w][1].send_bytes(packed(message))
        except (BrokenPipeError, ConnectionResetError):
            self._died(w)

    def _answers(self) -> Iterator[tuple[int, TrainReply | ScoreReply]]:
        ready = wait([connection for _, connection in self._workers])
        for w, (_, connection) in enumerate(self._workers):
            if connection in ready:
                try:
                    answer = pickle.loads(connection.recv_bytes())
                except (EOFError, ConnectionResetError):
                    self._died(w)
                if isinstance(answer, FailureReply):
                    if answer.kind:
                        raise answer.kind(answer.reason)
                    kind = WorkerError if answer.job == START else RuntimeError
                    raise kind(f"{answer.job} failed in a worker process:\n{answer.reason}")
                yield w, answer

    def _died(self, w: int) -> None:
        process = self._workers[w][0]
        process.join(5)
        time.sleep(1)  # if a scheduler kills all processes of a job, it also ends this one, with a better message
        code, hint = process.exitcode, ""
        if code in DEATHS:
            hint = f"; {code} usually means {DEATHS[code]}: use fewer federation.workers or a smaller data.batch_size"
        raise WorkerError(f"worker process {w} died (exit code {code}){hint}")

    def _refer(self, client: str | None, state: AnyState | None) -> SentState:
        if state is None or client is None:
            return None
        if state.file or is_small(state):
            return state
        stored = self._stored.get(client)
        if stored is None or stored[0] is not state:
            self._stored[client] = stored = (state, self._folder.write(self._next_file(client), state.tensors()))
        return stored[1]

    def _next_file(self, client: str) -> str:
        """Return the name of the client's file, of two, that does not contain its committed state."""
        number, stored = self._number[client], self._stored.get(client)
        in_a = stored is not None and stored[1].path.endswith("-a")
        return f"client-{number}-{'b' if in_a else 'a'}"

    def _state(self, client: str, sent: SentState) -> AnyState | None:
        if not isinstance(sent, Handle):
            return sent
        state = ClientState.from_tensors(self._folder.open(sent), self._aggregators)
        self._stored[client] = (state, sent)
        return state


def _pickle(program: Program, file: Path, folder: SharedFolder) -> None:
    try:
        with file.open("wb") as out:
            Pickler(out).dump(program)
    except Exception as error:  # custom classes may raise anything
        folder.close()
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise no_room(error, "the model and the data in shared memory", str(file)) from None
        raise ConfigError(
            f"{_unpicklable(program)} cannot be sent to worker processes: {str(error).splitlines()[0]}; create open "
            "files, locks and connections only when they are used, or set federation.workers: 1"
        ) from error


def _unpicklable(program: Program) -> str:
    """Return a name for the part of a program that cannot be pickled."""
    parts = {type(program.module).__name__: program.module}
    parts |= {type(aggregator).__name__: aggregator for aggregator in program.aggregators}
    parts |= {f"the data of client {name!r}": data for name, data in program.data.items()}
    for name, part in parts.items():
        try:
            dumps(part)
        except Exception:
            return name
    return "a test set"


def _serve(connection: Connection, program_file: str, options: dict, copied: bool) -> None:
    """Run a worker process: process jobs until the pipe closes."""
    if copied:
        let_go((connection.fileno(), multiprocessing.parent_process().sentinel))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):  # blocked if a sweep started the fork server
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    path = Path(program_file)
    end_with_parent(path.parent)
    torch.set_num_threads(1)
    keep_freed_memory()
    folder = SharedFolder(path.parent)
    worker, begin = None, None
    while True:
        try:
            message = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            break
        try:
            if worker is None:
                with path.open("rb") as file:
                    program = pickle.load(file)
                path.unlink()
                worker = Worker(program, make_fabric(**options))
            match message:
                case RoundStart(down, rnd, states):
                    begin = Broadcast.from_tensors(folder.open(down), len(program.aggregators)), rnd, states
                    continue
                case WorkerJob():
                    answer = (_train if begin[1] else _score)(worker, folder, message, *begin)
        except (ConfigError, DataError, TrainingError) as error:
            kind = next(k for k in (ConfigError, DataError, TrainingError) if isinstance(error, k))
            answer = FailureReply(_doing(worker), str(error), kind)
        except Exception:
            answer = FailureReply(_doing(worker), traceback.format_exc())
        try:
            connection.send_bytes(packed(answer))
        except OSError:
            break
    shutil.rmtree(path.parent, ignore_errors=True)


def _doing(worker: Worker | None) -> str:
    return (worker and worker.doing) or START


def _train(
    worker: Worker, folder: SharedFolder, job: WorkerJob, down: Broadcast, rnd: Round, states: StateFolder | None
) -> TrainReply:
    held = ((name, _resolve(worker, folder, state)) for name, state in zip(job.of, job.states, strict=True))
    w = worker.local.flat.w
    into = folder.memory(job.reply_in, w) if w.device.type == "cpu" else None
    payload, trained = worker.train(held, down, rnd, states, into=into)
    clients = [(_kept(folder, file, state), report) for (state, report), file in zip(trained, job.keep_in, strict=True)]
    vectors = folder.write(job.reply_in, payload.cpu().vectors)
    return TrainReply(job.number, vectors, payload.weight, payload.mask_weight, clients)


def _score(worker: Worker, folder: SharedFolder, job: WorkerJob, down: Broadcast, *_: None) -> ScoreReply:
    held = zip(job.of, (_resolve(worker, folder, state).load() for state in job.states), strict=True)
    return ScoreReply(job.number, [worker.evaluate(view, state, down) for view, state in held])


def _kept(folder: SharedFolder, file: str, state: AnyState | None) -> SentState:
    return state if state is None or state.file or is_small(state) else folder.write(file, state.tensors())


def _resolve(worker: Worker, folder: SharedFolder, sent: SentState) -> AnyState:
    if isinstance(sent, Handle):
        return ClientState.from_tensors(folder.open(sent), len(worker.program.aggregators))
    return worker.fresh_state() if sent is None else sent


def packed(message: object) -> bytes:
    """Return a message for ``pickle.loads``, with tensors as bytes: ten times as fast as torch pickles small ones."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = copyreg.dispatch_table | {Tensor: _reduced}
    pickler.dump(message)
    return buffer.getvalue()


def _reduced(tensor: Tensor) -> tuple[Callable[..., Tensor], tuple]:
    content = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    return _restored, (tensor.dtype, tuple(tensor.shape), bytearray(content))


def _restored(dtype: torch.dtype, shape: tuple[int, ...], content: bytearray) -> Tensor:
    return torch.frombuffer(content, dtype=dtype).view(shape) if content else torch.empty(shape, dtype=dtype)
