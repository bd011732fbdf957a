"""The federation: rounds of local training and aggregation."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.checkpoint import Checkpoints
from fedlit.core.checkpoints.manifest import Best
from fedlit.core.hooks import check_scored
from fedlit.core.messages import Broadcast, Payload, Round, ServerState
from fedlit.federation import description, evaluation
from fedlit.federation.callbacks import Callback, Callbacks, FitState, SaveCheckpoints, with_shipped
from fedlit.federation.examinations import StalledTraining
from fedlit.federation.interrupts import Interrupted, Interrupts
from fedlit.federation.monitor import Monitor
from fedlit.federation.progress import RoundProgress
from fedlit.federation.server import server_round
from fedlit.federation.session import Session
from fedlit.federation.settings import Settings
from fedlit.tracking.run import Run


class Federation(Settings):
    """A federation of clients that train a model over rounds: the settings and the training loop."""

    def fit(self, session: Session, run: Run, resume: Path | None = None, callbacks: Sequence[Callback] = ()) -> int:
        """Train from the start or from a checkpoint; returns the number of the signal that ended the run, or 0.

        Raises:
            TrainingError: A loss or an update is not finite, or no client's weights change; a checkpoint of the last
                completed round is saved.
            CheckpointError: ``resume`` does not fit the session.
            ConfigError: ``callbacks`` repeats a callback of every run, the monitored metric does not exist, or a client
                has nothing to learn from.
        """
        saver = Checkpoints(run.checkpoints, session.fabric, self.cadence)
        custom = Callbacks(callbacks)
        follow = with_shipped(callbacks, RoundProgress(run.main), SaveCheckpoints(saver, custom))
        state = self._begin(session, run, resume, saver, bool(callbacks))
        stalled = StalledTraining(list(session.clients), over=state.done > 0)
        if resume is not None:
            custom.load(checkpoint.manifest_of(resume).callbacks)
        run.start(description.tags(session), state.done, description.data_info(session))
        try:
            with Interrupts() as interrupts:
                follow("on_fit_start", state)
                with suppress(Interrupted):
                    for rnd in self._rounds(state, interrupts):
                        began = time.perf_counter()
                        follow("on_round_start", state)
                        down = self.open_round(state.server, rnd, session)
                        with interrupts.may_abandon(session.fabric.world_size == 1):
                            total, reports = session.engine.run(
                                rnd.cohort, down, rnd, lambda report: follow("on_client_end", state, report)
                            )
                        state.rnd = rnd = session.with_replies(rnd, reports)
                        stalled.after(rnd, reports, type(session.module).__name__)
                        state.settled, state.sent = False, state.sent or description.leaves_a_site(total, session)
                        diagnostics = self.close_round(state.server, total, rnd, session)
                        del total  # the next round needs its memory
                        state.done, state.reports = rnd.index + 1, reports
                        session.cohorts.learn({report.client: report.loss for report in reports})
                        state.metrics = self._metrics(state, down.nbytes, diagnostics, time.perf_counter() - began)
                        self._evaluate(state, follow)
                        follow("on_round_end", state)
                        state.settled = True
                follow("on_fit_end", state)
        except BaseException as error:
            follow("on_exception", state, error)
            raise
        return session.fabric.on_any_rank(interrupts.signum)

    def open_round(self, server: ServerState, rnd: Round, session: Session) -> Broadcast:
        """Run the server side before a round; returns the message to the clients."""
        self._measure(server, rnd, "before", session)
        for aggregator, state in zip(self.aggregators, server.aggregators, strict=True):
            aggregator.on_round_start(state, server, rnd)
        return session.broadcast(server, rnd)

    def close_round(self, server: ServerState, total: Payload, rnd: Round, session: Session) -> dict[str, float]:
        """Run the server side with the sum of the replies; returns the round's diagnostics."""
        diagnostics = server_round(self.aggregators, server, total, rnd)
        session.engine.commit()
        self._measure(server, rnd, "after", session)
        for aggregator, state in zip(self.aggregators, server.aggregators, strict=True):
            aggregator.on_round_end(state, server, rnd)
            check_scored(aggregator, server)
        return diagnostics

    def _measure(self, server: ServerState, rnd: Round, when: Literal["before", "after"], session: Session) -> None:
        measuring = [aggregator for aggregator in self.aggregators if aggregator.measures(rnd, when)]
        if measuring:
            measured = session.measure(server, rnd, any(a.measures_moments(rnd, when) for a in measuring))
            for aggregator, state in zip(self.aggregators, server.aggregators, strict=True):
                aggregator.on_measure_end(state, server, measured, rnd, when)

    def _begin(
        self, session: Session, run: Run, resume: Path | None, saver: Checkpoints, has_callbacks: bool
    ) -> FitState:
        session.examine_labels()
        session.store_states(saver.folder.parent / "states")
        server, done, best = session.restore(resume, training=True)
        if resume is None:
            session.initialise_objective(server)
        saver.rewind(done)
        monitor = Monitor.resolve(self, evaluation.sanity_check(session, server), has_callbacks)
        if resume is not None and session.change_clients(server, done, checkpoint.manifest_of(resume).clients):
            best = Best(round=done)  # the validation images are different, so patience starts again as well
        return FitState(session=session, run=run, server=server, monitor=monitor, done=done, best=best)

    def _rounds(self, state: FitState, interrupts: Interrupts) -> Iterator[Round]:
        while not state.over and not state.session.fabric.on_any_rank(interrupts.signum):
            state.rnd = state.session.round(state.done)
            yield state.rnd

    def _metrics(
        self, state: FitState, bytes_down: int, diagnostics: dict[str, float], seconds: float
    ) -> dict[str, float]:
        session, rnd = state.session, state.rnd
        metrics = evaluation.round_metrics(rnd, state.reports, session.weights, bytes_down, seconds) | diagnostics
        metrics |= evaluation.objective_metrics(session, state.server, state.done)
        return metrics

    def _evaluate(self, state: FitState, follow: Callbacks) -> None:
        session, evaluated, scores = state.session, self.evaluates_after(state.done), []
        if evaluated:
            scores = evaluation.validate(session, session.to_score(state.server, state.rnd), state.metrics)
            if self.test_curves:
                state.metrics |= evaluation.test_curves(session, state.server)
        state.metrics |= evaluation.per_client(session, state.run, scores, state.reports, state.done)
        if evaluated:
            follow("on_evaluation_end", state, scores)
