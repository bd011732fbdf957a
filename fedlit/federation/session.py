"""A federation that is ready to run: its clients, engine and state."""

import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from fedlit.core.aggregator import Aggregator
from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.checkpoint import Checkpoints, Contents
from fedlit.core.checkpoints.manifest import Best
from fedlit.core.checkpoints.stored_states import StateFolder, check_room
from fedlit.core.errors import CheckpointError
from fedlit.core.fabric import FederationFabric
from fedlit.core.flat import FlatModel, Layout
from fedlit.core.governing import composed_name
from fedlit.core.hooks import initial_client_state, personalise, state_of
from fedlit.core.local_model import LocalModel
from fedlit.core.local_training import LocalTraining
from fedlit.core.measuring import objective_of
from fedlit.core.messages import Broadcast, Client, ClientReport, ClientState, Mask, Measured, Round, ServerState
from fedlit.core.module import copy_of
from fedlit.core.objective import Objective
from fedlit.core.scoring import Taken
from fedlit.data.federated import FederatedDataModule
from fedlit.federation import devices
from fedlit.federation.engines.base import Engine, Program
from fedlit.federation.examinations import KnownLabels, Learners, examine
from fedlit.federation.participation import Cohorts
from fedlit.federation.privacy import Account
from fedlit.federation.server import conclude
from fedlit.federation.settings import Settings


@dataclass(frozen=True)
class Resolved:
    """Choices that follow from the settings, the module and this machine."""

    optimizer: str  # Name of its class.
    scheduler: str | None
    memory_format: str  # ``contiguous`` or ``channels_last``; "" for a model without 2-D convolutions.
    placement: devices.Placement  # Of the images.
    state_bytes: int  # Estimated size of one client's state.
    stored: bool  # Whether the clients' states are stored in files.


