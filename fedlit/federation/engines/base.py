"""Base classes of engines, which run clients' rounds and evaluations and return sums."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils.data import Dataset

from fedlit.core.aggregator import Aggregator
from fedlit.core.batches import BatchStream, PoissonStream, ReadAhead
from fedlit.core.checkpoints.stored_states import StateFolder, StoredState
from fedlit.core.errors import DataError
from fedlit.core.examples import fetch, labels_of, refuse_input
from fedlit.core.fabric import FederationFabric
from fedlit.core.flat import Layout
from fedlit.core.hooks import initial_client_state
from fedlit.core.labels import has_exact_labels, labelled_classes, not_binary
from fedlit.core.local_model import LocalModel, LocalTraining
from fedlit.core.logged import value_of, weighed
from fedlit.core.messages import Broadcast, Client, ClientData, ClientReport, ClientState, Payload, Round, ServerState
from fedlit.core.module import copy_of, overrides, readable_errors, step_of
from fedlit.core.randomness import seed_process
from fedlit.core.rounds import client_round
from fedlit.core.scoring import Link, exclusive_scores, link_of
from fedlit.core.system.processes import keep_freed_memory, return_freed_memory
from fedlit.federation.engines.scores import Scores, View, scores_of
from fedlit.federation.settings import Settings


@dataclass
class Program:
    """Models, data and settings for a process that trains and evaluates clients; sent to worker processes once."""

    module: LightningModule
    aggregators: list[Aggregator]
    clients: dict[str, Client]
    data: dict[str, ClientData]
    test_sets: dict[str, Dataset]
    training: LocalTraining
    batch_size: int
    eval_batch_size: int
    seed: int
    threads: int = 1
    limit_eval_batches: int | None = None
    pictures: Literal["mapped", "ahead", "resident"] = "mapped"
    smallest: int = 2  # Least number of examples in a batch; a smaller rest of a pass is dropped.
    secret: bytes | None = None  # Where draws and noise of private steps come from at a site; None for the run's seed.
    patients: Mapping[str, int] = field(default_factory=dict)  # Number of patients that a client's site declares.

    def link(self, fabric: FederationFabric) -> Link | None:
        """Return the function from logits to probabilities if the module's classes exclude each other, else None."""
        return link_of(self.module, fabric, next(iter(self.data.values())).train)

    def private_stream(self, name: str, classes: Sequence[str] = ()) -> PoissonStream | None:
        """Return a client's batches if an aggregator makes steps private, else None."""
        if not any(aggregator.private for aggregator in self.aggregators):
            return None
        dataset = self.data[name].train
        secret = str(self.seed).encode() if self.secret is None else self.secret
        patients, declared = patients_of(dataset), self.patients.get(name)
        return PoissonStream(dataset, self.batch_size, patients, secret, name, classes, declared=declared)

    def dataset(self, view: View) -> Dataset:
        """Return the data set of a view."""
        return self.test_sets[view.part] if view.holder is None else getattr(self.data[view.holder], view.part)


def patients_of(dataset: Dataset) -> np.ndarray:
    """Return the patient of each example, [N]; "" if the data set does not name them."""
    patients = np.asarray(getattr(dataset, "patients", ())).astype(str)
    return patients if len(patients) == len(dataset) else np.full(len(dataset), "")


OnReply = Callable[[ClientReport], None]
"""Called in cohort order as replies come in."""

AnyState = ClientState | StoredState
"""A client's state, in memory or in a file."""

Reply = tuple[Payload, list[tuple[AnyState | None, ClientReport]]]
"""Result of a job: the sum of its clients' payloads in order, and each client's new state and report.

The state is None if it does not change, as in a measuring round.
"""

Item = TypeVar("Item")

JOBS = 64
"""Number of jobs for large cohorts, of at least twice as many clients: each job then has several clients."""


