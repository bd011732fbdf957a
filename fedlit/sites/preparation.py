"""A run that a site has prepared: its model, its clients and their states, and checks of what arrives for them."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from fedlit.core.aggregator import PrivateAggregator
from fedlit.core.batches import BatchStream
from fedlit.core.fabric import make_fabric
from fedlit.core.flat import Layout
from fedlit.core.hooks import state_of
from fedlit.core.local_model import LocalTraining
from fedlit.core.measuring import measuring_stream, objective_of
from fedlit.core.messages import Broadcast, Client, ClientState, Round, ServerState, State
from fedlit.core.parts import Parts
from fedlit.data.pictures.features import with_fixed_features
from fedlit.federation import devices
from fedlit.federation.engines.base import Program, Worker
from fedlit.federation.examinations import Compiler, KnownLabels, Learners, NothingElseReadsImages, PrivateRun, examine
from fedlit.sites.envelope import Envelope, InvalidMessageError
from fedlit.sites.failures import IncompatibleError
from fedlit.sites.messages import Member, Prepare, Task
from fedlit.sites.own_data import OwnData
from fedlit.sites.payloads import module_state
from fedlit.sites.plan import Recipe, RunPlan
from fedlit.sites.policy import PolicyError
from fedlit.sites.storage import SiteStates

FROZEN = 8
"""Files of features of frozen bodies that stay in the cache of a site, one per body: the last used ones."""


@dataclass
class PreparedRun:
    """A run that a site has prepared."""

    asked: Prepare  # The message that asked for it.
    recipe: Recipe  # The objects of its plan.
    worker: Worker  # The model, and what trains and evaluates it.
    states: SiteStates  # States of the site's clients.
    start: Tensor  # [P] the weights that came with the message.
    start_stats: Tensor  # [S] the statistics that came with it.
    # If steps are private, the fingerprint of each client's data, which their secret depends on.
    fingerprints: dict[str, str] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """The layout of the vectors."""
        return self.worker.local.layout

    @property
    def plan(self) -> RunPlan:
        """The plan of the run."""
        return self.recipe.plan

    @property
    def clients(self) -> Mapping[str, Client]:
        """The site's clients that take part, by name."""
        return self.worker.program.clients

    @property
    def private(self) -> PrivateAggregator | None:
        """The algorithm that makes steps private, if there is one."""
        return next((each for each in self.recipe.aggregators if each.private), None)

    def noise(self, down: Broadcast) -> float:
        """Return the noise multiplier of private steps, which the server has sent."""
        return float(down.aggregators[self.recipe.aggregators.index(self.private)]["noise"])

    def client(self, name: str | None) -> Client:
        """Return a client of the run.

        Raises:
            IncompatibleError: If the site has no such client in it.
        """
        if name not in self.clients:
            raise IncompatibleError(f"it has no client {name!r} in this run")
        return self.clients[name]

    def state(self, task: Task) -> ClientState:
        """Return the state from which a task's client starts."""
        name = self.client(task.client).name
        return self.states.read(name, task.accepted, task.fresh) or self.worker.fresh_state()

    def afresh(self, state: ClientState, down: Broadcast) -> ClientState:
        """Return a client's state with only its own part of the model: what is common to all is the server's."""
        stats, common = state.stats.clone(), _common_buffers(self.worker.local.module)
        for entry in self.layout.buffers if len(stats) else ():
            if entry.name in common:
                entry.view(stats).copy_(entry.view(down.stats))
        return replace(self.worker.fresh_state(), w=state.w, stats=stats)

    def down(self, envelope: Envelope) -> Broadcast:
        """Return the federation's vectors of a message.

        Raises:
            InvalidMessageError: If w or stats are missing or of another type, or a vector is not finite.
            IncompatibleError: If their sizes are not those of the model.
        """
        tensors, dtype = envelope.tensors(), self.layout.dtype
        if not {"w", "stats"} <= tensors.keys() or any(tensors[name].dtype != dtype for name in ("w", "stats")):
            raise InvalidMessageError(
                f"expected w and stats of {dtype}, found {', '.join(f'{n} of {t.dtype}' for n, t in tensors.items())}"
            )
        vectors = (name for name in tensors if name != "stats")  # in which the prior of an objective is NaN at first
        if unsound := [name for name in vectors if not torch.isfinite(tensors[name]).all()]:
            raise InvalidMessageError(f"{unsound[0]!r} is not finite")
        down = Broadcast.from_tensors(tensors, len(self.worker.program.aggregators))
        if (len(down.w), len(down.stats)) != (self.layout.size, self.layout.stats_size):
            raise IncompatibleError(
                f"expected {self.layout.size:,} weights and {self.layout.stats_size:,} statistics, found "
                f"{len(down.w):,} and {len(down.stats):,}"
            )
        return down

    def examine_labels(self, client: Client) -> None:
        """Refuse to train a client that learns nothing.

        Raises:
            ConfigError: None of its training labels is known, and a step has no gradient.
        """
        program, local = self.worker.program, self.worker.local
        learners = Learners(
            {client.name: client}, program.data, local.layout.classes, program.batch_size, lambda: local
        )
        examine(learners, (KnownLabels(),))

    def check_first_broadcast(self, sent: State, down: Broadcast, rnd: Round | None, measured: bool) -> None:
        """Compare everything that is broadcast before the first round with the plan, except the objective's variables.

        What algorithms add, such as control variates, must be what they begin with; what only a server computes, such
        as the noise of a budget, is NaN here, and any number is accepted. Statistics may differ from the
        plan's if the site has ``measured`` them in this run.

        Args:
            sent: The vectors of the message.
            down: The same, by their places.
            rnd: The round; None for an evaluation, which has only weights and statistics.
            measured: Whether the site has answered a measuring round of the run.

        Raises:
            PolicyError: If they differ; names what differs.
        """
        module = self.worker.local.module
        objective = objective_of(module)
        of_objective = [] if objective is None else list(objective.parameters())
        variables = {name for name, p in module.named_parameters() if any(p is each for each in of_objective)}
        for entry in self.layout.parameters:
            if entry.name not in variables and not torch.equal(entry.view(down.w), entry.view(self.start)):
                raise PolicyError(f"the weights of {entry.name} in the first round are not those of the approved plan")
        constants = set() if objective is None else {id(each) for each in objective.buffers()}
        own = {name for name, each in module.named_buffers() if id(each) in constants}
        for entry in self.layout.buffers if not measured else ():
            pair = [torch.nan_to_num(entry.view(stats)) for stats in (down.stats, self.start_stats)]
            if entry.name not in own and not torch.equal(*pair):
                raise PolicyError(f"the statistics {entry.name} before any round are not those of the approved plan")
        expected = self._first_broadcast(down, rnd).tensors() if rnd is not None else {"w": down.w, "stats": down.stats}
        if sent.keys() != expected.keys():
            raise PolicyError(
                f"the first round: expected the vectors {', '.join(sorted(expected))}, found {', '.join(sorted(sent))}"
            )
        for name in expected.keys() - {"w", "stats"}:
            if not _begins(sent[name], expected[name]):
                raise PolicyError(
                    f"the vector {name} of the first round is not the one with which its algorithm begins"
                )

    def _first_broadcast(self, down: Broadcast, rnd: Round) -> Broadcast:
        """Return what a server broadcasts that has just begun with these weights."""
        aggregators, w = self.recipe.aggregators, down.w.clone()
        states = [each.server_state(self.layout, w) for each in aggregators]
        server = ServerState(self.layout, w, down.stats.clone(), states)
        for each, state in zip(aggregators, states, strict=True):
            each.on_round_start(state, server, rnd)
        pairs = zip(aggregators, states, strict=True)
        return Broadcast(w, down.stats, [state_of(each, "broadcast", state, rnd) for each, state in pairs])

    def stream(self, client: Client) -> BatchStream:
        """Return the batches of a client."""
        return self.worker.stream(client.name)

    def steps_of(self, rnd: Round, client: Client) -> int:
        """Return the number of steps of a client's round, or of its measuring round."""
        epoch = self.stream(client).steps_per_epoch
        if rnd.window:
            return rnd.window * (epoch if rnd.unit == "epochs" else 1)
        return min(self.plan.measure_batches, epoch)

    def examples_of(self, rnd: Round, client: Client, steps: int, drawn: int) -> int:
        """Return the number of different examples of so many steps, by a client that has drawn some batches before.

        The mean counts for private steps: the number that they draw is secret, and could be guessed from the hash of
        its line in the ledger, which leaves the site.
        """
        stream, per_step = self.stream(client), self.worker.local.batches_per_step
        if stream.private:
            return min(steps * stream.batch_size, client.examples)
        if not rnd.window:
            stream, drawn, per_step = measuring_stream(stream, rnd, client), rnd.index * steps, 1
        used = torch.zeros(client.examples, dtype=torch.bool)
        for position in range(drawn, drawn + steps * per_step):
            used[stream.indices(position)] = True
            if used.all():
                break
        return int(used.sum())

    def load(self, task: Task, down: Broadcast) -> None:
        """Load the federation's model into the module, merged with what the task's client keeps to itself.

        Raises:
            InvalidMessageError: If clients keep a part of the model, and the task names none.
        """
        local, layout = self.worker.local, self.layout
        if task.client is not None:
            local.adopt_personal(self.client(task.client), self.state(task), down)
            return
        masks = [local.mask(client) for client in self.clients.values()]
        personal = any(aggregator.implements("personalise") for aggregator in local.aggregators)
        if personal or any(mask.private(layout) or (mask.keeps_stats(layout) and layout.stats_size) for mask in masks):
            raise InvalidMessageError(
                "model: clients keep a part of the model; expected the name of a client, found none"
            )
        local.flat.load(down.w, down.stats)
        local.flat.own.load({})


