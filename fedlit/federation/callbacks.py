"""Callbacks of a federation: the base class, and the callbacks of every run."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from fedlit.core.checkpoints.checkpoint import Checkpoints
from fedlit.core.checkpoints.manifest import Best
from fedlit.core.errors import ConfigError
from fedlit.core.hooks import refuse_misspelt
from fedlit.core.messages import ClientReport, Round, ServerState
from fedlit.federation.description import save_partition
from fedlit.federation.engines.scores import Scores
from fedlit.federation.evaluation import MAX_CLIENT_CURVES
from fedlit.federation.monitor import Monitor
from fedlit.federation.session import Session
from fedlit.metrics.auroc import slug
from fedlit.tracking.run import PRIVACY, Run


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


class Callback:
    """Base class of callbacks; hooks are called on every rank, in every run.

    Subclass it, override the hooks that you need, and name the class under ``callbacks`` in a YAML file. On the rank
    that writes, ``state.run.main`` is true. Custom callbacks are called before those of fedlit, in the order of their
    list, so metrics that they add to ``state.metrics`` are logged. They may set ``state.stop``, and change nothing else
    of the state: a change of the server's weights is an error. A resumed run creates its callbacks again: return state
    that must survive a resume, such as the number of rounds without improvement, from ``state_dict``, and restore it in
    ``load_state_dict``.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the state to store in each checkpoint, as values that JSON can represent."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned, before ``on_fit_start`` of a resumed run; not called if that was {}."""

    def on_fit_start(self, state: FitState) -> None:
        """Called once before the first round; after a resume ``state.done`` is above 0."""

    def on_round_start(self, state: FitState) -> None:
        """Called before a round; ``state.rnd`` has its cohort, window and learning rate."""

    def on_client_end(self, state: FitState, report: ClientReport) -> None:
        """Called for each client of the cohort when its reply arrives, in cohort order."""

    def on_evaluation_end(self, state: FitState, scores: Sequence[Scores]) -> None:
        """Called after an evaluation, with the scores of the clients' validation sets; metrics may be added."""

    def on_round_end(self, state: FitState) -> None:
        """Called after a round and its evaluation, before its metrics are logged; metrics may be added."""

    def on_fit_end(self, state: FitState) -> None:
        """Called after the last round, which may be early because of a signal."""

    def on_exception(self, state: FitState, error: BaseException) -> None:
        """Called when an error or a signal ends the rounds; the error is raised again afterwards."""