@dataclass(eq=False)
class Session:
    """A federation that is ready to run, as :func:`fedlit.federation.assembly.assemble` creates it.

    Attributes:
        tags: Tags of the run; they override the session's own tags.
        everyone: Data of all clients, including those that do not take part.
        data: Data of the clients that take part.
        cohorts: The clients of each round.
        masks: Masks of the elements that each client shares.
        initial: State of the server before the first round.
        account: Account of the epsilon of private steps; None if they are not private.
        taken: What the sanity check's scores were made from; None if there were none.
    """

    federation: Settings
    fabric: FederationFabric
    tags: dict[str, str]
    everyone: FederatedDataModule
    data: FederatedDataModule
    cohorts: Cohorts
    masks: dict[str, Mask]
    resolved: Resolved
    engine: Engine
    program: Program
    server_model: FlatModel
    initial: ServerState
    taken: Taken | None = None
    account: Account | None = None

    @property
    def clients(self) -> dict[str, Client]:
        """The clients that take part, by name."""
        return self.program.clients

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.program.seed

    @cached_property
    def personal(self) -> list[str]:
        """Names of clients that keep a part of the model; if there are any, there is no single global model."""
        return keeping(self.federation.aggregators, self.masks, self.layout)

    @property
    def layout(self) -> Layout:
        """Layout of the weight vector."""
        return self.server_model.layout

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the model, in order."""
        return self.layout.classes

    @property
    def module(self) -> LightningModule:
        """The server's copy of the module; it has values only after a call of :meth:`model`."""
        return self.server_model.module

    @property
    def objective(self) -> Objective | None:
        """Objective of the server's copy, or None if it has no variables or constants."""
        return objective_of(self.module)

    @cached_property
    def weights(self) -> dict[str, float]:
        """The share pi_k of each client in the federation."""
        return {name: client.weight for name, client in self.clients.items()}

    @cached_property
    def _owners(self) -> Tensor:
        return sum(self.weights[name] * mask.owned.double() for name, mask in self.masks.items())

    @property
    def exclusive(self) -> bool:
        """True if the module's classes exclude each other."""
        return self.program.link(self.fabric) is not None

    @property
    def _aggregators(self) -> list[str]:
        return [type(aggregator).__name__ for aggregator in self.federation.aggregators]

    @property
    def algorithm(self) -> str:
        """Name of the list of aggregators."""
        return composed_name(self.federation.aggregators)

    def restore(self, path: Path | None, training: bool = False) -> tuple[ServerState, int, Best]:
        """Return the state to start from, the number of completed rounds, and the best model so far.

        Args:
            path: A checkpoint; None for a new run.
            training: Whether rounds follow, for which clients need their states.

        Raises:
            CheckpointError: The checkpoint does not fit the session, or the clients' states are not available.
        """
        if path is None:
            if training:
                self.engine.roll_back({}, 0)
            return self.initial, 0, Best()
        loaded = checkpoint.load(path, self.layout, self._aggregators, self.resolved.stored)
        check_states(path, loaded, self.federation, self.initial, list(self.clients))
        if self.account is not None and training:
            self.account.check_resumed(path, loaded.server.aggregators, self.initial.aggregators)
        check_place(path, loaded, self.engine.keeps_states, training or bool(self.personal))
        self.engine.load_client_states(loaded.clients)
        self.engine.roll_back(loaded.at_sites, loaded.round)
        self.cohorts.losses = dict(loaded.losses)
        return loaded.server, loaded.round, loaded.best

    def examine_labels(self) -> None:
        """Refuse clients that learn nothing, unless they are at sites, which check this themselves.

        Raises:
            ConfigError: No training label of a client is known, and a step at it has no gradient.
        """
        if self.engine.keeps_states:
            program = self.program

            def model() -> LocalModel:
                return LocalModel(self.fabric, copy_of(program.module), program.aggregators, LocalTraining())

            learners = Learners(self.clients, program.data, self.classes, program.batch_size, model)
            examine(learners, (KnownLabels(),))

    def store_states(self, folder: Path) -> None:
        """Store the clients' states in files of a folder if they would exceed ``state_memory``.

        Raises:
            ConfigError: The disk does not have enough space.
        """
        if self.fabric.is_global_zero:
            shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        self.fabric.barrier()
        if not self.resolved.stored:
            return
        rank_folder = folder.absolute() / str(self.fabric.global_rank)
        rank_folder.mkdir(parents=True)
        self.engine.folder = StateFolder(rank_folder, len(self.federation.aggregators))
        check_room(rank_folder, self.resolved.state_bytes, len(self.clients), self.cohorts.largest)

    def save(
        self,
        saver: Checkpoints,
        rounds: int,
        server: ServerState,
        best: Best,
        callbacks: Mapping[str, dict[str, Any]] | None = None,
        later: bool = False,
    ) -> None:
        """Save the state after ``rounds`` rounds; ``later`` is that of :meth:`Checkpoints.save`."""
        states, at_sites = self.engine.client_states(), self.engine.at_sites()
        later = later and self.engine.keeps_states  # sites delete states that no checkpoint needs
        more = {"at_sites": at_sites, "callbacks": callbacks or {}, "losses": dict(self.cohorts.losses)}
        saver.save(Contents(rounds, server, states, best, list(self.clients), self._aggregators, **more), later)
        if at_sites:
            self.engine.saved([checkpoint.manifest_of(path).at_sites for path in saver.kept])

    def initialise_objective(self, server: ServerState) -> None:
        """Measure the constants of the objective, and its variables at the initial weights."""
        if self.objective is not None and (self.account is None or self.objective.measured):
            start = self.measure(server, self.round(0), moments=False, start=True)
            server.w.copy_(start.w)
            server.stats.copy_(start.stats)

    def change_clients(self, server: ServerState, done: int, before: Sequence[str]) -> bool:
        """Adapt a resumed run to its clients if others took part before; only sites may leave and join.

        Returns:
            Whether the clients changed.

        Raises:
            ConfigError: An algorithm cannot continue with other clients.
        """
        if self.engine.keeps_states or set(before) == set(self.clients):
            return False
        pairs = zip(self.federation.aggregators, server.aggregators, strict=True)
        afresh = [type(a).__name__ for a, state in pairs if a.on_clients_change(state, server)]
        if afresh:
            self.engine.start_afresh(server)
        if self.objective is not None and done < self.federation.rounds:  # its constants are means over the clients
            server.stats.copy_(self.measure(server, self.round(done), moments=False, start=True).stats)
        warnings.warn(changed_clients(before, self.weights, afresh), stacklevel=2)
        return True

    def round(self, index: int) -> Round:
        """Return the plan and the cohort of a round."""
        plan, cohort = self.federation.schedule.plan(index), self.cohorts.of(index)
        shares = self.participation(cohort)
        return Round(index=index, seed=self.seed, cohort=cohort, participation=shares, **vars(plan))

    def with_replies(self, rnd: Round, reports: Sequence[ClientReport]) -> Round:
        """Return the round with only the clients that replied."""
        names = tuple(report.client for report in reports)
        return rnd if names == rnd.cohort else replace(rnd, cohort=names, participation=self.participation(names))

    def broadcast(self, server: ServerState, rnd: Round) -> Broadcast:
        """Return the message to the clients of a round."""
        pairs = zip(self.federation.aggregators, server.aggregators, strict=True)
        return Broadcast(
            server.w, server.stats, [state_of(aggregator, "broadcast", state, rnd) for aggregator, state in pairs]
        )

    def to_score(self, server: ServerState, rnd: Round) -> Broadcast:
        """Return the message with the model that clients score, which may be another than the one that they train."""
        return replace(self.broadcast(server, rnd), **server.scored)

    def measure(self, server: ServerState, rnd: Round, moments: bool = True, start: bool = False) -> Measured:
        """Run a measuring round over all clients, without changing any state."""
        measuring = replace(rnd, window=0, moments=moments, cohort=tuple(self.clients))
        total, _ = self.engine.run(measuring.cohort, self.broadcast(server, rnd), measuring, lambda report: None)
        return conclude(self.server_model, server, total, start)

    def participation(self, cohort: Sequence[str]) -> torch.Tensor:
        """Return, per element, the weight of the owners in the cohort divided by the weight of all owners."""
        everyone = len(cohort) == len(self.clients)
        present = self._owners if everyone else sum(self.weights[n] * self.masks[n].owned.double() for n in cohort)
        return self.layout.expand(torch.where(self._owners > 0, present / self._owners, 0.0))

    def learned(self, client: str | None) -> set[str]:
        """Return the classes that the federation's model, or a client's personal model, has learned.

        These are the classes that any training client labels. For a client that keeps its head, they are the classes
        that it labels itself.
        """
        known = {name for c in self.clients.values() for name in c.classes}
        if client is None or not known:
            return known
        kept, labelled = self.masks[client].kept, self.clients[client].classes
        return {name for name in known if name in labelled or not kept[self.layout.groups(("head",), (name,))].all()}

    def model(
        self, server: ServerState, client: str | None = None, state: ClientState | None = None
    ) -> LightningModule:
        """Return the federation's model, or a client's personal model; the next call changes it."""
        self.server_model.load(**({"w": server.w, "stats": server.stats} | server.scored))
        self.server_model.own.load({})
        if client is not None:
            state = state or initial_client_state(self.federation.aggregators, self.layout)
            state.write(self.masks[client], self.layout, self.server_model.w, self.server_model.stats)
            personalise(self.federation.aggregators, state, self.server_model.w, self.server_model.stats)
            self.server_model.own.load(state.buffers)
        return self.server_model.module

    def hand_out(self, server: ServerState, rounds: int) -> list[str]:
        """Send a run's best model to the sites that may keep it, and return lines that name them."""
        learned = {owner: self.learned(owner) for owner in self.personal or [None]}
        flags = {owner: [name in known for name in self.classes] for owner, known in learned.items()}
        best = replace(Broadcast(server.w, server.stats, []), **server.scored)
        return self.engine.hand_out(best, rounds, flags)


