"""State of the training loop, as callbacks see it."""

from dataclasses import dataclass, field

from fedlit.core.checkpoints.manifest import Best
from fedlit.core.messages import ClientReport, Round, ServerState
from fedlit.federation.monitor import Monitor
from fedlit.federation.session import Session
from fedlit.tracking.run import Run


@dataclass
class FitState:
    """State of the training loop.

    Attributes:
        session: Clients, model, engine and data.
        run: The run that records metrics and files.
        server: Weights [P], statistics [S] and the aggregators' states on the server.
        monitor: The metric that selects the best model.
        done: Number of completed rounds, which is the step of logged metrics.
        best: The best model so far.
        rnd: The running round, or the last one.
        reports: Reports of the clients in that round's cohort.
        metrics: Metrics of that round, by key. Callbacks may add to it in ``on_evaluation_end`` and in
            ``on_round_end``, before it is logged.
        sent: Readable list of the values that a site sends in each round, and of those that stay.
        stop: Reason to end the rounds early. A callback that sets it must set it on every rank.
        settled: Whether ``server`` is the state after ``done`` rounds that are all recorded; False from the end of a
            round until its metrics are logged.
    """

    session: Session
    run: Run
    server: ServerState
    monitor: Monitor
    done: int = 0
    best: Best = field(default_factory=Best)
    rnd: Round | None = None
    reports: list[ClientReport] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    sent: str = ""
    stop: str = ""
    settled: bool = True

    @property
    def over(self) -> bool:
        """True if all rounds are done, patience has run out, or a callback asks to stop."""
        return bool(self.stop) or self.session.federation.over(self.done, self.best)
