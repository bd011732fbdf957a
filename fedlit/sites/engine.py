"""The engine of a federation across sites: the server's side, which never sees the sites' data."""

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import torch
from rich.filesize import decimal

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.fabric import FederationFabric
from fedlit.core.flat import Layout
from fedlit.core.governing import composed_name
from fedlit.core.messages import Broadcast, ClientReport, Payload, Round, ServerState, State
from fedlit.federation.engines.base import AnyState, Engine, InProcessPool, OnReply, Program, add_payload, jobs_of
from fedlit.federation.engines.scores import Scores, View
from fedlit.federation.settings import Settings
from fedlit.sites.answers import Replies, Watch, disagreeing, name_of
from fedlit.sites.budget import mismatch
from fedlit.sites.envelope import Envelope
from fedlit.sites.messages import Done, Final, Look, Member, Prepare, Start, Started, Task, Train, new_run, printable
from fedlit.sites.payloads import module_tensors
from fedlit.sites.plan import OF_A_FEDERATION, RunPlan, parts_of
from fedlit.sites.requests import Asking, NoAnswer, Request
from fedlit.sites.roster import Roster

SHORT = 10
"""Least ratio of a round's duration to that of its messages."""


class Sites(Roster):
    """Sites of a federation, for a session: see `fedlit.federation.engines.base.Away`."""

    def engine(self, program: Program, fabric: FederationFabric, settings: Settings, layout: Layout) -> Engine:
        """Return the engine of the run."""
        return SiteEngine(program, fabric, self, settings, layout)

    def of_run(self, config: Mapping[str, Any]) -> "Sites":
        """Return the same sites for another run."""
        return replace(self, config=config, run=new_run())


