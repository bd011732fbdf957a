"""Checkpoints at round boundaries: complete or absent, never half."""

import pickle
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedlit.core.checkpoints.cadence import SHARE_OF_TIME, Cadence
from fedlit.core.checkpoints.manifest import (
    NAME,
    Best,
    CorruptCheckpointError,
    Manifest,
    describe,
    difference,
    name_of,
    sha256,
)
from fedlit.core.checkpoints.small_states import is_small, stacked, unstacked
from fedlit.core.checkpoints.stored_states import StoredState, link, write_tensors
from fedlit.core.errors import CheckpointError
from fedlit.core.fabric import FederationFabric
from fedlit.core.flat import Layout
from fedlit.core.messages import Broadcast, ClientState, ServerState, State
from fedlit.core.system.files import put, remove, sync
from fedlit.core.system.later import Later

SHARED = re.compile(r"clients-\d+\.pt")
"""Files of client states that share one; there is one a rank."""

SERVER, SERVER_NAMES, CLIENT_NAMES = "server.pt", ("w", "stats"), ("batches", "w", "stats")


@dataclass
class Contents:
    """What a checkpoint holds: ``round`` completed rounds, and everything that the next one needs.

    Attributes:
        round: Completed rounds.
        server: The server's state.
        clients: States of the clients that have trained.
        best: The best model so far.
        names: Names of all clients, in their order.
        aggregators: Class names of the aggregators, in their order.
        files: Name of the file of each client that has trained, once it is written.
        at_sites: Round of each client's state at its site, where sites have the states.
        callbacks: What callbacks keep over a resume, by their place and class.
    """

    round: int
    server: ServerState
    clients: dict[str, ClientState | StoredState]
    best: Best
    names: Sequence[str] = ()
    aggregators: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    at_sites: Mapping[str, int | None] = field(default_factory=dict)
    callbacks: Mapping[str, dict[str, Any]] = field(default_factory=dict)


