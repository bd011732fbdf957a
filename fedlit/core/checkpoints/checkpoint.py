"""Checkpoints at round boundaries, which are complete or absent."""

import pickle
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedlit.core.checkpoints.cadence import SHARE_OF_TIME, Cadence
from fedlit.core.checkpoints.manifest import (
    NAME,
    Best,
    CorruptCheckpointError,
    Manifest,
    complete,
    describe,
    difference,
    name_of,
    newest,
    sha256,
)
from fedlit.core.checkpoints.stored_states import StoredState, is_small, stacked, unstacked, write_tensors
from fedlit.core.errors import CheckpointError
from fedlit.core.flat import Layout
from fedlit.core.messages import SCORED, ClientState, ServerState, State, stripped
from fedlit.core.system.files import link, put, remove, sync

if TYPE_CHECKING:  # it imports Lightning, which reports of past runs do not need
    from fedlit.core.fabric import FederationFabric

SHARED = re.compile(r"clients-\d+\.pt")
"""Files that hold the states of several clients, one per rank."""

SERVER, SERVER_NAMES, CLIENT_NAMES = "server.pt", ("w", "stats"), ("batches", "w", "stats")


@dataclass
class Contents:
    """The contents of a checkpoint: everything that the next round needs.

    Attributes:
        round: Completed rounds.
        names: Names of all clients, in their order.
        files: Name of the file of each client that has trained, after writing.
        at_sites: Round of each client's state at its site, if sites hold the states.
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
    losses: Mapping[str, float] = field(default_factory=dict)


class Checkpoints:
    """The folder ``checkpoints/`` of a run.

    ``round-000012/`` is the state after 12 rounds: ``manifest.json``, ``server.pt`` and the clients' states: small ones
    in one file per rank, ``clients-0.pt``, and a file for each large one, linked to the previous checkpoint's if the
    client has not trained since. A checkpoint is written under another name and renamed when it is complete, and
    renamed again before it is removed, so a directory ``round-*`` is complete at any moment. The newest and the best
    are kept; the newest names the best in its manifest.

    Args:
        every: How often to write one; by default as often as costs less than 2% of the time.
    """

    def __init__(self, folder: Path, fabric: "FederationFabric", every: Cadence | None = None) -> None:
        self._thread, self._begun = ThreadPoolExecutor(1, "fedlit-checkpoint"), None  # starts with the first task
        self.folder, self._fabric, self._every = folder, fabric, every or Cadence()
        self._saved_at, self._seconds, self._round = time.monotonic(), 0.0, -1
        self._files: dict[str, tuple[ClientState | StoredState, Path]] = {}
        self._hashes: dict[tuple[int, int, int], str] = {}

    def rewind(self, rounds: int) -> None:
        """Continue after ``rounds`` rounds: remove unfinished and later checkpoints of an earlier part of the run."""
        if self._fabric.is_global_zero:
            for path in [*self.folder.glob(".writing-*"), *self.folder.glob(".removing-*")]:
                shutil.rmtree(path, ignore_errors=True)
            for path in reversed(complete(self.folder)):
                if path.name > name_of(rounds):
                    remove(path)
        self._fabric.barrier()
        if (self.folder / name_of(rounds) / NAME).exists():
            self._round = rounds

    def due(self, rounds: int) -> bool:
        """Return whether to save after so many rounds; the same on every rank."""
        if self._every.rounds:
            return rounds % self._every.rounds == 0
        wait = self._every.seconds or self._seconds / SHARE_OF_TIME
        return bool(self._fabric.broadcast(time.monotonic() - self._saved_at >= wait))

    def save(self, contents: Contents, later: bool = False) -> None:
        """Write a checkpoint, unless it already exists.

        With ``later`` a thread writes it, until :meth:`finish`; until then clients' states must not change, but the
        server's may. Ranks wait for each other, so they write immediately.
        """
        self.finish()
        if contents.round == self._round:
            return
        self._round = rounds = contents.round
        server, temporary = contents.server, self._draft(rounds)
        if self._fabric.is_global_zero:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        self._fabric.barrier()
        later = later and self._fabric.world_size == 1
        tensors = server.tensors()
        held = {name: t.clone() for name, t in tensors.items()} if later else tensors
        for number, name in enumerate(contents.names):
            if (state := contents.clients.get(name)) and state.file is not None:  # the next round may remove it
                link(state.file, temporary / client_file(number))
        manifest = Manifest(
            rounds, list(contents.names), list(contents.aggregators), [], describe(server.layout), contents.best,
            at_sites=dict(contents.at_sites), callbacks=dict(contents.callbacks),
            losses=dict(contents.losses),
        )  # fmt: skip
        work = partial(self._write_all, manifest, dict(contents.clients), held)
        if later:
            self._begun = self._thread.submit(work)
        else:
            work()

    def finish(self) -> None:
        """Wait until the checkpoint of :meth:`save` is written; re-raise its error, once."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.result()

    def _draft(self, rounds: int) -> Path:
        return self.folder / f".writing-{rounds:06d}"

    def _write_all(self, manifest: Manifest, clients: Mapping[str, ClientState | StoredState], server: State) -> None:
        began, small = time.monotonic(), {}
        target, temporary = self.folder / name_of(manifest.round), self._draft(manifest.round)
        for number, name in enumerate(manifest.clients):
            state, file = clients.get(name), client_file(number)
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
            for path in complete(self.folder):
                if path not in keep:
                    remove(path)
        self._fabric.barrier()
        self._saved_at = time.monotonic()
        self._seconds = self._saved_at - began

    @property
    def kept(self) -> list[Path]:
        """The existing checkpoints: the newest and the best."""
        return complete(self.folder)

    def _hashed(self, folder: Path) -> dict[str, str]:
        """Return the hashes of a folder's files; links to the previous checkpoint's files are not read again."""
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
    """Return the ``last`` or ``best`` checkpoint in a run's folder ``checkpoints``, or None."""
    last = newest(folder)
    if last is None or which == "last":
        return last
    noted = best(last)
    path = folder / name_of(noted.round)
    return path if path in complete(folder) and noted.value == noted.value else None


