"""Where a federation stands in the course of its rounds: what the loop changes, and what callbacks see."""

from dataclasses import dataclass, field

from fedlit.core.checkpoints.manifest import Best
from fedlit.core.messages import ClientReport, Round, ServerState
from fedlit.federation.monitor import Monitor
from fedlit.federation.session import Session
from fedlit.tracking.run import Run


@dataclass
class FitState:
    """Where a federation stands.

    Attributes:
        session: What is trained: clients, model, engine, data.
        run: Where it is recorded.
        server: Weights [P], statistics [S] and the aggregators' states on the server.
        monitor: The metric that says which model is best.
        done: Number of completed rounds, of this phase or of the main part.
        best: The best model so far.
        before: Rounds of the run's earlier phases. Metrics are logged from there on.
        rnd: The round that is running, or the last one.
        reports: How that round went for each client of its cohort.
        metrics: What that round gave, by key. A callback may add to it in ``on_evaluation_end`` and, before it is
            logged, in ``on_round_end``.
        sent: What a site sends in each round, in words.
        stop: Why the rounds should end early, in words. A callback may set it on every rank alike.
        settled: Whether ``server`` is the state after ``done`` rounds and all of them are recorded; False from the end
            of a round until its metrics are logged.
    """

    session: Session
    run: Run
    server: ServerState
    monitor: Monitor
    done: int = 0
    best: Best = field(default_factory=Best)
    before: int = 0
    rnd: Round | None = None
    reports: list[ClientReport] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    sent: str = ""
    stop: str = ""
    settled: bool = True

    @property
    def step(self) -> int:
        """Completed rounds over all phases: the step under which metrics are logged."""
        return self.before + self.done

    @property
    def over(self) -> bool:
        """Whether all rounds are done, or patience is at its end, or a callback wants to stop."""
        return bool(self.stop) or self.session.federation.over(self.done, self.best)