class Checkpoints:
    """The folder ``checkpoints/`` of a run.

    ``round-000012/`` is the state after 12 rounds: ``manifest.json``, ``server.pt`` and the clients' states: small ones in
    one file a rank, ``clients-0.pt``, and of each large one a file, linked to the previous checkpoint's where the client
    has not trained since. A checkpoint is written under another name and
    renamed when it is complete, and renamed again before it is removed, so that a directory ``round-*`` is whole
    whenever the process dies. The newest is kept, and the best, which the newest names in its manifest.

    Args:
        folder: The folder of the checkpoints.
        fabric: The ranks; each writes its own clients.
        every: How often to write one. By default as often as costs under 2% of the time.
    """

    def __init__(self, folder: Path, fabric: FederationFabric, every: Cadence | None = None) -> None:
        self._later = Later("fedlit-checkpoint")
        self.folder, self._fabric, self._every = folder, fabric, every or Cadence()
        self._saved_at, self._seconds, self._round = time.monotonic(), 0.0, -1
        self._files: dict[str, tuple[ClientState | StoredState, Path]] = {}
        self._hashes: dict[tuple[int, int, int], str] = {}

    def rewind(self, rounds: int) -> None:
        """Continue after ``rounds`` rounds: what an earlier part of the run left unfinished, or later, goes."""
        if self._fabric.is_global_zero:
            for path in [*self.folder.glob(".writing-*"), *self.folder.glob(".removing-*")]:
                shutil.rmtree(path, ignore_errors=True)
            for path in reversed(_complete(self.folder)):
                if path.name > name_of(rounds):
                    remove(path)
        self._fabric.barrier()
        if (self.folder / name_of(rounds) / NAME).exists():
            self._round = rounds

    def due(self, rounds: int) -> bool:
        """Tell whether to save after so many rounds; the same answer on every rank."""
        if self._every.rounds:
            return rounds % self._every.rounds == 0
        wait = self._every.seconds or self._seconds / SHARE_OF_TIME
        return bool(self._fabric.broadcast(time.monotonic() - self._saved_at >= wait))

    def save(self, contents: Contents, later: bool = False) -> None:
        """Write a checkpoint, unless it is there already.

        With ``later`` a thread writes it, until :meth:`finish`: until then clients' states have to stay as they are, not the
        server's. Ranks wait for each other, so that they write at once.
        """
        self.finish()
        if contents.round == self._round:
            return
        self._round = rounds = contents.round
        server = contents.server
        target, temporary = self.folder / name_of(rounds), self.folder / f".writing-{rounds:06d}"
        if self._fabric.is_global_zero:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        self._fabric.barrier()
        later = later and self._fabric.world_size == 1
        tensors = Broadcast(server.w, server.stats, server.aggregators).tensors()
        held = {name: t.clone() for name, t in tensors.items()} if later else tensors
        files = {name: client_file(number) for number, name in enumerate(contents.names)}
        for name, state in contents.clients.items():
            if state.file is not None:  # the next round may remove it
                link(state.file, temporary / files[name])
        manifest = Manifest(
            rounds, list(contents.names), list(contents.aggregators), [], describe(server.layout), contents.best,
            at_sites=dict(contents.at_sites), callbacks=dict(contents.callbacks),
        )  # fmt: skip
        work = partial(
            self._write_all, dict(contents.clients), files, held, manifest=manifest, temporary=temporary, target=target
        )
        if later:
            self._later.begin(work)
        else:
            work()

    def finish(self) -> None:
        """Wait until the checkpoint is written that :meth:`save` has begun; what kept it from being written is raised."""
        self._later.finish()

    def _write_all(
        self,
        clients: Mapping[str, ClientState | StoredState],
        files: Mapping[str, str],
        server: State,
        manifest: Manifest,
        temporary: Path,
        target: Path,
    ) -> None:
        began, small = time.monotonic(), {}
        for number, (name, file) in enumerate(files.items()):
            state = clients.get(name)
            if state is None:
                continue
            if state.file is None and is_small(state):
                small[number] = state
                continue
            self._write_client(name, state, temporary / file)
            self._files[name] = (state, target / file)
        if small:
            _write(stacked(small), temporary / f"clients-{self._fabric.global_rank}.pt")
        self._fabric.barrier()
        if self._fabric.is_global_zero:
            _write(server, temporary / SERVER)
            hashes = self._hashed(temporary)
            manifest = replace(manifest, files=sorted(hashes), sha256=hashes)
            sync(manifest.write(temporary))
            sync(temporary)
            put(temporary, target)
            sync(self.folder)
            keep = {target, find(self.folder, "best")}
            for path in _complete(self.folder):
                if path not in keep:
                    remove(path)
        self._fabric.barrier()
        self._saved_at = time.monotonic()
        self._seconds = self._saved_at - began

    @property
    def kept(self) -> list[Path]:
        """The checkpoints that there are: the newest, and the best."""
        return _complete(self.folder)

    def _hashed(self, folder: Path) -> dict[str, str]:
        """Hashes of the files in a folder; what is a link to the previous checkpoint's is not read again."""
        hashes, before = {}, self._hashes
        self._hashes = {}
        for path in sorted(folder.iterdir()):
            status = path.stat()
            node = status.st_ino, status.st_mtime_ns, status.st_size
            hashes[path.name] = self._hashes[node] = before.get(node) or sha256(path)
        return hashes

    def _write_client(self, name: str, state: ClientState | StoredState, path: Path) -> None:
        written_state, written_path = self._files.get(name, (None, None))
        if state.file is not None:
            sync(path)  # a link: the file is never written again
        elif written_state is state and written_path.exists():
            link(written_path, path)
        else:
            _write(state.tensors(), path)


