"""Checkpoints at round boundaries: complete or absent, never half."""

import json
import os
import pickle
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from fedlit import __version__
from fedlit.errors import CheckpointError, ConfigError
from fedlit.fabric import FederationFabric
from fedlit.flat import Layout
from fedlit.messages import ClientState, ServerState, State

SHARE_OF_TIME = 0.02
"""Largest share of a run's time that checkpoints take by default."""


@dataclass
class Best:
    """The best model so far.

    Attributes:
        value: of the monitored metric; NaN before the first evaluation.
        round: completed rounds at that time.
    """

    value: float = float("nan")
    round: int = 0

    def improved_by(self, value: float, mode: str) -> bool:
        if value != value:
            return False
        return self.value != self.value or (value > self.value if mode == "max" else value < self.value)


@dataclass
class Loaded:
    """What a checkpoint holds: ``round`` completed rounds, and everything that the next one needs."""

    round: int
    server: ServerState
    clients: dict[str, ClientState]
    best: Best


@dataclass(frozen=True)
class Cadence:
    """How often something happens: every so many rounds, every so many seconds, or as often as time allows.

    Attributes:
        rounds: between two times, or None.
        seconds: between two times, or None; with neither, as often as costs under 2% of the time.
    """

    rounds: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, value: int | str) -> "Cadence":
        """Read ``5``, ``60s`` or ``auto``.

        Raises:
            ConfigError: it is none of them.
        """
        text = str(value)
        if text == "auto":
            return cls()
        number = text.removesuffix("s")
        if number.isdecimal() and int(number) > 0:
            return cls(seconds=float(number)) if text.endswith("s") else cls(rounds=int(number))
        raise ConfigError(
            f"federation.checkpoint_every: expected rounds such as 5, seconds such as 60s, or auto; found {value!r}"
        )


class Checkpoints:
    """The folder ``checkpoints/`` of a run.

    ``round-000012/`` is the state after 12 rounds: ``manifest.json``, ``server.pt`` and one file a client, linked to
    the previous checkpoint's where the client has not trained since. A checkpoint is written under another name and
    renamed when it is complete, and renamed again before it is removed, so that a directory ``round-*`` is whole
    whenever the process dies. The newest is kept, and the best, which the newest names in its manifest.

    Args:
        folder: of the run.
        fabric: every rank writes its own clients.
        every: how often.
    """

    def __init__(self, folder: Path, fabric: FederationFabric, every: Cadence = Cadence()) -> None:
        self.folder, self._fabric, self._every = folder, fabric, every
        self._saved_at, self._seconds, self._round = time.monotonic(), 0.0, -1
        self._files: dict[str, tuple[ClientState, Path]] = {}

    def rewind(self, rounds: int) -> None:
        """Continue after ``rounds`` rounds: what an earlier part of the run left unfinished, or later, goes."""
        if self._fabric.is_global_zero:
            for path in [*self.folder.glob(".writing-*"), *self.folder.glob(".removing-*")]:
                shutil.rmtree(path, ignore_errors=True)
            for path in reversed(_complete(self.folder)):
                if path.name > _name(rounds):
                    _remove(path)
        self._fabric.barrier()
        if (self.folder / _name(rounds) / "manifest.json").exists():
            self._round = rounds

    def due(self, rounds: int) -> bool:
        """Whether to save after so many rounds; the same answer on every rank."""
        if self._every.rounds:
            return rounds % self._every.rounds == 0
        wait = self._every.seconds or self._seconds / SHARE_OF_TIME
        return bool(self._fabric.broadcast(time.monotonic() - self._saved_at >= wait))

    def save(
        self,
        rounds: int,
        server: ServerState,
        clients: Mapping[str, ClientState],
        best: Best,
        names: list[str],
        aggregators: list[str],
    ) -> None:
        """Write the state after ``rounds`` rounds, unless it is there already."""
        if rounds == self._round:
            return
        began = time.monotonic()
        target, temporary = self.folder / _name(rounds), self.folder / f".writing-{rounds:06d}"
        if self._fabric.is_global_zero:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        self._fabric.barrier()
        for name, state in clients.items():
            path = temporary / f"client-{names.index(name):05d}.pt"
            self._write_client(name, state, path)
            self._files[name] = (state, target / path.name)
        self._fabric.barrier()
        if self._fabric.is_global_zero:
            tensors = {"w": server.w, "stats": server.stats}
            tensors |= {f"{i}/{k}": v for i, s in enumerate(server.aggregators) for k, v in s.items()}
            _write(tensors, temporary / "server.pt")
            manifest = {
                "fedlit": __version__,
                "round": rounds,
                "clients": names,
                "aggregators": aggregators,
                "files": sorted(path.name for path in temporary.iterdir()),
                "layout": describe(server.layout),
                "best": vars(best),
            }
            _write_text(json.dumps(manifest, indent=1), temporary / "manifest.json")
            _sync_folder(temporary)
            if target.exists():
                _remove(target)
            os.replace(temporary, target)
            _sync_folder(self.folder)
            keep = {target, find(self.folder, "best")}
            for path in _complete(self.folder):
                if path not in keep:
                    _remove(path)
        self._fabric.barrier()
        self._round, self._saved_at = rounds, time.monotonic()
        self._seconds = self._saved_at - began

    def _write_client(self, name: str, state: ClientState, path: Path) -> None:
        known = self._files.get(name)
        if known and known[0] is state and known[1].exists():
            try:
                os.link(known[1], path)
                return
            except OSError:  # a file system without links
                pass
        _write(state.tensors(), path)


