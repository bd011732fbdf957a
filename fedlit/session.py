"""A federation made ready to run: clients, engine, initial state, and what is kept of it."""

import copy
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from lightning.pytorch import LightningModule
from rich.filesize import decimal
from torch.utils.data import Dataset

from fedlit import checkpoint
from fedlit.aggregators.base import Aggregator, composed_name
from fedlit.checkpoint import Best, Checkpoints
from fedlit.data.features import with_fixed_features
from fedlit.data.federated import FederatedDataModule
from fedlit.data.organisations import save_classes
from fedlit.data.schemes import by_sharing
from fedlit.engines.base import Engine, Program, Scores, View
from fedlit.engines.fabric import FabricEngine
from fedlit.engines.local import LocalEngine
from fedlit.errors import ConfigError
from fedlit.evaluation import (
    MAX_CLIENT_CURVES,
    by_site,
    client_metrics,
    client_views,
    keeping,
    pooled_metrics,
    quartile_metrics,
    views_beyond,
)
from fedlit.fabric import FederationFabric
from fedlit.flat import FlatModel
from fedlit.foreign import check_module
from fedlit.local import client_mask, configured, initial_client_state
from fedlit.measuring import Measured, measured, objective_of
from fedlit.messages import Broadcast, Client, ClientReport, ClientState, Payload, Round, ServerState
from fedlit.metrics.auroc import slugs
from fedlit.optimizer import FlatOptimizer
from fedlit.personal import PersonalParts
from fedlit.run import Run

if TYPE_CHECKING:
    from fedlit.federation import Federation