def _begins(sent: Tensor, expected: Tensor) -> bool:
    return sent.shape == expected.shape and bool(((sent == expected) | expected.isnan()).all())


def _common_buffers(module: LightningModule) -> set[str]:
    """Return names of buffers that come from the server even if clients keep statistics.

    Statistics of a frozen body belong to features that are computed once, and an objective's constants are measured
    again.
    """
    common = (objective_of(module), Parts.of(module).fixed_features)
    return {
        f"{name}.{buffer}"
        for name, part in module.named_modules()
        if any(part is c for c in common)
        for buffer, _ in part.named_buffers()
    }


def members(data: OwnData, asked: Sequence[Member], plan: RunPlan) -> dict[str, Client]:
    """Return the site's clients that take part, by name.

    Raises:
        IncompatibleError: If the site has no such client, or a weight is not in (0, 1].
    """
    clients = {}
    for member in asked:
        if member.name not in data.module.clients:
            raise IncompatibleError(f"it has no client {member.name!r}; it has {', '.join(data.module.clients)}")
        if not 0 < member.weight <= 1:
            raise IncompatibleError(f"client {member.name!r}: expected a weight in (0, 1], found {member.weight}")
        held, factor = data.module.clients[member.name], plan.lr_factors.get(member.name, 1.0)
        hidden = tuple(data.stand_ins(member.name).items())
        clients[member.name] = Client(member.name, held.classes, len(held.train), member.weight, factor, hidden)
    return clients


