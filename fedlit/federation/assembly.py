"""Assembly of a session from its parts: clients, engine and initial state."""

import copy
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from lightning.pytorch import LightningModule

from fedlit.core.aggregator import Aggregator
from fedlit.core.checkpoints.stored_states import SHARE, free_memory
from fedlit.core.configured_optimizer import configured_optimizer
from fedlit.core.errors import ConfigError, DataError
from fedlit.core.fabric import FederationFabric
from fedlit.core.flat import FlatModel, Layout
from fedlit.core.governing import ADAPTIVE
from fedlit.core.hooks import client_mask, client_weights, initial_client_state, reduced, state_of
from fedlit.core.labels import labelled_classes
from fedlit.core.local_model import configured
from fedlit.core.messages import Client, Mask, ServerState
from fedlit.core.module import copy_of
from fedlit.core.system.processes import return_freed_memory
from fedlit.data.federated import FederatedDataModule
from fedlit.data.pictures.features import with_fixed_features
from fedlit.federation import devices
from fedlit.federation.engines.base import Away, Engine, Program
from fedlit.federation.engines.pool import LocalEngine, wanted_workers
from fedlit.federation.engines.ranks import FabricEngine
from fedlit.federation.examinations import (
    OF_MODULES,
    Behaviour,
    Compiler,
    HooksOfSteps,
    NewOptimizer,
    NothingElseReadsImages,
    PrivateRun,
    Trial,
    examine,
    examine_clients,
)
from fedlit.federation.participation import Cohorts
from fedlit.federation.privacy import Account
from fedlit.federation.session import Resolved, Session, keeping
from fedlit.federation.settings import Settings


def assemble(
    settings: Settings,
    module: LightningModule,
    data: FederatedDataModule,
    fabric: FederationFabric,
    seed: int = 0,
    *,
    tags: Mapping[str, str] | None = None,
    limit_eval_batches: int | None = None,
    away: Away | None = None,
) -> Session:
    """Create a session; incompatible parts raise an error before any process starts.

    ``fabric`` is launched. If the clients are not on this machine but ``away``, ``data`` is what they reported.

    Raises:
        ConfigError: Model, data and settings do not fit together.
    """
    model = examined_model(module, settings, fabric)
    made = configured_optimizer(model.module)
    if settings.compile and away is None:  # sites check this themselves
        examine(fabric.device, (Compiler(),))
    everyone = ready_data(data, fabric)
    data = select_clients(everyone, settings.clients)
    clients = participating_clients(data, settings, everyone)
    if (classes := model.layout.classes) and data.classes and classes != tuple(data.classes):
        raise ConfigError(f"model: expected the classes of the data, {tuple(data.classes)}, found {classes}")
    cohorts = cohorts_of(clients, settings, seed)
    if away is None:
        examine_clients(data.clients, labelled_classes(module))
        examine(Trial(module, settings.aggregators, data.clients, fabric, data.batch_size), (Behaviour(),))
    masks = {name: client_mask(settings.aggregators, model.layout, client) for name, client in clients.items()}
    initial = initial_state(settings.aggregators, model)
    datasets, test_sets = with_fixed_features(module, everyone, fabric)
    memory_format = devices.resolve_memory_format(settings.memory_format, fabric, module)
    workers = min(wanted_workers(settings.workers, fabric), cohorts.largest) if fabric.world_size == 1 else 1
    placement = devices.resolve_placement(data.device, fabric.device, datasets, test_sets, workers)
    training = replace(
        settings.training, channels_last=memory_format == "channels_last", compiled=bool(settings.compile)
    )
    program = Program(
        module=module, aggregators=settings.aggregators, clients=clients, data=datasets, test_sets=test_sets,
        training=training, batch_size=data.batch_size, eval_batch_size=data.eval_batch_size, seed=seed,
        threads=settings.threads, limit_eval_batches=limit_eval_batches, pictures=placement.name,
        patients=away.patients if away is not None else {},
    )  # fmt: skip
    precision = fabric.strategy.precision.precision
    account = account_of(program, model.module, settings, cohorts, precision, initial, simulated=away is None)
    optimizer, scheduler = type(made.optimizer).__name__, made.scheduler and type(made.scheduler).__name__
    state_bytes = _state_bytes(settings, model, masks, optimizer)
    memory = SHARE * free_memory() if settings.state_bytes is None else settings.state_bytes
    stored = away is None and fabric.broadcast(state_bytes * len(clients) > memory)  # the same on all ranks
    torch.set_num_threads(settings.threads)  # the server's sums, too, are the same for any number of workers and cores
    engine = engine_of(program, fabric, settings, model.layout, workers, away)
    return_freed_memory()  # of copies of the model, whose parameters are now one vector
    return Session(
        federation=settings, fabric=fabric, tags=dict(tags or {}), everyone=everyone, data=data, cohorts=cohorts,
        masks=masks, resolved=Resolved(optimizer, scheduler, memory_format, placement, state_bytes, stored),
        engine=engine, program=program, server_model=model, initial=initial, account=account,
    )  # fmt: skip


