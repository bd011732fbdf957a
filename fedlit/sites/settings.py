"""A site's own file, ``fedlit-site.yaml``: its data, where its state lives, and its rules. No job writes it."""

import re
from argparse import ArgumentError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.data.federated import FederatedDataModule
from fedlit.experiment.choices import shipped
from fedlit.experiment.mistakes import Sources, explain
from fedlit.experiment.parser import Parser
from fedlit.sites.policy import Policy

SHARE = re.compile(r"([1-9]\d*) of ([1-9]\d*)")


@dataclass
class SiteSettings:
    """Say what a site is: its name, its data, its folder of states, and its policy.

    Args:
        name: Name of the site, different from those of all others.
        data: Any data of fedlit. Its clients are the site's; most have one.
        state: Folder of what the site keeps between rounds. It needs a backup as other work does.
        share: Which of the clients of ``data`` are the site's, such as ``2 of 3``: the second of each three, in their
            order. By default all. It is for several sites that try a federation on one machine with one data set.
        state_days: Days after which the states of a run that has written none are removed, when the site starts. By default
            they stay.
        accelerator: Device to train on: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        policy: What the site allows.

    Raises:
        ConfigError: The name is empty, or the share none.
    """

    name: str
    data: FederatedDataModule
    state: str
    share: str | None = None
    state_days: float | None = None
    accelerator: str = "auto"
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError("name: expected the name of the site, found an empty one")
        if self.state_days is not None and not self.state_days > 0:
            raise ConfigError(f"state_days: expected a number of days above 0, or null, found {self.state_days}")
        found = SHARE.fullmatch(self.share or "1 of 1")
        if found is None or int(found[1]) > int(found[2]):
            raise ConfigError(f"share: expected such as 2 of 3, found {self.share!r}")
        self.position, self.sites = int(found[1]) - 1, int(found[2])

    @property
    def folder(self) -> Path:
        """The folder of states."""
        return Path(self.state)

    def own(self, names: list[str]) -> list[str]:
        """Choose the site's clients among those of its data, in their order."""
        return names[self.position :: self.sites]


def read_settings(file: Path) -> SiteSettings:
    """Read the file of a site.

    Raises:
        ConfigError: It cannot be read, or what it says cannot work; names the file and the key.
    """
    try:
        return settings_of(documents.load(file))
    except (ConfigError, ValueError, OSError) as error:
        raise ConfigError(f"{file}: {str(error).removeprefix(f'{file}: ')}") from error


def settings_of(values: Any) -> SiteSettings:
    """Make the settings of what a site's file holds.

    Raises:
        ConfigError: It cannot work; names the key.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"expected the keys of a site, found {yaml.safe_dump(values)[:60].strip()!r}")
    for axis in ("data", "partitions"):
        shipped(axis)  # a class is known by its short name once it is imported
    parser = Parser(exit_on_error=False)
    parser.add_class_arguments(SiteSettings, fail_untyped=True)
    try:
        return SiteSettings(**parser.instantiate(parser.parse_object(values)).as_dict())
    except (ArgumentError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(explain(error, Sources(()), parser.get_defaults().as_dict())) from error
