"""The federation: rounds of local training and aggregation, from the first to the last."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch

from fedlit.aggregators.base import Aggregator, overriding
from fedlit.checkpoint import Best, Cadence, Checkpoints
from fedlit.errors import ConfigError
from fedlit.evaluation import Monitor, round_metrics
from fedlit.interrupts import Interrupted, Interrupts
from fedlit.local import LocalTraining
from fedlit.messages import Broadcast, Payload, Round, ServerState
from fedlit.progress import RoundProgress
from fedlit.randomness import generator
from fedlit.rounds import server_round
from fedlit.run import Run
from fedlit.schedules import ConstantSchedule, Schedule
from fedlit.session import Session, leaves_a_site


class Federation:
    """A federation of clients that train one model over rounds.

    Args:
        aggregators: the algorithms, composed; none is federated averaging.
        rounds: number of rounds; by default as many as the schedule describes, 10 where it has no end.
        schedule: what each round does: window, unit, learning rate; by default one epoch a round.
        clients: who belongs to the federation, by name; by default all that the data have.
        participation: share of the clients that train in a round, drawn anew for each.
        weights: of clients in every mean, ``examples`` (n_k / n) or ``uniform`` (1 / K); by default what the
            aggregators state, else ``examples``.
        optimizer_state: a client's optimizer state between its rounds: ``reset`` or ``keep``.
        gradient_clip: largest norm of a local gradient; none by default.
        measure_batches: batches of each client that a measuring round looks at: for the start of an objective's
            variables, CODA's dual, or BatchNorm's statistics.
        workers: processes that train clients side by side on this machine; by default the cores of a CPU, 1 on an
            accelerator, and no more than clients train in a round.
        threads: of each worker; another number gives other bits.
        eval_every: rounds between evaluations; the last round is always evaluated.
        monitor: metric that says which model is best; by default (``auto``) ``val/auroc_macro``, where the model gives
            no scores ``val/loss``, and where it logs no loss the last model counts as the best.
        monitor_mode: whether more of it is better (``max``) or less (``min``); ``auto`` knows.
        patience: stop after so many rounds without a better model; never by default.
        checkpoint_every: rounds between checkpoints, seconds such as ``60s``, or ``auto``: as often as costs under 2%
            of the time.
    """

    def __init__(
        self,
        aggregators: list[Aggregator] | None = None,
        rounds: int | None = None,
        schedule: Schedule | None = None,
        clients: list[str] | None = None,
        participation: float = 1.0,
        weights: Literal["examples", "uniform"] | None = None,
        optimizer_state: Literal["reset", "keep"] = "reset",
        gradient_clip: float | None = None,
        measure_batches: int = 32,
        workers: int | Literal["auto"] = "auto",
        threads: int = 1,
        eval_every: int = 1,
        monitor: str = "auto",
        monitor_mode: Literal["max", "min"] = "max",
        patience: int | None = None,
        checkpoint_every: int | str = "auto",
    ) -> None:
        self.schedule = schedule or ConstantSchedule()
        rounds = rounds if rounds is not None else self.schedule.rounds or 10
        counts = {"rounds": rounds, "workers": workers, "threads": threads, "eval_every": eval_every}
        for name, value in (counts | {"measure_batches": measure_batches}).items():
            if value != "auto" and value < 1:
                raise ConfigError(f"federation.{name}: expected at least 1, found {value}")
        if not 0 < participation <= 1:
            raise ConfigError(f"federation.participation: expected a share in (0, 1], found {participation}")
        if patience is not None and patience < eval_every:
            raise ConfigError(
                f"federation.patience: expected at least one evaluation, {eval_every} rounds, found {patience}; raise it, "
                "or lower federation.eval_every"
            )
        if gradient_clip is not None and not gradient_clip > 0:
            raise ConfigError(f"federation.gradient_clip: expected a norm above 0, found {gradient_clip}")
        self.aggregators = list(aggregators or [])
        self.clients = clients
        self.rounds, self.participation, self.workers, self.threads = rounds, participation, workers, threads
        self.weights = _agreed_weights(self.aggregators, weights)
        self.training = LocalTraining(optimizer_state, gradient_clip, measure_batches)
        self.eval_every, self.checkpoint_every = eval_every, Cadence.parse(checkpoint_every)
        self.monitor, self.monitor_mode, self.patience = monitor, monitor_mode, patience
        if len(overriding(self.aggregators, "compute_gradient")) > 1:
            names = [type(self.aggregators[i]).__name__ for i in overriding(self.aggregators, "compute_gradient")]
            raise ConfigError(f"federation.aggregators: {' and '.join(names)} each compute the gradient; keep one")
        for aggregator in self.aggregators:
            aggregator.check_schedule(self.schedule, rounds)
            rivals = [type(a).__name__ for a in self.aggregators if a.governs and a.governs == aggregator.governs]
            if len(rivals) > 1:
                raise ConfigError(
                    f"federation.aggregators: {' and '.join(rivals)} each decide how the {aggregator.governs} is shared; keep one"
                )

    def fit(
        self,
        session: Session,
        run: Run,
        resume: Path | None = None,
        config: str = "",
        params: dict[str, str | int | float | bool] | None = None,
        checkpoints: Path | None = None,
        before: int = 0,
    ) -> int:
        """Train from the start, or from a checkpoint; returns the number of the signal that ended the run, or 0.

        Args:
            session: what to train.
            run: where it is recorded.
            resume: a checkpoint.
            config: saved with the run.
            params: of the configuration, for the tracker.
            checkpoints: folder; by default the run's.
            before: rounds of the run's earlier phases: metrics are logged from there on.

        Raises:
            TrainingError: a loss or an update is not finite; the last completed round is checkpointed.
            CheckpointError: ``resume`` is a checkpoint of something else.
        """
        server, done, best = session.restore(resume)
        if resume is None:
            session.settle(server)
        saver = Checkpoints(checkpoints or run.checkpoints, session.fabric, self.checkpoint_every)
        saver.rewind(done)
        monitor = self.chosen_monitor(session.rehearse(server))
        run.start(config, params or {}, session.tags, before + done)
        session.describe(run)
        session.save(saver, done, server, best)

        with Interrupts() as interrupts, RoundProgress(self.rounds, done, run.main) as progress:
            progress.say(session.introduction())
            for note in (*session.data.notes, session.without_positives()):
                progress.say(note)
            progress.say(session.label_schemes())
            progress.say(self.schedule.notice)
            progress.say(monitor.notice)
            while not self.over(done, best) and not session.stopping(interrupts.signum):
                began, rnd = time.perf_counter(), self.round(done, session)
                progress.round_started(len(rnd.cohort))
                down = self.open_round(server, rnd, session)
                try:
                    with interrupts.may_abandon(session.fabric.world_size == 1):
                        total, reports = session.engine.run(rnd.cohort, down, rnd, progress.client_done)
                except Interrupted:
                    break
                except Exception:
                    session.save(saver, done, server, best)
                    raise
                leaving = leaves_a_site(total, self.aggregators)
                drift = self.close_round(server, total, rnd, session)
                done += 1

                metrics = round_metrics(rnd, reports, session.weights, down.nbytes, time.perf_counter() - began)
                metrics |= drift | session.objective_metrics(server, done) | {"round/lr": session.lr * rnd.lr_factor}
                evaluated = done % self.eval_every == 0 or done == self.rounds
                scores = session.validate(self.broadcast(server, rnd), metrics) if evaluated else []
                metrics |= session.per_client(run, scores, reports, before + done)
                run.log(metrics, before + done)
                progress.round_done(done - 1, metrics)
                if done == 1:
                    run.note("leaves_a_site.txt", leaving)
                    progress.say(leaving)
                improved = evaluated and best.improved_by(monitor.value(metrics), monitor.mode)
                if improved:
                    best = Best(monitor.value(metrics), done)
                if improved or done == self.rounds or saver.due(done):
                    session.save(saver, done, server, best)
            session.save(saver, done, server, best)
            if done < self.rounds and self.over(done, best):
                progress.say(f"stopped after {done} rounds: none better than {best.round} for {self.patience} rounds")
            return session.stopping(interrupts.signum)

    def over(self, done: int, best: Best) -> bool:
        """Whether ``done`` completed rounds are all that there are, or the last ``patience`` have brought nothing."""
        return done >= self.rounds or (self.patience is not None and done - best.round >= self.patience)

    def round(self, index: int, session: Session) -> Round:
        """What happens in a round, and who takes part."""
        plan, names = self.schedule.plan(index), list(session.clients)
        cohort = names
        if self.participation < 1:
            size = max(1, round(self.participation * len(names)))
            drawn = torch.randperm(len(names), generator=generator(session.seed, "cohort", index))[:size]
            cohort = [names[i] for i in sorted(drawn.tolist())]
        return Round(
            index=index,
            seed=session.seed,
            cohort=tuple(cohort),
            participation=session.participation(cohort),
            **vars(plan),
        )

    def open_round(self, server: ServerState, rnd: Round, session: Session) -> Broadcast:
        """What the server does before a round; what the clients get."""
        self._measure(server, rnd, "before", session)
        for aggregator, state in zip(self.aggregators, server.aggregators, strict=True):
            aggregator.on_round_start(state, server, rnd)
        return self.broadcast(server, rnd)

    def close_round(self, server: ServerState, total: Payload, rnd: Round, session: Session) -> dict[str, float]:
        """What the server does with the sum of the replies; returns the round's diagnostics."""
        metrics = server_round(self.aggregators, server, total, rnd)
        session.engine.commit()
        self._measure(server, rnd, "after", session)
        return metrics

    def _measure(self, server: ServerState, rnd: Round, when: Literal["before", "after"], session: Session) -> None:
        if any(aggregator.measures(rnd, when) for aggregator in self.aggregators):
            measured = session.measure(server, rnd)
            for aggregator, state in zip(self.aggregators, server.aggregators, strict=True):
                aggregator.on_measure_end(state, server, measured, rnd, when)

    def broadcast(self, server: ServerState, rnd: Round) -> Broadcast:
        """What the clients of a round get."""
        states = [a.broadcast(state, rnd) for a, state in zip(self.aggregators, server.aggregators, strict=True)]
        return Broadcast(server.w, server.stats, states)

    def chosen_monitor(self, available: Mapping[str, float]) -> Monitor:
        """What says which model is best, of the validation metrics that there are.

        Raises:
            ConfigError: ``monitor`` is a validation metric that this model does not have.
        """
        if self.monitor != "auto":
            chosen = Monitor(self.monitor, self.monitor_mode)
            if self.monitor.startswith("val/"):
                chosen.value(available)
            return chosen
        if "val/auroc_macro" in available:
            return Monitor("val/auroc_macro", "max")
        if "val/loss" in available:
            return Monitor("val/loss", "min", "no scores per class: the best model is the one of the least val/loss")
        if self.patience is not None:
            raise ConfigError(
                "federation.patience: there is no validation metric that could become better; leave it out"
            )
        return Monitor(None, "max", "no validation metric: the last model counts as the best")


def _agreed_weights(aggregators: Sequence[Aggregator], weights: str | None) -> str:
    if weights is not None:
        return weights
    stated = {a.weights: type(a).__name__ for a in aggregators if a.weights is not None}
    if len(stated) > 1:
        said = ", ".join(f"{name} {w}" for w, name in stated.items())
        raise ConfigError(f"the aggregators state different client weights ({said}); set federation.weights")
    return next(iter(stated), "examples")
