"""The metadata (notes) of an exported file: read, checked, and turned into a model of known code only."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.optim import Optimizer

from fedlit.core.errors import ConfigError
from fedlit.core.ranges import NonNegativeInt, Within
from fedlit.core.system import documents
from fedlit.core.system.typed import Mistyped, Table, built, class_paths

PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
"""Pattern of the path of a class."""

AGAIN = "export the model again"

PLAIN = ("fedlit", "model", "config", "client")
"""Names of the notes that are plain text; the others are JSON."""

KINDS: dict[str, Any] = {
    "round": NonNegativeInt,
    "classes": list[str],
    "learned": list[bool],
    "exclusive": bool,
    "image_size": Annotated[int, Within("[8, 16384]")],
    "channels": Literal[1, 3],
    "resize": Literal["squeeze", "pad"],
    "in_chans": Annotated[int, Within("[1, 64]")],
    "mean": list[Annotated[float, Within("(-1e6, 1e6)")]],
    "std": list[Annotated[float, Within("(0, 1e6)")]],
}
"""Expected type and range of each note."""

OPTIONAL = ("round", "exclusive", "resize", "image_size", "channels", "in_chans", "mean", "std")

TOGETHER = ("image_size", "channels", "in_chans", "mean", "std")
"""Notes of a model of images, which has all of them."""

ELSEWHERE = {"pretrained": False, "weights": None}
"""Arguments that start an `ImageClassifier` without other weights, because its weights are in the file."""


def read_notes(file: Path, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the notes of a file, JSON decoded.

    Raises:
        ConfigError: A note is missing or has an unexpected value.
    """
    notes: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            notes[name] = text if name in PLAIN else documents.parse_json(text)
        except ValueError as error:
            raise ConfigError(f"{file}: note {name!r}: expected JSON, found other text ({error}); {AGAIN}") from error
    for name, kind in KINDS.items():
        if name in notes or name not in OPTIONAL:
            notes[name] = _note(file, name, kind, notes)
    if len({*notes["classes"]}) < len(notes["classes"]):
        raise ConfigError(f"{file}: 'classes': expected different names, found {notes['classes']}; {AGAIN}")
    here, missing = ([name for name in TOGETHER if (name in notes) is present] for present in (True, False))
    if here and missing:
        raise ConfigError(f"{file}: expected {missing[0]!r} with {here[0]!r}, found only the latter; {AGAIN}")
    channels = notes.get("in_chans")
    for name, like in (("learned", len(notes["classes"])), ("mean", channels), ("std", channels)):
        if name in notes and len(notes[name]) != like:
            raise ConfigError(f"{file}: {name!r}: expected {like} values, found {len(notes[name])}; {AGAIN}")
    return notes


def _note(file: Path, name: str, kind: Any, notes: Mapping[str, Any]) -> Any:
    if name not in notes:
        raise ConfigError(f"{file}: {name!r}: expected this note, found nothing; {AGAIN}")
    try:
        return built(kind, notes[name], repr(name))
    except Mistyped as error:
        raise ConfigError(f"{file}: {error}; {AGAIN}") from error


def recipe(file: Path, notes: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the configuration of a file's model, and its precision.

    Raises:
        ConfigError: The note ``config`` is not a configuration of a run.
    """
    try:
        config = documents.parse(notes["config"])
    except documents.DocumentError as error:
        raise ConfigError(f"{file}: note 'config': {error}; {AGAIN}") from error
    model = config.get("model") if isinstance(config, dict) else None
    fabric = config.get("fabric") if isinstance(config, dict) else None
    named = isinstance(model, dict) and isinstance(model.get("class_path"), str) and PATH.fullmatch(model["class_path"])
    if not named or not isinstance(model.get("init_args") or {}, dict) or not isinstance(fabric, dict):
        raise ConfigError(
            f"{file}: note 'config': expected model.class_path and fabric, found one or none of them; {AGAIN}"
        )
    return model, fabric.get("precision", "32-true")


def without_start(cls: type, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's configuration without other weights to start from, because its weights are in the file."""
    from fedlit.models import ImageClassifier  # imports timm, which the user's own models may not need

    options = dict(model.get("init_args") or {})
    if issubclass(cls, ImageClassifier):
        options |= {key: value for key, value in ELSEWHERE.items() if key in options}
    return {**model, "init_args": options}


def known_module(file: Path, model: Mapping[str, Any], classes: Sequence[str]) -> LightningModule:
    """Make a model only of classes of fedlit, torch.nn and torch.optim; nothing that the file names is imported.

    Raises:
        ConfigError: The configuration names another class, or an argument has another type than its class takes.
    """
    advice = (
        "With --trust, fedlit runs the code that the file names: add it only if you trust the author of the file (if "
        "MLflow loads the model, set the environment variable FEDLIT_TRUST=1)"
    )
    if foreign := foreign_code(model):
        raise ConfigError(
            f"{file}: expected classes of fedlit, torch.nn and torch.optim only, found {', '.join(foreign)}. {advice}"
        )
    try:
        model = without_start(known_classes().get(model["class_path"], LightningModule, "model: "), model)
        model["init_args"]["classes"] = list(classes)
        with torch.random.fork_rng(devices=[]):
            return built(LightningModule, model, "model", known_classes())
    except Mistyped as error:
        raise ConfigError(f"{file}: {error}. {advice}") from error


def foreign_code(model: Mapping[str, Any]) -> list[str]:
    """Return the classes in a model's configuration that are not known, each once, without importing them."""
    return [path for path in class_paths(model) if path not in known_classes().classes]


@cache
def known_classes() -> Table:
    """Return the classes that the file of a model may name without being trusted."""
    from fedlit import models, objectives  # imports timm

    table = {}
    for home in (models, objectives, nn, torch.optim):
        for name, cls in vars(home).items():
            if isinstance(cls, type) and issubclass(cls, (nn.Module, Optimizer)):
                table |= dict.fromkeys((f"{home.__name__}.{name}", f"{cls.__module__}.{cls.__qualname__}"), cls)
    return Table(table, (Optimizer, LightningModule, nn.Module))
