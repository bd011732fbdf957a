"""The federation: rounds of local training and aggregation, from the first to the last."""

import copy
import os
import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import torch
from lightning.pytorch import LightningModule

from fedlit import checkpoint
from fedlit.aggregators.base import Aggregator, overriding
from fedlit.checkpoint import Best, Checkpoints
from fedlit.data.federated import FederatedDataModule
from fedlit.engines.base import Engine, Program, Scores
from fedlit.engines.fabric import FabricEngine
from fedlit.engines.local import LocalEngine
from fedlit.errors import ConfigError
from fedlit.evaluation import (
    MAX_CLIENT_CURVES,
    client_metrics,
    client_views,
    pooled_metrics,
    quartile_metrics,
    server_views,
    training_metrics,
)
from fedlit.fabric import FederationFabric
from fedlit.flat import FlatModel
from fedlit.interrupts import Interrupted, Interrupts
from fedlit.messages import Broadcast, Client, Payload, Round, ServerState
from fedlit.progress import RoundProgress
from fedlit.randomness import generator
from fedlit.rounds import LocalTraining, client_mask, server_round
from fedlit.run import Run
from fedlit.schedules import ConstantSchedule, Schedule


class Federation:
    """A federation of clients that train one model over rounds.

    Args:
        aggregators: the algorithms, composed; none is federated averaging.
        rounds: number of rounds.
        schedule: what each round does: window, unit, learning rate; by default one epoch a round.
        participation: share of the clients that train in a round, drawn anew for each.
        weights: of clients in every mean, ``examples`` (n_k / n) or ``uniform`` (1 / K); by default what the
            aggregators state, else ``examples``.
        optimizer_state: a client's optimizer state between its rounds: ``reset`` or ``keep``.
        gradient_clip: largest norm of a local gradient; none by default.
        workers: processes that train clients side by side on this machine; by default the cores of a CPU, 1 on an
            accelerator, and no more than clients train in a round.
        threads: of each worker; another number gives other bits.
        eval_every: rounds between evaluations; the last round is always evaluated.
        monitor: metric that says which model is best.
        monitor_mode: whether more of it is better (``max``) or less (``min``).
        checkpoint_every: rounds between checkpoints, or ``auto``: as often as costs under 2% of the time.
    """

    def __init__(
        self,
        aggregators: list[Aggregator] | None = None,
        rounds: int = 10,
        schedule: Schedule | None = None,
        participation: float = 1.0,
        weights: Literal["examples", "uniform"] | None = None,
        optimizer_state: Literal["reset", "keep"] = "reset",
        gradient_clip: float | None = None,
        workers: int | Literal["auto"] = "auto",
        threads: int = 1,
        eval_every: int = 1,
        monitor: str = "val/auroc_macro",
        monitor_mode: Literal["max", "min"] = "max",
        checkpoint_every: int | Literal["auto"] = "auto",
    ) -> None:
        for name, value in (("rounds", rounds), ("workers", workers), ("threads", threads), ("eval_every", eval_every),
                            ("checkpoint_every", checkpoint_every)):  # fmt: skip
            if value != "auto" and value < 1:
                raise ConfigError(f"federation.{name}: expected at least 1, found {value}")
        if not 0 < participation <= 1:
            raise ConfigError(f"federation.participation: expected a share in (0, 1], found {participation}")
        if gradient_clip is not None and not gradient_clip > 0:
            raise ConfigError(f"federation.gradient_clip: expected a norm above 0, found {gradient_clip}")
        self.aggregators = list(aggregators or [])
        self.rounds, self.participation, self.workers, self.threads = rounds, participation, workers, threads
        self.schedule = schedule or ConstantSchedule()
        self.weights = _agreed_weights(self.aggregators, weights)
        self.training = LocalTraining(optimizer_state, gradient_clip)
        self.eval_every, self.checkpoint_every = eval_every, checkpoint_every
        self.monitor, self.monitor_mode = monitor, monitor_mode
        if len(overriding(self.aggregators, "compute_gradient")) > 1:
            names = [type(self.aggregators[i]).__name__ for i in overriding(self.aggregators, "compute_gradient")]
            raise ConfigError(f"federation.aggregators: {' and '.join(names)} each compute the gradient; keep one")

    def fit(self, session: "Session", run: Run, resume: Path | None = None, config: str = "",
            params: dict[str, str | int | float | bool] | None = None) -> int:  # fmt: skip
        """Train from the start, or from a checkpoint; returns the number of the signal that ended the run, or 0.

        Raises:
            TrainingError: a loss or an update is not finite; the last checkpoint is kept.
            CheckpointError: ``resume`` is a checkpoint of something else.
        """
        server, done, best = session.restore(resume)
        saver = Checkpoints(run.checkpoints, session.fabric, self.checkpoint_every)
        run.start(config, params or {}, session.tags, done)
        session.describe(run)
        session.save(saver, done, server, best)

        with Interrupts() as interrupts, RoundProgress(self.rounds, done, run.main) as progress:
            progress.say(session.introduction())
            while done < self.rounds and not session.stopping(interrupts.signum):
                began, rnd = time.perf_counter(), self.round(done, session)
                down = self.broadcast(server, rnd)
                progress.round_started(len(rnd.cohort))
                try:
                    with interrupts.may_abandon() if session.fabric.world_size == 1 else nullcontext():
                        total, reports = session.engine.run(rnd.cohort, down, rnd, progress.client_done)
                except Interrupted:
                    break
                sent = total.nbytes
                server_round(self.aggregators, server, total, rnd)
                session.engine.commit()
                done += 1
                metrics = training_metrics(reports, session.weights) | {
                    "round/stage": rnd.stage, "round/lr_factor": rnd.lr_factor, "round/clients": len(rnd.cohort),
                    "bytes/up": sum(r.bytes_up for r in reports), "bytes/down": down.nbytes * len(rnd.cohort),
                    "time/round_s": time.perf_counter() - began,
                }  # fmt: skip
                scores: list[Scores] = []
                if done % self.eval_every == 0 or done == self.rounds:
                    began = time.perf_counter()
                    scores = session.engine.evaluate(client_views(session.data, "val"), self.broadcast(server, rnd))
                    metrics |= pooled_metrics(scores, session.classes, "val")
                    metrics["time/evaluate_s"] = time.perf_counter() - began
                metrics |= session.per_client(run, scores, reports, done)
                run.log(metrics, done)
                progress.round_done(done - 1, metrics)
                if done == 1:
                    progress.say(f"each round a site sends {sent / 2**20:.1f} MiB: {leaves_a_site(total)}")
                improved = scores and best.improved_by(self.monitored(metrics), self.monitor_mode)
                if improved:
                    best = Best(metrics[self.monitor], done)
                if improved or done == self.rounds or saver.due(done):
                    session.save(saver, done, server, best)
            session.save(saver, done, server, best)
        return interrupts.signum

    def round(self, index: int, session: "Session") -> Round:
        """What happens in a round, and who takes part."""
        plan, names = self.schedule.plan(index), list(session.clients)
        cohort = names
        if self.participation < 1:
            size = max(1, round(self.participation * len(names)))
            drawn = torch.randperm(len(names), generator=generator(session.seed, "cohort", index))[:size]
            cohort = [names[i] for i in sorted(drawn.tolist())]
        return Round(index=index, seed=session.seed, cohort=tuple(cohort), participation=session.participation(cohort),
                     **vars(plan))  # fmt: skip

    def broadcast(self, server: ServerState, rnd: Round) -> Broadcast:
        """What the clients of a round get."""
        states = [a.broadcast(state, rnd) for a, state in zip(self.aggregators, server.aggregators, strict=True)]
        return Broadcast(server.w, server.stats, states)

    def monitored(self, metrics: dict[str, float]) -> float:
        """The value that decides which model is best.

        Raises:
            ConfigError: there is no such metric.
        """
        if self.monitor not in metrics:
            near = [k for k in metrics if k.startswith("val/") and "/n_" not in k]
            raise ConfigError(f"federation.monitor: no metric {self.monitor!r}; there are {', '.join(near) or 'none'}")
        return metrics[self.monitor]