def prepared(
    asked: Prepare, recipe: Recipe, clients: Mapping[str, Client], data: OwnData, states: SiteStates, tensors: State,
    secret: bytes | None = None,
) -> PreparedRun:  # fmt: skip
    """Prepare a run on the site's device, with the tensors that came with the message, and the secret of its noise.

    Raises:
        IncompatibleError: If the tensors are not those of the plan's module.
        ConfigError: If the plan lacks a class of the site, or steps are private, and not all that would leave is.
    """
    plan, module, held = recipe.plan, recipe.module, data.for_run(recipe.plan.classes)
    fabric = make_fabric(data.settings.accelerator, precision=plan.precision)
    try:
        module.load_state_dict(module_state(tensors, module.state_dict()))
    except ValueError as error:
        raise IncompatibleError(f"the model differs from the server's: {error}; install the same code") from error
    trained, _ = with_fixed_features(module, held, fabric, most=FROZEN)
    training = LocalTraining(
        plan.optimizer_state,
        plan.gradient_clip,
        plan.gradient_clamp,
        plan.measure_batches,
        devices.resolve_memory_format(plan.memory_format, fabric, module) == "channels_last",
        compiled=bool(plan.compile),
    )
    if plan.compile:
        examine(fabric.device, (Compiler(),))
    place = devices.resolve_placement(data.module.device, fabric.device, trained, {})
    program = Program(
        module=module, aggregators=recipe.aggregators, clients=clients, data=trained, test_sets={},
        training=training, batch_size=plan.batch_size, eval_batch_size=plan.eval_batch_size, seed=plan.seed,
        threads=plan.threads, limit_eval_batches=plan.limit_eval_batches, pictures=place.name,
        smallest=data.policy.smallest_batch, secret=secret,
        patients={} if data.policy.privacy is None else dict.fromkeys(clients, data.policy.privacy.patients),
    )  # fmt: skip
    worker = Worker(program, fabric)
    if secret is not None:
        streams = {name: worker.stream(name) for name in clients}
        run = PrivateRun(
            module=worker.local.module, aggregators=recipe.aggregators, schedule=recipe.schedule, rounds=plan.rounds,
            training=training, precision=plan.precision, streams=streams,
        )  # fmt: skip
        examine(run, (NothingElseReadsImages(),))
        for note in (note for name, stream in streams.items() for note in data.policy.privacy.notes(name, stream)):
            warnings.warn(note, stacklevel=2)
    return PreparedRun(
        asked, recipe, worker, states, worker.local.flat.w.cpu().clone(), worker.local.flat.stats.cpu().clone()
    )
