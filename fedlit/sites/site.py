"""The site's side: it holds the data, the states and the rules, and answers one message at a time."""

import math
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedlit import __version__
from fedlit.core.fabric import make_fabric
from fedlit.core.flat import Layout
from fedlit.core.graphs import RECORDERS
from fedlit.core.local_model import LocalTraining, configured
from fedlit.core.measuring import objective_of
from fedlit.core.messages import Broadcast, Client, ClientReport, ClientState, ServerState
from fedlit.data.pictures.features import with_fixed_features
from fedlit.federation import devices
from fedlit.federation.engines.base import Program, Worker
from fedlit.federation.engines.scores import View
from fedlit.federation.examinations import Compiler, examine
from fedlit.federation.handover import PersonalState
from fedlit.metrics.tally import Tally
from fedlit.predictions.export import described_images
from fedlit.schedules import Schedule
from fedlit.sites import models, recipe
from fedlit.sites.envelope import Envelope, InvalidMessageError
from fedlit.sites.failures import Unfit, Unprepared, failure_of
from fedlit.sites.ledger import Ledger, LedgerEntry
from fedlit.sites.messages import (
    FAILED,
    REPLY,
    Done,
    End,
    Evaluated,
    Failure,
    Final,
    Hello,
    Look,
    Member,
    Prepare,
    Prepared,
    Presence,
    RoundReport,
    Sent,
    Start,
    Started,
    Task,
    Train,
    check_run,
)  # fmt: skip
from fedlit.sites.own_data import OwnData, reading
from fedlit.sites.payloads import cut, module_state, payload_tensors
from fedlit.sites.policy import Refused, digest, view_of
from fedlit.sites.settings import SiteSettings
from fedlit.sites.states import SiteStates, forget
from fedlit.sites.table import lacking, line_to_add, table_of


@dataclass
class Ready:
    """A phase that a site has prepared."""

    asked: Prepare
    recipe: recipe.Recipe
    schedule: Schedule
    worker: Worker
    states: SiteStates
    start: Tensor

    @property
    def layout(self) -> Layout:
        """The layout of the vectors."""
        return self.worker.local.layout