class SiteEngine(Engine):
    """Engine that asks sites to train their clients, and adds up the replies in cohort order.

    The clients of its program have names and numbers, but no images.
    """

    keeps_states = False

    def __init__(
        self, program: Program, fabric: FederationFabric, roster: Roster, settings: Settings, layout: Layout
    ) -> None:
        super().__init__(None)
        site_of = roster.site_of
        sites = len({site_of[name] for name in program.clients})
        self.where = f"{sites} site{'s' * (sites != 1)}, {roster.transport.name}"
        self._program, self._fabric, self._roster, self._settings = program, fabric, roster, settings
        self._site_of, self._layout = site_of, layout
        self._tensors = _tensors_of(program)
        self._plan = asdict(_plan(roster, program, settings, fabric, self._tensors, layout.classes))
        self._replies = Replies(program, roster.site_infos, layout)
        on_error = settings.on_site_error or "repeat", settings.quorum or 1, settings.deadline
        self._ask = Asking(roster.transport, self._prepare, self._replies.prepared, *on_error, heard=roster.heard)
        _check_windows(settings, layout)
        _check_rules(roster, program)
        self._watch, self._rounds = Watch(), -1
        self._accepted: dict[str, int | None] = dict.fromkeys(program.clients)
        self._trained: dict[str, int | None] = {}
        self._trained_round = -1
        self._durable: dict[str, set[int]] = {}
        self._said = False

    def run(
        self, cohort: Sequence[str], down: Broadcast, rnd: Round, on_reply: OnReply = lambda report: None
    ) -> tuple[Payload, list[ClientReport]]:
        """Run a round; only the clients that took part have reports."""
        verb, began = "train" if rnd.window else "measure", time.perf_counter()
        tensors = down.tensors()
        asked = [self._task(verb, name, tensors, Train(rnd.index, list(rnd.cohort), rnd.moments)) for name in cohort]
        parts: dict[str, tuple[Payload, ClientReport]] = {}
        what = name_of(rnd)
        for request, answer in self._ask(asked, lambda request, reply: self._replies.part(request, reply, rnd), what):
            parts[request.client] = answer
            on_reply(answer[1])
        self._leave_out(parts, what, float(down.w.norm()))
        total, reports = None, [report for _, report in parts.values()]
        if self.reduce is not None and rnd.window:
            total = self.reduce([parts.pop(name)[0] for name in cohort if name in parts])
        for job in jobs_of(cohort):  # the order of additions is that of any other engine
            within = None
            for name in (name for name in job if name in parts):
                within = add_payload(within, parts.pop(name)[0])
            if within is not None:
                total = add_payload(total, within)
        if rnd.window:
            self._trained, self._trained_round = {report.client: rnd.index + 1 for report in reports}, rnd.index + 1
            if not self._ask.failed:  # waiting for a failed site does not count as message time
                self._compare(reports, down, time.perf_counter() - began)
        return total, reports

    def _leave_out(self, parts: dict[str, tuple[Payload, ClientReport]], what: str, norm: float) -> None:
        """Remove replies whose vectors differ in form from most others, and warn about unusual updates and losses."""
        odd = disagreeing({name: payload for name, (payload, _) in parts.items()})
        if odd:
            named = "; ".join(f"site {self._site_of[n]!r}, client {n!r}: {printable(why)}" for n, why in odd.items())
            error = TrainingError(
                f"{what}: sites do not send the same vectors: {named}. Install the same fedlit and the same code "
                "everywhere"
            )
            left = len(parts) - len(odd)
            if self._ask.on_error != "skip" or left < max(self._ask.quorum, 1):
                raise error
            warnings.warn(f"{error}; continuing with {left} of {len(parts)}", stacklevel=2)
            for name in odd:
                del parts[name]
        self._watch.norms({name: payload for name, (payload, _) in parts.items()}, self._site_of, norm)
        self._watch.losses([report for _, report in parts.values()], self._site_of)

    def commit(self) -> None:
        """Accept the clients' states after the round: sites learn of it with their next message."""
        self._accepted |= self._trained
        self._rounds, self._trained = self._trained_round, {}

    def evaluate(self, views: Sequence[View], down: Broadcast) -> list[Scores]:
        """Score each view at the site that has its images, and the server's test sets here, in order."""
        away, tensors = [view for view in views if view.holder is not None], {"w": down.w, "stats": down.stats}
        what = f"the evaluation {f'after round {self._rounds}' if self._rounds > 0 else 'before round 1'}"
        asked = []
        for v in away:  # a site with floors evaluates whole views
            limit = None if self._replies.sites[self._site_of[v.holder]].whole else v.limit
            look = Look(v.holder, v.part, self._rounds, v.method, limit)
            asked.append(self._task("evaluate", v.client, tensors, look, v.holder))
        numbers = {id(request): view for request, view in zip(asked, away, strict=True)}
        scored = {
            numbers[id(request)]: scores
            for request, scores in self._ask(
                asked, lambda request, reply: self._replies.scores(numbers[id(request)], request, reply, what), what
            )
        }
        here = [view for view in views if view.holder is None and view.client is None]
        if left := sorted({view.part for view in views if view.holder is None and view.client is not None}):
            warnings.warn(
                f"the server's test set {left[0]!r} is not evaluated: clients keep a part of the model, which does "
                "not leave their sites",
                stacklevel=2,
            )
        scored |= zip(here, self._own.evaluate(here, {}, down) if here else (), strict=True)
        return [scored[view] for view in views if view in scored]

    def client_states(self) -> Mapping[str, AnyState]:
        """Return an empty mapping: states are at the sites."""
        return {}

    def load_client_states(self, states: Mapping[str, AnyState]) -> None:
        """Do nothing: states are at the sites."""

    def at_sites(self) -> dict[str, int | None]:
        """Return the round of each client's accepted state at its site; None if it has none."""
        return dict(self._accepted)

    def roll_back(self, at_sites: Mapping[str, int | None], rounds: int) -> None:
        """Go back to the states at sites that a checkpoint names."""
        every = {**self._accepted, **at_sites}  # clients that left may come back
        self._accepted = {name: at_sites.get(name) for name in every}
        self._rounds, self._trained = rounds, {}

    def saved(self, places: Sequence[Mapping[str, int | None]]) -> None:
        """Record the rounds of the states at sites that the server's checkpoints refer to."""
        self._durable = {
            name: {place[name] for place in places if place.get(name) is not None} for name in self._accepted
        }
        self._roster.ledgers.write()

    def start_afresh(self, server: ServerState) -> None:
        """Ask clients to start afresh, with only their own part of the model."""
        tensors, about = {"w": server.w, "stats": server.stats}, (self._roster.run, self._layout.fingerprint)
        asked = [
            Request("start", site, name, Start(*about, name, self._accepted[name], site in self._roster.fresh), tensors)
            for name, site in ((name, self._site_of[name]) for name in self._program.clients)
            if self._accepted[name] is not None
        ]
        for request, kept_one in self._ask(
            asked, lambda _, reply: reply.message(Started).kept, "a new start of clients", "repeat"
        ):
            self._accepted[request.client] = 0 if kept_one else None

    def hand_out(self, down: Broadcast, rounds: int, learned: Mapping[str | None, list[bool]]) -> list[str]:
        """Send the best model to the sites if the server's file allows it; a failure is only a warning."""
        if not self._roster.models:
            return ["no site gets the model (models: false in the server's file)"]
        holders = {self._site_of[name]: name for name in self._program.clients}
        asked = [
            self._task("model", owner, down.tensors(), Final(rounds, flags), holder)
            for owner, flags in learned.items()
            for holder in ([owner] if owner else holders.values())
        ]
        having = set()
        for request, answer in self._ask.once(asked, lambda request, reply: reply.message(Done)):
            if isinstance(answer, NoAnswer):
                warnings.warn(f"the best model was not stored: {answer.message}", stacklevel=2)
            else:
                having.add(request.site)
        return [f"the best model is at {', '.join(sorted(having))}: `fedlit site model` there"] if having else []

    def close(self) -> None:
        """Release the server's own model; the sites continue with the next run."""
        vars(self).pop("_own", None)
        self._roster.ledgers.write()

    @cached_property
    def _own(self) -> InProcessPool:
        return InProcessPool(self._program, self._fabric)

    def _task(
        self, verb: str, client: str | None, tensors: State, asked: Train | Look | Final, holder: str | None = None
    ) -> Request:
        accepted = self._accepted.get(client) if client else None
        durable = sorted(self._durable.get(client, ())) if client else []
        site, about = self._site_of[holder or client], (self._roster.run, self._layout.fingerprint)
        task = Task(*about, client, accepted, durable, fresh=site in self._roster.fresh, asked=asked)
        return Request(verb, site, client or holder, task, tensors)

    def _prepare(self, site: str) -> Request:
        members = [Member(c.name, c.weight) for name, c in self._program.clients.items() if self._site_of[name] == site]
        asked = Prepare(self._roster.run, self._plan, self._layout.fingerprint, members)
        return Request("prepare", site, "", asked, self._tensors)

    def _compare(self, reports: Sequence[ClientReport], down: Broadcast, seconds: float) -> None:
        """Warn once if messages take a large part of a round."""
        by_site: dict[str, float] = {}
        for report in reports:
            site = self._site_of[report.client]
            by_site[site] = by_site.get(site, 0.0) + report.seconds
        trained = max(by_site.values(), default=seconds)
        if self._said or self._settings.rounds == 1 or trained >= SHORT * (seconds - trained):
            return
        self._said = True
        warnings.warn(
            f"a round takes {seconds:.2f} s, of which {seconds - trained:.2f} s are messages, not training "
            f"({decimal(down.nbytes)} to each client and {decimal(max(report.bytes_up for report in reports))} back): "
            f"training should take at least {SHORT} times as long; raise federation.schedule.window",
            stacklevel=3,
        )


