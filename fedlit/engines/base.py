"""What an engine is: it runs clients' rounds and evaluations somewhere and hands back sums."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils.data import Dataset

from fedlit.aggregators.base import Aggregator
from fedlit.data.federated import ClientData
from fedlit.data.sampling import BatchStream, columns, fetch
from fedlit.fabric import FederationFabric
from fedlit.foreign import overrides, step_of
from fedlit.local import LocalModel, LocalTraining, initial_client_state
from fedlit.messages import Broadcast, Client, ClientReport, ClientState, Payload, Round
from fedlit.randomness import seed_process
from fedlit.rounds import client_round


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
    """

    view: View
    examples: int
    scores: Tensor | None
    labels: Tensor | None
    logged: dict[str, float]


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

    def dataset(self, view: View) -> Dataset:
        """What a view looks at."""
        return self.test_sets[view.part] if view.holder is None else getattr(self.data[view.holder], view.part)


OnReply = Callable[[ClientReport], None]
"""Called in cohort order as replies come in."""


class Engine(Protocol):
    """Runs clients; the federation does not know where.

    Attributes:
        where: in words, for the person at the keyboard.
    """

    where: str

    def run(
        self, cohort: Sequence[str], down: Broadcast, rnd: Round, on_reply: OnReply
    ) -> tuple[Payload, list[ClientReport]]:
        """One round: the sum of the cohort's payloads, and how it went for each. New client states wait."""

    def commit(self) -> None:
        """Make the waiting client states the clients' own: the server has accepted the round."""

    def evaluate(self, views: Sequence[View], down: Broadcast) -> list[Scores]:
        """Score each view, in order."""

    def client_states(self) -> Mapping[str, ClientState]:
        """The committed states of the clients that this process keeps."""

    def load_client_states(self, states: Mapping[str, ClientState]) -> None:
        """Restore what ``client_states`` gave; others are ignored."""

    def close(self) -> None:
        """Let go of processes and shared memory."""


class Worker:
    """Runs clients one after the other on one model instance."""

    def __init__(self, program: Program, fabric: FederationFabric) -> None:
        # One thread or two give different bits, so a client's number of threads is the run's, not the machine's.
        torch.set_num_threads(program.threads)
        self.program = program
        self.local = LocalModel(fabric, program.module, program.aggregators, program.training)
        self._streams: dict[str, BatchStream] = {}

    def fresh_state(self) -> ClientState:
        return initial_client_state(self.program.aggregators, self.local.layout)

    def train(
        self, name: str, state: ClientState, down: Broadcast, rnd: Round
    ) -> tuple[Payload, ClientState, ClientReport]:
        """One client's part of a round."""
        program = self.program
        if name not in self._streams:
            dataset = program.data[name].train
            self._streams[name] = BatchStream(dataset, program.batch_size, program.seed, name)
        return client_round(self.local, self._streams[name], program.clients[name], state, down, rnd)

    @torch.no_grad()
    def evaluate(self, view: View, state: ClientState | None, down: Broadcast) -> Scores:
        """Run ``validation_step`` over a view: scores where it returns them, and what it logs."""
        program, local, module = self.program, self.local, self.local.module
        dataset = program.dataset(view)
        if view.client is None:
            local.flat.load(down.w, down.stats)
        else:
            local.adopt(local.mask(program.clients[view.client]), state, down)
        seed_process(program.seed, "evaluate", view.holder or "", view.part)
        module.eval()
        if not overrides(module, view.method):
            return Scores(view, 0, None, None, {})
        scores, labels, sums, step = [], [], {}, step_of(module, view.method)
        seen = 0
        batches = torch.arange(len(dataset))[: view.limit].split(program.eval_batch_size)
        for number, indices in enumerate(batches[: program.limit_eval_batches]):
            seen += len(indices)
            local.fabric.logged.clear()
            batch = fetch(dataset, indices)
            moved = local.fabric.to_device(local.fabric.strategy.precision.convert_input(batch))
            with local.fabric.autocast():
                output = step(moved, number)
            for key, mean in local.fabric.means().items():
                sums[key] = sums.get(key, 0.0) + mean * len(indices)
            if torch.is_tensor(output) and output.ndim == 2 and output.shape[1] == len(local.layout.classes):
                scores.append(output.float().cpu())
                labels.append(columns(torch.as_tensor(batch[1]), output.shape[1]))
        logged = {key: total / seen for key, total in sums.items()}
        if not scores:
            return Scores(view, seen, None, None, logged)
        return Scores(view, seen, torch.cat(scores), torch.cat(labels), logged)


class InProcess:
    """A pool of one: this process is the worker."""

    def __init__(self, program: Program, fabric: FederationFabric) -> None:
        self.worker = Worker(program, fabric)

    def train(
        self,
        cohort: Sequence[str],
        states: Mapping[str, ClientState],
        down: Broadcast,
        rnd: Round,
    ) -> Iterator[tuple[Payload, ClientState, ClientReport]]:
        """Replies in cohort order."""
        for name in cohort:
            yield self.worker.train(name, states.get(name) or self.worker.fresh_state(), down, rnd)

    def evaluate(self, views: Sequence[View], states: Mapping[str, ClientState], down: Broadcast) -> Iterator[Scores]:
        """Scores in order."""
        for view in views:
            yield self.worker.evaluate(view, states.get(view.client) or self.worker.fresh_state(), down)

    def close(self) -> None:
        """Nothing to let go of."""
