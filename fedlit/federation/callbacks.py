"""What follows the rounds of a federation: callbacks of one's own, and those that every run has."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fedlit.core.checkpoints.checkpoint import Checkpoints
from fedlit.core.checkpoints.manifest import Best
from fedlit.core.errors import ConfigError
from fedlit.core.messages import ClientReport
from fedlit.federation.description import save_partition
from fedlit.federation.engines.base import Scores
from fedlit.federation.state import FitState


class Callback:
    """Follow a run: the hooks are called on every rank, for each phase and for the main part.

    Subclass it, override the hooks that are needed, and name the class in a YAML's ``callbacks``. ``state.run.main`` is
    true on the rank that writes. Callbacks of one's own are called before those of fedlit, in the order of their list,
    so that what they add to ``state.metrics`` is logged. A resumed run makes its callbacks anew; what one has to remember, such
    as for how long nothing has improved, it gives in ``state_dict`` and takes back in ``load_state_dict``.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run has to know, as JSON can hold it; it is kept in each checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave, before ``on_fit_start`` of a resumed run; not called where that was {}."""

    def on_fit_start(self, state: FitState) -> None:
        """Called once before the first round of a phase or of the main part; a resumed one has ``state.done`` behind it."""

    def on_round_start(self, state: FitState) -> None:
        """Called before a round; ``state.rnd`` tells its cohort, window and learning rate."""

    def on_client_end(self, state: FitState, report: ClientReport) -> None:
        """Called for each client of the cohort when its reply has arrived, in cohort order."""

    def on_evaluation_end(self, state: FitState, scores: Sequence[Scores]) -> None:
        """Called after an evaluation, with the scores of the clients' validation sets; metrics may be added."""

    def on_round_end(self, state: FitState) -> None:
        """Called after a round and its evaluation, before its metrics are logged; metrics may be added."""

    def on_fit_end(self, state: FitState) -> None:
        """Called after the last round, or after the last that a signal has left."""

    def on_exception(self, state: FitState, error: BaseException) -> None:
        """Called when an error or a signal ends the rounds, which is raised again afterwards."""


class Callbacks:
    """Call the hooks of several callbacks, in their order.

    Args:
        callbacks: The callbacks.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = tuple(callbacks)

    def __call__(self, hook: str, *args: Any) -> None:
        """Call one hook, such as ``on_round_end``, of every callback."""
        for callback in self.callbacks:
            getattr(callback, hook)(*args)

    def state(self) -> dict[str, dict[str, Any]]:
        """Return what the callbacks keep, by their place and class.

        Raises:
            ConfigError: One keeps what JSON cannot hold.
        """
        kept = {key: callback.state_dict() for key, callback in self._named().items()}
        for key, state in kept.items():
            try:
                same = json.loads(json.dumps(state, allow_nan=False)) == state
            except (TypeError, ValueError):
                same = False
            if not same:
                raise ConfigError(
                    f"callbacks: state_dict of {key.partition(' ')[2]}: expected numbers, texts, lists and dicts with texts as "
                    f"keys, found {state!r:.60}"
                )
        return {key: state for key, state in kept.items() if state}

    def load(self, kept: Mapping[str, dict[str, Any]]) -> None:
        """Give the callbacks back what they kept; whoever was not there before begins anew."""
        for key, callback in self._named().items():
            if key in kept:
                callback.load_state_dict(kept[key])

    def _named(self) -> dict[str, Callback]:
        return {f"{place} {type(callback).__name__}": callback for place, callback in enumerate(self.callbacks)}


class Record(Callback):
    """Keep the partition and the metrics of every round with the run."""

    def on_fit_start(self, state: FitState) -> None:
        """Save who has which data."""
        save_partition(state.session, state.run)

    def on_round_end(self, state: FitState) -> None:
        """Log the round's metrics, and once what leaves a site."""
        state.run.log(state.metrics, state.step)
        if state.done == 1:
            state.run.note("leaves_a_site.txt", state.sent)


class BestModel(Callback):
    """Remember after which round the model was best."""

    def on_evaluation_end(self, state: FitState, scores: Sequence[Scores]) -> None:
        """Compare the model with the best so far."""
        value, federation = state.monitor.value(state.metrics), state.session.federation
        if state.best.improved_by(value, state.monitor.mode):
            state.best = Best(value, state.done)
        elif margin := federation.patience_margin:
            near = state.best.is_near(value, state.monitor.mode, margin)
            state.best = replace(state.best, near=state.best.near + near * federation.eval_every)


class SaveCheckpoints(Callback):
    """Write the state to disk: at the start, when it is due, with each best model and at the end.

    Args:
        saver: The folder of the checkpoints.
        others: Callbacks that may keep something.
    """

    def __init__(self, saver: Checkpoints, others: Callbacks) -> None:
        self.saver, self._others = saver, others

    def on_fit_start(self, state: FitState) -> None:
        """Save the start, so that even a first round that fails leaves a checkpoint."""
        self._save(state)

    def on_round_end(self, state: FitState) -> None:
        """Save where it is due, with each best model and after the last round; it is written while the next one trains.

        A client's state lives until the next but one trains: by then it is on the disk.
        """
        self.saver.finish()
        improved = state.best.round == state.done
        if improved or state.over or self.saver.due(state.done):
            self._save(state, later=True)

    def on_fit_end(self, state: FitState) -> None:
        """Save the end."""
        self._save(state)

    def on_exception(self, state: FitState, error: BaseException) -> None:
        """Save the last recorded round, unless the process is told to go at once."""
        with suppress(FileNotFoundError):  # where the run's directory is gone the error says so
            self.saver.finish()
        if isinstance(error, Exception) and state.settled:
            self._save(state)

    def _save(self, state: FitState, later: bool = False) -> None:
        state.session.save(self.saver, state.done, state.server, state.best, self._others.state(), later)


def with_shipped(callbacks: Sequence[Callback], progress: Callback, saving: SaveCheckpoints) -> Callbacks:
    """Put callbacks of one's own before those that every run has: they may add metrics, which are logged then.

    Raises:
        ConfigError: One of one's own is of a class that every run has.
    """
    shipped = (Record(), progress, BestModel(), saving)
    for callback in callbacks:
        if type(callback) in map(type, shipped):
            raise ConfigError(f"callbacks: every run has {type(callback).__name__} already; leave it out")
    return Callbacks([*callbacks, *shipped])
