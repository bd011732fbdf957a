"""What an engine is: it runs clients' rounds and evaluations somewhere and hands back sums."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils.data import Dataset
from torchmetrics import Metric

from fedlit.core.aggregator import Aggregator
from fedlit.core.batches import BatchStream, ReadAhead, columns, fetch
from fedlit.core.checkpoints.stored_states import StateFolder, StoredState
from fedlit.core.fabric import FederationFabric
from fedlit.core.flat import Layout
from fedlit.core.hooks import initial_client_state
from fedlit.core.labels import are_held, labelled
from fedlit.core.local_model import LocalModel, LocalTraining
from fedlit.core.logged import value_of, weighed
from fedlit.core.messages import Broadcast, Client, ClientData, ClientReport, ClientState, Payload, Round, ServerState
from fedlit.core.module import copy_of, in_words, overrides, scores_of, step_of
from fedlit.core.randomness import seed_process
from fedlit.core.rounds import client_round
from fedlit.federation.handover import PersonalState
from fedlit.federation.settings import Settings
from fedlit.metrics.auroc import ClassAUROC
from fedlit.metrics.tally import Tally


@dataclass(frozen=True)
class View:
    """Something to evaluate: a data set, seen through a client's model or through the federation's.

    Attributes:
        client: whose model; None for the federation's.
        holder: whose data; None for a test set of the server.
        part: ``train``, ``val`` or ``test`` of the holder, or the name of the server's test set.
        method: of the module that scores a batch; ``predict_step`` gives probabilities.
        limit: no more than so many examples.
    """

    client: str | None
    holder: str | None
    part: str
    method: str = "validation_step"
    limit: int | None = None


@dataclass
class Scores:
    """What an evaluation gave.

    Attributes:
        scores: [N, C], or None where the module declares no classes.
        labels: [N, C] in {0, 1, NaN}, or None likewise.
        logged: means over examples of what the module passed to ``self.log``.
        metrics: Metrics of torchmetrics among that, with what they have seen.
        tally: what a site tells in the place of scores and labels; None else.
        masked: columns of the classes whose labels are taken for unknown here.
        fewer: Whether its model ranks fewer classes than the federation has learned, so that a mean is of other images.
    """

    view: View
    examples: int
    scores: Tensor | None
    labels: Tensor | None
    logged: dict[str, float]
    metrics: dict[str, Metric] = field(default_factory=dict)
    tally: Tally | None = None
    masked: frozenset[int] = frozenset()
    fewer: bool = False

    @property
    def ranks(self) -> bool:
        """Whether it tells how well classes are ranked."""
        return self.scores is not None or self.tally is not None

    def mask_classes(self, columns: Sequence[bool]) -> None:
        """Take the labels of some classes for unknown."""
        self.masked |= {column for column, gone in enumerate(columns) if gone}
        if self.labels is not None:
            self.labels[:, columns] = torch.nan
        if self.tally is not None:
            self.tally.mask_classes(columns)

    def result(self, classes: Sequence[str]) -> tuple[Tally, ClassAUROC]:
        """Give its tally, and AUROC and support of each class; for what ranks."""
        tally = self.tally or Tally.of(self.scores, self.labels, classes)
        return tally, tally.class_auroc(classes)

    def hides(self, column: int) -> bool:
        """Whether images of a class may be labelled of which nothing is told: neither positives nor negatives are counted."""
        if self.tally is None or column in self.masked:
            return False
        return not (self.tally.positives[column].any() or self.tally.negatives[column].any())


@dataclass
class Program:
    """Everything that a process needs to train and evaluate clients; travels to worker processes once."""

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

    def dataset(self, view: View) -> Dataset:
        """What a view looks at."""
        return self.test_sets[view.part] if view.holder is None else getattr(self.data[view.holder], view.part)


OnReply = Callable[[ClientReport], None]
"""Called in cohort order as replies come in."""

AnyState = ClientState | StoredState
"""A client's state, in memory or in a file."""

Reply = tuple[Payload, list[tuple[AnyState | None, ClientReport]]]
"""What a job gives: the sum of its clients' payloads in their order, and each client's new state (None where it has none, as
after a measuring round) and report."""

Item = TypeVar("Item")

JOBS = 64
"""A cohort of twice as many clients or more goes to the workers in about so many jobs, each of several clients."""


