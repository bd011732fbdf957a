"""A federation that is ready to run: its clients, engine and state, and what is kept of it."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from fedlit.core.aggregator import composed_name
from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.checkpoint import Checkpoints, Contents
from fedlit.core.checkpoints.manifest import Best
from fedlit.core.checkpoints.stored_states import StateFolder, check_room
from fedlit.core.fabric import FederationFabric
from fedlit.core.flat import FlatModel, Layout
from fedlit.core.hooks import initial_client_state, state_of
from fedlit.core.measuring import conclude, objective_of
from fedlit.core.messages import Broadcast, Client, ClientReport, ClientState, Mask, Measured, Round, ServerState
from fedlit.core.objective import Objective
from fedlit.core.randomness import generator
from fedlit.data.federated import FederatedDataModule
from fedlit.federation import devices
from fedlit.federation.engines.base import Engine, Program
from fedlit.federation.handover import PersonalState
from fedlit.federation.restoring import check_place, check_states
from fedlit.federation.settings import Settings


@dataclass(eq=False)
class Session:
    """Hold a federation that is ready to run; :func:`fedlit.federation.assembly.assemble` makes it.

    Attributes:
        federation: The settings of its rounds.
        fabric: Lightning Fabric, launched.
        seed: The seed of everything that is drawn.
        tags: Tags of the run, beside the session's own or in their place.
        everyone: The data of all clients, those included that do not take part.
        data: The data of those that do.
        clients: The clients that take part, by name.
        masks: What each of them shares.
        personal: Names of those that keep a part of the model; where there are any, there is no single global model.
        rates: The learning rate of each parameter group of the optimizer.
        optimizer: The name of its class.
        memory_format: ``contiguous`` or ``channels_last``; "" for a model without 2-D convolutions.
        placement: Where the pictures lie.
        stored: Whether the clients' states live in files.
        state_bytes: About how many bytes the state of a client takes.
        engine: Where the clients run.
        program: What the engine's processes train and evaluate.
        server_model: The server's own copy of the model.
        initial: The state of the server before the first round.
        personal_state: What clients kept to themselves in an earlier phase, and start with.
    """

    federation: Settings
    fabric: FederationFabric
    seed: int
    tags: dict[str, str]
    everyone: FederatedDataModule
    data: FederatedDataModule
    clients: dict[str, Client]
    masks: dict[str, Mask]
    personal: list[str]
    rates: Sequence[float]
    optimizer: str
    memory_format: str
    placement: devices.Placement
    stored: bool
    state_bytes: int
    engine: Engine
    program: Program
    server_model: FlatModel
    initial: ServerState
    personal_state: PersonalState | None = None

    @property
    def layout(self) -> Layout:
        """Where everything lies in the weight vector."""
        return self.server_model.layout

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the model, in order."""
        return self.layout.classes

    @property
    def module(self) -> LightningModule:
        """The server's own copy of the model; its values are those of the last :meth:`model`, and none before."""
        return self.server_model.module

    @property
    def objective(self) -> Objective | None:
        """The objective of that copy, where it has variables or constants of its own."""
        return objective_of(self.module)

    @cached_property
    def weights(self) -> dict[str, float]:
        """The share pi_k of each client in the federation."""
        return {name: client.weight for name, client in self.clients.items()}

    @cached_property
    def _owners(self) -> Tensor:
        """The sum of the owners' weights, per group."""
        return sum(self.weights[name] * mask.owned.double() for name, mask in self.masks.items())

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
                self.engine.roll_back({}, 0)
            self._load_personal_state(self.initial)
            return self.initial, 0, Best()
        names = [type(a).__name__ for a in self.federation.aggregators]
        loaded = checkpoint.load(path, self.layout, names, self.stored)
        check_states(path, loaded, self.federation, self.initial, list(self.clients))
        check_place(path, loaded, self.engine.keeps_states, training or bool(self.personal))
        self.engine.load_client_states(loaded.clients)
        self.engine.roll_back(loaded.at_sites, loaded.round)
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
        check_room(own, self.state_bytes, len(self.clients), self.federation.cohort_size(len(self.clients)))

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
        contents = Contents(
            round=rounds,
            server=server,
            clients=held,
            best=best,
            names=list(self.clients),
            aggregators=names,
            files={},
            at_sites=at_sites,
            callbacks=callbacks or {},
        )
        saver.save(contents, later)
        if at_sites:
            self.engine.saved([checkpoint.at_sites(path) for path in saver.kept])

    def initialise_objective(self, server: ServerState) -> None:
        """Measure what the objective starts from: its constants, and its variables at the initial weights."""
        if self.objective is not None:
            start = self.measure(server, self.round(0), moments=False, start=True)
            server.w.copy_(start.w)
            server.stats.copy_(start.stats)
            self._load_personal_state(server)

    def round(self, index: int) -> Round:
        """Say what happens in a round, and who takes part."""
        plan, names = self.federation.schedule.plan(index), list(self.clients)
        cohort = names
        if self.federation.participation < 1:
            drawn = torch.randperm(len(names), generator=generator(self.seed, "cohort", index))[
                : self.federation.cohort_size(len(self.clients))
            ]
            cohort = [names[i] for i in sorted(drawn.tolist())]
        shares = self.participation(cohort)
        return Round(index=index, seed=self.seed, cohort=tuple(cohort), participation=shares, **vars(plan))

    def with_replies(self, rnd: Round, reports: Sequence[ClientReport]) -> Round:
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
        total, _ = self.engine.run(everybody.cohort, self.broadcast(server, rnd), everybody, lambda report: None)
        return conclude(self.server_model, server, total, start)

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
        self.server_model.load(server.w, server.stats)
        self.server_model.own.load({})
        if client is not None:
            kept = state or initial_client_state(self.federation.aggregators, self.layout)
            kept.write(self.masks[client], self.layout, self.server_model.w, self.server_model.stats)
            self.server_model.own.load(kept.buffers)
        return self.server_model.module

    def _load_personal_state(self, server: ServerState) -> None:
        """Let clients start with what they kept in the phase before, beside the server's values."""
        if self.personal_state is not None:
            having = {name: self.clients[name] for name in self.personal}
            self.engine.carry_over(
                self.personal_state, having, self.server_model.module, server, self.federation.aggregators
            )