def examined_model(module: LightningModule, settings: Settings, fabric: FederationFabric) -> FlatModel:
    """Examine a module, and return a flat copy of it for the server."""
    examine(module, OF_MODULES)
    examine((module, settings.aggregators), (HooksOfSteps(),))
    model = FlatModel(configured(fabric, copy_of(module), settings.aggregators))
    examine(model, (NewOptimizer(),))
    return model


def ready_data(data: FederatedDataModule, fabric: FederationFabric) -> FederatedDataModule:
    """Prepare the data of all clients, once per machine, and set them up."""
    if fabric.local_rank == 0:
        data.prepare_data()
    fabric.barrier()
    data.setup("fit")
    data.clients = {str(name): client for name, client in data.clients.items()}  # names may be NumPy texts
    for kind, names in (("client", data.clients), ("class", data.classes)):
        if wrong := [name for name in names if any(unicodedata.category(sign) == "Cc" for sign in name)]:
            raise DataError(f"data: expected a {kind} without control characters in its name, found {wrong[0]!r}")
    return data


def cohorts_of(clients: Mapping[str, Client], settings: Settings, seed: int) -> Cohorts:
    """Return the clients of each round, which are enough for every aggregator."""
    cohorts = Cohorts(settings.cohorts, [*clients], settings.rounds, seed)
    for aggregator in settings.aggregators:
        aggregator.check_cohort(cohorts.smallest)
    return cohorts


def initial_state(aggregators: Sequence[Aggregator], model: FlatModel) -> ServerState:
    """Return the state of the server before the first round; the model keeps no weights of its own."""
    states = [state_of(a, "server_state", model.layout, model.w.clone()) for a in aggregators]  # each may keep it
    return ServerState(model.layout, model.release_weights(), model.stats.clone(), states)


def account_of(
    program: Program, module: LightningModule, settings: Settings, cohorts: Cohorts, precision: str,
    initial: ServerState, simulated: bool,
) -> Account | None:  # fmt: skip
    """Return the account of a private run, after its aggregator has planned the noise; None if it is not private."""
    private = next((number for number, each in enumerate(program.aggregators) if each.private), None)
    if private is None:
        return None
    streams = {name: program.private_stream(name) for name in program.clients}
    run = PrivateRun(
        module=module, aggregators=program.aggregators, schedule=settings.schedule, rounds=settings.rounds,
        training=program.training, precision=precision, streams=streams, cohorts=settings.cohorts,
    )  # fmt: skip
    examine(run, (NothingElseReadsImages(),))
    aggregator, state = program.aggregators[private], initial.aggregators[private]
    account = Account(aggregator, private, streams, settings.schedule, cohorts, simulated)
    aggregator.plan(state, account.taken(settings.rounds), program.batch_size)
    return account


