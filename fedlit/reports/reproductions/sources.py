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