class Session:
    """A federation made ready to run: its clients, its engine, its initial state.

    Args:
        federation: hyper-parameters.
        module: the model that every client trains; any LightningModule.
        data: who has what.
        fabric: launched.
        seed: of everything that is drawn.
        tags: of the run, beside the session's own, or in their place.
        limit_eval_batches: evaluate no more batches than this of each set.
        personal_parts: of an earlier phase, with which clients start.

    Raises:
        ConfigError: model, data and federation do not fit together.
    """

    def __init__(
        self,
        federation: "Federation",
        module: LightningModule,
        data: FederatedDataModule,
        fabric: FederationFabric,
        seed: int = 0,
        tags: Mapping[str, str] | None = None,
        limit_eval_batches: int | None = None,
        personal_parts: PersonalParts | None = None,
    ) -> None:
        self.federation, self.fabric, self.seed, self._personal_parts = federation, fabric, seed, personal_parts
        check_module(module)
        self._model = model = self._initial_model(module)
        self._objective = objective_of(model.module)
        self._own = next((f"{n}." for n, m in model.module.named_modules() if m is self._objective), "")
        self._tags = dict(tags or {})
        if fabric.local_rank == 0:
            data.prepare_data()
        fabric.barrier()
        data.setup("fit")
        everyone, self.schemes = data, data.schemes
        self.data = data = _only(everyone, federation.clients)
        self.clients = _clients(data, federation.weights)
        self.weights = {name: client.weight for name, client in self.clients.items()}
        self.layout, self.classes = model.layout, model.layout.classes
        if self.classes and data.classes and self.classes != tuple(data.classes):
            raise ConfigError(f"the model's classes {self.classes} are not the data's {tuple(data.classes)}")
        aggregators = federation.aggregators
        self.masks = {name: client_mask(aggregators, self.layout, c) for name, c in self.clients.items()}
        states = [a.server_state(self.layout, model.w) for a in aggregators]
        self._initial = ServerState(self.layout, model.w.clone(), model.stats.clone(), states)
        self.personal = keeping(self.masks, self.layout)
        self._everyone = everyone
        clients, test_sets = with_fixed_features(module, everyone, fabric)
        self._program = program = Program(
            module,
            aggregators,
            self.clients,
            clients,
            test_sets,
            federation.training,
            data.batch_size,
            data.eval_batch_size,
            seed,
            federation.threads,
            limit_eval_batches,
        )
        self.engine: Engine
        if fabric.world_size > 1:
            self.engine = FabricEngine(program, fabric)
        else:
            self.engine = LocalEngine(program, fabric, self._workers())

    @property
    def algorithm(self) -> str:
        return composed_name(self.federation.aggregators)

    @property
    def tags(self) -> dict[str, str]:
        """What people group and filter runs by; those given win, as a run's first session may be that of a phase."""
        return {
            "fedlit.algorithm": self.algorithm,
            "fedlit.engine": type(self.engine).__name__,
            "fedlit.clients": str(len(self.clients)),
            "fedlit.partition": self.data.partition_hash,
            "fedlit.seed": str(self.seed),
            "fedlit.layout": self.layout.fingerprint,
            "mlflow.note.content": self.introduction(),
        } | self._tags

    def restore(self, path: Path | None) -> tuple[ServerState, int, Best]:
        """The state to start from, and the number of rounds behind it."""
        if path is None:
            self._load_personal_parts(self._initial)
            return self._initial, 0, Best()
        loaded = checkpoint.load(path, self.layout, [type(a).__name__ for a in self.federation.aggregators])
        self.engine.load_client_states(loaded.clients)
        return loaded.server, loaded.round, loaded.best

    def save(self, saver: Checkpoints, rounds: int, server: ServerState, best: Best) -> None:
        names = [type(a).__name__ for a in self.federation.aggregators]
        saver.save(rounds, server, self.engine.client_states(), best, list(self.clients), names)

    def settle(self, server: ServerState) -> None:
        """Measure what the objective starts from: its constants, and its variables at the initial weights."""
        if self._objective is not None:
            found = self.measure(server, self.federation.round(0, self))
            server.w.copy_(found.w)
            server.stats.copy_(found.stats)
            self._load_personal_parts(server)

    def measure(self, server: ServerState, rnd: Round) -> Measured:
        """A measuring round over all clients; nothing is changed."""
        everybody = replace(rnd, window=0, cohort=tuple(self.clients))
        total, _ = self.engine.run(everybody.cohort, self.federation.broadcast(server, rnd), everybody, _unheard)
        return measured(self._model, server, total)

    def objective_metrics(self, server: ServerState, rounds: int) -> dict[str, float]:
        """``objective/...``: its variables per class, and after the first round its constants too."""
        vectors = [(server.w, self.layout.parameters)] + [(server.stats, self.layout.buffers)] * (rounds == 1)
        return {
            f"objective/{entry.name.removeprefix(self._own)}/{key}": float(value)
            for vector, entries in vectors
            for entry in entries
            if self._objective is not None and entry.name.startswith(self._own)
            for key, value in zip(slugs(self.classes), entry.view(vector), strict=True)
        }

    def participation(self, cohort: Sequence[str]) -> torch.Tensor:
        """Per element: weight of the owners in the cohort over the weight of all owners."""
        if len(cohort) == len(self.clients):
            return torch.tensor(1.0, dtype=self.layout.dtype)
        present = sum(self.weights[name] * self.masks[name].owned.double() for name in cohort)
        everybody = sum(self.weights[name] * mask.owned.double() for name, mask in self.masks.items())
        return self.layout.expand(torch.where(everybody > 0, present / everybody, 0.0))

    def validate(self, down: Broadcast, metrics: dict[str, float]) -> list[Scores]:
        """Scores of the clients' validation sets; adds their ``val/...`` to the metrics."""
        began = time.perf_counter()
        scores = self.engine.evaluate(client_views(self.data, "val"), down)
        metrics |= pooled_metrics(scores, self.classes, "val", by_sharing(self.schemes))
        metrics |= self._pooled_loss(scores, down)
        metrics["time/evaluate_s"] = time.perf_counter() - began
        return scores

    def per_client(self, run: Run, scores: list[Scores], reports: list[ClientReport], step: int) -> dict[str, float]:
        """Every client's own curves, or with many clients their quartiles and a table beside."""
        metrics = client_metrics(scores, reports, self.classes)
        if len(self.clients) <= MAX_CLIENT_CURVES:
            return metrics
        run.log_clients(metrics, step)
        return quartile_metrics(metrics)

    def evaluate_sets(self, server: ServerState, part: str, method: str = "validation_step") -> dict[str, list[Scores]]:
        """Scores of the clients' parts together (``federation``), of other clients' and of each server test set.

        A class that a view's model has not learned is unknown there (labels NaN), see :meth:`learned`.
        """
        rnd = self.federation.round(0, self)
        down = self.federation.broadcast(server, rnd)
        views = {"federation": client_views(self.data, part, method)}
        views |= views_beyond(self._everyone, self.personal, list(self.clients), part, method)
        groups = {name: self.engine.evaluate(seen, down) for name, seen in views.items() if seen}
        for scored in (s for scores in groups.values() for s in scores if s.labels is not None):
            scored.labels[:, [name not in self.learned(scored.view.client) for name in self.classes]] = torch.nan
        return groups

    def with_sites(self, groups: dict[str, list[Scores]]) -> dict[str, list[Scores]]:
        """The same, and beside them the clients' scores regrouped: those of each organisation together."""
        held = {name: scores for name, scores in groups.items() if scores[0].view.holder is not None}
        return groups | by_site(held, lambda view: getattr(self._program.dataset(view), "sites", ()))

    def learned(self, client: str | None) -> set[str]:
        """Classes that the federation's model, or a client's own, can tell.

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
        """The federation's model, or a client's own, by what the client keeps; it changes with the next call."""
        self._model.load(server.w, server.stats)
        if client is not None:
            kept = state or initial_client_state(self.federation.aggregators, self.layout)
            kept.write(self.masks[client], self.layout, self._model.w, self._model.stats)
        return self._model.module

    def dataset(self, view: View) -> Dataset:
        """What a view looks at."""
        return self._program.dataset(view)

    def rehearse(self, server: ServerState) -> dict[str, float]:
        """The validation metrics of two examples a client: what fails there, fails before hours of training."""
        views = [replace(view, limit=2) for view in client_views(self.data, "val")]
        down = self.federation.broadcast(server, self.federation.round(0, self))
        return pooled_metrics(self.engine.evaluate(views, down), self.classes, "val", by_sharing(self.schemes))

    def stopping(self, signum: int) -> int:
        """The number of a signal that any rank was sent, or 0; the same answer on every rank."""
        if self.fabric.world_size == 1:
            return signum
        return int(self.fabric.all_reduce(self.fabric.to_device(torch.tensor(float(signum))), reduce_op="max"))

    def introduction(self) -> str:
        """One line on what is about to run."""
        shown = ", ".join(f"{n} ({c.examples})" for n, c in list(self.clients.items())[:6])
        more = f", and {len(self.clients) - 6} more" if len(self.clients) > 6 else ""
        return (
            f"{self.algorithm} over {len(self.clients)} client{'s' * (len(self.clients) != 1)} (training images): {shown}{more}; "
            f"{self.layout.size:,} parameters; {self.engine.where}"
        )

    def label_schemes(self) -> str:
        """One line on who labels which classes; "" where all label all of them."""
        if all(set(c.classes) == set(self.classes) for c in self.clients.values()):
            return ""
        told = [f"{name} labels {', '.join(c.classes)}" for name, c in list(self.clients.items())[:8]]
        return "; ".join(told) + (f"; and {len(self.clients) - 8} more clients" if len(self.clients) > 8 else "")

    def without_positives(self) -> str:
        """One line on clients that label a class of which they train on no positive image; "" where there is none."""
        if self.data.assignment is None:
            return ""
        counts = self.data.counts()
        empty = counts[(counts["split"] == "train") & counts["labelled"] & (counts["positives"] == 0)]
        named = [f"{client} ({', '.join(rows['class'])})" for client, rows in empty.groupby("client", sort=False)]
        more = f" and {len(named) - 6} more clients" if len(named) > 6 else ""
        return f"no positive training image at {', '.join(named[:6])}{more}" if named else ""

    def describe(self, run: Run) -> None:
        """Save the partition with the run, as a table and as a picture."""
        if not run.main or self.data.assignment is None:
            return
        from fedlit.reports.figures import partition_figure  # matplotlib takes a second to import

        self.data.save_partition(run.directory / "partition.csv")
        counts = self.data.counts()
        train = counts[counts["split"] == "train"]
        positives = train.assign(shown=train["positives"].where(train["labelled"])).pivot(
            index="client", columns="class", values="shown"
        )
        positives = positives.reindex(index=list(self.clients), columns=list(self.data.classes))
        sizes = train.groupby("client")["images"].first().reindex(list(self.clients))
        partition_figure(positives, sizes, "Training images").savefig(run.directory / "partition.png", dpi=150)
        save_classes(self.data, run.directory / "classes.csv")
        for name in ("partition.csv", "partition.png", "classes.csv"):
            run.artifact(run.directory / name)

    def _load_personal_parts(self, server: ServerState) -> None:
        """Clients start with what they kept in the phase before, beside the server's values."""
        if self._personal_parts is not None:
            having = {name: self.clients[name] for name in self.personal}
            parts = self._personal_parts.states(having, self._model.module, server, self.federation.aggregators)
            self.engine.load_client_states(dict(parts))

    def _initial_model(self, module: LightningModule) -> FlatModel:
        start = configured(self.fabric, copy.deepcopy(module), self.federation.aggregators)
        start.fabric = self.fabric
        model = FlatModel(start)
        self.lr = FlatOptimizer(start, model).rates[0]  # what it refuses, it refuses before any process starts
        return model

    def _pooled_loss(self, scores: list[Scores], down: Broadcast) -> dict[str, float]:
        """What the objective makes of all scores together, ``val/<name>/<class>`` and its mean over classes."""
        scored = [s for s in scores if s.scores is not None]
        if self._objective is None or not scored:
            return {}
        self._model.load(down.w, down.stats)
        metrics = {}
        together = [torch.cat([getattr(s, part) for s in scored]) for part in ("scores", "labels")]
        for name, values in self._objective.pooled(*together).items():
            metrics |= {f"val/{name}/{k}": float(v) for k, v in zip(slugs(self.classes), values, strict=True)}
            metrics[f"val/{name}"] = float(values.nanmean())
        return metrics

    def _workers(self) -> int:
        cohort = max(1, round(self.federation.participation * len(self.clients)))
        wanted = self.federation.workers
        if wanted == "auto":
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
            wanted = cores if self.fabric.device.type == "cpu" else 1
        return min(wanted, cohort)


