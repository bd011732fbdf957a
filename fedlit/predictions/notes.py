"""What an exported file says of its model: read, checked, and made of known code alone."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import LightningModule
from torch import nn
from torch.optim import Optimizer

from fedlit.core.errors import ConfigError
from fedlit.core.system.typed import Mistyped, Table, built, class_paths

PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
"""The path of a class."""

PLAIN = ("fedlit", "model", "config", "client")
"""Notes that are text; the others are JSON."""

KINDS: dict[str, tuple[str, Any]] = {
    "round": ("a number of rounds", lambda value, _: _whole(value) and value >= 0),
    "classes": ("a list of different names", lambda value, _: _texts(value)),
    "learned": (
        "a truth value for each class",
        lambda value, notes: isinstance(value, list) and len(value) == len(notes["classes"]),
    ),
    "image_size": ("pixels, from 8 to 16384", lambda value, _: _whole(value) and 8 <= value <= 16384),
    "channels": ("1 or 3", lambda value, _: value in (1, 3)),
    "resize": ("squeeze or pad", lambda value, _: value in ("squeeze", "pad")),
    "in_chans": ("a number of channels", lambda value, _: _whole(value) and 1 <= value <= 64),
    "mean": ("a number for each channel", lambda value, _: _numbers(value)),
    "std": ("a number above 0 for each channel", lambda value, _: _numbers(value) and min(value) > 0),
}
"""What the notes must be."""

OPTIONAL = ("round", "resize", "image_size", "channels", "in_chans", "mean", "std")

TOGETHER = ("image_size", "channels", "in_chans", "mean", "std")
"""Notes that a model of images has, all of them."""

ELSEWHERE = {"pretrained": False, "weights": None}
"""Where an `ImageClassifier` would start from: its weights are in the file."""


def read_notes(file: Path, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the notes of a file, JSON decoded.

    Raises:
        ConfigError: A note is not what it must be.
    """
    notes: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            notes[name] = text if name in PLAIN else json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{file}: its note {name!r} is no JSON ({error}); export the model anew") from error
    for name in ("classes", *KINDS):
        _check_note(file, name, notes)
    here, missing = ([name for name in TOGETHER if (name in notes) is given] for given in (True, False))
    if here and missing:
        raise ConfigError(f"{file}: its notes have {here[0]!r} and lack {missing[0]!r}; export the model anew")
    for name in ("mean", "std"):
        if name in notes and len(notes[name]) != notes["in_chans"]:
            raise ConfigError(
                f"{file}: its note {name!r} has {len(notes[name])} numbers, but 'in_chans' is {notes['in_chans']}; export the "
                "model anew"
            )
    return notes


def _check_note(file: Path, name: str, notes: Mapping[str, Any]) -> None:
    expected, fits = KINDS[name]
    if name not in notes or not fits(notes[name], notes):
        found = json.dumps(notes[name])[:80] if name in notes else "nothing"
        if name in notes or name not in OPTIONAL:
            raise ConfigError(f"{file}: its note {name!r}: expected {expected}, found {found}; export the model anew")


def recipe(file: Path, notes: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return what the configuration of a file says of its model, and its precision.

    Raises:
        ConfigError: The configuration is none.
    """
    try:
        config = yaml.safe_load(notes["config"])
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: its configuration is no YAML ({error}); export the model anew") from error
    model = config.get("model") if isinstance(config, dict) else None
    fabric = config.get("fabric") if isinstance(config, dict) else None
    named = isinstance(model, dict) and isinstance(model.get("class_path"), str) and PATH.fullmatch(model["class_path"])
    if not named or not isinstance(model.get("init_args") or {}, dict) or not isinstance(fabric, dict):
        raise ConfigError(f"{file}: its configuration lacks model.class_path or fabric; export the model anew")
    return model, fabric.get("precision", "32-true")


def without_start(cls: type, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's configuration without what an `ImageClassifier` starts from: its weights are in the file."""
    from fedlit.models import ImageClassifier  # with all of timm, which a module of one's own does not need

    options = dict(model.get("init_args") or {})
    if issubclass(cls, ImageClassifier):
        options |= {key: value for key, value in ELSEWHERE.items() if key in options}
    return {**model, "init_args": options}


def known_module(file: Path, model: Mapping[str, Any], classes: Sequence[str]) -> LightningModule:
    """Make a model of classes of fedlit, torch.nn and torch.optim alone; nothing that the file names is imported.

    Raises:
        ConfigError: The configuration names another class, or an argument is not what its class takes.
    """
    advice = (
        "To load it is to run code that the file names. If you trust it, and whoever wrote the file, add --trust; where MLflow "
        "loads the model, set the environment variable FEDLIT_TRUST=1"
    )
    if foreign := foreign_code(model):
        raise ConfigError(
            f"{file}: its model is made of {', '.join(foreign)}, which fedlit, torch.nn and torch.optim do not have. {advice}"
        )
    try:
        model = without_start(known_classes().get(model["class_path"], LightningModule, "model"), model)
        model["init_args"]["classes"] = list(classes)
        with torch.random.fork_rng(devices=[]):
            return built(LightningModule, model, "model", known_classes())
    except Mistyped as error:
        raise ConfigError(f"{file}: {error}. {advice}") from error


def foreign_code(model: Mapping[str, Any]) -> list[str]:
    """Return the classes that a model's configuration names and that are not known, each once, without importing them."""
    return [path for path in class_paths(model) if path not in known_classes().classes]


@cache
def known_classes() -> Table:
    """Return the classes of which a model may be made that a file describes without being trusted."""
    from fedlit import models, objectives  # with all of timm

    table = {}
    for home in (models, objectives, nn, torch.optim):
        for name, cls in vars(home).items():
            if isinstance(cls, type) and issubclass(cls, (nn.Module, Optimizer)):
                table |= dict.fromkeys((f"{home.__name__}.{name}", f"{cls.__module__}.{cls.__qualname__}"), cls)
    return Table(table, (Optimizer, LightningModule, nn.Module))


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _numbers(value: object) -> bool:
    numbers = isinstance(value, list) and len(value) > 0 and all(isinstance(each, int | float) for each in value)
    return numbers and all(each == each and abs(each) < 1e6 for each in value)