class Session:
    """A federation made ready to run: its clients, its engine, its initial state.

    Args:
        federation: hyper-parameters.
        module: the model that every client trains; any LightningModule.
        data: who has what.
        fabric: launched.
        seed: of everything that is drawn.
        limit_eval_batches: evaluate no more batches than this of each set.

    Raises:
        ConfigError: model, data and federation do not fit together.
    """

    def __init__(self, federation: Federation, module: LightningModule, data: FederatedDataModule,
                 fabric: FederationFabric, seed: int = 0, limit_eval_batches: int | None = None) -> None:  # fmt: skip
        self.federation, self.data, self.fabric, self.seed = federation, data, fabric, seed
        if fabric.local_rank == 0:
            data.prepare_data()
        fabric.barrier()
        data.setup("fit")
        self.clients = _clients(data, federation.weights)
        self.weights = {name: client.weight for name, client in self.clients.items()}
        model = self._initial_model(module)
        self.layout, self.classes = model.layout, model.layout.classes
        if self.classes and self.classes != tuple(data.classes):
            raise ConfigError(f"the model's classes {self.classes} are not the data's {tuple(data.classes)}")
        aggregators = federation.aggregators
        self.masks = {name: client_mask(aggregators, self.layout, c) for name, c in self.clients.items()}
        states = [a.server_state(self.layout, model.w) for a in aggregators]
        self._initial = ServerState(self.layout, model.w, model.stats, states)
        program = Program(module, aggregators, self.clients, data.clients, data.test_sets, federation.training,
                          data.batch_size, data.eval_batch_size, seed, federation.threads, limit_eval_batches)  # fmt: skip
        self.engine: Engine
        if fabric.world_size > 1:
            self.engine = FabricEngine(program, fabric)
        else:
            self.engine = LocalEngine(program, fabric, self._workers())

    @property
    def tags(self) -> dict[str, str]:
        """What people group and filter runs by."""
        names = [type(a).__name__ for a in self.federation.aggregators] or ["FedAvg"]
        return {"fedlit.algorithm": "+".join(names), "fedlit.engine": type(self.engine).__name__,
                "fedlit.clients": str(len(self.clients)), "fedlit.partition": self.data.partition_hash,
                "fedlit.seed": str(self.seed), "fedlit.layout": self.layout.fingerprint}  # fmt: skip

    def restore(self, path: Path | None) -> tuple[ServerState, int, Best]:
        """The state to start from, and the number of rounds behind it."""
        if path is None:
            return self._initial, 0, Best()
        loaded = checkpoint.load(path, self.layout, [type(a).__name__ for a in self.federation.aggregators])
        self.engine.load_client_states(loaded.clients)
        return loaded.server, loaded.round, loaded.best

    def save(self, saver: Checkpoints, rounds: int, server: ServerState, best: Best) -> None:
        names = [type(a).__name__ for a in self.federation.aggregators]
        saver.save(rounds, server, self.engine.client_states(), best, list(self.clients), names)

    def participation(self, cohort: Sequence[str]) -> torch.Tensor:
        """Per element: weight of the owners in the cohort over the weight of all owners."""
        if len(cohort) == len(self.clients):
            return torch.tensor(1.0, dtype=self.layout.dtype)
        present = sum(self.weights[name] * self.masks[name].owned.double() for name in cohort)
        everybody = sum(self.weights[name] * mask.owned.double() for name, mask in self.masks.items())
        return self.layout.expand(torch.where(everybody > 0, present / everybody, 0.0))

    def per_client(self, run: Run, scores: list[Scores], reports: list, step: int) -> dict[str, float]:
        """Every client's own curves, or with many clients their quartiles and a table beside."""
        metrics = client_metrics(scores, reports, self.classes)
        if len(self.clients) <= MAX_CLIENT_CURVES:
            return metrics
        run.log_clients(metrics, step)
        return quartile_metrics(metrics)

    def test(self, server: ServerState, part: str = "test") -> dict[str, list[Scores]]:
        """Scores of the clients' test parts together (``federation``), and of each server test set by its name."""
        rnd = self.federation.round(0, self)
        down = self.federation.broadcast(server, rnd)
        groups = {"federation": client_views(self.data, part)}
        groups |= {view.part: [view] for view in server_views(self.data, self.masks)}
        skipped = set(self.data.test_sets) - set(groups)
        if skipped:
            warnings.warn(f"test sets {sorted(skipped)} are not evaluated: clients keep a part of the model to "
                          "themselves, so there is no single global model", stacklevel=2)  # fmt: skip
        return {name: self.engine.evaluate(views, down) for name, views in groups.items() if views}

    def stopping(self, signum: int) -> bool:
        """Whether any rank was asked to stop."""
        if self.fabric.world_size == 1:
            return signum != 0
        return bool(self.fabric.all_reduce(torch.tensor(float(signum != 0)), reduce_op="sum") > 0)

    def introduction(self) -> str:
        """One line on what is about to run."""
        shown = ", ".join(f"{n} ({c.examples})" for n, c in list(self.clients.items())[:6])
        more = f", and {len(self.clients) - 6} more" if len(self.clients) > 6 else ""
        return (f"{self.tags['fedlit.algorithm']} over {len(self.clients)} clients (training images): {shown}{more}; "
                f"{self.layout.size:,} parameters, {self.engine}")  # fmt: skip

    def describe(self, run: Run) -> None:
        """Save the partition with the run, as a table and as a picture."""
        if not run.main or self.data.assignment is None:
            return
        from fedlit.reports.figures import partition_figure  # matplotlib takes a second to import

        self.data.save_partition(run.directory / "partition.csv")
        counts = self.data.counts()
        train = counts[counts["split"] == "train"]
        positives = train.assign(shown=train["positives"].where(train["labelled"])).pivot(
            index="client", columns="class", values="shown")  # fmt: skip
        positives = positives.reindex(index=list(self.clients), columns=list(self.data.classes))
        sizes = train.groupby("client")["images"].first().reindex(list(self.clients))
        partition_figure(positives, sizes, "Training images").savefig(run.directory / "partition.png", dpi=150)
        for name in ("partition.csv", "partition.png"):
            run.artifact(run.directory / name)

    def _initial_model(self, module: LightningModule) -> FlatModel:
        start = copy.deepcopy(module)
        for aggregator in self.federation.aggregators:
            aggregator.configure_model(start)
        return FlatModel(self.fabric.strategy.precision.convert_module(start))

    def _workers(self) -> int:
        cohort = max(1, round(self.federation.participation * len(self.clients)))
        wanted = self.federation.workers
        if wanted == "auto":
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
            wanted = cores if self.fabric.device.type == "cpu" else 1
        return min(wanted, cohort)