def engine_of(
    program: Program, fabric: FederationFabric, settings: Settings, layout: Layout, workers: int, away: Away | None
) -> Engine:
    """Return the engine: of sites, of ranks, or of this process and its workers."""
    engine: Engine
    if away is not None:
        engine = away.engine(program, fabric, settings, layout)
    else:
        engine = FabricEngine(program, fabric) if fabric.world_size > 1 else LocalEngine(program, fabric, workers)
    for reducing in (a for a in program.aggregators if a.implements("reduce")):
        engine.reduce = partial(reduced, reducing, layout)
    return engine


def _state_bytes(settings: Settings, model: FlatModel, masks: Mapping[str, Mask], optimizer: str) -> int:
    """Estimate the bytes of one client's state: of algorithms, optimizer, and kept parts of the model."""
    layout, item = model.layout, model.layout.dtype.itemsize
    nbytes = sum(t.nbytes for t in initial_client_state(settings.aggregators, layout).tensors().values())
    keep = [masks[name] for name in keeping(settings.aggregators, masks, layout)]
    distinct = {bytes(mask.kept.tolist()): mask for mask in keep}.values()
    sizes = [len(mask.part(layout, model.w)) + mask.keeps_stats(layout) * layout.stats_size for mask in distinct]
    nbytes += item * max(sizes, default=0)
    if settings.optimizer_state == "keep":
        nbytes += item * layout.size * (2 if optimizer in ADAPTIVE else 1)
    return nbytes


def select_clients(data: FederatedDataModule, clients: Sequence[str] | None) -> FederatedDataModule:
    """Return the data restricted to some of the clients.

    Raises:
        ConfigError: A client does not exist, or the list is empty.
    """
    if clients is None:
        return data
    unknown = [name for name in clients if name not in data.clients]
    if unknown or not clients:
        raise ConfigError(
            f"federation.clients: expected names among {', '.join(data.clients)}, found "
            f"{', '.join(map(repr, map(str, unknown))) or 'an empty list'}"
        )
    part = copy.copy(data)
    part.clients = {name: data.clients[name] for name in data.clients if name in clients}
    return part


def participating_clients(
    data: FederatedDataModule, settings: Settings, everyone: FederatedDataModule
) -> dict[str, Client]:
    """Return the clients that take part, by name; factors of other clients of ``everyone`` are allowed and ignored.

    Raises:
        ConfigError: There are no clients, a client has too few examples, or a factor names an unknown client.
    """
    if not data.clients:
        raise ConfigError(f"{type(data).__name__}: expected clients by setup(), found none")
    if everyone.pooled and len(everyone.clients) > 1:
        raise ConfigError(
            f"data.pooled: expected one client from {type(data).__name__}.setup(), found {len(everyone.clients)}; give "
            "the images of all clients to one if self.pooled, or leave data.pooled out"
        )
    factors = settings.lr_factors or {}
    if unknown := [name for name in factors if name not in everyone.clients]:
        raise ConfigError(
            f"federation.lr_factors: expected names among {', '.join(everyone.clients)}, found "
            f"{', '.join(map(repr, map(str, unknown)))}"
        )
    sizes = {name: len(d.train) for name, d in data.clients.items()}
    few = [f"{name!r} ({size})" for name, size in sizes.items() if size < min(2, data.batch_size)]
    if few:
        raise ConfigError(
            "clients: expected at least 2 training samples per client, as BatchNorm fails on a batch of one, found "
            f"fewer at {', '.join(few)}; add samples, or remove these clients"
        )
    shares = sizes if settings.client_weights == "examples" else dict.fromkeys(sizes, 1)
    total = sum(shares.values())
    clients = {
        name: Client(name, d.classes, sizes[name], shares[name] / total, factors.get(name, 1.0))
        for name, d in data.clients.items()
    }
    if any(aggregator.implements("client_weight") for aggregator in settings.aggregators):
        return client_weights(settings.aggregators, clients, data.counts())
    return clients