def _plan(
    roster: Roster,
    program: Program,
    settings: Settings,
    fabric: FederationFabric,
    tensors: State,
    classes: Sequence[str],
) -> RunPlan:
    """Return the plan of a run: everything that is known before it begins."""
    parts = parts_of(roster.config)
    if roster.trial:
        options = {"window": settings.schedule.window, "unit": settings.schedule.unit}
        parts["schedule"] = {"class_path": "fedlit.schedules.ConstantSchedule", "init_args": options}
    return RunPlan(
        **parts, classes=list(classes),
        rounds=settings.rounds, seed=program.seed,
        weights="" if roster.config.get("phases") else Envelope.of("start", Done(), tensors).digest,
        lr_factors=settings.lr_factors or {},
        **{name: getattr(settings, name) for name in OF_A_FEDERATION},
        batch_size=program.batch_size, eval_batch_size=program.eval_batch_size,
        limit_eval_batches=program.limit_eval_batches, precision=fabric.strategy.precision.precision,
    )  # fmt: skip


def _tensors_of(program: Program) -> State:
    """Return copies of the module's tensors."""
    state = program.module.state_dict()
    if odd := [name for name, value in state.items() if not torch.is_tensor(value)]:
        raise ConfigError(
            f"{type(program.module).__name__}: {odd[0]!r} of its state is not a tensor and cannot be sent to sites; "
            "keep it in a buffer"
        )
    return module_tensors(state)


def _check_rules(roster: Roster, program: Program) -> None:
    """Refuse private steps at a site without a rule for them, and others at a site that has one."""
    sites = {roster.site_of[name] for name in program.clients}
    for site in (site for site in roster.site_infos if site.name in sites):
        if reason := mismatch(program.aggregators, site.privacy is not None):
            raise ConfigError(f"site {site.name!r}: {reason}")


def _check_windows(settings: Settings, layout: Layout) -> None:
    """Refuse rounds of one local step, which need a message per step."""
    plans = [settings.schedule.plan(index) for index in (0, settings.rounds - 1)]
    if settings.rounds > 1 and all(plan.unit == "steps" and plan.window == 1 for plan in plans):
        nbytes = layout.size * layout.dtype.itemsize
        raise ConfigError(
            f"federation.schedule: {composed_name(settings.aggregators)} with rounds of one local step sends "
            f"{decimal(nbytes)} to each site and back for every batch, and waits for the slowest link each time. "
            "Across sites this takes days for what one machine does in minutes. Use an algorithm with a window of "
            "many steps, or leave out --sites"
        )