def _only(data: FederatedDataModule, clients: Sequence[str] | None) -> FederatedDataModule:
    """The same data with some of its clients."""
    if clients is None:
        return data
    unknown = [name for name in clients if name not in data.clients]
    if unknown or not clients:
        raise ConfigError(
            f"clients: there is no {', '.join(map(repr, unknown)) or 'client in the list'}; clients are "
            f"{', '.join(data.clients)}"
        )
    part = copy.copy(data)
    part.clients = {name: data.clients[name] for name in data.clients if name in clients}
    return part


def _unheard(report: ClientReport) -> None:
    """A measuring round's replies are nobody's progress."""


def leaves_a_site(total: Payload, aggregators: Sequence[Aggregator]) -> str:
    """What each client sends in a round, by name and number of values; nothing else leaves a site in training."""
    sent = []
    for name, vector in total.vectors.items():
        index, _, own = name.partition("/")
        sent.append(f"{f'{own} of {type(aggregators[int(index)]).__name__}' if own else name} [{vector.numel():,}]")
    return f"each round a site sends {decimal(total.nbytes)}: {', '.join(sent)}, its weight and which parts it shares"


def _clients(data: FederatedDataModule, weights: str) -> dict[str, Client]:
    if not data.clients:
        raise ConfigError(f"{type(data).__name__} has no clients after setup()")
    sizes = {name: len(d.train) for name, d in data.clients.items()}
    few = [f"{name!r} ({size})" for name, size in sizes.items() if size < min(2, data.batch_size)]
    if few:
        raise ConfigError(
            "a client needs at least 2 training samples, as BatchNorm refuses a batch of one; found less "
            f"at {', '.join(few)}: give them some, or remove them"
        )
    shares = sizes if weights == "examples" else dict.fromkeys(sizes, 1)
    return {
        name: Client(name, d.classes, sizes[name], shares[name] / sum(shares.values()))
        for name, d in data.clients.items()
    }
