"""One model of a run in one file: a state dict as .safetensors, with what whoever loads it has to know."""

import json
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from safetensors.torch import save

from fedlit import __version__
from fedlit.core.checkpoints.checkpoint import Contents
from fedlit.core.errors import CheckpointError, ConfigError
from fedlit.core.flat import SLICES
from fedlit.core.system.files import whole
from fedlit.data.federated import FederatedDataModule
from fedlit.data.pictures.images import LabelledImages
from fedlit.federation.session import Session
from fedlit.tracking.addresses import marked
from fedlit.tracking.run import config_difference


def check_described(run: Path, config: str) -> None:
    """Refuse a configuration that would describe a run's model wrongly; where the data lie does not matter.

    Raises:
        CheckpointError: Anything but what a resume may change, or a root, differs; shows the difference.
    """
    differences = [row for row in config_difference(run, config) if not row.partition(": ")[0].endswith("root")]
    if differences:
        rows = "\n".join(f"  {row}" for row in differences)
        raise CheckpointError(
            f"{run} was trained with another configuration, whose model this one does not describe:\n{rows}\n"
            f"Use --config {run / 'config.yaml'}"
        )


def owner(session: Session, client: str | None) -> str | None:
    """Tell whose model is asked for: a client's own, or the federation's (None), which serves all where it is one.

    Raises:
        ConfigError: There is no such client, or no client is named where clients keep a part of the model.
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
        keeping = [a for a in session.federation.aggregators if type(a).__name__ in kept]
        others = dict.fromkeys(a.one_model for a in keeping if a.one_model)
        instead = f", and federations with {' and '.join(others)} instead have one model" if others else ""
        raise ConfigError(
            f"there is no single global model to export: {reasons}. --client NAME exports a client's own model{instead}; "
            f"clients are {_shown(session.clients)}"
        )
    return client


def kept_parts(session: Session) -> dict[str, list[str]]:
    """Name the aggregators under which clients keep a part of the model, and the parts: ``body``, ... ``statistics``."""
    layout = session.layout
    filled = {segment.group for segment in layout.segments} | ({layout.stats_group} if layout.stats_size else set())
    parts = {name: filled.intersection(layout.groups((name,))) for name in SLICES}
    parts["statistics"] = filled.intersection([layout.stats_group])
    kept_by = {}
    for aggregator in session.federation.aggregators:
        masks = [aggregator.scope(layout, client) for client in session.clients.values()]
        kept = {name for name, groups in parts.items() if any(m.kept[list(groups)].any() for m in masks)}
        if kept:
            kept_by[type(aggregator).__name__] = [name for name in parts if name in kept]
    return kept_by


def export(session: Session, checkpoint: Contents, run: Path, client: str | None, file: Path) -> None:
    """Write the federation's model in a checkpoint, or a client's own, to ``file``, whole or not at all.

    The file holds every entry of the module's ``state_dict()``, the objective's variables and constants included. Its
    metadata: ``fedlit``, ``model``, ``config`` (the run's YAML), and as JSON ``round``, ``classes``, ``learned`` (one
    truth value a class) and, where the images are fedlit's, ``image_size``, ``channels`` (of the decoded pictures),
    ``resize``, ``in_chans``, ``mean`` and ``std``; ``client`` where it is a client's own model.

    The federation's model (``client`` None) needs the server's part of the checkpoint alone. The configuration is read
    in the run's directory.

    Raises:
        ConfigError: ``file`` is a folder.
    """
    if file.is_dir():
        raise ConfigError(f"--output: expected a file such as {file / 'model.safetensors'}, found the folder {file}")
    module, learned = session.model(checkpoint.server, client, checkpoint.clients.get(client)), session.learned(client)
    described = {"round": checkpoint.round, "classes": session.classes}
    described |= {"learned": [name in learned for name in session.classes]} | described_images(session.data)
    save_model(module, (run / "config.yaml").read_text(), client, described, file)


def save_model(
    module: LightningModule, config: str, client: str | None, described: Mapping[str, Any], file: Path
) -> None:
    """Write a model to a file, whole or not at all.

    Args:
        module: With the weights that are written.
        config: A configuration as YAML, of which ``model`` and ``fabric`` count.
        client: Whose own model it is; None for the federation's.
        described: The notes that are JSON.
        file: Where.
    """
    kind = type(module)
    texts = {"fedlit": __version__, "model": f"{kind.__module__}.{kind.__qualname__}", "config": marked(config)}
    texts |= {} if client is None else {"client": client}
    # Copies, as the parameters are views of one vector, and safetensors refuses tensors that share memory.
    contiguous = {"memory_format": torch.contiguous_format}
    tensors = {name: tensor.detach().cpu().clone(**contiguous) for name, tensor in module.state_dict().items()}
    content = save(tensors, texts | {name: json.dumps(value) for name, value in described.items()})
    with whole(file, durable=True) as draft:
        draft.write_bytes(content)


def described_images(data: FederatedDataModule) -> dict[str, Any]:
    """Return how images become the model's input; nothing where they are not fedlit's."""
    images = next(iter(data.clients.values())).train
    if not isinstance(images, LabelledImages):
        return {}
    described = {"image_size": images.store.shape[-1], "channels": images.store.shape[1]}
    described |= {"resize": getattr(data, "resize", "squeeze")}
    return described | {name: getattr(images, name) for name in ("in_chans", "mean", "std")}


def _shown(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(names[:12]) + more
