"""The folders of data sets below one folder, found by what they hold."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedlit import data
from fedlit.core.errors import ConfigError

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