def jobs_of(items: Sequence[Item], singly: bool = False) -> list[Sequence[Item]]:
    """Split a cohort, or a list of views, into jobs of consecutive items.

    The split depends only on the number of items: payloads are added within each job first, so the order of additions
    is the same for any number of workers. With ``singly`` each item is its own job.
    """
    size = 1 if singly else max(1, len(items) // JOBS)
    return [items[start : start + size] for start in range(0, len(items), size)]


class Worker:
    """Worker that runs clients one after another on one model.

    Attributes:
        doing: Readable description of the current activity.
        link: From logits to probabilities if the module's classes exclude each other, else None.
    """

    doing = ""

    def __init__(self, program: Program, fabric: FederationFabric) -> None:
        # Results depend on the number of threads, so it is a setting and does not depend on the machine.
        torch.set_num_threads(program.threads)
        self.link = program.link(fabric)
        if program.pictures != "mapped":
            from fedlit.federation.devices import placed  # imports image libraries

            data, test_sets = placed(program.data, program.test_sets, program.pictures, fabric.device)
            program = replace(program, data=data, test_sets=test_sets)
        self.program = program
        self.local = LocalModel(fabric, program.module, program.aggregators, program.training)
        self._streams: dict[str, BatchStream] = {}
        self._down: tuple[Broadcast, Broadcast] | None = None
        self._ahead = ReadAhead(fabric.device) if program.pictures == "ahead" else None

    def fresh_state(self) -> ClientState:
        """Return the initial state of a client."""
        return initial_client_state(self.program.aggregators, self.local.layout)

    def train(
        self,
        clients: Iterable[tuple[str, AnyState]],
        down: Broadcast,
        rnd: Round,
        folder: StateFolder | None = None,
        following: tuple[str, AnyState | None] | None = None,
        into: Tensor | None = None,
    ) -> Reply:
        """Run several clients' part of a round, one after another, and read ahead the first batch of the next."""
        total, trained, down = None, [], self._here(down)
        for (name, state), after in pairwise(chain(clients, [following])):
            if self._ahead is not None:
                self._ahead.following = after and (self.stream(after[0]), after[1].load().batches if after[1] else 0)
            self.doing = f"training client {name!r}"
            with readable_errors(self.local.module, self.doing):
                before = state.load()
                part = (self.local, self.stream(name), self.program.clients[name], before, down, rnd)
                payload, new, report = client_round(*part, into)
            total, into = add_payload(total, payload), None
            trained.append((None if new is before else folder.keep(new) if folder else new, report))
        return total, trained

    def _here(self, down: Broadcast) -> Broadcast:
        """Return the server's message on the device that trains; it is copied once per round."""
        device = self.local.flat.w.device
        if device.type == "cpu":
            return down
        if self._down is None or self._down[0] is not down:
            self._down = down, down.to(device)
        return self._down[1]

    def stream(self, name: str) -> BatchStream:
        """Return the batches of a client."""
        if name not in self._streams:
            program, dataset = self.program, self.program.data[name].train
            classes = labelled_classes(self.local.module)
            unseen = () if has_exact_labels(dataset, classes) else classes
            self._streams[name] = program.private_stream(name, unseen) or BatchStream(
                dataset, program.batch_size, program.seed, name, ahead=self._ahead, classes=unseen,
                smallest=program.smallest,
            )  # fmt: skip
        return self._streams[name]

    @torch.no_grad()
    def evaluate(self, view: View, state: ClientState | None, down: Broadcast) -> Scores:
        """Run ``validation_step`` over a view and return scores, if any, and logged values."""
        self.doing = f"evaluating {view}"
        program, local, module, down = self.program, self.local, self.local.module, self._here(down)
        dataset = program.dataset(view)
        if view.client is None:
            local.flat.load(down.w, down.stats)
            local.flat.own.load({})
        else:
            local.adopt_personal(program.clients[view.client], state, down)
            local.count(state.batches, self.stream(view.client))
        seed_process(program.seed, "evaluate", view.holder or "", view.part)
        module.eval()
        if not overrides(module, view.method):
            return Scores(view, 0, None, None, {})
        scores, labels, sums, step = [], [], {}, step_of(module, view.method)
        seen = 0
        local.fabric.begin()
        batches = torch.arange(len(dataset))[: view.limit].split(program.eval_batch_size)
        for number, indices in enumerate(batches[: program.limit_eval_batches]):
            seen += len(indices)
            local.fabric.logged.clear()
            with readable_errors(module, f"scoring {view}"):
                batch = fetch(dataset, indices)
                output = local.apply(lambda moved, number=number: step(moved, number), batch)
                output = scores_of(module, view.method, output, len(indices), len(local.layout.classes))
                if output is not None:
                    scores.append(output.float())
                    labels.append(labels_of(batch, output.shape[1]))
            for key, (mean, weight) in weighed(local.fabric.logged).items():
                weight = weight or len(indices)
                total, weights = sums.get(key, (0.0, 0.0))
                sums[key] = total + mean * weight, weights + weight
        logged = {key: total / weights for key, (total, weights) in sums.items()}
        metrics = local.fabric.taken()
        logged |= {key: value_of(key, metric) for key, metric in metrics.items()}
        if not scores:
            return Scores(view, seen, None, None, logged, metrics)
        together, known, taken = torch.cat(scores), torch.cat(labels).cpu(), "own"
        with readable_errors(module, f"scoring {view}"):
            odd = (~together.isfinite().all(1)).nonzero().flatten().tolist()
            refuse_input(dataset, odd, "its scores are not finite")
            if wrong := not_binary(known, local.layout.classes):
                raise DataError(f"expected labels {wrong}")
        if self.link is not None:
            together, taken = exclusive_scores(self.link, together, view.method)
        return Scores(view, seen, together.cpu(), known, logged, metrics, taken=taken)


class InProcessPool:
    """A pool whose only worker is this process, with a copy of the module."""

    def __init__(self, program: Program, fabric: FederationFabric) -> None:
        keep_freed_memory()
        self.worker = Worker(replace(program, module=copy_of(program.module)), fabric)

    def train(
        self,
        cohort: Sequence[str],
        states: Mapping[str, AnyState],
        down: Broadcast,
        rnd: Round,
        folder: StateFolder | None = None,
        singly: bool = False,
    ) -> Iterator[Reply]:
        """Yield replies in cohort order, with ``singly`` one per client; new states go to ``folder``, if given."""
        jobs = jobs_of(cohort, singly)
        for job, after in zip_longest(jobs, jobs[1:]):
            held = ((name, states.get(name) or self.worker.fresh_state()) for name in job)
            yield self.worker.train(held, down, rnd, folder, after and (after[0], states.get(after[0])))

    def evaluate(self, views: Sequence[View], states: Mapping[str, AnyState], down: Broadcast) -> Iterator[Scores]:
        """Yield scores in the order of the views."""
        for view in views:
            state = states.get(view.client) or self.worker.fresh_state()
            yield self.worker.evaluate(view, state.load(), down)

    def close(self) -> None:
        """Free the model, and images on its device."""
        vars(self).pop("worker", None)
        return_freed_memory()


class Engine:
    """Engine that runs clients on a pool and keeps their states.

    Attributes:
        where: Readable description of where clients run.
        folder: Folder of the clients' states; None if they remain in memory.
        keeps_states: Whether clients' states are on this machine and in checkpoints; otherwise they are at sites.
        reduce: Function that combines the single payloads of a round; if None, they are added as they arrive.
    """

    where: str
    folder: StateFolder | None = None
    keeps_states = True
    reduce: Callable[[Sequence[Payload]], Payload] | None = None

    def __init__(self, pool: InProcessPool) -> None:
        self._pool = pool
        self._states: dict[str, AnyState] = {}
        self._waiting: dict[str, AnyState] = {}

    def run(
        self, cohort: Sequence[str], down: Broadcast, rnd: Round, on_reply: OnReply = lambda report: None
    ) -> tuple[Payload, list[ClientReport]]:
        """Run a round and return the combined payload and the reports; new client states wait for ``commit``."""
        self._drop(self._waiting)
        total, reports, self._waiting, payloads = None, [], {}, []
        singly = self.reduce is not None and rnd.window > 0
        for payload, trained in self._pool.train(cohort, self._states, down, rnd, self.folder, singly):
            for state, report in trained:
                if state is not None:
                    self._waiting[report.client] = state
                reports.append(report)
                on_reply(report)
            payloads += [payload.cpu()] if singly else []
            total = payload if singly else add_payload(total, payload)
        return self.reduce(payloads) if singly else total and total.cpu(), reports

    def commit(self) -> None:
        """Commit the waiting client states after the server has accepted the round."""
        replaced = {name: self._states[name] for name in self._waiting if name in self._states}
        self._states |= self._waiting
        self._waiting = {}
        self._drop(replaced)

    def evaluate(self, views: Sequence[View], down: Broadcast) -> list[Scores]:
        """Return the scores of each view, in order."""
        return list(self._pool.evaluate(views, self._states, down))

    def client_states(self) -> Mapping[str, AnyState]:
        """Return the committed states of the clients that this process keeps."""
        return self._states

    def load_client_states(self, states: Mapping[str, AnyState]) -> None:
        """Restore states from ``client_states``; states of clients in other processes are ignored."""
        before = self._states
        self._states = {name: self.folder.adopt(state) if self.folder else state for name, state in states.items()}
        self._drop(before)

    def at_sites(self) -> dict[str, int | None]:
        """Return the round of each client's state at its site; {} if states are on this machine."""
        return {}

    def roll_back(self, at_sites: Mapping[str, int | None], rounds: int) -> None:
        """Go back to the states at sites that a checkpoint after ``rounds`` rounds refers to."""

    def saved(self, places: Sequence[Mapping[str, int | None]]) -> None:
        """Record the states at sites that the existing checkpoints refer to."""

    def start_afresh(self, server: ServerState) -> None:
        """Reset the state of algorithms at sites; each client keeps its personal part of the model."""

    def hand_out(self, down: Broadcast, rounds: int, learned: Mapping[str | None, list[bool]]) -> list[str]:
        """Send the best model to sites that keep it, and return lines that name them; local engines do nothing.

        Args:
            down: The model.
            rounds: Number of completed rounds.
            learned: Whether each class was learned, per client with a personal model, or for None.
        """
        return []

    def close(self) -> None:
        """Free processes, shared memory and the folder of states."""
        self._pool.close()
        if self.folder:
            self.folder.close()

    def _drop(self, states: Mapping[str, AnyState]) -> None:
        if self.folder and states:
            self.folder.drop(states.values(), [self._states[name] for name in states if name in self._states])


def add_payload(total: Payload | None, payload: Payload) -> Payload:
    """Add a payload to the total, in the memory of the total, and return it."""
    if total is None:
        return payload
    total.add_(payload)
    return total


class Away(Protocol):
    """Remote clients, which provide the engine of a run.

    Attributes:
        whole: Whether some sites evaluate only whole data sets, even in a trial run.
        patients: Number of patients that the site of each client declares for private steps, if it does.
    """

    whole: bool
    patients: Mapping[str, int]

    def open(self, directory: Path) -> None:
        """Read the id of the run in a directory, or create one for a new run."""

    def engine(self, program: Program, fabric: FederationFabric, settings: Settings, layout: Layout) -> Engine:
        """Create the engine of the run."""
