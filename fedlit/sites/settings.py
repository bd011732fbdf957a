"""A site's own file, ``fedlit-site.yaml``: its data, its folder of states, and its rules. No job changes it."""

import re
from argparse import ArgumentError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.core.system.argument_types import checked
from fedlit.core.system.environment import resolve
from fedlit.data.federated import FederatedDataModule
from fedlit.experiment.choices import shipped
from fedlit.experiment.mistakes import Sources, explain
from fedlit.experiment.parser import Parser
from fedlit.sites.policy import Policy

SHARE = re.compile(r"([1-9]\d*) of ([1-9]\d*)")


@checked
@dataclass
class SiteSettings:
    """Settings of a site: its name, its data, its folder of states, and its policy.

    Args:
        name: Name of the site, different from those of all others.
        data: Any data of fedlit. Its clients are the site's; most have one.
        state: Folder of what the site keeps between rounds. Back it up.
        share: Which of the clients of ``data`` belong to the site, such as ``2 of 3``: the second of every three, in
            their order. By default all. Use it for several sites that try a federation on one machine with one data
            set.
        accelerator: Device to train on: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        policy: What the site allows.

    Raises:
        ConfigError: If a value is not valid.
    """

    name: str
    data: FederatedDataModule
    state: str
    share: str | None = None
    accelerator: str = "auto"
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError("name: expected the name of the site, found an empty one")
        match = SHARE.fullmatch(self.share or "1 of 1")
        if match is None or int(match[1]) > int(match[2]):
            raise ConfigError(f"share: expected a share such as 2 of 3, found {self.share!r}")
        self.position, self.sites = int(match[1]) - 1, int(match[2])

    @property
    def folder(self) -> Path:
        """The folder of states, as a path."""
        return Path(self.state)


def read_settings(file: Path) -> SiteSettings:
    """Read the file of a site.

    Raises:
        ConfigError: If it cannot be read or a value is not valid; names the file and the key.
    """
    try:
        return settings_of(resolve(documents.load(file)))
    except (ConfigError, ValueError, OSError) as error:
        raise ConfigError(f"{file}: {str(error).removeprefix(f'{file}: ')}") from error


def settings_of(values: Any) -> SiteSettings:
    """Make the settings from the content of a site's file.

    Raises:
        ConfigError: If a value is not valid; names the key.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"expected the keys of a site, found {yaml.safe_dump(values)[:60].strip()!r}")
    for axis in ("data", "partitions"):
        shipped(axis)  # importing the classes registers their short names
    parser = Parser(exit_on_error=False)
    parser.add_class_arguments(SiteSettings, fail_untyped=True)
    try:
        return SiteSettings(**parser.instantiate(parser.parse_object(values)).as_dict())
    except (ArgumentError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(explain(error, Sources(()), parser.get_defaults().as_dict())) from error
