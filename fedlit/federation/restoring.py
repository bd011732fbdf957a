"""What a checkpoint must hold for a federation to go on from it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.checkpoint import Contents
from fedlit.core.errors import CheckpointError
from fedlit.core.hooks import initial_client_state
from fedlit.core.messages import ServerState
from fedlit.federation.settings import Settings


def check_place(path: Path, loaded: Contents, keeps_states: bool, needed: bool) -> None:
    """Refuse a checkpoint whose clients' states are where this federation has none.

    Args:
        path: The checkpoint.
        loaded: What it holds.
        keeps_states: Whether the engine keeps the clients' states here, and no sites do.
        needed: Whether they are wanted at all.

    Raises:
        CheckpointError: They are at sites and this federation has none, or the other way round.
    """
    if loaded.at_sites and keeps_states and needed:
        raise CheckpointError(
            f"{path}: its clients' states are at their sites; give --sites as the run was started with"
        )
    if not loaded.at_sites and not keeps_states:
        raise CheckpointError(
            f"{path}: it is of a run without sites, which have none of its clients' states; leave --sites out"
        )


def check_states(path: Path, loaded: Contents, settings: Settings, initial: ServerState, names: Sequence[str]) -> None:
    """Refuse a checkpoint that lacks what the algorithms or the optimizer keep, or whose clients are in another order.

    Args:
        path: The checkpoint.
        loaded: What it holds.
        settings: Of the federation that goes on from it.
        initial: The server's state as it would begin.
        names: The clients, in order.

    Raises:
        CheckpointError: Says which file, and what it lacks.
    """
    if sorted(loaded.names) == sorted(names) and list(loaded.names) != list(names):
        raise CheckpointError(
            f"{path}/manifest.json: the clients are in another order, {', '.join(loaded.names)}, than the data's, "
            f"{', '.join(names)}; the number of a client's state is its place: put the order back"
        )
    fresh = initial_client_state(settings.aggregators, initial.layout).aggregators
    held = {f"{loaded.files[name]}, client {name!r},": state.load() for name, state in loaded.clients.items()}
    files = [(checkpoint.SERVER, loaded.server.aggregators, initial.aggregators)]
    files += [(file, state.aggregators, fresh) for file, state in held.items()]
    for file, found, declared in files:
        for aggregator, there, needed in zip(settings.aggregators, found, declared, strict=True):
            if lacking := sorted(needed.keys() - there.keys()):
                raise CheckpointError(
                    f"{path / file} lacks the tensor {lacking[0]!r} of {type(aggregator).__name__}; use another checkpoint"
                )
    if settings.optimizer_state == "keep":
        needed = {name for state in held.values() for name in state.optimizer}
        for file, state in held.items():
            if state.batches and (lacking := sorted(needed - state.optimizer.keys())):
                raise CheckpointError(
                    f"{path / file} lacks the optimizer's {lacking[0]!r}, which other clients have; use another checkpoint"
                )


def others(before: Sequence[str], weights: Mapping[str, float], afresh: Sequence[str]) -> str:
    """Describe what changes in a run that goes on with other clients.

    Args:
        before: Names of the clients that took part.
        weights: The share of each client that takes part now.
        afresh: Algorithms whose states start afresh.
    """
    gone, new = [name for name in before if name not in weights], [name for name in weights if name not in before]
    who = [f"{word} {', '.join(names)}" for word, names in (("without", gone), ("with", new)) if names]
    shares = ", ".join(f"{name} {weight:.3f}" for name, weight in weights.items())
    text = f"the run goes on {' and '.join(who)}, with new client weights: {shares}"
    if afresh:
        text += (
            f"; what {' and '.join(afresh)} keeps starts afresh at the server and at the clients, without anything of those who left: "
            "the first round is like the algorithm's first"
        )
    return f"{text}; the best model is chosen among the rounds to come, because the validation images are different"
