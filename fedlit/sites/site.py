"""The half that stays at a site: it has the data, the states and the rules, and answers one message after the other."""

import copy
import errno
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch

from fedlit import __version__
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.fabric import make_fabric
from fedlit.core.flat import Layout
from fedlit.core.local_model import LocalTraining, configured
from fedlit.core.messages import Broadcast, ClientState, ServerState
from fedlit.data.features import with_fixed_features
from fedlit.data.federated import FederatedDataModule, parts_of
from fedlit.federation import graphs, placement
from fedlit.federation.engines.base import Program, View, Worker
from fedlit.federation.handover import PersonalParts
from fedlit.federation.memory_format import chosen
from fedlit.metrics.tally import Tally
from fedlit.sites import recipe
from fedlit.sites.envelope import Damaged, Envelope
from fedlit.sites.ledger import Ledger
from fedlit.sites.messages import (
    FAILED,
    REPLY,
    Done,
    Failure,
    Hello,
    Prepare,
    Prepared,
    Presence,
    Scored,
    Sent,
    Start,
    Started,
    Task,
    Told,
)
from fedlit.sites.payloads import module_state, payload_tensors, to_clients, to_round
from fedlit.sites.policy import Refused
from fedlit.sites.settings import SiteSettings
from fedlit.sites.states import MissingState, NotKept, SiteStates


class Unprepared(Exception):
    """The site's process does not know what is trained: it is new, or the phase is."""


class Unfit(Exception):
    """The site and the server do not fit together."""


KINDS: dict[type[Exception], str] = {
    Refused: "refused",
    Unfit: "unfit",
    MissingState: "state",
    Unprepared: "unprepared",
    Damaged: "damaged",
}
"""What the server is told of a failure; all others are ``failed``."""

IN_WORDS = (*KINDS, NotKept, ConfigError, TrainingError)
"""Errors whose texts are for people; of others the first line is sent, and the rest stays in the site's own log."""


@dataclass
class Ready:
    """What a site has prepared for a phase."""

    asked: Prepare
    recipe: recipe.Recipe
    worker: Worker
    states: SiteStates

    @property
    def layout(self) -> Layout:
        """Where everything lies in the vectors."""
        return self.worker.local.layout