def find(folder: Path, which: str) -> Path | None:
    """Find the ``last`` or ``best`` checkpoint in a run's folder ``checkpoints``, or None."""
    complete = _complete(folder)
    if not complete or which == "last":
        return complete[-1] if complete else None
    noted = best(complete[-1])
    path = folder / name_of(noted.round)
    return path if path in complete and noted.value == noted.value else None


def rounds(path: Path) -> int:
    """Tell how many completed rounds a checkpoint holds."""
    with _reading(path):
        return Manifest.read(path).round


def best(path: Path) -> Best:
    """Read what a checkpoint says of the best model so far."""
    with _reading(path):
        return Manifest.read(path).best


def at_sites(path: Path) -> dict[str, int | None]:
    """Read the rounds of the clients' states at their sites; {} where the checkpoint has the states itself."""
    with _reading(path):
        return Manifest.read(path).at_sites


def callbacks(path: Path) -> dict[str, dict[str, Any]]:
    """Read what callbacks have kept, by their place and class."""
    with _reading(path):
        return Manifest.read(path).callbacks


def tensors(path: Path) -> State:
    """Read the model in a checkpoint, or the best in a run directory: weights and statistics by name.

    Raises:
        CheckpointError: There is no checkpoint.
    """
    if not (path / NAME).exists():
        run = path
        path = find(run / "checkpoints", "best") or find(run / "checkpoints", "last")
        if path is None:
            raise CheckpointError(f"{run}: expected the directory of a run (runs/<experiment>/<run>) or a checkpoint")
    with _reading(path):
        manifest = Manifest.read(path)
        flat, named = _read(path / SERVER, manifest, SERVER_NAMES), {}
        everything, offset = torch.cat([flat["w"], flat["stats"]]), 0
        for name, shape in manifest.layout["tensors"].items():
            size = torch.Size(shape).numel()
            named[name] = everything[offset : offset + size].view(shape)
            offset += size
        return named


def load(path: Path, layout: Layout, aggregators: list[str], stored: bool = False) -> Contents:
    """Read a checkpoint.

    Args:
        path: The checkpoint.
        layout: The model's.
        aggregators: Class names of the aggregators.
        stored: Whether large client states stay in their files, which are checked.

    Raises:
        CheckpointError: It is no checkpoint, a damaged one, or one of another model or of other aggregators; says what
            differs.
    """
    with _reading(path):
        manifest = _fitting(path, layout, aggregators)
        kept = {name: (file, state) for name, file, state in _clients(path, manifest, stored)}
        held = Broadcast.from_tensors(_read(path / SERVER, manifest, SERVER_NAMES), len(aggregators))
        for name, vector, size in (("w", held.w, layout.size), ("stats", held.stats, layout.stats_size)):
            if vector.shape != (size,):
                raise CorruptCheckpointError(
                    f"{path / SERVER}: expected {name!r} to have {size} numbers, found {tuple(vector.shape)}"
                )
        server = ServerState(layout, held.w, held.stats, held.aggregators)
        states = {name: state for name, (_, state) in kept.items()}
        files = {name: file for name, (file, _) in kept.items()}
        return Contents(
            round=manifest.round, server=server, clients=states, best=manifest.best, names=manifest.clients, aggregators=manifest.aggregators, files=files, at_sites=manifest.at_sites,
            callbacks=manifest.callbacks,
        )  # fmt: skip


def clients(path: Path, layout: Layout, aggregators: list[str]) -> Iterator[tuple[str, ClientState]]:
    """Read the clients' states in a checkpoint, with their names, one after the other.

    Raises:
        CheckpointError: The same as of :func:`load`.
    """
    with _reading(path):
        for name, _, state in _clients(path, _fitting(path, layout, aggregators)):
            yield name, state


def _fitting(path: Path, layout: Layout, aggregators: list[str]) -> Manifest:
    """The manifest of a checkpoint of this model and of these aggregators."""
    manifest = Manifest.read(path)
    there, here = manifest.layout, describe(layout)
    if manifest.aggregators != aggregators:
        raise CheckpointError(f"{path}: trained with aggregators {manifest.aggregators}, the config has {aggregators}")
    if there != here:
        raise CheckpointError(f"{path} is a checkpoint of another model: {difference(there, here)}")
    return manifest