def leaves_a_site(total: Payload) -> str:
    """What a client sends, by name and number of values; nothing else leaves it during training."""
    vectors = ", ".join(f"{name} [{vector.numel():,}]" for name, vector in total.vectors.items())
    return f"{vectors}, its weight and which parts it shares"


def _clients(data: FederatedDataModule, weights: str) -> dict[str, Client]:
    if not data.clients:
        raise ConfigError(f"{type(data).__name__} has no clients after setup()")
    sizes = {name: len(d.train) for name, d in data.clients.items()}
    empty = [name for name, size in sizes.items() if size == 0]
    if empty:
        raise ConfigError(f"clients without training samples: {', '.join(map(repr, empty))}; give them some or remove them")
    shares = sizes if weights == "examples" else dict.fromkeys(sizes, 1)
    return {name: Client(name, d.classes, sizes[name], shares[name] / sum(shares.values()))
            for name, d in data.clients.items()}  # fmt: skip


def _agreed_weights(aggregators: Sequence[Aggregator], weights: str | None) -> str:
    if weights is not None:
        return weights
    stated = {a.weights: type(a).__name__ for a in aggregators if a.weights is not None}
    if len(stated) > 1:
        said = ", ".join(f"{name} {w}" for w, name in stated.items())
        raise ConfigError(f"the aggregators state different client weights ({said}); set federation.weights")
    return next(iter(stated), "examples")
