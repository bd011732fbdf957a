"""The tensors in a checkpoint's files, checked against its manifest."""

import pickle
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from fedlit.core.checkpoints.manifest import NAME, CorruptCheckpointError, Manifest, sha256
from fedlit.core.checkpoints.small_states import unstacked
from fedlit.core.checkpoints.stored_states import StoredState
from fedlit.core.messages import ClientState, State

SHARED = re.compile(r"clients-\d+\.pt")
"""Files that hold the states of several clients, one per rank."""

SERVER, SERVER_NAMES, CLIENT_NAMES = "server.pt", ("w", "stats"), ("batches", "w", "stats")


def client_file(number: int) -> str:
    """Return the name of the file of a large client state, by the client's number in the federation."""
    return f"client-{number:05d}.pt"


def client_states(
    path: Path, manifest: Manifest, stored: bool = False
) -> Iterator[tuple[str, str, ClientState | StoredState]]:
    """Yield the name, file and state of each client that has one, in the order of the clients."""
    shared: dict[int, tuple[str, State]] = {}
    for file in filter(SHARED.fullmatch, manifest.files):
        for number, tensors in _shared(path / file, manifest).items():
            if number in shared or client_file(number) in manifest.files:
                raise CorruptCheckpointError(f"{path / file}: client number {number} is in another file too")
            shared[number] = file, tensors
    for number, name in enumerate(manifest.clients):
        separate = client_file(number)
        if separate in manifest.files:
            tensors = read_tensors(path / separate, manifest, CLIENT_NAMES, mapped=stored)
            if stored:
                yield name, separate, StoredState(path / separate, len(manifest.aggregators))
                continue
            shared[number] = separate, tensors
        if number in shared:
            file, tensors = shared.pop(number)
            yield name, file, ClientState.from_tensors(tensors, len(manifest.aggregators))


def _shared(path: Path, manifest: Manifest) -> dict[int, State]:
    stacks = read_tensors(path, manifest, ())
    try:
        return unstacked(stacks, len(manifest.clients), CLIENT_NAMES)
    except (ValueError, TypeError, RuntimeError) as error:
        raise CorruptCheckpointError(f"{path} {error}") from error


def read_tensors(path: Path, manifest: Manifest, names: Sequence[str], mapped: bool = False) -> State:
    """Return the tensors of an unchanged file, with all of these names; in memory, or mapped."""
    if not path.exists():
        raise CorruptCheckpointError(f"{path} is missing")
    if manifest.sha256.get(path.name) != sha256(path):
        raise CorruptCheckpointError(f"{path} is damaged, or of another checkpoint: its SHA-256 is not in {NAME}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (EOFError, RuntimeError, ValueError, KeyError, TypeError, pickle.UnpicklingError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CorruptCheckpointError(f"{path} cannot be read: {reason:.200}") from error
    if not isinstance(content, dict) or not all(map(torch.is_tensor, content.values())):
        raise CorruptCheckpointError(f"{path}: expected tensors by name, found other values")
    if lacking := [name for name in names if name not in content]:
        raise CorruptCheckpointError(f"{path} lacks the tensor {lacking[0]!r}")
    return content
