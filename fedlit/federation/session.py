"""A federation made ready to run: clients, engine, initial state, and what is kept of it."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch.utils.data import Dataset

from fedlit.core.aggregator import composed_name
from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.checkpoint import Checkpoints, Contents
from fedlit.core.checkpoints.manifest import Best
from fedlit.core.checkpoints.stored_states import SHARE, StateFolder, check_room, free_memory
from fedlit.core.errors import CheckpointError, ConfigError
from fedlit.core.fabric import FederationFabric
from fedlit.core.flat import FlatModel, Layout
from fedlit.core.hooks import reduced, state_of
from fedlit.core.labels import check_labels
from fedlit.core.local_model import client_mask, configured, initial_client_state
from fedlit.core.measuring import conclude, objective_of
from fedlit.core.messages import Broadcast, ClientReport, ClientState, Mask, Measured, Round, ServerState
from fedlit.core.module import check_module, copy_of
from fedlit.core.optimizer import ADAPTIVE, FlatOptimizer
from fedlit.core.randomness import generator
from fedlit.core.system.processes import return_freed_memory
from fedlit.data.federated import FederatedDataModule
from fedlit.data.pictures.features import with_fixed_features
from fedlit.federation import devices
from fedlit.federation.clients import only, taking_part
from fedlit.federation.engines.base import Away, Engine, Program, View
from fedlit.federation.engines.local import LocalEngine, wanted_workers
from fedlit.federation.engines.ranks import FabricEngine
from fedlit.federation.handover import PersonalParts
from fedlit.federation.settings import Settings


class Session:
    """Hold a federation that is ready to run: its clients, its engine, its initial state.

    Args:
        federation: The settings of its rounds.
        module: The model that every client trains; any LightningModule.
        data: Who has what.
        fabric: Lightning Fabric, launched.
        seed: The seed of everything that is drawn.
        tags: Tags of the run, beside the session's own or in their place.
        limit_eval_batches: The largest number of batches of each set that an evaluation looks at.
        personal_parts: What clients kept to themselves in an earlier phase, and start with.
        away: Who has the clients, where they are not here; ``data`` are then what they have told.
        phase: Name of the phase; "" for the main part.

    Attributes:
        clients: The clients that take part, by name.
        masks: What each of them shares.
        personal: Names of those that keep a part of the model; where there are any, there is no single global model.
        everyone: The data of all clients, those included that do not take part.
        layout: Where everything lies in the weight vector.
        engine: Where the clients run.
        stored: Whether the clients' states live in files.
        lr: The learning rate of the optimizer's first parameter group.
        optimizer: The name of its class.
        memory_format: ``contiguous`` or ``channels_last``; "" for a model without 2-D convolutions.
        placement: Where the pictures lie.

    Raises:
        ConfigError: Model, data and federation do not fit together.
    """

    def __init__(
        self,
        federation: Settings,
        module: LightningModule,
        data: FederatedDataModule,
        fabric: FederationFabric,
        seed: int = 0,
        tags: Mapping[str, str] | None = None,
        limit_eval_batches: int | None = None,
        personal_parts: PersonalParts | None = None,
        away: Away | None = None,
        phase: str = "",
    ) -> None:
        self.federation, self.fabric, self.seed, self._personal_parts = federation, fabric, seed, personal_parts
        check_module(module)
        self._model = model = self._initial_model(module)
        optimizer = FlatOptimizer(model.module, model)  # what it refuses, it refuses before any process starts
        self.lr, self.optimizer = optimizer.rates[0], optimizer.name
        if away is None:  # sites decide for themselves
            if federation.cuda_graph is True:
                devices.check_recording(fabric.device, model, optimizer, federation.aggregators)
            devices.check_compiler(federation.compile, fabric.device)
        self.objective = objective_of(model.module)
        self.tags = dict(tags or {})
        if fabric.local_rank == 0:
            data.prepare_data()
        fabric.barrier()
        data.setup("fit")
        self.everyone, self.schemes = data, data.schemes
        self.data = data = only(data, federation.clients)
        self.clients = taking_part(data, federation, self.everyone)
        self.weights = {name: client.weight for name, client in self.clients.items()}
        self.layout, self.classes = model.layout, model.layout.classes
        if self.classes and data.classes and self.classes != tuple(data.classes):
            raise ConfigError(f"the model's classes {self.classes} are not the data's {tuple(data.classes)}")
        for name, client in data.clients.items():
            check_labels(name, client.train, self.classes)
        aggregators = federation.aggregators
        self.masks = {name: client_mask(aggregators, self.layout, c) for name, c in self.clients.items()}
        self._owners = sum(self.weights[name] * mask.owned.double() for name, mask in self.masks.items())
        states = [state_of(a, "server_state", self.layout, model.w.clone()) for a in aggregators]  # each may keep it
        self._initial = ServerState(self.layout, model.give_away(), model.stats.clone(), states)
        self.personal = _keeping(self.masks, self.layout)
        clients, test_sets = with_fixed_features(module, self.everyone, fabric)
        self.memory_format = devices.memory_format(federation.memory_format, fabric, module)
        workers = self._workers() if fabric.world_size == 1 else 1
        self.placement = devices.placement(data.device, fabric.device, clients, test_sets, workers)
        self._program = program = Program(
            module,
            aggregators,
            self.clients,
            clients,
            test_sets,
            replace(
                federation.training,
                channels_last=self.memory_format == "channels_last",
                recorded=data.batch_size * (federation.cuda_graph is True and away is None),
                compiled=bool(federation.compile),
            ),
            data.batch_size,
            data.eval_batch_size,
            seed,
            federation.threads,
            limit_eval_batches,
            self.placement.name,
        )
        limit = federation.state_bytes
        self.stored = self._state_bytes() * len(self.clients) > (SHARE * free_memory() if limit is None else limit)
        self.stored = self.stored and away is None
        if fabric.world_size > 1:  # one answer for all ranks
            self.stored = bool(fabric.broadcast(self.stored))
        self.engine: Engine
        if away is not None:
            self.engine = away.engine(program, fabric, federation, phase, self.layout)
        elif fabric.world_size > 1:
            self.engine = FabricEngine(program, fabric)
        else:
            self.engine = LocalEngine(program, fabric, workers)
        for reducing in (a for a in aggregators if a.implements("reduce")):
            self.engine.reduce = partial(reduced, reducing, self.layout)
        return_freed_memory()  # of copies of the model, whose parameters have become one vector

    @property
    def algorithm(self) -> str:
        """What people call the list of aggregators."""
        return composed_name(self.federation.aggregators)

    def restore(self, path: Path | None, training: bool = False) -> tuple[ServerState, int, Best]:
        """Give the state to start from, the number of rounds behind it, and the best model so far.

        Args:
            path: A checkpoint; None for a new run.
            training: Whether rounds follow, for which clients need what they have kept.

        Raises:
            CheckpointError: The checkpoint is of something else, or clients' states are where this session has none.
        """
        if path is None:
            if training:
                self.engine.go_back({}, 0)
            self._load_personal_parts(self._initial)
            return self._initial, 0, Best()
        names = [type(a).__name__ for a in self.federation.aggregators]
        loaded = checkpoint.load(path, self.layout, names, self.stored)
        self._check_states(path, loaded)
        if loaded.at_sites and self.engine.keeps_states and (training or self.personal):
            raise CheckpointError(
                f"{path}: its clients' states are at their sites; give --sites as the run was started with"
            )
        if not loaded.at_sites and not self.engine.keeps_states:
            raise CheckpointError(
                f"{path}: it is of a run without sites, which have none of its clients' states; leave --sites out"
            )
        self.engine.load_client_states(loaded.clients)
        self.engine.go_back(loaded.at_sites, loaded.round)
        return loaded.server, loaded.round, loaded.best

    def store_states(self, folder: Path) -> None:
        """Let the clients' states live in files of a folder, where they would take more than ``state_memory`` in memory.

        Raises:
            ConfigError: The disk has not enough room.
        """
        if self.fabric.is_global_zero:
            shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        self.fabric.barrier()
        if not self.stored:
            return
        own = folder.absolute() / str(self.fabric.global_rank)
        own.mkdir(parents=True)
        self.engine.folder = StateFolder(own, len(self.federation.aggregators))
        check_room(own, self._state_bytes(), len(self.clients), self._cohort_size())

    @property
    def stored_where(self) -> str:
        """Say where the clients' states live, if not in memory; "" otherwise."""
        if not self.stored or self.engine.folder is None:
            return ""
        nbytes = self._state_bytes() * len(self.clients)
        return f"clients' states: about {nbytes / 1e9:,.1f} GB in files in {self.engine.folder.path.parent}"

    def save(
        self,
        saver: Checkpoints,
        rounds: int,
        server: ServerState,
        best: Best,
        callbacks: Mapping[str, dict[str, Any]] | None = None,
        later: bool = False,
    ) -> None:
        """Write the state after so many rounds; with ``later`` while the next one trains, see :meth:`Checkpoints.save`."""
        names = [type(a).__name__ for a in self.federation.aggregators]
        held, at_sites = self.engine.client_states(), self.engine.at_sites()
        later = later and self.engine.keeps_states  # sites forget what no checkpoint needs
        contents = Contents(rounds, server, held, best, list(self.clients), names, {}, at_sites, callbacks or {})
        saver.save(contents, later)
        if at_sites:
            self.engine.saved([checkpoint.at_sites(path) for path in saver.kept])

    def settle(self, server: ServerState) -> None:
        """Measure what the objective starts from: its constants, and its variables at the initial weights."""
        if self.objective is not None:
            start = self.measure(server, self.round(0), moments=False, start=True)
            server.w.copy_(start.w)
            server.stats.copy_(start.stats)
            self._load_personal_parts(server)

    def round(self, index: int) -> Round:
        """Say what happens in a round, and who takes part."""
        plan, names = self.federation.schedule.plan(index), list(self.clients)
        cohort = names
        if self.federation.participation < 1:
            drawn = torch.randperm(len(names), generator=generator(self.seed, "cohort", index))[: self._cohort_size()]
            cohort = [names[i] for i in sorted(drawn.tolist())]
        shares = self.participation(cohort)
        return Round(index=index, seed=self.seed, cohort=tuple(cohort), participation=shares, **vars(plan))

    def answered(self, rnd: Round, reports: Sequence[ClientReport]) -> Round:
        """Give a round as it was, with those in its cohort who have answered."""
        names = tuple(report.client for report in reports)
        return rnd if names == rnd.cohort else replace(rnd, cohort=names, participation=self.participation(names))

    def broadcast(self, server: ServerState, rnd: Round) -> Broadcast:
        """Collect what the clients of a round get."""
        pairs = zip(self.federation.aggregators, server.aggregators, strict=True)
        return Broadcast(
            server.w, server.stats, [state_of(aggregator, "broadcast", state, rnd) for aggregator, state in pairs]
        )

    def measure(self, server: ServerState, rnd: Round, moments: bool = True, start: bool = False) -> Measured:
        """Run a measuring round over all clients; nothing is changed."""
        everybody = replace(rnd, window=0, moments=moments, cohort=tuple(self.clients))
        total, _ = self.engine.run(everybody.cohort, self.broadcast(server, rnd), everybody, _unheard)
        return conclude(self._model, server, total, start)

    def participation(self, cohort: Sequence[str]) -> torch.Tensor:
        """Give, per element, the weight of the owners in the cohort over the weight of all owners."""
        if len(cohort) == len(self.clients):
            return torch.tensor(1.0, dtype=self.layout.dtype)
        present = sum(self.weights[name] * self.masks[name].owned.double() for name in cohort)
        return self.layout.expand(torch.where(self._owners > 0, present / self._owners, 0.0))

    def learned(self, client: str | None) -> set[str]:
        """Name the classes that the federation's model, or a client's own, can tell.

        They are those that somebody who trains labels; of a client that keeps its head, those that it labels itself.
        """
        known = {name for c in self.clients.values() for name in c.classes}
        if client is None or not known:
            return known
        kept, own = self.masks[client].kept, self.clients[client].classes
        return {name for name in known if name in own or not kept[self.layout.groups(("head",), (name,))].all()}

    def model(
        self, server: ServerState, client: str | None = None, state: ClientState | None = None
    ) -> LightningModule:
        """Give the federation's model, or a client's own, by what the client keeps; it changes with the next call."""
        self._model.load(server.w, server.stats)
        self._model.own.load({})
        if client is not None:
            kept = state or initial_client_state(self.federation.aggregators, self.layout)
            kept.write(self.masks[client], self.layout, self._model.w, self._model.stats)
            self._model.own.load(kept.buffers)
        return self._model.module

    @property
    def module(self) -> LightningModule:
        """The server's own copy of the model; its values are those of the last :meth:`load` or :meth:`model`, and none before."""
        return self._model.module

    def load(self, w: torch.Tensor, stats: torch.Tensor) -> None:
        """Copy weights [P] and statistics [S] into the server's own copy of the model."""
        self._model.load(w, stats)

    def dataset(self, view: View) -> Dataset:
        """Give the data set that a view looks at."""
        return self._program.dataset(view)

    def stopping(self, signum: int) -> int:
        """Give the number of a signal that any rank was sent, or 0; the answer is the same on every rank."""
        if self.fabric.world_size == 1:
            return signum
        return int(self.fabric.all_reduce(self.fabric.to_device(torch.tensor(float(signum))), reduce_op="max"))

    def _check_states(self, path: Path, loaded: Contents) -> None:
        """Refuse a checkpoint that lacks what the algorithms or the optimizer keep, or whose clients are in another order."""
        names = list(self.clients)
        if sorted(loaded.names) == sorted(names) and list(loaded.names) != names:
            raise CheckpointError(
                f"{path}/manifest.json: the clients are in another order, {', '.join(loaded.names)}, than the data's, "
                f"{', '.join(names)}; the number of a client's state is its place: put the order back"
            )
        fresh = initial_client_state(self.federation.aggregators, self.layout).aggregators
        held = {f"{loaded.files[name]}, client {name!r},": state.load() for name, state in loaded.clients.items()}
        files = [(checkpoint.SERVER, loaded.server.aggregators, self._initial.aggregators)]
        files += [(file, state.aggregators, fresh) for file, state in held.items()]
        for file, found, declared in files:
            for aggregator, there, needed in zip(self.federation.aggregators, found, declared, strict=True):
                if lacking := sorted(needed.keys() - there.keys()):
                    raise CheckpointError(
                        f"{path / file} lacks the tensor {lacking[0]!r} of {type(aggregator).__name__}; use another checkpoint"
                    )
        if self.federation.optimizer_state == "keep":
            needed = {name for state in held.values() for name in state.optimizer}
            for file, state in held.items():
                if state.batches and (lacking := sorted(needed - state.optimizer.keys())):
                    raise CheckpointError(
                        f"{path / file} lacks the optimizer's {lacking[0]!r}, which other clients have; use another checkpoint"
                    )

    def _load_personal_parts(self, server: ServerState) -> None:
        """Let clients start with what they kept in the phase before, beside the server's values."""
        if self._personal_parts is not None:
            having = {name: self.clients[name] for name in self.personal}
            self.engine.hand_over(self._personal_parts, having, self._model.module, server, self.federation.aggregators)

    def _initial_model(self, module: LightningModule) -> FlatModel:
        start = configured(self.fabric, copy_of(module), self.federation.aggregators)
        start.fabric = self.fabric
        return FlatModel(start)

    def _cohort_size(self) -> int:
        return max(1, round(self.federation.participation * len(self.clients)))

    def _state_bytes(self) -> int:
        """About how much the state of a client takes: what algorithms and optimizer keep, and what it keeps to itself."""
        fresh = initial_client_state(self.federation.aggregators, self.layout).tensors()
        nbytes, item = sum(t.nbytes for t in fresh.values()), self.layout.dtype.itemsize
        kept = {bytes(self.masks[name].kept.tolist()): self.masks[name] for name in self.personal}.values()
        own = [
            len(m.part(self.layout, self._model.w)) + m.keeps_stats(self.layout) * self.layout.stats_size for m in kept
        ]
        nbytes += item * max(own, default=0)
        if self.federation.optimizer_state == "keep":
            nbytes += item * self.layout.size * (2 if self.optimizer in ADAPTIVE else 1)
        return nbytes

    def _workers(self) -> int:
        return min(wanted_workers(self.federation.workers, self.fabric), self._cohort_size())


def _keeping(masks: Mapping[str, Mask], layout: Layout) -> list[str]:
    """Clients that keep a part of the model; where there are any, there is no single global model."""
    filled = torch.zeros(layout.num_groups, dtype=torch.bool)
    filled[[stretch.group for stretch in layout.stretches]] = True
    filled[layout.stats_group] = layout.stats_size > 0
    return [name for name, mask in masks.items() if (mask.kept & filled).any()]


def _unheard(report: ClientReport) -> None:
    """A measuring round's replies are nobody's progress."""