def manifest_of(path: Path) -> Manifest:
    """Return a checkpoint's manifest; an error names the last intact checkpoint."""
    with _reading(path):
        return Manifest.read(path)


def rounds(path: Path) -> int:
    """Return the number of completed rounds of a checkpoint."""
    return manifest_of(path).round


def best(path: Path) -> Best:
    """Return the best model so far, from a checkpoint's manifest."""
    return manifest_of(path).best


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
        flat, shapes = read_tensors(path / SERVER, manifest, SERVER_NAMES), manifest.layout["tensors"]
        flat |= stripped(flat, SCORED)
        parts = torch.cat([flat["w"], flat["stats"]]).split([torch.Size(shape).numel() for shape in shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def load(path: Path, layout: Layout, aggregators: list[str], stored: bool = False) -> Contents:
    """Read a checkpoint; if ``stored``, large client states stay in their files, which are checked.

    Raises:
        CheckpointError: It is not a checkpoint, is damaged, or belongs to another model or other aggregators; names the
            difference.
    """
    with _reading(path):
        manifest = _checked_manifest(path, layout, aggregators)
        held = list(client_states(path, manifest, stored))
        server = ServerState.from_tensors(read_tensors(path / SERVER, manifest, SERVER_NAMES), len(aggregators), layout)
        for name, vector, size in (("w", server.w, layout.size), ("stats", server.stats, layout.stats_size)):
            if vector.shape != (size,):
                raise CorruptCheckpointError(
                    f"{path / SERVER}: expected {size} numbers in {name!r}, found {[*vector.shape]}"
                )
        return Contents(
            manifest.round, server, {name: state for name, _, state in held}, manifest.best, manifest.clients,
            manifest.aggregators, files={name: file for name, file, _ in held}, at_sites=manifest.at_sites,
            callbacks=manifest.callbacks,
            losses=manifest.losses,
        )  # fmt: skip


def _checked_manifest(path: Path, layout: Layout, aggregators: list[str]) -> Manifest:
    manifest = Manifest.read(path)
    there, here = manifest.layout, describe(layout)
    if manifest.aggregators != aggregators:
        raise CheckpointError(
            f"{path}: expected aggregators {aggregators}, found {manifest.aggregators}; use the run's config.yaml"
        )
    if there != here:
        raise CheckpointError(f"{path} is of another model: {difference(there, here)}")
    return manifest


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Context manager that adds the last intact checkpoint to read errors."""
    try:
        yield
    except CorruptCheckpointError as error:
        raise CheckpointError(f"{error}; {_instead(path)}") from error
    except (OSError, EOFError, KeyError, TypeError, ValueError, RuntimeError, pickle.UnpicklingError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} cannot be read as a fedlit checkpoint: {error}; {_instead(path)}") from error


def _instead(path: Path) -> str:
    """Name the last intact checkpoint before a damaged one."""
    for other in reversed(complete(path.parent)):
        if other.name < path.name and _is_intact(other):
            return f"the one before it, {other.name}, is intact: use --ckpt_path {other}"
    return "no checkpoint before it is intact: start a new run"


def _is_intact(path: Path) -> bool:
    try:
        manifest = Manifest.read(path)
        read_tensors(path / SERVER, manifest, SERVER_NAMES)
        for _ in client_states(path, manifest):
            pass
    except Exception:  # any error means that it is damaged
        return False
    return True


def _write(tensors: State, path: Path) -> None:
    write_tensors(tensors, path)
    sync(path)


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
