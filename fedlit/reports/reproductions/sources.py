"""Data sets below ``--root``: their folders, labels without images, and the decoded images of some rows."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedlit import data
from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.data.phantom.hospitals import Hospital
from fedlit.data.pictures.decoding import decode_images
from fedlit.data.xrays.base import ChestXrays

HOLDS = {
    "CIFAR10": ("cifar-10-batches-py", "train-*.parquet"),
    "CIFAR100": ("cifar-100-python", "train-*.parquet"),
    "STL10": ("stl10_binary",),
    "FashionMNIST": ("FashionMNIST/raw",),
    "ImageNet": ("train/n*",),
    "CATvsDOG": ("train/cat.*.jpg", "PetImages/Cat"),
    "Melanoma": ("ISIC_2020_Training_GroundTruth*.csv", "jpeg/train"),
    "FedHeartDisease": ("processed.cleveland.data",),
    "FedISIC2019": ("train_test_split",),
}
"""Patterns, one of which the folder of a data set matches. Readers of chest X-rays recognise their folders."""


@dataclass(frozen=True)
class Source:
    """A data set."""

    name: str  # Name in the federation.
    labels: np.ndarray  # Labels [N, C] in {0, 1, NaN}.
    classes: tuple[str, ...]  # Names of the C classes.
    pictures: Callable[[np.ndarray], Tensor]  # Decoded images of some rows, uint8 [n, 1, H, W].
    notes: tuple[str, ...] = ()  # Sentences about images that the reader left out.


def organisations(config: Path) -> dict[str, Any]:
    """Return the arguments of the data module in the configuration of a federation of organisations.

    Raises:
        ConfigError: Its data have no sources.
    """
    data_module = documents.load_mapping(config).get("data")
    arguments = data_module.get("init_args") if isinstance(data_module, dict) else None
    if not isinstance(arguments, dict) or not isinstance(arguments.get("sources"), dict):
        raise ConfigError(f"{config}: data: expected Organisations with sources, found others; name another config")
    return arguments


def sources_there(config: Path, folders: Mapping[str, Mapping[str, str]], root: Path | None) -> Iterator[Source]:
    """Yield the data sets of a configuration that lie below ``root``, or the built-in ones; external ones are last.

    ``folders`` has for each data set the arguments of its reader that are paths, relative to ``root``.

    Raises:
        ConfigError: None of them exists, or the configuration has no sources.
    """
    keys, any_there = organisations(config), root is None
    for name, written in (keys["sources"] | keys.get("external", {})).items():
        arguments = written.get("init_args", {})
        if root is None:
            settings = arguments | {"hospitals": [Hospital(**each) for each in arguments["hospitals"]]}
            records = data.PhantomCXR(**settings, image_size=keys["image_size"]).records()
            yield Source(name, records.labels, records.classes, records.store.__getitem__)
            continue
        paths = {key: root / path for key, path in folders.get(name, {}).items()}
        if paths and all(path.exists() for path in paths.values()):
            any_there = True
            yield _read(name, getattr(data, written["class_path"])(**arguments | paths), keys["image_size"])
    if not any_there:
        wanted = ", ".join(f"{name} in {' and '.join(paths.values())}" for name, paths in folders.items())
        raise ConfigError(f"--root {root}: expected one or more of {wanted}, found none")


def _read(name: str, reader: ChestXrays, image_size: int) -> Source:
    reading = reader.read_within()
    records = reader.described(reading, reading.files)

    def pictures(rows: np.ndarray) -> Tensor:
        files = [reading.files[row] for row in rows]
        return decode_images(files, image_size, depth=reader.depth)[range(len(files))]

    return Source(name, records.labels, records.classes, pictures, tuple(reading.notes))


def found_below(root: Path, path: str, config: Mapping[str, Any], key: str) -> Path:
    """Return the folder of a data set: ``root/path``, or else the only one that holds it among the root's folders.

    The folder is the value of a key of ``data`` in the configuration, such as ``root`` or ``sources.NIH.root``.

    Raises:
        ConfigError: Several folders hold the data set.
    """
    named, name = root / path, _class_of(config, key)
    holds = _holds(name)
    if not root.is_dir() or holds is None or (named.is_dir() and holds(named)):
        return named
    folders = [folder for folder in (root, *sorted(root.iterdir())) if folder.is_dir() and holds(folder)]
    if len(folders) > 1:
        listed = ", ".join(map(str, folders))
        raise ConfigError(f"--root {root}: expected one folder with {name}, found {listed}; name one of them")
    return folders[0] if folders else named


def _class_of(config: Mapping[str, Any], key: str) -> str:
    """Return the name of the class of the data, or of the source, that has the key."""
    section = config.get("data") or {}
    for name in key.split(".")[:-1]:
        section = (section.get("init_args", section) or {}).get(name) or {}
    return str(section.get("class_path", "")).rpartition(".")[2] if isinstance(section, Mapping) else ""


def _holds(name: str) -> Callable[[Path], bool] | None:
    if patterns := HOLDS.get(name):
        return lambda folder: any(any(folder.glob(pattern)) for pattern in patterns)
    return getattr(getattr(data, name, None), "recognises", None)