class Site:
    """Answer what a server asks, as far as the site's policy allows.

    Args:
        settings: The site's own file.
        now: The clock, in seconds since 1970.
        until: When the site's certificate ends, in seconds since 1970; None where it has none.
    """

    def __init__(
        self, settings: SiteSettings, now: Callable[[], float] = time.time, until: float | None = None
    ) -> None:
        self.settings, self.policy, self.name, self._now = settings, settings.policy, settings.name, now
        self._until = until
        self._ledger = Ledger(settings.folder)
        self._data: FederatedDataModule | None = None
        self._ready: Ready | None = None
        self._verbs = {
            "hello": self._hello,
            "prepare": self._prepare,
            "start": self._start,
            "train": self._train,
            "measure": self._measure,
            "evaluate": self._evaluate,
            "end": self._end,
        }

    def answer_bytes(self, content: bytes) -> bytes:
        """Answer a message in bytes."""
        try:
            envelope = Envelope.from_bytes(content)
        except Damaged as error:
            return self._failed("message", error).to_bytes()
        return self.answer(envelope).to_bytes()

    def answer(self, envelope: Envelope) -> Envelope:
        """Do what is asked; a failure of any kind is an answer in words, and the site is there for the next message."""
        try:
            if envelope.verb not in self._verbs:
                raise Damaged(f"{envelope.verb!r} is nothing that a site can be asked")
            self.policy.check_verb(envelope.verb)
            reply = self._verbs[envelope.verb](envelope)
        except Exception as error:  # whatever a module of somebody's own raises
            reply = self._failed(envelope.verb, error)
        return self._noted(envelope, reply)

    def _hello(self, envelope: Envelope) -> Envelope:
        asked, data = envelope.message(Hello), self._own_data()
        if asked.fedlit != __version__:
            raise Unfit(
                f"it has fedlit {__version__}, and the server {asked.fedlit}: rounds of two versions may differ; install the same"
            )
        told = [self._told(data, name) for name in data.clients]
        presence = Presence(
            self.name,
            __version__,
            torch.__version__,
            platform.python_version(),
            str(make_fabric(self.settings.accelerator).device),
            self._now(),
            list(data.classes),
            [asdict(each) for each in told],
            self.policy.leaves.scores,
            self._until,
        )
        return Envelope.of(REPLY, presence)

    def _prepare(self, envelope: Envelope) -> Envelope:
        asked, data = envelope.message(Prepare), self._own_data()
        self.policy.check_config(asked.config)
        self._ready = None
        made, fabric = (
            recipe.read(asked.config, data.classes),
            make_fabric(self.settings.accelerator, precision=asked.precision),
        )
        module, clients = made.module, to_clients(asked.clients)
        if unknown := [name for name in clients if name not in data.clients]:
            raise Unfit(f"it has no client {unknown[0]!r}; it has {', '.join(data.clients)}")
        try:
            module.load_state_dict(module_state(envelope.tensors(), module.state_dict()))
        except ValueError as error:
            raise Unfit(f"the model is another one here: {error}; install the same code") from error
        trained, _ = with_fixed_features(module, data, fabric)
        training = LocalTraining(
            asked.optimizer_state,
            asked.gradient_clip,
            asked.gradient_clamp,
            asked.measure_batches,
            chosen(asked.memory_format, fabric, module) == "channels_last",
            asked.batch_size * graphs.at_a_site(asked.cuda_graph, fabric.device, module),
            compiled=bool(asked.compile),
        )
        graphs.check_compiler(asked.compile, fabric.device)
        place = placement.chosen(data.device, fabric.device, trained, {})
        program = Program(
            module, made.phase.aggregators, clients, trained, {}, training, asked.batch_size, asked.eval_batch_size, asked.seed,
            asked.threads, asked.limit_eval_batches, place.name,
        )  # fmt: skip
        worker = Worker(program, fabric)
        self._ready = ready = Ready(asked, made, worker, self._states(asked.run, asked.phase, made))
        told = ready.layout
        return Envelope.of(
            REPLY, Prepared(told.fingerprint, told.size, told.stats_size, list(told.classes), told.frozen)
        )

    def _start(self, envelope: Envelope) -> Envelope:
        asked = envelope.message(Start)
        ready, data = self._ready_for(asked.run, asked.phase, asked.fingerprint), self._own_data()
        self.policy.check_config(asked.config)
        before = recipe.read(asked.config, data.classes)
        state = self._states(asked.run, asked.before, before).read(asked.client, asked.accepted, asked.fresh)
        local, program = ready.worker.local, ready.worker.program
        layout = Layout.of(configured(local.fabric, before.module, before.phase.aggregators))
        parts = PersonalParts(None, layout, before.phase.aggregators, before.part.dropped(before.model))
        down, held = envelope.tensors(), [(asked.client, state)] if state else []
        server = ServerState(ready.layout, down["w"], down["stats"], [])
        clients = {asked.client: program.clients[asked.client]}
        begun = parts.states(clients, local.module, server, program.aggregators, held)
        kept = False
        for name, own in begun:
            ready.states.keep(name, 0, own, accepted=True)
            kept = True
        return Envelope.of(REPLY, Started(kept))

    def _train(self, envelope: Envelope) -> Envelope:
        task = envelope.message(Task)
        ready = self._ready_for(task.run, task.phase, task.fingerprint)
        self.policy.check_round(self._ledger.trained(task.run, task.client))
        ready.states.settle(task.client, task.accepted, task.durable, task.fresh)
        sent, after = self._round(ready, task, envelope)
        ready.states.keep(task.client, task.asked["index"] + 1, after)
        return sent

    def _measure(self, envelope: Envelope) -> Envelope:
        task = envelope.message(Task)
        sent, _ = self._round(self._ready_for(task.run, task.phase, task.fingerprint), task, envelope)
        return sent

    def _round(self, ready: Ready, task: Task, envelope: Envelope) -> tuple[Envelope, ClientState | None]:
        """A client's part of a round: what is sent, and its new state, which a measuring round has not."""
        state, down = self._state(ready, task), self._down(ready, envelope)
        with self._reading():
            payload, [(after, report)] = ready.worker.train([(task.client, state)], down, to_round(task.asked))
        self.policy.check_vectors(payload.vectors)
        return Envelope.of(REPLY, Sent(payload.weight, asdict(report)), payload_tensors(payload.cpu())), after

    def _evaluate(self, envelope: Envelope) -> Envelope:
        task = envelope.message(Task)
        ready, view = self._ready_for(task.run, task.phase, task.fingerprint), View(**task.asked)
        state = None if view.client is None else self._state(ready, task)
        with self._reading():
            scored = ready.worker.evaluate(view, state, self._down(ready, envelope))
        if scored.scores is None:
            return Envelope.of(REPLY, Scored(scored.examples, scored.logged, "none"))
        if self.policy.leaves.scores:
            tensors = {"scores": scored.scores, "labels": scored.labels}
            return Envelope.of(REPLY, Scored(scored.examples, scored.logged, "scores"), tensors)
        below = self.policy.leaves.counts_below
        tally = Tally.of(scored.scores, scored.labels, ready.layout.classes, below)
        return Envelope.of(REPLY, Scored(scored.examples, scored.logged, "tally"), vars(tally))

    def _end(self, envelope: Envelope) -> Envelope:
        self._ready = None
        return Envelope.of(REPLY, Done())

    def _own_data(self) -> FederatedDataModule:
        """The site's own clients alone; they are read once."""
        if self._data is None:
            whole = self.settings.data
            with self._reading():
                whole.prepare_data()
                whole.setup("fit")
            own = self.settings.own(list(whole.clients))
            if not own:
                raise ConfigError(
                    f"share: {self.settings.share} of the {len(whole.clients)} clients of its data is none"
                )
            data = copy.copy(whole)
            data.clients, data.test_sets = {name: whole.clients[name] for name in own}, {}
            self._data = data
        return self._data

    def _told(self, data: FederatedDataModule, name: str) -> Told:
        client = data.clients[name]
        sizes, counts = dict(parts_of(client)), {}
        for split, part in sizes.items():
            labels = getattr(part, "labels", None)
            if labels is not None:
                counts[split] = [self.policy.told((labels == value).sum(0).tolist()) for value in (1, 0)]
        return Told(
            name,
            list(client.classes),
            list(data.schemes[name]) if name in data.schemes else None,
            len(client.train),
            len(sizes["val"]) if "val" in sizes else None,
            len(sizes["test"]) if "test" in sizes else None,
            getattr(client.train, "augment", None) is not None,
            counts,
        )

    def _ready_for(self, run: str, phase: str, fingerprint: str) -> Ready:
        ready = self._ready
        if ready is None or (ready.asked.run, ready.asked.phase, ready.asked.fingerprint) != (run, phase, fingerprint):
            raise Unprepared("it has not prepared this phase of this run")
        if ready.layout.fingerprint != fingerprint:
            raise Unfit(
                f"the model has another layout here, {ready.layout.fingerprint}, than at the server, {fingerprint}"
            )
        return ready

    def _state(self, ready: Ready, task: Task) -> ClientState:
        if task.client not in ready.worker.program.clients:
            raise Unfit(f"it has no client {task.client!r} in this phase")
        return ready.states.read(task.client, task.accepted, task.fresh) or ready.worker.fresh_state()

    def _states(self, run: str, phase: str, made: recipe.Recipe) -> SiteStates:
        return SiteStates(self.settings.folder, run, phase, len(made.phase.aggregators))

    def _down(self, ready: Ready, envelope: Envelope) -> Broadcast:
        down = Broadcast.from_tensors(envelope.tensors(), len(ready.worker.program.aggregators))
        if (len(down.w), len(down.stats)) != (ready.layout.size, ready.layout.stats_size):
            raise Unfit(f"{len(down.w):,} weights came, and the model has {ready.layout.size:,}")
        return down

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Within, files that cannot be read are the site's data."""
        try:
            yield
        except OSError as error:
            full = error.errno == errno.ENOSPC
            why = "its disk is full" if full else f"its data cannot be read: {error.strerror or error}"
            where = f" ({error.filename})" if error.filename else ""
            raise ConfigError(f"{why}{where}; look at data in the site's own file, and at the disk") from error

    def _noted(self, envelope: Envelope, reply: Envelope) -> Envelope:
        """Write down what leaves before it does; what cannot be written down does not leave."""
        asked = envelope.content
        try:
            said = [str(asked.get(key) or "") for key in ("run", "phase", "client")]
            self._ledger.note(said[0], said[1], envelope.verb, said[2], reply)
        except OSError as error:
            reason = f"what leaves it cannot be written to {self.settings.folder}: {error.strerror or error}; make room there"
            return Envelope.of(FAILED, Failure("failed", reason))
        return reply

    def _failed(self, verb: str, error: Exception) -> Envelope:
        words = isinstance(error, IN_WORDS)
        text = str(error) if words else f"{type(error).__name__}: {(str(error) or '-').splitlines()[0]}"
        print(f"site {self.name!r}, {verb}: {text}", file=sys.stderr)
        if not words:
            traceback.print_exception(error)
        kind = next((told for cls, told in KINDS.items() if isinstance(error, cls)), "failed")
        return Envelope.of(FAILED, Failure(kind, text[:2000]))
