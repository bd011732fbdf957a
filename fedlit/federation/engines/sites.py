"""Clients at sites of their own: the server's half of a federation whose data never come here."""

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch
from lightning.pytorch import LightningModule
from rich.filesize import decimal

from fedlit.core import checkpoint
from fedlit.core.aggregator import Aggregator, composed_name
from fedlit.core.errors import ConfigError
from fedlit.core.fabric import FederationFabric
from fedlit.core.flat import Layout
from fedlit.core.messages import Broadcast, Client, ClientReport, Payload, Round, ServerState, State
from fedlit.federation.engines.asking import Asking, Request
from fedlit.federation.engines.base import AnyState, Engine, InProcess, OnReply, Program, Scores, View, added, jobs_of
from fedlit.federation.handover import PersonalParts
from fedlit.federation.settings import Settings
from fedlit.metrics.tally import BINS, Tally
from fedlit.sites.envelope import Damaged, Envelope
from fedlit.sites.messages import Prepare, Prepared, Scored, Start, Started, Task
from fedlit.sites.payloads import module_tensors, of_client, of_round, payload_of
from fedlit.sites.roster import Roster

SHORT = 10
"""A round should take at least so many times as long as its messages."""


class SiteEngine(Engine):
    """Every site trains and keeps its own clients; here is what they have sent, added in cohort order.

    Args:
        program: What is trained; its clients have names and numbers here, and no images.
        fabric: Device and precision of the server.
        roster: The sites.
        site_of: Which site has which client.
        settings: What happens when a site fails.
        phase: Name of the phase; "" for the main part.
        layout: Of the server's model.
    """

    keeps_states = False

    def __init__(
        self,
        program: Program,
        fabric: FederationFabric,
        roster: Roster,
        site_of: Mapping[str, str],
        settings: Settings,
        phase: str,
        layout: Layout,
    ) -> None:
        super().__init__(None)
        sites = len({site_of[name] for name in program.clients})
        self.where = f"{sites} site{'s' * (sites != 1)}, {roster.carrier.name}"
        self._program, self._fabric, self._roster, self._settings = program, fabric, roster, settings
        self._site_of, self._phase, self._layout = dict(site_of), phase, layout
        self._tensors = _tensors_of(program)
        self._ask = Asking(
            roster.carrier,
            self._prepare,
            self._prepared,
            settings.on_site_error or "repeat",
            settings.quorum or 1,
            settings.deadline,
        )
        _check_windows(settings, layout)
        self._accepted: dict[str, int | None] = dict.fromkeys(program.clients)
        self._trained: dict[str, int | None] = {}
        self._durable: dict[str, set[int]] = {}
        self._said = False

    def run(
        self, cohort: Sequence[str], down: Broadcast, rnd: Round, on_reply: OnReply = lambda report: None
    ) -> tuple[Payload, list[ClientReport]]:
        """Run a round; reports are of the clients that took part, who may be fewer than were asked."""
        verb, began = "train" if rnd.window else "measure", time.perf_counter()
        tensors = down.tensors()
        asked = [self._task(verb, name, tensors, of_round(rnd)) for name in cohort]
        parts: dict[str, tuple[Payload, ClientReport]] = {}
        what = f"round {rnd.index + 1}" if rnd.window else f"the measuring round before round {rnd.index + 1}"
        names: set[str] = set()
        for request, answer in self._ask(asked, lambda request, reply: self._part(request, reply, names), what):
            parts[request.client] = answer
            on_reply(answer[1])
        total, reports = None, [report for _, report in parts.values()]
        for job in jobs_of(cohort):  # the order of additions is that of any other engine
            within = None
            for name in (name for name in job if name in parts):
                within = added(within, parts.pop(name)[0])
            if within is not None:
                total = added(total, within)
        if rnd.window:
            self._trained = {report.client: rnd.index + 1 for report in reports}
            if not self._ask.failed:  # waiting for somebody is no message
                self._compare(reports, down, time.perf_counter() - began)
        return total, reports

    def commit(self) -> None:
        """Take the states after the round for the clients' own: sites learn of it with their next message."""
        self._accepted |= self._trained
        self._trained = {}

    def evaluate(self, views: Sequence[View], down: Broadcast) -> list[Scores]:
        """Score each view at the site that has its images, and the server's test sets here, in order."""
        away, tensors = [view for view in views if view.holder is not None], down.tensors()
        asked = [self._task("evaluate", view.client, tensors, asdict(view), view.holder) for view in away]
        scored = {View(**request.message.asked): answer for request, answer in self._ask(asked, _scores, "evaluation")}
        here = [view for view in views if view.holder is None and view.client is None]
        if left := sorted({view.part for view in views if view.holder is None and view.client is not None}):
            warnings.warn(
                f"the server's test set {left[0]!r} is left out: clients keep a part of the model, which does not leave their sites",
                stacklevel=2,
            )
        scored |= zip(here, self._own.evaluate(here, {}, down) if here else (), strict=True)
        return [scored[view] for view in views if view in scored]

    def client_states(self) -> Mapping[str, AnyState]:
        """Return nothing: states are at the sites."""
        return {}

    def load_client_states(self, states: Mapping[str, AnyState]) -> None:
        """Do nothing: states are at the sites."""

    def at_sites(self) -> dict[str, int | None]:
        """Return after which round the state of each client at its site is the federation's; None where it has none."""
        return dict(self._accepted)

    def go_back(self, at_sites: Mapping[str, int | None]) -> None:
        """Go on from the states at sites that a checkpoint names."""
        self._accepted = {name: at_sites.get(name) for name in self._accepted}
        self._trained = {}

    def saved(self, places: Sequence[Mapping[str, int | None]]) -> None:
        """Learn to which states at sites the server's checkpoints go back."""
        self._durable = {
            name: {place[name] for place in places if place.get(name) is not None} for name in self._accepted
        }

    def hand_over(
        self,
        parts: PersonalParts,
        clients: Mapping[str, Client],
        module: LightningModule,
        server: ServerState,
        aggregators: Sequence[Aggregator],
    ) -> None:
        """Let clients begin with what they kept at their sites in an earlier phase."""
        if not self._roster.run:
            return
        kept, tensors = checkpoint.at_sites(parts.path), {"w": server.w, "stats": server.stats}
        asked = [
            Request(
                "start",
                self._site_of[name],
                name,
                Start(
                    self._roster.run, self._phase, self._layout.fingerprint, name, parts.phase,
                    self._roster.texts[parts.phase], kept[name], self._site_of[name] in self._roster.fresh,
                ),
                tensors,
            )
            for name in clients
            if kept.get(name) is not None
        ]  # fmt: skip
        for request, kept_one in self._ask(
            asked, lambda _, reply: reply.message(Started).kept, "start of a phase", "repeat"
        ):
            self._accepted[request.client] = 0 if kept_one else None

    def close(self) -> None:
        """Let go of the server's own model; the sites go on with the next phase."""
        vars(self).pop("_worker", None)

    @property
    def _own(self) -> InProcess:
        """The server's own worker, for its test sets."""
        if "_worker" not in vars(self):
            self._worker = InProcess(self._program, self._fabric)
        return self._worker

    def _task(self, verb: str, client: str | None, tensors: State, asked: dict, holder: str | None = None) -> Request:
        accepted = self._accepted.get(client) if client else None
        durable = sorted(self._durable.get(client, ())) if client else []
        site = self._site_of[holder or client]
        fresh, fingerprint = site in self._roster.fresh, self._layout.fingerprint
        task = Task(self._roster.run, self._phase, fingerprint, client, accepted, durable, fresh, asked)
        return Request(verb, site, client or holder, task, tensors)

    def _prepare(self, site: str) -> Request:
        program, training = self._program, self._program.training
        asked = Prepare(
            self._roster.run,
            self._phase,
            self._roster.texts[self._phase],
            self._layout.fingerprint,
            program.seed,
            [of_client(client) for name, client in program.clients.items() if self._site_of[name] == site],
            training.optimizer_state,
            training.gradient_clip,
            training.gradient_clamp,
            training.measure_batches,
            self._settings.memory_format,
            self._settings.cuda_graph,
            self._settings.compile,
            program.threads,
            program.batch_size,
            program.eval_batch_size,
            program.limit_eval_batches,
            self._fabric.strategy.precision.precision,
        )
        return Request("prepare", site, "", asked, self._tensors)

    def _prepared(self, request: Request, reply: Envelope) -> None:
        """Compare a site's layout with the server's.

        Raises:
            Damaged: They differ; says in what.
        """
        there, here = reply.message(Prepared), self._layout
        if there.fingerprint == here.fingerprint:
            return
        pairs = {
            "classes": (", ".join(there.classes), ", ".join(here.classes)),
            "number of weights": (f"{there.parameters:,}", f"{here.size:,}"),
            "number of statistics": (f"{there.statistics:,}", f"{here.stats_size:,}"),
            "frozen weights (by their hash)": (there.frozen or "none", here.frozen or "none"),
            "order, shapes or types of tensors": (there.fingerprint, here.fingerprint),
        }
        name, (theirs, ours) = next((n, pair) for n, pair in pairs.items() if pair[0] != pair[1])
        raise Damaged(f"its model has another layout: {name} {theirs} there, {ours} here; install the same code")

    def _part(self, request: Request, reply: Envelope, names: set[str]) -> tuple[Payload, ClientReport]:
        """Read a client's part of a round.

        Raises:
            Damaged: It is none of this client, of this model, or not finite.
        """
        payload, report = payload_of(reply)
        if report.client != request.client or payload.weight != self._program.clients[request.client].weight:
            raise Damaged(f"it is of client {report.client!r} with the weight {payload.weight:g}")
        names |= names or payload.vectors.keys()
        if names != payload.vectors.keys():
            raise Damaged(f"it has the vectors {sorted(payload.vectors)}, and those before it {sorted(names)}")
        for name, vector in payload.vectors.items():
            if name == "w" and len(vector) != self._layout.size:
                raise Damaged(f"it has {len(vector):,} weights, and the model {self._layout.size:,}")
            if not torch.isfinite(vector.sum()):
                raise Damaged(f"its {name!r} is not finite")
        return payload, report

    def _compare(self, reports: Sequence[ClientReport], down: Broadcast, seconds: float) -> None:
        """Warn once where messages take a large part of the rounds."""
        by_site: dict[str, float] = {}
        for report in reports:
            site = self._site_of[report.client]
            by_site[site] = by_site.get(site, 0.0) + report.seconds
        trained = max(by_site.values(), default=seconds)
        if self._said or self._settings.rounds == 1 or trained >= SHORT * (seconds - trained):
            return
        self._said = True
        warnings.warn(
            f"a round takes {seconds:.2f} s, of which {seconds - trained:.2f} s are not training but messages ({decimal(down.nbytes)} "
            f"to each client and {decimal(max(report.bytes_up for report in reports))} back): training should take at least "
            f"{SHORT} times as long; raise federation.schedule.window",
            stacklevel=3,
        )