class Site:
    """A site that answers the server's messages, as far as its policy allows.

    Args:
        settings: The site's own file.
        now: The clock, in seconds since 1970.
        until: When the site's certificate expires, in seconds since 1970; None if it has none.
        lead: Name of the lead who asked for the run, if the site knows it.

    Raises:
        ConfigError: If a class that the file allows cannot be imported, or the ledger was edited.
    """

    def __init__(
        self, settings: SiteSettings, now: Callable[[], float] = time.time, until: float | None = None, lead: str = ""
    ) -> None:
        self.settings, self.policy, self.name, self._now = settings, settings.policy, settings.name, now
        self._until, self._lead = until, lead
        self._table = table_of(self.policy.allow)
        self._ledger = Ledger(settings.folder, now)
        for run in forget(settings.folder, settings.state_days or math.inf, now()):
            print(f"states of run {run} are removed after {settings.state_days:g} days (state_days)", file=sys.stderr)
        self._data = OwnData(settings)
        self._ready: Ready | None = None
        self._verbs = {
            "hello": self._hello,
            "prepare": self._prepare,
            "start": self._start,
            "train": self._train,
            "measure": self._train,
            "evaluate": self._evaluate,
            "model": self._model,
            "end": self._end,
        }

    def answer_bytes(self, content: bytes) -> bytes:
        """Answer a message in bytes."""
        try:
            self.policy.check_message(len(content), self._ledger)
            envelope = Envelope.from_bytes(content)
        except (InvalidMessageError, Refused) as error:
            return self._noted(
                LedgerEntry(self._now(), self._lead, verb="message"), self._failed("message", error)
            ).to_bytes()
        return self.answer(envelope).to_bytes()

    def answer(self, envelope: Envelope) -> Envelope:
        """Do what the message asks; every failure becomes an answer, and the site stays ready for the next message."""
        entry = LedgerEntry(self._now(), self._lead, verb=envelope.verb[:20])
        try:
            if envelope.verb not in self._verbs:
                raise InvalidMessageError(
                    f"verb: expected one of {', '.join(self._verbs)}, found {envelope.verb[:20]!r}; "
                    "install the same fedlit on both sides"
                )
            self.policy.check_verb(envelope.verb)
            entry, reply = self._verbs[envelope.verb](envelope, entry)
        except Exception as error:  # a custom module may raise anything
            reply = self._failed(envelope.verb, error)
        return self._noted(entry, reply)

    def _hello(self, envelope: Envelope, entry: LedgerEntry) -> tuple[LedgerEntry, Envelope]:
        asked, policy = envelope.message(Hello), self.policy
        if asked.fedlit != __version__:
            raise Unfit(
                f"it has fedlit {__version__}, and the server has {asked.fedlit}: results of two versions may differ; "
                "install the same version"
            )
        if odd := lacking([{"class_path": path} for path in asked.needs], self._table):
            raise Refused(
                f"its policy does not allow {', '.join(odd)}; to allow it, the site can write "
                f"{line_to_add([*policy.allow, *odd])} under policy"
            )
        floors = policy.floors
        presence = Presence(
            name=self.name,
            fedlit=__version__,
            torch=torch.__version__,
            python=platform.python_version(),
            device=str(make_fabric(self.settings.accelerator).device),
            time=self._now(),
            classes=list(self._data.module.classes),
            clients=self._data.told(),
            scores=policy.leaves.scores,
            whole=bool(floors and floors.whole),
            examples=floors.examples if floors else 1,
            hides_below=policy.leaves.counts_below,
            until=self._until,
            ledger=self._ledger.head_after(asked.lines),
        )
        return entry, Envelope.of(REPLY, presence, self._data.organisations())

    def _prepare(self, envelope: Envelope, entry: LedgerEntry) -> tuple[LedgerEntry, Envelope]:
        asked, data = _checked(envelope.message(Prepare)), self._data.module
        entry = replace(entry, run=asked.run, phase=asked.phase, config=digest(asked.config), question=envelope.digest)
        self.policy.check_config(asked.config)
        self._ready = None
        made = self._read(asked.config)
        plan, fabric = made.plan, make_fabric(self.settings.accelerator, precision=made.plan.precision)
        if plan.weights and plan.weights != envelope.digest:
            raise Refused(
                f"the run's first weights: expected the SHA-256 of the plan, {plan.weights}, found {envelope.digest}"
            )
        clients = self._members(asked.clients, plan)
        sizes = {name: client.examples for name, client in clients.items()}
        self.policy.check_plan(plan.batch_size, sizes, plan.threads, plan.limit_eval_batches is not None)
        module = made.module
        try:
            module.load_state_dict(module_state(envelope.tensors(), module.state_dict()))
        except ValueError as error:
            raise Unfit(f"the model differs from the server's: {error}; install the same code") from error
        trained, _ = with_fixed_features(module, data, fabric)
        training = LocalTraining(
            plan.optimizer_state,
            plan.gradient_clip,
            plan.gradient_clamp,
            plan.measure_batches,
            devices.resolve_memory_format(plan.memory_format, fabric, module) == "channels_last",
            plan.batch_size * (plan.cuda_graph is True and fabric.device.type in RECORDERS),
            compiled=bool(plan.compile),
        )
        if plan.compile:
            examine(fabric.device, (Compiler(),))
        place = devices.resolve_placement(data.device, fabric.device, trained, {})
        program = Program(
            module=module, aggregators=made.phase.aggregators, clients=clients, data=trained, test_sets={},
            training=training, batch_size=plan.batch_size, eval_batch_size=plan.eval_batch_size, seed=plan.seed,
            threads=plan.threads, limit_eval_batches=plan.limit_eval_batches, pictures=place.name,
        )  # fmt: skip
        worker = Worker(program, fabric)
        states, start = self._states(asked.run, asked.phase, made), worker.local.flat.w.cpu().clone()
        self._ready = ready = Ready(asked, made, made.schedule, worker, states, start)
        told = ready.layout
        prepared = Prepared(told.fingerprint, told.size, told.stats_size, list(told.classes), told.frozen)
        return entry, Envelope.of(REPLY, prepared)

    def _members(self, members: list[Member], plan: recipe.Plan) -> dict[str, Client]:
        """Return the site's clients that take part, by name."""
        data, clients = self._data.module, {}
        for member in members:
            if member.name not in data.clients:
                raise Unfit(f"it has no client {member.name!r}; it has {', '.join(data.clients)}")
            if not 0 < member.weight <= 1:
                raise Unfit(f"client {member.name!r}: expected a weight in (0, 1], found {member.weight}")
            own, factor = data.clients[member.name], plan.lr_factors.get(member.name, 1.0)
            hidden = tuple(self._data.stand_ins(member.name).items())
            clients[member.name] = Client(member.name, own.classes, len(own.train), member.weight, factor, hidden)
        return clients

    def _start(self, envelope: Envelope, entry: LedgerEntry) -> tuple[LedgerEntry, Envelope]:
        asked = _checked(envelope.message(Start))
        entry = replace(entry, run=asked.run, phase=asked.phase, client=asked.client, question=envelope.digest)
        ready = self._ready_for(asked.run, asked.phase, asked.fingerprint)
        self._own_client(ready, asked.client)
        self.policy.check_config(asked.config)
        before = self._read(asked.config)
        state = self._states(asked.run, asked.before, before).read(asked.client, asked.accepted, asked.fresh)
        local, program = ready.worker.local, ready.worker.program
        layout = Layout.of(configured(local.fabric, before.module, before.phase.aggregators))
        dropped = () if asked.before == asked.phase else before.part.dropped(before.model)
        parts = PersonalState(None, layout, before.phase.aggregators, dropped)
        down, held = self._down(ready, envelope), [(asked.client, state)] if state else []
        server = ServerState(ready.layout, down.w, down.stats, [])
        clients = {asked.client: program.clients[asked.client]}
        begun = parts.states(clients, local.module, server, program.aggregators, held)
        kept = False
        for name, own in begun:
            ready.states.keep(name, 0, own, accepted=True)
            kept = True
        return entry, Envelope.of(REPLY, Started(kept))

    def _train(self, envelope: Envelope, entry: LedgerEntry) -> tuple[LedgerEntry, Envelope]:
        """Run a client's part of a round; a measuring round has no new state."""
        task = _checked(envelope.message(Task))
        asked, entry = task.asked, self._entry(entry, task, envelope)
        if not isinstance(asked, Train):
            raise InvalidMessageError(f"{envelope.verb}: expected a round, found {type(asked).__name__}")
        ready = self._ready_for(task.run, task.phase, task.fingerprint)
        client, trains = self._own_client(ready, task.client), envelope.verb == "train"
        entry = replace(entry, at=asked.index, config=digest(ready.asked.config))
        self.policy.check_round(self._ledger, client.name)
        rnd = ready.recipe.plan.round(asked, ready.schedule, measures=not trains)
        epoch = ready.worker.stream(client.name).steps_per_epoch
        steps = min(ready.recipe.plan.measure_batches, epoch)  # a measuring round also reads batches
        if trains:
            steps = rnd.window * (epoch if rnd.unit == "epochs" else 1)
        batches = steps * (ready.worker.local.batches_per_step if trains else 1)
        seen = min(batches * ready.recipe.plan.batch_size, client.examples)
        self.policy.check_steps(steps, client.examples if steps == epoch else seen, client.examples)
        if trains:
            ready.states.commit(client.name, task.accepted, task.durable, task.fresh)
        state, down = self._state(ready, task), self._down(ready, envelope)
        self._check_start(ready, asked, down)
        with reading():
            payload, [(after, report)] = ready.worker.train([(client.name, state)], down, rnd)
        self.policy.check_vectors(payload.vectors)
        whole = {}
        if trains:
            ready.states.keep(client.name, asked.index + 1, after)
            payload, whole = cut(payload, ready.worker.local.mask(client), ready.layout)
        entry = replace(entry, examples=report.examples, steps=report.steps)
        sent = Sent(payload.weight, RoundReport(**_told(report)), self._data.fingerprint(client.name), whole)
        return entry, Envelope.of(REPLY, sent, payload_tensors(payload.cpu()))

    def _check_start(self, ready: Ready, asked: Train, down: Broadcast) -> None:
        """Refuse first weights other than the approved plan's, except for the objective's variables."""
        if self.policy.configs is None or not ready.recipe.plan.weights or asked.index > 0:
            return
        objective = objective_of(ready.worker.local.module)
        own = [] if objective is None else list(objective.parameters())
        variables = {name for name, p in ready.worker.local.module.named_parameters() if any(p is each for each in own)}
        for entry in ready.layout.parameters:
            if entry.name not in variables and not torch.equal(entry.view(down.w), entry.view(ready.start)):
                raise Refused(f"the weights of {entry.name} in the first round are not those of the approved plan")

    def _evaluate(self, envelope: Envelope, entry: LedgerEntry) -> tuple[LedgerEntry, Envelope]:
        task = _checked(envelope.message(Task))
        look, entry = task.asked, self._entry(entry, task, envelope)
        if not isinstance(look, Look):
            raise InvalidMessageError(f"evaluate: expected an evaluation, found {type(look).__name__}")
        ready = self._ready_for(task.run, task.phase, task.fingerprint)
        if look.holder not in self._data.module.clients:
            raise Unfit(f"it has no client {look.holder!r}")
        if not -1 <= look.at <= ready.recipe.plan.rounds:
            raise Unfit(f"evaluate: expected a round from -1 to {ready.recipe.plan.rounds}, found {look.at}")
        entry = replace(entry, view=view_of(look), at=look.at, config=digest(ready.asked.config))
        self.policy.check_look(look, task.run, task.phase, entry.question, self._ledger)
        state = None if task.client is None else self._state(ready, task)
        view = View(task.client, look.holder, look.part, look.method, look.limit)
        if getattr(self._data.module.clients[look.holder], look.part) is None:
            raise Unfit(f"client {look.holder!r} has no part {look.part!r}")
        with reading():
            scored = ready.worker.evaluate(view, state, self._down(ready, envelope))
        entry = replace(entry, examples=scored.examples)
        scores = self.policy.leaves.scores
        logged = {} if not scores and self._data.hidden(look.holder, look.part) else scored.logged
        kind, tensors = "none", {}
        if scored.scores is not None and scores:
            kind, tensors = "scores", {"scores": scored.scores, "labels": scored.labels}
        elif scored.scores is not None:
            below = self.policy.leaves.counts_below
            kind, tensors = "tally", vars(Tally.of(scored.scores, scored.labels, ready.layout.classes, below))
        data = self._data.fingerprint(look.holder)
        return entry, Envelope.of(REPLY, Evaluated(scored.examples, logged, kind, data), tensors)

    def _model(self, envelope: Envelope, entry: LedgerEntry) -> tuple[LedgerEntry, Envelope]:
        """Store the best model of a run, with what the client keeps to itself."""
        task = _checked(envelope.message(Task))
        asked, entry = task.asked, self._entry(entry, task, envelope)
        if not isinstance(asked, Final):
            raise InvalidMessageError(f"model: expected the best model of a run, found {type(asked).__name__}")
        ready = self._ready_for(task.run, task.phase, task.fingerprint)
        plan, local, layout = ready.recipe.plan, ready.worker.local, ready.layout
        entry = replace(entry, at=asked.rounds, config=digest(ready.asked.config))
        if task.phase or not 0 <= asked.rounds <= plan.rounds or len(asked.learned) != len(layout.classes):
            raise InvalidMessageError(
                f"a model after round {asked.rounds} of {plan.rounds}, of {len(asked.learned)} classes"
            )
        if envelope.vectors.keys() != {"w", "stats"}:
            raise InvalidMessageError(f"model: expected the vectors w and stats, found {', '.join(envelope.vectors)}")
        down, masks = self._down(ready, envelope), [local.mask(c) for c in ready.worker.program.clients.values()]
        if task.client is not None:
            local.adopt(local.mask(self._own_client(ready, task.client)), self._state(ready, task), down)
        elif any(mask.private(layout) or (mask.keeps_stats(layout) and layout.stats_size) for mask in masks):
            raise InvalidMessageError(
                "model: clients keep a part of the model; expected the name of a client, found none"
            )
        else:
            local.flat.load(down.w, down.stats)
            local.flat.own.load({})
        notes = {"round": asked.rounds, "classes": layout.classes, "learned": asked.learned}
        notes |= described_images(self._data.module)
        models.keep(
            self.settings.folder,
            task.run,
            task.client,
            most=self.policy.limits.models,
            module=local.module,
            plan=plan,
            notes=notes,
        )
        return entry, Envelope.of(REPLY, Done())

    def _end(self, envelope: Envelope, entry: LedgerEntry) -> tuple[LedgerEntry, Envelope]:
        asked = _checked(envelope.message(End))
        self._ready = None
        return replace(entry, run=asked.run), Envelope.of(REPLY, Done())

    def _entry(self, entry: LedgerEntry, task: Task, envelope: Envelope) -> LedgerEntry:
        """Add a task to its ledger entry; the question hashes the task, the weights and which state is used."""
        named = {key: value for key, value in envelope.content.items() if key not in ("durable", "fresh")}
        question = digest({"asked": named, "vectors": envelope.digest})
        return replace(entry, run=task.run, phase=task.phase, client=task.client or "", question=question)

    def _read(self, config: Mapping[str, Any]) -> recipe.Recipe:
        """Build the objects of a plan from the site's own table."""
        if odd := lacking(config, self._table):
            raise Refused(
                f"the configuration names {', '.join(map(repr, odd))}; to allow it, add {line_to_add(odd)} to the "
                f"policy"
            )
        return recipe.read(config, self._data.module.classes, self._table, self.policy.limits.parameters)

    def _ready_for(self, run: str, phase: str, fingerprint: str) -> Ready:
        ready = self._ready
        if ready is None or (ready.asked.run, ready.asked.phase, ready.asked.fingerprint) != (run, phase, fingerprint):
            raise Unprepared("it has not prepared this phase of this run")
        if ready.layout.fingerprint != fingerprint:
            raise Unfit(
                f"the layout of the model: expected the server's, {fingerprint}, found {ready.layout.fingerprint}"
            )
        return ready

    def _own_client(self, ready: Ready, name: str | None) -> Client:
        if name not in ready.worker.program.clients:
            raise Unfit(f"it has no client {name!r} in this phase")
        return ready.worker.program.clients[name]

    def _state(self, ready: Ready, task: Task) -> ClientState:
        name = self._own_client(ready, task.client).name
        return ready.states.read(name, task.accepted, task.fresh) or ready.worker.fresh_state()

    def _states(self, run: str, phase: str, made: recipe.Recipe) -> SiteStates:
        return SiteStates(self.settings.folder, run, phase, len(made.phase.aggregators))

    def _down(self, ready: Ready, envelope: Envelope) -> Broadcast:
        tensors, own = envelope.tensors(), ready.layout.dtype
        if not {"w", "stats"} <= tensors.keys() or any(tensors[name].dtype != own for name in ("w", "stats")):
            raise InvalidMessageError(
                f"expected w and stats of {own}, found {', '.join(f'{n} of {t.dtype}' for n, t in tensors.items())}"
            )
        if unsound := [
            n for n, t in tensors.items() if n != "stats" and not torch.isfinite(t).all()
        ]:  # p is NaN at first
            raise InvalidMessageError(f"{unsound[0]!r} is not finite")
        down = Broadcast.from_tensors(tensors, len(ready.worker.program.aggregators))
        if (len(down.w), len(down.stats)) != (ready.layout.size, ready.layout.stats_size):
            raise Unfit(
                f"expected {ready.layout.size:,} weights and {ready.layout.stats_size:,} statistics, found "
                f"{len(down.w):,} and {len(down.stats):,}"
            )
        return down

    def _noted(self, entry: LedgerEntry, reply: Envelope) -> Envelope:
        """Record an answer in the ledger before it leaves; an answer that cannot be recorded does not leave."""
        failed = reply.verb == FAILED
        said = {
            "answer": reply.verb,
            "refused": reply.content["reason"] if failed else "",
            "header": sorted(_names(reply.content)),
            "arrays": {name: (vector.dtype.name, vector.size) for name, vector in reply.vectors.items()},
            "nbytes": reply.nbytes,
        }
        try:
            self._ledger.note(replace(entry, **said))
        except OSError as error:
            print(f"site {self.name!r}: {self.settings.folder} cannot be written: {error}", file=sys.stderr)
            reason = (
                f"what leaves it cannot be written to its folder of states: {error.strerror or error}; "
                "free disk space there"
            )
            return Envelope.of(FAILED, Failure("failed", reason))
        return replace(reply, ledger=self._ledger.head)

    def _failed(self, verb: str, error: Exception) -> Envelope:
        return Envelope.of(FAILED, failure_of(error, f"site {self.name!r}, {verb!r}", self.policy.leaves.errors))


def _told(report: ClientReport) -> dict[str, Any]:
    """Return what may leave of a client's report: everything but the metric objects, which hold examples."""
    told = asdict(replace(report, metrics={}))
    del told["metrics"]
    return told


def _checked(message: Any) -> Any:
    """Return the message if its run's id is valid, and so safe as the name of a folder.

    Raises:
        InvalidMessageError: If the id is not valid.
    """
    try:
        check_run(message.run)
    except ValueError as error:
        raise InvalidMessageError(str(error)) from error
    return message


def _names(content: Mapping[str, Any]) -> list[str]:
    """Return the names in a header, including those of inner objects."""
    inner = [f"{key}.{name}" for key, value in content.items() if isinstance(value, dict) for name in value]
    return [key for key, value in content.items() if not isinstance(value, dict)] + inner
