"""Checks of a checkpoint before a federation resumes from it, and the notice of changed clients."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.checkpoint import Contents
from fedlit.core.errors import CheckpointError
from fedlit.core.hooks import initial_client_state
from fedlit.core.messages import ServerState
from fedlit.federation.settings import Settings


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
