"""What a checkpoint says of itself, ``manifest.json``: its files with their hashes, and what they are of."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path

from fedlit.core.errors import CheckpointError
from fedlit.core.flat import Layout

NAME = "manifest.json"


class CorruptCheckpointError(CheckpointError):
    """A file of a checkpoint is not as it was written; another checkpoint may be."""


@dataclass
class Best:
    """The best model so far.

    Attributes:
        value: The value of the monitored metric; NaN before the first evaluation.
        round: Completed rounds at that time.
        near: Rounds since then that were not worse by as much as patience counts.
    """

    value: float = float("nan")
    round: int = 0
    near: int = 0

    def improved_by(self, value: float, mode: str) -> bool:
        """Tell whether a value is better, where ``mode`` is ``max`` or ``min``; NaN never is."""
        if value != value:
            return False
        return self.value != self.value or (value > self.value if mode == "max" else value < self.value)

    def is_near(self, value: float, mode: str, margin: float) -> bool:
        """Tell whether a value is worse by less than a margin; NaN never is."""
        return (self.value - value if mode == "max" else value - self.value) < margin


@dataclass
class Manifest:
    """What is in a checkpoint.

    Attributes:
        round: Completed rounds.
        clients: Names of the federation's clients, in order; ``client-00000.pt`` is of the first,
            and number 0 in ``clients-0.pt``.
        aggregators: Class names of the aggregators.
        files: Names of the files beside this one.
        layout: The model's layout in words.
        best: The best model so far.
        at_sites: Round after which each client's state at its site is that of this checkpoint, None where it has none yet;
            {} where the states are in the checkpoint.
        fedlit: Version that wrote it.
        sha256: Hash of every file, by name; {} in a checkpoint of an earlier version.
        digest: Hash of all of the above; "" likewise.
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

    def write(self, folder: Path) -> Path:
        """Write it, with its own hash; returns the path."""
        self.digest = self._hash()
        path = folder / NAME
        path.write_text(json.dumps(asdict(self), indent=1))
        return path

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the manifest of a checkpoint.

        Raises:
            CorruptCheckpointError: It cannot be read, or is not as it was written; names the file and what is wrong.
        """
        path = folder / NAME
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise CorruptCheckpointError(f"{path} cannot be read: {error}") from error
        if not isinstance(found, dict):
            raise CorruptCheckpointError(f"{path}: expected an object, found {type(found).__name__}")
        kinds = {"round": int, "clients": list, "aggregators": list, "files": list, "layout": dict, "best": dict,
                 "sha256": dict, "digest": str, "fedlit": str, "at_sites": dict, "callbacks": dict}  # fmt: skip
        for key, kind in kinds.items():
            if type(found.get(key)) is not kind:
                there = f"{type(found[key]).__name__} {found[key]!r:.40}" if key in found else "nothing"
                raise CorruptCheckpointError(f"{path}: expected {key!r} to be {_a(kind)}, found {there}")
        for key in ("clients", "aggregators", "files"):
            if wrong := [name for name in found[key] if not isinstance(name, str)]:
                raise CorruptCheckpointError(f"{path}: expected names in {key!r}, found {wrong[0]!r:.40}")
        best = found["best"]
        if (
            best.keys() != {"value", "round", "near"}
            or not type(best["round"]) is type(best["near"]) is int
            or type(best["value"]) not in (int, float)
        ):
            raise CorruptCheckpointError(f"{path}: expected 'best' to have a value and a round, found {best!r:.60}")
        manifest = cls(**{f.name: found[f.name] for f in fields(cls) if f.name in found} | {"best": Best(**best)})
        if manifest.digest != manifest._hash():
            raise CorruptCheckpointError(f"{path} is damaged: its hash is not the one that was written into it")
        if folder.name.startswith("round-") and folder.name != name_of(manifest.round):
            raise CorruptCheckpointError(
                f"{path}: it is of round {manifest.round}, so its folder should be {name_of(manifest.round)}, and is "
                f"{folder.name}"
            )
        return manifest

    def _hash(self) -> str:
        rest = asdict(self) | {"digest": ""}
        return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def name_of(rounds: int) -> str:
    """Name of the folder of the checkpoint after so many rounds."""
    return f"round-{rounds:06d}"


def sha256(path: Path) -> str:
    """Hash of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _a(kind: type) -> str:
    names = {int: "a whole number", list: "a list", dict: "an object", str: "a text"}
    return names[kind]


def describe(layout: Layout) -> dict:
    """Put a layout in words that JSON can hold, so that a difference can be named."""
    return {
        "dtype": str(layout.dtype),
        "classes": list(layout.classes),
        "frozen": layout.frozen,
        "fingerprint": layout.fingerprint,
        "tensors": {e.name: list(e.shape) for e in (*layout.parameters, *layout.buffers)},
    }


def difference(there: dict, here: dict) -> str:
    """Say in which key two descriptions of layouts differ, and how."""
    for key, verb in (("dtype", "is"), ("classes", "are"), ("frozen", "weights have the hash")):
        if there[key] != here[key]:
            return f"its {key} {verb} {there[key]}, the config's {here[key]}"
    theirs, ours = there["tensors"], here["tensors"]
    rows = [
        f"{n}: {theirs.get(n, 'absent')} there, {ours.get(n, 'absent')} here"
        for n in theirs | ours
        if theirs.get(n) != ours.get(n)
    ]
    shown = "; ".join(rows[:3]) or "the same tensors in another order or role"
    return shown + (f"; and {len(rows) - 3} more" if len(rows) > 3 else "")
