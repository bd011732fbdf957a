"""The YAML files of sweeps and tunings."""

import copy
from argparse import ArgumentError
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from fedlit.core.errors import ConfigError, key_of
from fedlit.core.system import documents
from fedlit.experiment.grid import Sweep
from fedlit.experiment.mistakes import Sources, explain
from fedlit.experiment.parser import Parser

T = TypeVar("T")


def load_sweep(path: str | Path) -> Sweep:
    """Read a sweep's YAML.

    Raises:
        ConfigError: The file cannot be read, a key is unknown, or a value has another type; names the place.
    """
    return load_planned(Path(path), Sweep, "sweep", ("set", "cases", "grid"), {"file", "starts", "points", "tags"})


def load_planned(path: Path, kind: type[T], command: str, sections: Sequence[str], skip: set[str]) -> T:
    """Read the YAML of a command that plans many runs.

    Args:
        path: The file.
        kind: Dataclass of its keys, which has ``config``, files relative to this one, and ``file``.
        command: Name of the command, for messages.
        sections: Keys whose values stay as in the file, because they contain keys of `fedlit fit`.
        skip: Fields that are not keys of the file.

    Raises:
        ConfigError: The file cannot be read, a key is unknown, or a value has another type; names the place.
    """
    sources = Sources((command, "--config", str(path)))
    parser = Parser(exit_on_error=False)
    parser.add_class_arguments(kind, skip=skip)
    try:
        content = documents.load_mapping(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", key="sweep-file-unreadable") from error
    try:
        # Values stay as in the file, because the parser adds arguments to classes of other libraries.
        untouched = {key: content[key] for key in sections if content.get(key)}
        keys = vars(parser.instantiate(parser.parse_object(copy.deepcopy(content)))) | untouched
        files = [str(path.parent / name) for name in keys["config"]]
        return kind(**keys | {"config": files, "file": path})
    except ArgumentError as error:
        options = [name for key in parser.get_defaults().keys(branches=True) for name in (key, key.rpartition(".")[2])]
        raise ConfigError(
            f"{path}: {explain(error, sources, options)}", key=key_of(error, "sweep-file-invalid")
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", key=error.key) from error
