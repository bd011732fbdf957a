"""Export of a model to one .safetensors file: its state dict, with metadata for loading it."""

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
from fedlit.core.system import documents
from fedlit.core.system.files import whole
from fedlit.data.federated import FederatedDataModule
from fedlit.data.pictures.images import LabelledImages
from fedlit.federation.session import Session
from fedlit.tracking.run import config_difference, read_config


def check_described(run: Path, config: str) -> None:
    """Check that a configuration describes a run's model; it may name other folders of data.

    Raises:
        CheckpointError: It differs in more than a resume may change; lists the differences.
    """
    differences = [row for row in config_difference(run, config) if not row.partition(": ")[0].endswith("root")]
    if differences:
        rows = "\n".join(f"  {row}" for row in differences)
        raise CheckpointError(
            f"{run} was trained with another configuration, which may have another model:\n{rows}\n"
            f"Use --config {run / 'config.yaml'}"
        )


def owner(session: Session, client: str | None) -> str | None:
    """Return the client whose own model is exported, or None for the federation's model.

    Raises:
        ConfigError: There is no such client, or clients keep a part of the model and ``client`` is None.
    """
    if client is not None and client not in session.clients:
        near = get_close_matches(client, session.clients, n=3, cutoff=0.5)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise ConfigError(f"--client: no client {client!r}; {meant}clients are {_shown(session.clients)}")
    if not session.personal:
        return None
    if client is None:
        kept_by = kept_parts(session)
        reasons = "; ".join(f"{name} keeps {' and '.join(parts)} at the clients" for name, parts in kept_by.items())
        keeping = [a for a in session.federation.aggregators if type(a).__name__ in kept_by]
        others = dict.fromkeys(a.one_model for a in keeping if a.one_model)
        instead = f", and federations with {' and '.join(others)} instead have one model" if others else ""
        raise ConfigError(
            f"there is no single global model to export: {reasons}. --client NAME exports a client's own "
            f"model{instead}; clients are {_shown(session.clients)}"
        )
    return client


def kept_parts(session: Session) -> dict[str, list[str]]:
    """Return the parts of the model that clients keep (``body``, ..., ``statistics``), by aggregator."""
    layout = session.layout
    filled = {segment.group for segment in layout.segments} | ({layout.stats_group} if layout.stats_size else set())
    parts = {name: filled.intersection(layout.groups((name,))) for name in SLICES}
    parts["statistics"] = filled.intersection([layout.stats_group])
    kept_by = {}
    for aggregator in session.federation.aggregators:
        if aggregator.implements("personalise"):
            kept_by[type(aggregator).__name__] = ["a personal model"]
            continue
        masks = [aggregator.scope(layout, client) for client in session.clients.values()]
        private_parts = {name for name, groups in parts.items() if any(m.kept[list(groups)].any() for m in masks)}
        if private_parts:
            kept_by[type(aggregator).__name__] = [name for name in parts if name in private_parts]
    return kept_by


def export(session: Session, checkpoint: Contents, run: Path, client: str | None, file: Path) -> None:
    """Write the federation's model in a checkpoint (``client`` None), or a client's own model, to ``file`` atomically.

    The file contains every entry of the module's ``state_dict()``, including the objective's variables and constants.
    Its metadata are ``fedlit``, ``model``, ``config`` (the YAML in the run's directory), ``client`` (of a client's own
    model), and as JSON ``round``, ``classes``, ``learned`` (one bool per class) and ``exclusive`` (whether classes
    exclude each other). If fedlit decodes the images, there are also ``image_size``, ``channels`` (of the decoded
    images), ``resize``, ``in_chans``, ``mean`` and ``std``.

    The federation's model needs only the server's part of the checkpoint.

    Raises:
        ConfigError: ``file`` is a folder.
    """
    if file.is_dir():
        raise ConfigError(f"--output: expected a file such as {file / 'model.safetensors'}, found the folder {file}")
    module, learned = session.model(checkpoint.server, client, checkpoint.clients.get(client)), session.learned(client)
    described = {"round": checkpoint.round, "classes": session.classes}
    described |= {"learned": [name in learned for name in session.classes], "exclusive": session.exclusive}
    described |= described_images(session.data)
    save_model(module, documents.dump(read_config(run)), client, described, file)


def save_model(
    module: LightningModule, config: str, client: str | None, described: Mapping[str, Any], file: Path
) -> None:
    """Write the federation's model (``client`` None) or a client's to a file atomically, with notes as JSON.

    Of the configuration, which is YAML, only ``model`` and ``fabric`` are used.
    """
    kind = type(module)
    texts = {"fedlit": __version__, "model": f"{kind.__module__}.{kind.__qualname__}", "config": config}
    texts |= {} if client is None else {"client": client}
    # Copies: the parameters are views of one vector, and safetensors refuses tensors that share memory.
    contiguous = {"memory_format": torch.contiguous_format}
    tensors = {name: tensor.detach().cpu().clone(**contiguous) for name, tensor in module.state_dict().items()}
    content = save(tensors, texts | {name: json.dumps(value) for name, value in described.items()})
    with whole(file, durable=True) as draft:
        draft.write_bytes(content)


def described_images(data: FederatedDataModule) -> dict[str, Any]:
    """Return how images become the model's input, or no notes if fedlit does not decode them."""
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
