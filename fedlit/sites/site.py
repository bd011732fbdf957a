"""The site's side: it holds the data, the states and the rules, and answers one message at a time."""

import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch

from fedlit import __version__
from fedlit.core.batches import PoissonStream
from fedlit.core.fabric import make_fabric
from fedlit.core.messages import Broadcast, Round
from fedlit.federation.engines.scores import View
from fedlit.metrics.tally import Tally
from fedlit.predictions.export import described_images
from fedlit.sites import messages
from fedlit.sites.budget import secret_of
from fedlit.sites.envelope import Envelope, InvalidMessageError
from fedlit.sites.failures import FailedOnData, IncompatibleError, OutOfTime, Unprepared, failure_of
from fedlit.sites.ledger import ENDED, Ledger, LedgerEntry
from fedlit.sites.own_data import OwnData, SiteSettings, reading
from fedlit.sites.payloads import cut, payload_tensors
from fedlit.sites.plan import Recipe, lacking, line_to_add, read_plan, table_of
from fedlit.sites.policy import PolicyError, TooManyMessages, digest, view_of
from fedlit.sites.preparation import PreparedRun, members, prepared
from fedlit.sites.storage import SiteStates, keep_model


class ResidentSite:
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
        self._data = OwnData(settings)
        self._ready: PreparedRun | None = None
        self._verbs = {
            "hello": self._hello, "prepare": self._prepare, "start": self._start, "train": self._train,
            "measure": self._train, "evaluate": self._evaluate, "model": self._model, "end": self._end,
        }  # fmt: skip

    def answer_bytes(self, content: bytes) -> bytes:
        """Answer a message in bytes."""
        try:
            self.policy.check_message(len(content), self._ledger)
            envelope = Envelope.from_bytes(content)
        except TooManyMessages as error:
            return replace(self._failed("message", error), ledger=self._ledger.head).to_bytes()
        except (InvalidMessageError, PolicyError) as error:
            entry = LedgerEntry(self._now(), self._lead, verb="message")
            return self._noted(entry, self._failed("message", error)).to_bytes()
        return self.answer(envelope).to_bytes()

    def answer(self, envelope: Envelope) -> Envelope:
        """Do what the message asks; every failure becomes an answer, and the site stays ready for the next message."""
        entry = LedgerEntry(self._now(), self._lead, verb=envelope.verb[:20])
        try:
            self._ledger.settle()
            if envelope.verb not in self._verbs:
                raise InvalidMessageError(
                    f"verb: expected one of {', '.join(self._verbs)}, found {envelope.verb[:20]!r}; "
                    "install the same fedlit on both sides"
                )
            self.policy.check_verb(envelope.verb)
            entry, reply = self._verbs[envelope.verb](envelope, entry)
        except FailedOnData as failed:
            entry, reply = failed.entry, self._failed(envelope.verb, failed)
        except (Exception, OutOfTime) as error:  # a custom module may raise anything
            reply = self._failed(envelope.verb, error)
        return self._noted(entry, reply)

    @contextmanager
    def _on_data(self, entry: LedgerEntry) -> Iterator[None]:
        """Context manager of what reads images for an answer: from here on the request counts, even if it fails.

        Raises:
            FailedOnData: If it fails.
        """
        entry = replace(entry, touched=True)
        self._ledger.begin(replace(entry, answer=messages.FAILED, refused=ENDED))
        try:
            yield
        except (Exception, OutOfTime) as error:
            raise FailedOnData(entry) from error

    def _hello(self, envelope: Envelope, entry: LedgerEntry) -> tuple[LedgerEntry, Envelope]:
        asked, policy = envelope.message(messages.Hello), self.policy
        if asked.fedlit != __version__:
            raise IncompatibleError(
                f"it has fedlit {__version__}, and the server has {asked.fedlit}: results of two versions may differ; "
                "install the same version"
            )
        if odd := lacking([{"class_path": path} for path in asked.needs], self._table):
            raise PolicyError(
                f"its policy does not allow {', '.join(odd)}; to allow it, the site can write "
                f"{line_to_add([*policy.allow, *odd])} under policy"
            )
        floors = policy.floors
        site_info = messages.SiteInfo(
            name=self.name, fedlit=__version__, torch=torch.__version__, python=platform.python_version(),
            device=str(make_fabric(self.settings.accelerator).device), time=self._now(),
            classes=list(self._data.module.classes), clients=self._data.infos(), scores=policy.leaves.scores,
            whole=bool(floors and floors.whole), examples=floors.examples if floors else 1,
            batch=self.policy.smallest_batch,
            hides_below=policy.leaves.counts_below, until=self._until, ledger=self._ledger.head_after(asked.lines),
            privacy=self._privacy(),
        )  # fmt: skip
        return entry, Envelope.of(messages.REPLY, site_info, self._data.indices())

    def _privacy(self) -> messages.SitePrivacy | None:
        if (rule := self.policy.privacy) is None:
            return None
        spent = rule.spent(rule.recent(self._ledger.entries, self._now()))
        return messages.SitePrivacy(rule.epsilon, rule.delta, rule.patients, spent)

    def _prepare(self, envelope: Envelope, entry: LedgerEntry) -> tuple[LedgerEntry, Envelope]:
        asked = self._checked(envelope.message(messages.Prepare))
        entry = replace(entry, run=asked.run, config=digest(asked.config), question=envelope.digest)
        self.policy.check_config(asked.config)
        self._ready = None
        made = self._read(asked.config)
        plan = made.plan
        self.policy.check_private(made.aggregators, self._ledger)
        if plan.weights and plan.weights != envelope.digest:
            raise PolicyError(
                f"the run's first weights: expected the SHA-256 of the plan, {plan.weights}, found {envelope.digest}"
            )
        clients = members(self._data, asked.clients, plan)
        sizes = {name: client.examples for name, client in clients.items()}
        self.policy.check_plan(plan.batch_size, sizes, plan.threads, plan.limit_eval_batches is not None)
        states = SiteStates(self.settings.folder, asked.run, len(made.aggregators))
        secret, fingerprints = None, {}
        if self.policy.privacy is not None:
            fingerprints = {name: self._data.fingerprint(name) for name in clients}
            computed_by = __version__, torch.__version__, str(make_fabric(self.settings.accelerator).device)
            about = asked.run, entry.config, fingerprints, computed_by
            secret = secret_of(self.settings.folder, about, envelope.tensors())
        ready = prepared(asked, made, clients, self._data, states, envelope.tensors(), secret=secret)
        ready.fingerprints = fingerprints
        self.policy.check_optimizer(ready.worker.local.module, made.aggregators)
        self._ready, layout = ready, ready.layout
        reply = messages.Prepared(
            layout.fingerprint, layout.size, layout.stats_size, list(layout.classes), layout.frozen
        )
        return entry, Envelope.of(messages.REPLY, reply)

    def _start(self, envelope: Envelope, entry: LedgerEntry) -> tuple[LedgerEntry, Envelope]:
        asked = self._checked(envelope.message(messages.Start))
        entry = replace(entry, run=asked.run, client=asked.client, question=envelope.digest)
        ready = self._ready_for(asked)
        client, down = ready.client(asked.client), ready.down(envelope)
        state = ready.states.read(client.name, asked.accepted, asked.fresh)
        kept = state is not None and len(state.w) + len(state.stats) > 0
        if kept:
            ready.states.keep(client.name, 0, ready.afresh(state, down), accepted=True)
        return entry, Envelope.of(messages.REPLY, messages.Started(kept))

    def _train(self, envelope: Envelope, entry: LedgerEntry) -> tuple[LedgerEntry, Envelope]:
        """Run a client's part of a round; a measuring round has no new state."""
        ready, task, entry = self._task(envelope, entry, messages.Train, "a round")
        client, trains = ready.client(task.client), envelope.verb == "train"
        self.policy.check_round(self._ledger, client.name)
        rnd = ready.plan.round(task.asked, ready.recipe.schedule, measures=not trains)
        steps = ready.steps_of(rnd, client)
        self.policy.check_steps(steps)
        if trains:
            module = ready.worker.local.module
            self.policy.check_rate(module, ready.recipe.aggregators, rnd.lr_factor * client.lr_factor)
            ready.states.commit(client.name, task.accepted, task.durable, task.fresh)
        state, down = ready.state(task), ready.down(envelope)
        examples = ready.examples_of(rnd, client, steps, state.batches)
        self.policy.check_examples(examples, ready.stream(client).examples_per_epoch)
        if task.asked.index <= 0:
            self._check_first(ready, envelope, down, rnd)
        entry = replace(entry, at=task.asked.index, examples=examples, steps=steps)
        stream, whole = ready.stream(client), {}
        if isinstance(stream, PoissonStream):
            if self._data.fingerprint(client.name) != ready.fingerprints[client.name]:
                raise Unprepared("its data have changed since it prepared the run")
            asked, noise = stream.ask(client, state, down, rnd), ready.noise(down)
            entry = replace(entry, question=asked, noise=noise, rate=stream.rate)
            self.policy.check_budget(self._ledger, entry, ready.private)
        with self._on_data(entry), reading():
            if trains and not state.batches and not stream.private:
                ready.examine_labels(client)
            payload, [(after, report)] = ready.worker.train([(client.name, state)], down, rnd)
            self.policy.check_vectors(payload.vectors)
            if trains:
                ready.states.keep(client.name, task.asked.index + 1, after)
                payload, whole = cut(payload, ready.worker.local.mask(client), ready.layout)
            fields = asdict(replace(report, metrics={}))
            del fields["metrics"]  # metric objects hold examples
            fields["loss"] = None if stream.private else report.loss
            data = self._data.fingerprint(client.name)
            sent = messages.Sent(payload.weight, messages.RoundReport(**fields), data, whole)
            return replace(entry, touched=True), Envelope.of(messages.REPLY, sent, payload_tensors(payload.cpu()))

    def _evaluate(self, envelope: Envelope, entry: LedgerEntry) -> tuple[LedgerEntry, Envelope]:
        ready, task, entry = self._task(envelope, entry, messages.Look, "an evaluation")
        look = task.asked
        if look.holder not in self._data.module.clients:
            raise IncompatibleError(f"it has no client {look.holder!r}")
        if not -1 <= look.at <= ready.plan.rounds:
            raise IncompatibleError(f"evaluate: expected a round from -1 to {ready.plan.rounds}, found {look.at}")
        entry = replace(entry, view=view_of(look), at=look.at)
        self.policy.check_look(look, task.run, entry.question, self._ledger)
        state = None if task.client is None else ready.state(task)
        view = View(task.client, look.holder, look.part, look.method, look.limit)
        down, part = ready.down(envelope), getattr(self._data.module.clients[look.holder], look.part)
        if part is None:
            raise IncompatibleError(f"client {look.holder!r} has no part {look.part!r}")
        if look.at <= 0:
            self._check_first(ready, envelope, down, None)
        entry = replace(entry, examples=min(len(part), look.limit or len(part)))
        with self._on_data(entry), reading():
            scored = ready.worker.evaluate(view, state, down)
            kind, tensors, logged = "none", {}, scored.logged
            if not self.policy.leaves.scores and self._data.hidden(look.holder, look.part):
                logged = {}
            if scored.scores is not None and self.policy.leaves.scores:
                kind, tensors = "scores", {"scores": scored.scores, "labels": scored.labels}
            elif scored.scores is not None:
                below = self.policy.leaves.counts_below
                kind, tensors = "tally", vars(Tally.of(scored.scores, scored.labels, ready.layout.classes, below))
            data = self._data.fingerprint(look.holder)
            answer = messages.Evaluated(scored.examples, logged, kind, data, scored.taken)
            return replace(entry, touched=True), Envelope.of(messages.REPLY, answer, tensors)

    def _check_first(self, ready: PreparedRun, envelope: Envelope, down: Broadcast, rnd: Round | None) -> None:
        """Check that what is broadcast before the first round is what an approved plan says."""
        if self.policy.configs is None or not ready.plan.weights:
            return
        run = ready.asked.run
        measured = any(entry.run == run and entry.verb == "measure" and entry.trains for entry in self._ledger.entries)
        ready.check_first_broadcast(envelope.tensors(), down, rnd, measured)

    def _model(self, envelope: Envelope, entry: LedgerEntry) -> tuple[LedgerEntry, Envelope]:
        """Store the best model of a run, with what the client keeps to itself."""
        ready, task, entry = self._task(envelope, entry, messages.Final, "the best model of a run")
        asked, plan, classes = task.asked, ready.plan, ready.layout.classes
        if not 0 <= asked.rounds <= plan.rounds or len(asked.learned) != len(classes):
            raise InvalidMessageError(
                f"model: expected one after 0 to {plan.rounds} rounds, of {len(classes)} classes, found one after "
                f"{asked.rounds} rounds, of {len(asked.learned)} classes"
            )
        if envelope.vectors.keys() != {"w", "stats"}:
            raise InvalidMessageError(f"model: expected the vectors w and stats, found {', '.join(envelope.vectors)}")
        ready.load(task, ready.down(envelope))
        notes = {"round": asked.rounds, "classes": classes, "learned": asked.learned}
        notes["exclusive"] = ready.worker.link is not None
        notes |= described_images(self._data.module)
        most, module = self.policy.limits.models, ready.worker.local.module
        keep_model(self.settings.folder, task.run, task.client, most, module, plan=plan, notes=notes)
        return replace(entry, at=asked.rounds), Envelope.of(messages.REPLY, messages.Done())

    def _end(self, envelope: Envelope, entry: LedgerEntry) -> tuple[LedgerEntry, Envelope]:
        asked = self._checked(envelope.message(messages.End))
        self._ready = None
        return replace(entry, run=asked.run), Envelope.of(messages.REPLY, messages.Done())

    def _task(
        self, envelope: Envelope, entry: LedgerEntry, kind: type, expected: str
    ) -> tuple[PreparedRun, messages.Task, LedgerEntry]:
        """Read a task of a kind, and return the run that it is for, the task, and the ledger entry with both.

        The entry's question hashes the task, the weights and which state is used.
        """
        task = self._checked(envelope.message(messages.Task))
        if not isinstance(task.asked, kind):
            raise InvalidMessageError(f"{envelope.verb}: expected {expected}, found {type(task.asked).__name__}")
        ready = self._ready_for(task)
        named = {key: value for key, value in envelope.content.items() if key not in ("durable", "fresh")}
        question = digest({"asked": named, "vectors": envelope.digest})
        about = {"run": task.run, "client": task.client or ""}
        return ready, task, replace(entry, **about, config=digest(ready.asked.config), question=question)

    def _read(self, config: Mapping[str, Any]) -> Recipe:
        """Build the objects of a plan from the site's own table."""
        if odd := lacking(config, self._table):
            raise PolicyError(
                f"the configuration names {', '.join(map(repr, odd))}; to allow it, add {line_to_add(odd)} to the "
                f"policy"
            )
        return read_plan(config, self._table, self.policy.limits.parameters)

    def _ready_for(self, message: messages.Task | messages.Start) -> PreparedRun:
        """Return the prepared run, if the message is for it and its layout is the server's."""
        ready, asked = self._ready, (message.run, message.fingerprint)
        if ready is None or (ready.asked.run, ready.asked.fingerprint) != asked:
            raise Unprepared("it has not prepared this run")
        if ready.layout.fingerprint != message.fingerprint:
            raise IncompatibleError(
                f"the layout of the model: expected the server's, {message.fingerprint}, found "
                f"{ready.layout.fingerprint}"
            )
        return ready

    def _checked(self, message: Any) -> Any:
        """Return the message if its run's id is safe as the name of a folder, and the run is not another lead's."""
        try:
            messages.check_run(message.run)
        except ValueError as error:
            raise InvalidMessageError(str(error)) from error
        if self._ledger.leads.get(message.run, self._lead) != self._lead:
            raise PolicyError(f"the run {message.run} was begun by another lead; start a new run")
        return message

    def _noted(self, entry: LedgerEntry, reply: Envelope) -> Envelope:
        """Record an answer in the ledger before it leaves; an answer that cannot be recorded does not leave."""
        failed = reply.verb == messages.FAILED
        inner = [f"{key}.{name}" for key, value in reply.content.items() if isinstance(value, dict) for name in value]
        said = {
            "answer": reply.verb,
            "refused": reply.content["reason"] if failed else "",
            "header": sorted([key for key, value in reply.content.items() if not isinstance(value, dict)] + inner),
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
            return Envelope.of(messages.FAILED, messages.Failure("failed", reason))
        return replace(reply, ledger=self._ledger.head)

    def _failed(self, verb: str, error: BaseException) -> Envelope:
        return Envelope.of(
            messages.FAILED, failure_of(error, f"site {self.name!r}, {verb!r}", self.policy.leaves.errors)
        )
