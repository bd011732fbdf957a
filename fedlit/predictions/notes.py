"""The metadata (notes) of an exported file: read, checked, and turned into a model of known code only."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.optim import Optimizer

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.core.system.argument_types import fits
from fedlit.core.system.typed import Mistyped, Table, built, class_paths

PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
"""Pattern of the path of a class."""

AGAIN = "export the model again"

PLAIN = ("fedlit", "model", "config", "client")
"""Names of the notes that are plain text; the others are JSON."""

KINDS: dict[str, tuple[str, Any]] = {
    "round": ("a number of rounds of at least 0", lambda value, _: fits(value, int) and value >= 0),
    "classes": ("a list of different names", lambda value, _: fits(value, list[str]) and len({*value}) == len(value)),
    "learned": (
        "a list with true or false for each class",
        lambda value, notes: fits(value, list[bool]) and len(value) == len(notes["classes"]),
    ),
    "exclusive": ("true or false", lambda value, _: fits(value, bool)),
    "image_size": ("a number of pixels from 8 to 16384", lambda value, _: fits(value, int) and 8 <= value <= 16384),
    "channels": ("1 or 3", lambda value, _: value in (1, 3)),
    "resize": ("squeeze or pad", lambda value, _: value in ("squeeze", "pad")),
    "in_chans": ("a number of channels", lambda value, _: fits(value, int) and 1 <= value <= 64),
    "mean": ("a number for each channel", lambda value, _: _numbers(value)),
    "std": ("a number above 0 for each channel", lambda value, _: _numbers(value) and min(value) > 0),
}
"""Expected content of each note, as text and as a test of the value and all notes."""

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
    for name in ("classes", *KINDS):
        _check_note(file, name, notes)
    here, missing = ([name for name in TOGETHER if (name in notes) is present] for present in (True, False))
    if here and missing:
        raise ConfigError(f"{file}: expected {missing[0]!r} with {here[0]!r}, found only the latter; {AGAIN}")
    for name in ("mean", "std"):
        if name in notes and len(notes[name]) != notes["in_chans"]:
            raise ConfigError(
                f"{file}: note {name!r}: expected {notes['in_chans']} numbers (in_chans), found "
                f"{len(notes[name])}; {AGAIN}"
            )
    return notes


def _check_note(file: Path, name: str, notes: Mapping[str, Any]) -> None:
    expected, fits = KINDS[name]
    if name not in notes or not fits(notes[name], notes):
        found = json.dumps(notes[name])[:80] if name in notes else "nothing"
        if name in notes or name not in OPTIONAL:
            raise ConfigError(f"{file}: {name!r}: expected {expected}, found {found}; {AGAIN}")


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
        model = without_start(known_classes().get(model["class_path"], LightningModule, "model"), model)
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


def _numbers(value: object) -> bool:
    return fits(value, list[float]) and len(value) > 0 and all(abs(each) < 1e6 for each in value)