class Callbacks:
    """Custom callbacks, called in order, followed by those of every run.

    Custom callbacks may change only ``state.metrics`` and ``state.stop``.
    """

    def __init__(self, callbacks: Sequence[Callback], shipped: Sequence[Callback] = ()) -> None:
        self.callbacks, self.shipped = tuple(callbacks), tuple(shipped)
        for callback in self.callbacks:
            refuse_misspelt("callbacks", callback, Callback)

    def __call__(self, hook: str, state: FitState, *args: Any) -> None:
        """Call one hook, such as ``on_round_end``, of every callback.

        Raises:
            ConfigError: A custom callback has changed what training depends on; no checkpoint will have the change.
        """
        for callback in self.callbacks:
            if getattr(getattr(callback, hook), "__func__", None) is not getattr(Callback, hook):
                _call_watched(callback, hook, state, *args)
        for callback in self.shipped:
            getattr(callback, hook)(state, *args)

    def state(self) -> dict[str, dict[str, Any]]:
        """Return the state of each custom callback that has one, by its class.

        Raises:
            ConfigError: JSON cannot represent the state of a callback.
        """
        states = {key: callback.state_dict() for key, callback in self._named().items()}
        for key, state in states.items():
            try:
                same = json.loads(json.dumps(state, allow_nan=False)) == state
            except (TypeError, ValueError):
                same = False
            if not same:
                raise ConfigError(
                    f"callbacks: state_dict of {key}: expected numbers, strings, lists and dicts with string keys, "
                    f"found {state!r:.60}"
                )
        return {key: state for key, state in states.items() if state}

    def load(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Restore the states of a resumed run's callbacks; warn about a state or a callback without the other."""
        named = self._named()
        lost, fresh = states.keys() - named.keys(), self.state().keys() - states.keys()
        if lost:
            rank_zero_warn(
                f"callbacks: the checkpoint has a state of {', '.join(sorted(lost))}, which this run does not have: it "
                "is dropped"
            )
        if fresh:
            rank_zero_warn(f"callbacks: the checkpoint has no state of {', '.join(sorted(fresh))}: it starts afresh")
        for key, callback in named.items():
            if key in states:
                callback.load_state_dict(states[key])

    def _named(self) -> dict[str, Callback]:
        """Return the custom callbacks by the full names of their classes, numbered from the second of a class."""
        named: dict[str, Callback] = {}
        for callback in self.callbacks:
            name = f"{type(callback).__module__}.{type(callback).__qualname__}"
            number = sum(type(other) is type(callback) for other in named.values()) + 1
            named[f"{name} {number}" if number > 1 else name] = callback
        return named


def _call_watched(callback: Callback, hook: str, state: FitState, *args: Any) -> None:
    """Call a hook of a custom callback, and refuse a change of what training depends on."""
    fields = {name: value for name, value in vars(state).items() if name not in ("metrics", "stop")}
    before = {name: tensor.clone() for name, tensor in state.server.tensors().items()}
    getattr(callback, hook)(state, *args)
    after = fields["server"].tensors()
    changed = [name for name, value in fields.items() if vars(state)[name] is not value]
    changed += [f"server.{name}" for name in before | after if not _equal(before.get(name), after.get(name))]
    if changed:
        state.settled = False  # the last checkpoint is from before the change
        raise ConfigError(
            f"callbacks: {type(callback).__name__}.{hook}: expected changes of state.metrics and state.stop only, "
            f"found a change of state.{changed[0]}; an aggregator can change the server's model, or score another one"
        )


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


class Privacy(Callback):
    """Account for private steps: log epsilon, record it in ``privacy.json``, and stop before the budget is exceeded."""

    def on_fit_start(self, state: FitState) -> None:
        """Stop a resumed run whose budget is spent."""
        self._follow(state)

    def on_round_end(self, state: FitState) -> None:
        """Log the epsilon of the clients."""
        self._follow(state)
        if (account := state.session.account) is not None:
            epsilons = account.epsilons(state.server.aggregators, state.done)
            state.metrics["privacy/epsilon"] = max(epsilons.values())
            if len(epsilons) <= MAX_CLIENT_CURVES:
                state.metrics |= {f"client/{slug(name)}/epsilon": each for name, each in epsilons.items()}

    def on_fit_end(self, state: FitState) -> None:
        """Record the second, closer bound too."""
        if (account := state.session.account) is not None:
            record = account.record(state.server.aggregators, state.done, closer=True)
            state.run.note(PRIVACY, json.dumps(record, indent=2))

    def _follow(self, state: FitState) -> None:
        account, done = state.session.account, state.done
        if account is None:
            return
        if state.run.main:
            record = account.record(state.server.aggregators, done, closer=False)
            (state.run.directory / PRIVACY).write_text(json.dumps(record, indent=2) + "\n")
        if done < state.session.federation.rounds:
            state.stop = state.stop or account.exceeded(state.server.aggregators, done + 1)


class Record(Callback):
    """Save the partition and log the metrics of every round."""

    def on_fit_start(self, state: FitState) -> None:
        """Save the partition."""
        save_partition(state.session, state.run)

    def on_round_end(self, state: FitState) -> None:
        """Log the round's metrics and, after the first round, the list of values that leave a site."""
        state.run.log(state.metrics, state.done)
        if state.done == 1:
            state.run.note("leaves_a_site.txt", state.sent)


class BestModel(Callback):
    """Track the round of the best model."""

    def on_evaluation_end(self, state: FitState, scores: Sequence[Scores]) -> None:
        """Compare the model with the best so far."""
        value, federation = state.monitor.value(state.metrics), state.session.federation
        if state.best.improved_by(value, state.monitor.mode):
            state.best = Best(value, state.done)
        elif margin := federation.patience_margin:
            near = state.best.is_near(value, state.monitor.mode, margin)
            state.best = replace(state.best, near=state.best.near + near * federation.unevaluated_before(state.done))


class SaveCheckpoints(Callback):
    """Write checkpoints: at the start, when one is due, with each best model, and at the end.

    Args:
        others: Callbacks whose states are saved.
    """

    def __init__(self, saver: Checkpoints, others: Callbacks) -> None:
        self.saver, self._others = saver, others

    def on_fit_start(self, state: FitState) -> None:
        """Save the initial state, so a checkpoint exists even if the first round fails."""
        self._save(state)

    def on_round_end(self, state: FitState) -> None:
        """Save if a checkpoint is due, with each best model, and after the last round.

        The checkpoint is written while the next round trains. The clients' states remain in memory until it is
        complete.
        """
        self.saver.finish()
        improved = state.best.round == state.done
        if improved or state.over or self.saver.due(state.done):
            self._save(state, later=True)

    def on_fit_end(self, state: FitState) -> None:
        """Save the final state."""
        self._save(state)

    def on_exception(self, state: FitState, error: BaseException) -> None:
        """Save the last completed round, also if a signal handler of the user's script raises the error."""
        with suppress(FileNotFoundError):  # the run's directory no longer exists; the error reports it
            self.saver.finish()
        if state.settled and (isinstance(error, Exception) or state.session.fabric.world_size == 1):
            self._save(state)

    def _save(self, state: FitState, later: bool = False) -> None:
        state.session.save(self.saver, state.done, state.server, state.best, self._others.state(), later)


def with_shipped(callbacks: Sequence[Callback], progress: Callback, saving: SaveCheckpoints) -> Callbacks:
    """Return custom callbacks followed by those of every run, so metrics that the first add are logged.

    Raises:
        ConfigError: A custom callback has the class of a callback of every run.
    """
    shipped = (Privacy(), Record(), progress, BestModel(), saving)
    for callback in callbacks:
        if type(callback) in map(type, shipped):
            raise ConfigError(f"callbacks: every run already has {type(callback).__name__}; leave it out")
    return Callbacks(callbacks, shipped)