def _scores(request: Request, reply: Envelope) -> Scores:
    """Read an evaluation.

    Raises:
        Damaged: Its scores are not those of its examples.
    """
    scored, tensors = reply.message(Scored), reply.tensors()
    view = View(**request.message.asked)
    if scored.kind == "none":
        return Scores(view, scored.examples, None, None, scored.logged)
    if scored.kind == "tally":
        if tensors.keys() != {"auroc", "positives", "negatives"} or tensors["positives"].shape[1:] != (BINS,):
            raise Damaged("its histograms are none of fedlit")
        return Scores(view, scored.examples, None, None, scored.logged, Tally(**tensors))
    scores, labels = tensors["scores"], tensors["labels"]
    if scores.ndim != 2 or scores.shape != labels.shape or len(scores) != scored.examples:
        raise Damaged(f"scores {tuple(scores.shape)} and labels {tuple(labels.shape)} of {scored.examples} examples")
    return Scores(view, scored.examples, scores, labels, scored.logged)


def _tensors_of(program: Program) -> State:
    """The tensors of a module as it is given to a client's process, as copies.

    Raises:
        ConfigError: It keeps something else too.
    """
    state = program.module.state_dict()
    if odd := [name for name, value in state.items() if not torch.is_tensor(value)]:
        raise ConfigError(
            f"{type(program.module).__name__}: {odd[0]!r} of its state is no tensor, and does not travel to sites; keep it in a buffer"
        )
    return module_tensors(state)


def _check_windows(settings: Settings, layout: Layout) -> None:
    """Refuse rounds of one local step: each is a message a step.

    Raises:
        ConfigError: Gives the reason.
    """
    plans = [settings.schedule.plan(index) for index in (0, settings.rounds - 1)]
    if settings.rounds > 1 and all(plan.unit == "steps" and plan.window == 1 for plan in plans):
        nbytes = layout.size * layout.dtype.itemsize
        raise ConfigError(
            f"federation.schedule: {composed_name(settings.aggregators)} with rounds of one local step sends {decimal(nbytes)} to "
            "each site and back for every batch, and waits for the slowest link each time: across sites a message a step takes "
            "days for what one machine does in minutes. Use an algorithm with a window of many steps, or leave --sites out"
        )
