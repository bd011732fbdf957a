"""Checkpoints that are damaged, mixed up or incomplete raise an error with the file and an intact checkpoint."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rounds import unprobed
from foreigners import Digits
from refusals import refused
from strangers import fit, having, seeded, settings

from fedlit.aggregators import Scaffold
from fedlit.core.checkpoints import checkpoint, stored_states
from fedlit.core.checkpoints.manifest import Best, Manifest, sha256
from fedlit.core.errors import CheckpointError
from fedlit.core.fabric import make_fabric
from fedlit.federation.assembly import assemble
from fedlit.federation.session import Session

BEFORE = "the one before it, round-000002, is intact: use --ckpt_path "


@dataclass(frozen=True)
class Damage:
    """A damage to the newest checkpoint of a run, and what its error must name.

    Attributes:
        what: Short description of the damage, the name of the test.
        do: Damages the checkpoint in a folder.
        names: Parts of the message.
        sealed: Whether the hashes are updated afterwards.
        apart: Whether each client's state has a separate file, as large ones have.
        before: Whether the message names the checkpoint before it.
    """

    what: str
    do: Callable[[Path], Any]
    names: tuple[str, ...]
    sealed: bool = False
    before: bool = True
    apart: bool = False


def flipped(name: str, share: float = 0.5) -> Callable[[Path], None]:
    """Invert 64 bytes."""

    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        start = int(share * (len(data) - 64))
        data[start : start + 64] = bytes(255 - byte for byte in data[start : start + 64])
        (folder / name).write_bytes(data)

    return damage


def said(**changes: Any) -> Callable[[Path], None]:
    """Change the manifest; None removes a key."""

    def damage(folder: Path) -> None:
        found = json.loads((folder / "manifest.json").read_text()) | changes
        kept = {key: value for key, value in found.items() if value is not None}
        (folder / "manifest.json").write_text(json.dumps(kept))

    return damage


def without(name: str, *tensors: str) -> Callable[[Path], None]:
    """Remove tensors from a file, or those with these prefixes."""

    def damage(folder: Path) -> None:
        found = torch.load(folder / name, weights_only=True)
        torch.save({key: value for key, value in found.items() if not key.startswith(tensors)}, folder / name)

    return damage


def with_tensor(name: str, key: str, value: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        torch.save(torch.load(folder / name, weights_only=True) | {key: value}, folder / name)

    return damage


def exchanged(folder: Path) -> None:
    one, other = folder / "client-00000.pt", folder / "client-00001.pt"
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def of_the_other_round(name: str) -> Callable[[Path], None]:
    return lambda folder: shutil.copy(folder.with_name("round-000002") / name, folder / name)


def seal(folder: Path) -> None:
    """Write the hashes of the current files, as if they had been saved so."""
    found = json.loads((folder / "manifest.json").read_text())
    found["sha256"] = {name: sha256(folder / name) for name in found["files"]}
    Manifest(**found | {"best": Best(**found["best"])}).write(folder)


def written(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content)


def removed(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


SHA = "its SHA-256 is not in manifest.json"
MANIFEST = "round-000004/manifest.json"
SERVER, CLIENT = "round-000004/server.pt", "round-000004/client-00001.pt"
CLIENTS = "round-000004/clients-0.pt"
NAMES = ["site-1", "site-0", "site-2"]

DAMAGED = [
    Damage("flipped bytes of the server", flipped("server.pt"), (SERVER, SHA)),
    Damage("flipped bytes of a client", flipped("client-00001.pt"), (CLIENT, SHA), apart=True),
    Damage("no weights of the clients, sealed", without("clients-0.pt", "0/w"), (CLIENTS, "lacks the tensor 'w'"),
        sealed=True),
    Damage("a client's file in the place of another's", exchanged, ("client-00000.pt", SHA), apart=True),
    Damage("the manifest of another round", of_the_other_round("manifest.json"), (MANIFEST, "of round 2")),
    Damage("a client's file that is gone", removed("client-00001.pt"), (CLIENT, "is missing"), apart=True),
    Damage("a manifest that is edited", said(round=5), (MANIFEST, "does not match its hash")),
    Damage("a manifest that nests", written("manifest.json", b"[" * 100_000), (MANIFEST, "cannot be read")),
    Damage("a manifest of nothing", written("manifest.json", b"{}"), (MANIFEST, "does not match its hash")),
    Damage("a round that is not the folder's, sealed", said(round=3), ("of round 3", "found round-000004"),
        sealed=True),
    Damage("a torn file, sealed", flipped("server.pt", 0.0), (SERVER, "cannot be read"), sealed=True),
    Damage("no statistics, sealed", without("server.pt", "stats"), (SERVER, "lacks the tensor 'stats'"), sealed=True),
    Damage("weights of another size, sealed", with_tensor("server.pt", "w", torch.zeros(3)),
           (SERVER, "expected 68 numbers in 'w', found [3]"), sealed=True),
    Damage("a text as weights, sealed", with_tensor("server.pt", "w", "zero"), (SERVER, "expected tensors by name"),
        sealed=True),
    Damage("no control variate of the server, sealed", without("server.pt", "0/"), (SERVER, "of Scaffold"),
           sealed=True, before=False),
    Damage("no control variate of a client, sealed", without("client-00001.pt", "0/"), (CLIENT, "of Scaffold"),
           sealed=True, before=False, apart=True),
    Damage("no optimizer state, sealed", without("client-00001.pt", "optimizer/"), (CLIENT, "lacks the optimizer's"),
           sealed=True, before=False, apart=True),
    Damage("clients in another order, sealed", said(clients=NAMES), ("order of the data, site-0, site-1, site-2, "
        "found site-1, site-0, site-2",),
           sealed=True, before=False),
    Damage("a layout without tensors, sealed", said(layout={}), ("round-000004",), sealed=True),
]  # fmt: skip

SETTINGS = {"aggregators": [Scaffold()], "optimizer_state": "keep", "checkpoint_every": 1}
MOMENTUM = having(configure_optimizers=lambda module: torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the checkpoints of a run of four rounds; the second one is kept next to the last."""
    return run_of_four(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def trained_apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with a file for each client's state."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_states, "SMALL", 0)
        return run_of_four(tmp_path_factory.mktemp("apart"))


def run_of_four(run: Path) -> Path:
    folder = run / "checkpoints"
    with unprobed():
        fit(seeded(MOMENTUM), run, rounds=2, **SETTINGS)
        shutil.copytree(folder / "round-000002", run / "kept")
        fit(seeded(MOMENTUM), run, folder / "round-000002", rounds=4, **SETTINGS)
    shutil.copytree(run / "kept", folder / "round-000002", dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def session() -> Session:
    """One that restores no checkpoint, as all are refused."""
    with unprobed():
        return assemble(settings(**SETTINGS), seeded(MOMENTUM), Digits(), make_fabric("cpu"))


def resume(run: Path) -> None:
    fit(seeded(MOMENTUM), run, run / "checkpoints/round-000004", rounds=5, **SETTINGS)


@pytest.mark.parametrize("given", DAMAGED, ids=[given.what.replace(" ", "-") for given in DAMAGED])
def test_it_is_refused_by_name(given: Damage, trained: Path, trained_apart: Path, session: Session, tmp_path: Path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(trained_apart if given.apart else trained, folder)
    given.do(folder / "round-000004")
    if given.sealed:
        seal(folder / "round-000004")
    with refused(CheckpointError, *given.names, *((f"{BEFORE}{folder}/round-000002",) if given.before else ())):
        session.restore(folder / "round-000004", training=True)


def test_without_a_whole_one_before_it_the_error_says_so(trained: Path, tmp_path: Path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(trained, folder)
    for name in ("round-000002", "round-000004"):
        flipped("server.pt")(folder / name)
    with refused(CheckpointError, "is damaged, or of another checkpoint"):
        resume(tmp_path)


def test_states_in_a_file_for_each_client_load_as_those_that_share_one(
    trained: Path, trained_apart: Path, tmp_path: Path
):
    for name, source in (("apart", trained_apart), ("shared", trained)):
        shutil.copytree(source, tmp_path / name / "checkpoints")
        resume(tmp_path / name)
    apart, shared = (checkpoint.tensors(tmp_path / n / "checkpoints/round-000005") for n in ("apart", "shared"))
    assert all(torch.equal(tensor, shared[key]) for key, tensor in apart.items())


def test_a_checkpoint_may_be_copied_elsewhere(trained: Path, tmp_path: Path):
    shutil.copytree(trained / "round-000004", tmp_path / "good one")
    assert checkpoint.rounds(tmp_path / "good one") == 4
    assert checkpoint.tensors(tmp_path / "good one").keys() == {"net.weight", "net.bias"}
