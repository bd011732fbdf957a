"""The manifest of a checkpoint, ``manifest.json``: its contents, and its files with their hashes."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from fedlit.core.errors import CheckpointError

if TYPE_CHECKING:  # it imports PyTorch, which a look at the state of a run does not need
    from fedlit.core.flat import Layout

NAME = "manifest.json"


class CorruptCheckpointError(CheckpointError):
    """A file of a checkpoint was changed or damaged; an earlier checkpoint may be intact."""


@dataclass
class Best:
    """The best model so far.

    Attributes:
        value: Value of the monitored metric; NaN before the first evaluation.
        round: Completed rounds at that time.
        near: Rounds since then that were worse by less than the margin of patience.
    """

    value: float = float("nan")
    round: int = 0
    near: int = 0

    def improved_by(self, value: float, mode: str) -> bool:
        """Return whether a value is better, for ``mode`` ``max`` or ``min``; NaN never is."""
        if value != value:
            return False
        return self.value != self.value or (value > self.value if mode == "max" else value < self.value)

    def is_near(self, value: float, mode: str, margin: float) -> bool:
        """Return whether a value is worse by less than a margin; NaN never is."""
        return (self.value - value if mode == "max" else value - self.value) < margin


@dataclass
class Manifest:
    """The contents of a checkpoint.

    Attributes:
        round: Completed rounds.
        clients: Names of the federation's clients, in order; ``client-00000.pt`` belongs to the first, which is number
            0 in ``clients-0.pt``.
        files: Names of the other files.
        at_sites: Round of each client's state at its site that belongs to this checkpoint, None if it has no state yet;
            {} if the checkpoint holds the states.
        callbacks: State of each custom callback, by its class.
        losses: Mean training loss of the last round of each client that has trained.
        fedlit: Version that wrote it.
        sha256: Hash of every file, by name.
        digest: Hash of everything above.
    """

    round: int
    clients: list[str]
    aggregators: list[str]
    files: list[str]
    layout: dict
    best: Best
    fedlit: str = version("fedlit")
    sha256: dict[str, str] = field(default_factory=dict)
    digest: str = ""
    at_sites: dict[str, int | None] = field(default_factory=dict)
    callbacks: dict[str, dict] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write it, with its own hash, and return the path."""
        self.digest = _hash_of(asdict(self))
        path = folder / NAME
        path.write_text(json.dumps(asdict(self), indent=1))
        return path

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the manifest of a checkpoint.

        Raises:
            CorruptCheckpointError: It cannot be read, or was changed; names the file and the fault.
        """
        path = folder / NAME
        try:
            content = json.loads(path.read_bytes())
            if content.get("digest") != _hash_of(content):
                raise CorruptCheckpointError(f"{path} is damaged: its content does not match its hash")
            manifest = cls(**content | {"best": Best(**content["best"])})
        except (OSError, AttributeError, KeyError, TypeError, RecursionError, ValueError) as error:
            if isinstance(error, CorruptCheckpointError):
                raise
            raise CorruptCheckpointError(f"{path} cannot be read: {error}") from error
        if folder.name.startswith("round-") and folder.name != name_of(manifest.round):
            raise CorruptCheckpointError(
                f"{path}: expected the folder {name_of(manifest.round)} of round {manifest.round}, found {folder.name}"
            )
        return manifest


def _hash_of(content: dict) -> str:
    return hashlib.sha256(json.dumps(content | {"digest": ""}, sort_keys=True).encode()).hexdigest()


def name_of(rounds: int) -> str:
    """Return the name of the folder of the checkpoint after so many rounds."""
    return f"round-{rounds:06d}"


def complete(folder: Path) -> list[Path]:
    """Return the complete checkpoints in a run's folder ``checkpoints``, in order."""
    return sorted(path for path in folder.glob("round-*") if (path / NAME).exists())


def newest(folder: Path) -> Path | None:
    """Return the newest checkpoint in a run's folder ``checkpoints``, or None."""
    return next(reversed(complete(folder)), None)


def sha256(path: Path) -> str:
    """Return the hash of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def describe(layout: "Layout") -> dict:
    """Describe a layout for JSON, so that differences can be named."""
    return {
        "dtype": str(layout.dtype),
        "classes": list(layout.classes),
        "frozen": layout.frozen,
        "fingerprint": layout.fingerprint,
        "tensors": {e.name: list(e.shape) for e in (*layout.parameters, *layout.buffers)},
    }


def difference(there: dict, here: dict) -> str:
    """Return how two descriptions of layouts differ."""
    for key, what in (("dtype", "dtype"), ("classes", "classes"), ("frozen", "hash of frozen weights")):
        if there[key] != here[key]:
            return f"expected {what} {here[key]}, as in the config, found {there[key]}"
    theirs, ours = there["tensors"], here["tensors"]
    rows = [
        f"{n}: {theirs.get(n, 'absent')} there, {ours.get(n, 'absent')} here"
        for n in theirs | ours
        if theirs.get(n) != ours.get(n)
    ]
    shown = "; ".join(rows[:3]) or "it has the same tensors in another order or role"
    return shown + (f"; and {len(rows) - 3} more" if len(rows) > 3 else "")