def find(folder: Path, which: str) -> Path | None:
    """The ``last`` or ``best`` checkpoint in a run's folder ``checkpoints``, or None."""
    complete = _complete(folder)
    if not complete or which == "last":
        return complete[-1] if complete else None
    best = Best(**_manifest(complete[-1])["best"])
    path = folder / _name(best.round)
    return path if path in complete and best.value == best.value else None


def rounds(path: Path) -> int:
    """How many completed rounds a checkpoint holds."""
    return int(path.name.removeprefix("round-"))


def best(path: Path) -> Best:
    """The best model so far, as a checkpoint has it."""
    return Best(**_manifest(path)["best"])


def tensors(path: Path) -> State:
    """The model in a checkpoint, or the best in a run directory: weights and statistics by name.

    Raises:
        CheckpointError: there is no checkpoint.
    """
    if not (path / "manifest.json").exists():
        found = find(path / "checkpoints", "best") or find(path / "checkpoints", "last")
        if found is None:
            raise CheckpointError(f"{path}: expected the directory of a run (runs/<experiment>/<run>) or a checkpoint")
        path = found
    flat, named = _read(path / "server.pt"), {}
    everything, offset = torch.cat([flat["w"], flat["stats"]]), 0
    for name, shape in _manifest(path)["layout"]["tensors"].items():
        size = torch.Size(shape).numel()
        named[name] = everything[offset : offset + size].view(shape)
        offset += size
    return named


def load(path: Path, layout: Layout, aggregators: list[str]) -> Loaded:
    """Read a checkpoint.

    Raises:
        CheckpointError: it is no checkpoint, or one of another model or of other aggregators; says what differs.
    """
    with _reading(path):
        kept = dict(clients(path, layout, aggregators))
        manifest, tensors = _manifest(path), _read(path / "server.pt")
        server = ServerState(
            layout, tensors["w"], tensors["stats"], [_part(tensors, i) for i in range(len(aggregators))]
        )
        return Loaded(manifest["round"], server, kept, Best(**manifest["best"]))


def clients(path: Path, layout: Layout, aggregators: list[str]) -> Iterator[tuple[str, ClientState]]:
    """The clients' states in a checkpoint by name, read one after the other.

    Raises:
        CheckpointError: as :func:`load` does.
    """
    with _reading(path):
        manifest = _manifest(path)
        found, expected = manifest["layout"], describe(layout)
        if manifest["aggregators"] != aggregators:
            raise CheckpointError(
                f"{path}: trained with aggregators {manifest['aggregators']}, the config has {aggregators}"
            )
        if found != expected:
            raise CheckpointError(f"{path} is a checkpoint of another model: {_difference(found, expected)}")
        for i, name in enumerate(manifest["clients"]):
            if (file := f"client-{i:05d}.pt") in manifest["files"]:
                yield name, ClientState.from_tensors(_read(path / file), len(aggregators))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, KeyError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path} cannot be read as a fedlit checkpoint: {error}; use another one") from error


def describe(layout: Layout) -> dict:
    """A layout in words that JSON can hold, so that a difference can be named."""
    entries = (*layout.parameters, *layout.buffers)
    return {
        "dtype": str(layout.dtype),
        "classes": list(layout.classes),
        "frozen": layout.frozen,
        "fingerprint": layout.fingerprint,
        "tensors": {e.name: list(e.shape) for e in entries},
    }


def _difference(found: dict, expected: dict) -> str:
    for key, verb in (("dtype", "is"), ("classes", "are"), ("frozen", "weights have the hash")):
        if found[key] != expected[key]:
            return f"its {key} {verb} {found[key]}, the config's {expected[key]}"
    theirs, ours = found["tensors"], expected["tensors"]
    rows = [
        f"{n}: {theirs.get(n, 'absent')} there, {ours.get(n, 'absent')} here"
        for n in [*theirs, *(n for n in ours if n not in theirs)]
        if theirs.get(n) != ours.get(n)
    ]
    shown = "; ".join(rows[:3]) or "the same tensors in another order or role"
    return shown + (f"; and {len(rows) - 3} more" if len(rows) > 3 else "")


def _part(tensors: State, index: int) -> State:
    return {k.partition("/")[2]: v for k, v in tensors.items() if k.startswith(f"{index}/")}


def _name(rounds: int) -> str:
    return f"round-{rounds:06d}"


def _complete(folder: Path) -> list[Path]:
    """Checkpoints, the newest last."""
    return sorted(path for path in folder.glob("round-*") if (path / "manifest.json").exists())


def _manifest(path: Path) -> dict:
    """
    Raises:
        CheckpointError: it is torn.
    """
    try:
        return json.loads((path / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}/manifest.json cannot be read: {error}; use another checkpoint") from error


def _remove(path: Path) -> None:
    hidden = path.with_name(f".removing-{path.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    os.replace(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _write(tensors: State, path: Path) -> None:
    # Clones, since a view would take its whole storage to disk.
    with path.open("wb") as file:
        torch.save({name: tensor.clone() for name, tensor in tensors.items()}, file)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> State:
    return torch.load(path, map_location="cpu", weights_only=True)


def _write_text(text: str, path: Path) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