def jobs_of(items: Sequence[Item], singly: bool = False) -> list[Sequence[Item]]:
    """Cut a cohort, or a list of views, into jobs of neighbours.

    The number of items alone says how: payloads are added within a job first, so that the order of additions is the same
    whatever the number of workers. With ``singly`` each is a job by itself.
    """
    size = 1 if singly else max(1, len(items) // JOBS)
    return [items[start : start + size] for start in range(0, len(items), size)]


class Worker:
    """Runs clients one after the other on one model instance.

    Attributes:
        doing: What it does at the moment, in words.
    """

    doing = ""

    def __init__(self, program: Program, fabric: FederationFabric) -> None:
        # One thread or two give different bits, so a client's number of threads is the run's, not the machine's.
        torch.set_num_threads(program.threads)
        if program.pictures != "mapped":
            from fedlit.federation.devices import placed  # which imports what reads pictures

            data, test_sets = placed(program.data, program.test_sets, program.pictures, fabric.device)
            program = replace(program, data=data, test_sets=test_sets)
        self.program = program
        self.local = LocalModel(fabric, program.module, program.aggregators, program.training)
        self._streams: dict[str, BatchStream] = {}
        self._down: tuple[Broadcast, Broadcast] | None = None
        self._ahead = ReadAhead(fabric.device) if program.pictures == "ahead" else None

    def fresh_state(self) -> ClientState:
        """Return the state of a client that has not trained yet."""
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
        """Several clients' part of a round, one after the other; new states go to the folder, where there is one.

        ``following`` is who comes after them, if that is known, and ``into`` memory [P] for the sum of their ``w``.
        """
        total, trained, down = None, [], self._here(down)
        for (name, state), after in pairwise(chain(clients, [following])):
            if self._ahead is not None:
                self._ahead.following = after and (self.stream(after[0]), after[1].load().batches if after[1] else 0)
            self.doing = f"training client {name!r}"
            with in_words(self.local.module, self.doing):
                stream, client = self.stream(name), self.program.clients[name]
                before = state.load()
                payload, new, report = client_round(
                    self.local, stream, client, state=before, down=down, rnd=rnd, into=into
                )
            total, into = add_payload(total, payload), None
            trained.append((None if new is before else folder.keep(new) if folder else new, report))
        return total, trained

    def _here(self, down: Broadcast) -> Broadcast:
        """What the clients get, on the device that trains; it is copied there once a round."""
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
            classes = labelled(self.local.module)
            unseen = () if are_held(dataset, classes) else classes
            self._streams[name] = BatchStream(
                dataset, program.batch_size, program.seed, name, ahead=self._ahead, classes=unseen
            )
        return self._streams[name]

    @torch.no_grad()
    def evaluate(self, view: View, state: ClientState | None, down: Broadcast) -> Scores:
        """Run ``validation_step`` over a view: scores where it returns them, and what it logs."""
        self.doing = f"evaluating {view}"
        program, local, module, down = self.program, self.local, self.local.module, self._here(down)
        dataset = program.dataset(view)
        if view.client is None:
            local.flat.load(down.w, down.stats)
            local.flat.own.load({})
        else:
            local.adopt(local.mask(program.clients[view.client]), state, down)
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
            with in_words(module, f"scoring {view.part!r}"):
                batch = fetch(dataset, indices)
                output = local.apply(lambda moved, number=number: step(moved, number), batch)
            for key, (mean, given) in weighed(local.fabric.logged).items():
                total, weight = sums.get(key, (0.0, 0.0))
                sums[key] = total + mean * (given or len(indices)), weight + (given or len(indices))
            output = scores_of(module, view.method, output, len(indices), len(local.layout.classes))
            if output is not None:
                scores.append(output.float())
                labels.append(columns(torch.as_tensor(batch[1]), output.shape[1]))
        logged = {key: total / weight for key, (total, weight) in sums.items()}
        metrics = local.fabric.taken()
        logged |= {key: value_of(key, metric) for key, metric in metrics.items()}
        collected = (torch.cat(scores).cpu(), torch.cat(labels).cpu()) if scores else (None, None)
        return Scores(view, seen, *collected, logged, metrics)


class InProcessPool:
    """A pool of one: this process is the worker, on a copy of the module."""

    def __init__(self, program: Program, fabric: FederationFabric) -> None:
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
        """Replies in cohort order, with ``singly`` one a client; new states go to the folder, where there is one."""
        jobs = jobs_of(cohort, singly)
        for job, after in zip_longest(jobs, jobs[1:]):
            held = ((name, states.get(name) or self.worker.fresh_state()) for name in job)
            yield self.worker.train(held, down, rnd, folder, after and (after[0], states.get(after[0])))

    def evaluate(self, views: Sequence[View], states: Mapping[str, AnyState], down: Broadcast) -> Iterator[Scores]:
        """Scores in order."""
        for view in views:
            state = states.get(view.client) or self.worker.fresh_state()
            yield self.worker.evaluate(view, state.load(), down)

    def close(self) -> None:
        """Let go of the model, and of pictures on its device."""
        vars(self).pop("worker", None)


class Engine:
    """Runs clients on a pool, and keeps their states; the federation does not know where.

    Attributes:
        where: in words, for the person at the keyboard.
        folder: of the clients' states, where they do not stay in memory.
        keeps_states: whether clients' states are here, and in checkpoints; otherwise they are at sites.
        reduce: what makes one payload of a round's single ones; without, they are added up as they come.

    Args:
        pool: an :class:`InProcessPool`, or what has its methods.
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
        """One round: the sum of the cohort's payloads, or what stands for it, and how it went for each. New client states wait."""
        self._drop(self._waiting)
        total, reports, self._waiting, single = None, [], {}, []
        singly = self.reduce is not None and rnd.window > 0
        for payload, trained in self._pool.train(cohort, self._states, down, rnd, self.folder, singly):
            for state, report in trained:
                if state is not None:
                    self._waiting[report.client] = state
                reports.append(report)
                on_reply(report)
            single += [payload.cpu()] if singly else []
            total = payload if singly else add_payload(total, payload)
        return self.reduce(single) if singly else total and total.cpu(), reports

    def commit(self) -> None:
        """Make the waiting client states the clients' own: the server has accepted the round."""
        replaced = {name: self._states[name] for name in self._waiting if name in self._states}
        self._states |= self._waiting
        self._waiting = {}
        self._drop(replaced)

    def evaluate(self, views: Sequence[View], down: Broadcast) -> list[Scores]:
        """Score each view, in order."""
        return list(self._pool.evaluate(views, self._states, down))

    def client_states(self) -> Mapping[str, AnyState]:
        """Return the committed states of the clients that this process keeps."""
        return self._states

    def load_client_states(self, states: Mapping[str, AnyState]) -> None:
        """Restore what ``client_states`` gave; those of clients that other processes keep are ignored."""
        before = self._states
        self._states = {name: self.folder.adopt(state) if self.folder else state for name, state in states.items()}
        self._drop(before)

    def at_sites(self) -> dict[str, int | None]:
        """Return after which round the state of each client at its site is the federation's; {} where they are here."""
        return {}

    def roll_back(self, at_sites: Mapping[str, int | None], rounds: int) -> None:
        """Go on from the states at sites that a checkpoint after so many rounds names."""

    def saved(self, places: Sequence[Mapping[str, int | None]]) -> None:
        """Learn to which states at sites the checkpoints go back."""

    def carry_over(
        self,
        parts: PersonalState,
        clients: Mapping[str, Client],
        module: LightningModule,
        server: ServerState,
        aggregators: Sequence[Aggregator],
    ) -> None:
        """Let clients begin with what they kept to themselves in an earlier phase, see :class:`PersonalState`."""
        begun = parts.states(clients, module, server, aggregators, parts.kept())
        keep = self.folder.keep if self.folder else ClientState.load
        self.load_client_states({name: keep(state) for name, state in begun})

    def close(self) -> None:
        """Let go of processes, shared memory and the folder of states."""
        self._pool.close()
        if self.folder:
            self.folder.close()

    def _drop(self, states: Mapping[str, AnyState]) -> None:
        """Let go of the files of states that nobody has any more."""
        if self.folder and states:
            self.folder.drop(states.values(), [self._states[name] for name in states if name in self._states])


def add_payload(total: Payload | None, payload: Payload) -> Payload:
    """Give the sum so far and one payload more, in the memory of the first."""
    if total is None:
        return payload
    total.add_(payload)
    return total


class Away(Protocol):
    """Whoever has the clients, where this machine does not have them: it makes the engine of each phase.

    Attributes:
        whole: whether some evaluate whole data sets alone, also in a trial run.
    """

    whole: bool

    def open(self, directory: Path) -> None:
        """Learn the id of the run in a directory, or give a new run one."""

    def engine(
        self, program: Program, fabric: FederationFabric, settings: Settings, phase: str, layout: Layout
    ) -> Engine:
        """Make the engine of a phase; the main part's name is ""."""