def _clients(
    path: Path, manifest: Manifest, stored: bool = False
) -> Iterator[tuple[str, str, ClientState | StoredState]]:
    """Name, file and state of each client that has one, in the order of the clients."""
    shared: dict[int, tuple[str, State]] = {}
    for file in filter(SHARED.fullmatch, manifest.files):
        for number, tensors in _shared(path / file, manifest).items():
            if number in shared or client_file(number) in manifest.files:
                raise CorruptCheckpointError(f"{path / file}: client number {number} is in another file too")
            shared[number] = file, tensors
    for number, name in enumerate(manifest.clients):
        own = client_file(number)
        if own in manifest.files:
            tensors = _read(path / own, manifest, CLIENT_NAMES, mapped=stored)
            if stored:
                yield name, own, StoredState(path / own, len(manifest.aggregators))
                continue
            shared[number] = own, tensors
        if number in shared:
            file, tensors = shared.pop(number)
            yield name, file, ClientState.from_tensors(tensors, len(manifest.aggregators))


def _shared(path: Path, manifest: Manifest) -> dict[int, State]:
    """The tensors of the clients in a file that they share, by their number."""
    stacks = _read(path, manifest, ())
    try:
        return unstacked(stacks, len(manifest.clients), CLIENT_NAMES)
    except (ValueError, TypeError, RuntimeError) as error:
        raise CorruptCheckpointError(f"{path} {error}") from error


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Within, what cannot be read is told together with the checkpoint before it that can."""
    try:
        yield
    except CorruptCheckpointError as error:
        raise CheckpointError(f"{error}; {_instead(path)}") from error
    except (OSError, EOFError, KeyError, TypeError, ValueError, RuntimeError, pickle.UnpicklingError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} cannot be read as a fedlit checkpoint: {error}; {_instead(path)}") from error


def _instead(path: Path) -> str:
    """What to use instead of a damaged checkpoint: the one before it that is whole."""
    for other in reversed(_complete(path.parent)):
        if other.name < path.name and _whole(other):
            return f"{other.name}, before it, is whole: use --ckpt_path {other}"
    return "no checkpoint before it is whole: start a new run"


def _whole(path: Path) -> bool:
    try:
        manifest = Manifest.read(path)
        _read(path / SERVER, manifest, SERVER_NAMES)
        for _ in _clients(path, manifest):
            pass
    except Exception:  # whatever is wrong with it
        return False
    return True


def client_file(number: int) -> str:
    """Name of the file of a client with a large state, by its number among the federation's."""
    return f"client-{number:05d}.pt"


def _complete(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("round-*") if (path / NAME).exists())


def _write(tensors: State, path: Path) -> None:
    write_tensors(tensors, path)
    sync(path)


def _read(path: Path, manifest: Manifest, names: Sequence[str], mapped: bool = False) -> State:
    """The tensors of a file: as they were written, and these names among them; in memory, or mapped."""
    if not path.exists():
        raise CorruptCheckpointError(f"{path} is missing")
    if manifest.sha256.get(path.name) != sha256(path):
        raise CorruptCheckpointError(
            f"{path} is damaged, or of another checkpoint: its SHA-256 is not the one in {NAME}"
        )
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (EOFError, RuntimeError, ValueError, KeyError, TypeError, pickle.UnpicklingError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CorruptCheckpointError(f"{path} cannot be read: {reason:.200}") from error
    if not isinstance(found, dict) or not all(map(torch.is_tensor, found.values())):
        raise CorruptCheckpointError(f"{path}: expected tensors by name, found something else")
    if lacking := [name for name in names if name not in found]:
        raise CorruptCheckpointError(f"{path} lacks the tensor {lacking[0]!r}")
    return found