def keeping(aggregators: Sequence[Aggregator], masks: Mapping[str, Mask], layout: Layout) -> list[str]:
    """Return the names of clients that keep a part of the model."""
    if any(aggregator.implements("personalise") for aggregator in aggregators):
        return [*masks]
    filled = torch.zeros(layout.num_groups, dtype=torch.bool)
    filled[[segment.group for segment in layout.segments]] = True
    filled[layout.stats_group] = layout.stats_size > 0
    return [name for name, mask in masks.items() if (mask.kept & filled).any()]


def check_place(path: Path, loaded: Contents, keeps_states: bool, needed: bool) -> None:
    """Refuse a checkpoint whose states are at sites if this federation has no sites, or the reverse."""
    if loaded.at_sites and keeps_states and needed:
        raise CheckpointError(f"{path}: clients' states are at sites; pass --sites of the original run")
    if not loaded.at_sites and not keeps_states:
        raise CheckpointError(f"{path}: expected a run with sites, found one without; leave --sites out")


def check_states(path: Path, loaded: Contents, settings: Settings, initial: ServerState, names: Sequence[str]) -> None:
    """Refuse a checkpoint that lacks a state of an algorithm or optimizer, or has another order of clients."""
    if sorted(loaded.names) == sorted(names) and list(loaded.names) != list(names):
        raise CheckpointError(
            f"{path}/manifest.json: expected the clients in the order of the data, {', '.join(names)}, found "
            f"{', '.join(loaded.names)}; states are numbered by this order: restore it in the data"
        )
    fresh = initial_client_state(settings.aggregators, initial.layout).aggregators
    held = {f"{loaded.files[name]}, client {name!r},": state.load() for name, state in loaded.clients.items()}
    files = [(checkpoint.SERVER, loaded.server.aggregators, initial.aggregators)]
    files += [(file, state.aggregators, fresh) for file, state in held.items()]
    for file, states, declared in files:
        for aggregator, state, needed in zip(settings.aggregators, states, declared, strict=True):
            if lacking := sorted(needed.keys() - state.keys()):
                raise CheckpointError(
                    f"{path / file} lacks the tensor {lacking[0]!r} of {type(aggregator).__name__}; use another "
                    "checkpoint"
                )
    if settings.optimizer_state == "keep":
        known = any(state.optimizer for state in held.values())
        for file, state in held.items():
            if known and state.batches and not state.optimizer:
                raise CheckpointError(
                    f"{path / file} lacks the optimizer's state, which other clients have; use another checkpoint"
                )


def changed_clients(before: Sequence[str], weights: Mapping[str, float], afresh: Sequence[str]) -> str:
    """Return the notice of a run that continues with other clients; the states of some algorithms start afresh."""
    left, joined = [name for name in before if name not in weights], [name for name in weights if name not in before]
    changes = [f"{word} {', '.join(names)}" for word, names in (("without", left), ("with", joined)) if names]
    shares = ", ".join(f"{name} {weight:.3f}" for name, weight in weights.items())
    text = f"the run continues {' and '.join(changes)}, with new client weights: {shares}"
    if afresh:
        text += (
            f"; the state of {' and '.join(afresh)} starts afresh at the server and at the clients, so the next round "
            "is like the algorithm's first"
        )
    return (
        f"{text}; only the rounds to come count for the best model and for patience, because the validation images are "
        "different"
    )
