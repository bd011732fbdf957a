"""One model of a run in one file: a state dict as .safetensors, with what whoever loads it has to know."""

import json
import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

import torch
from safetensors.torch import save

from fedlit import __version__
from fedlit.checkpoint import Loaded
from fedlit.data.images import LabelledImages
from fedlit.errors import CheckpointError, ConfigError
from fedlit.flat import SLICES
from fedlit.helptexts import ONE_MODEL
from fedlit.run import config_difference
from fedlit.session import Session


def check_described(run: Path, config: str) -> None:
    """Refuse a configuration that would describe a run's model wrongly; where the data lie does not matter.

    Raises:
        CheckpointError: anything but what a resume may change, or a root, differs; shows the difference.
    """
    found = [row for row in config_difference(run, config) if not row.partition(": ")[0].endswith("root")]
    if found:
        rows = "\n".join(f"  {row}" for row in found)
        raise CheckpointError(
            f"{run} was trained with another configuration, whose model this one does not describe:\n{rows}\n"
            f"Use --config {run / 'config.yaml'}"
        )


def owner(session: Session, client: str | None) -> str | None:
    """Whose model is asked for: a client's own, or the federation's (None), which serves every client where it is one.

    Raises:
        ConfigError: no such client, or no client named where clients keep a part of the model.
    """
    if client is not None and client not in session.clients:
        near = get_close_matches(client, session.clients, n=3, cutoff=0.5)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise ConfigError(f"--client: there is no {client!r}; {meant}clients are {_shown(session.clients)}")
    if not session.personal:
        return None
    if client is None:
        kept = kept_parts(session)
        reasons = "; ".join(f"{name} keeps {' and '.join(parts)} at the clients" for name, parts in kept.items())
        parts = {part for found in kept.values() for part in found}
        others = [name for part, name in ONE_MODEL.items() if part in parts]
        instead = f", and federations with {' and '.join(others)} instead have one model" if others else ""
        raise ConfigError(
            f"there is no single global model to export: {reasons}. --client NAME exports a client's own model{instead}; "
            f"clients are {_shown(session.clients)}"
        )
    return client


def kept_parts(session: Session) -> dict[str, list[str]]:
    """Aggregators under which clients keep a part of the model, and the parts: ``body``, ``norm``, ... ``statistics``."""
    layout = session.layout
    filled = {run.group for run in layout.runs} | ({layout.stats_group} if layout.stats_size else set())
    parts = {name: filled.intersection(layout.groups((name,))) for name in SLICES}
    parts["statistics"] = filled.intersection([layout.stats_group])
    found = {}
    for aggregator in session.federation.aggregators:
        masks = [aggregator.scope(layout, client) for client in session.clients.values()]
        kept = {name for name, groups in parts.items() if any(m.kept[list(groups)].any() for m in masks)}
        if kept:
            found[type(aggregator).__name__] = [name for name in parts if name in kept]
    return found


def export(session: Session, found: Loaded, run: Path, client: str | None, file: Path) -> None:
    """Write the federation's model in a checkpoint, or a client's own, to ``file``, whole or not at all.

    The file holds every entry of the module's ``state_dict()``, the objective's variables and constants included. Its
    metadata: ``fedlit``, ``model``, ``config`` (the run's YAML), and as JSON ``round``, ``classes``, ``learned`` (one
    truth value a class) and, where the images are fedlit's, ``image_size``, ``channels`` (of the decoded pictures),
    ``in_chans``, ``mean`` and ``std``; ``client`` where it is a client's own model.

    Args:
        found: the checkpoint; of the federation's model, its server's part is enough.
        run: the directory of the run, for its configuration.
        client: whose own model; None for the federation's.

    Raises:
        ConfigError: ``file`` is a folder.
    """
    if file.is_dir():
        raise ConfigError(f"--output: expected a file such as {file / 'model.safetensors'}, found the folder {file}")
    module = session.model(found.server, client, found.clients.get(client))
    # Copies, as the parameters are views of one vector, and safetensors refuses tensors that share memory.
    tensors = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in module.state_dict().items()
    }
    _write(save(tensors, _metadata(session, type(module), run, client, found.round)), file)


def _metadata(session: Session, kind: type, run: Path, client: str | None, rounds: int) -> dict[str, str]:
    learned = session.learned(client)
    images = next(iter(session.data.clients.values())).train
    told = {"round": rounds, "classes": session.classes, "learned": [name in learned for name in session.classes]}
    if isinstance(images, LabelledImages):
        told["image_size"] = images.store.shape[-1]
        told["channels"] = images.store.shape[1]
        told |= {name: getattr(images, name) for name in ("in_chans", "mean", "std")}
    texts = {
        "fedlit": __version__,
        "model": f"{kind.__module__}.{kind.__qualname__}",
        "config": (run / "config.yaml").read_text(),
    }
    own = {} if client is None else {"client": client}
    return texts | own | {name: json.dumps(value) for name, value in told.items()}


def _write(content: bytes, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)


def _shown(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(names[:12]) + more
