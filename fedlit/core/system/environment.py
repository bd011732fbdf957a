"""Values from the environment: ``${env:NAME}`` in a configuration, which no file contains in its place."""

import os
import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from fedlit.core.errors import ConfigError

REFERENCE = re.compile(r"\$\{env:([^}\s]*)\}?")
"""A value, or a part of one, that the environment holds."""

SHORTEST = 4
"""Least number of characters of a value that is hidden; shorter ones are parts of other words."""

_used: dict[str, str] = {}  # the references by the values that they stood for


def from_environment(key: str, text: str) -> str:
    """Return the text of a key with what the environment holds in place of references.

    Raises:
        ConfigError: A variable is not set; names the key.
    """
    return REFERENCE.sub(lambda match: _held(match, key), text)


def resolve(value: Any, key: str = "", text: Callable[[str, str], str] = from_environment) -> Any:
    """Return a copy of a value with ``text(KEY, TEXT)`` in place of every text in it; raises like `text`."""
    if isinstance(value, str):
        return text(key, value)
    if isinstance(value, PurePath):
        return type(value)(text(key, str(value)))
    if isinstance(value, list | tuple):
        return type(value)(resolve(part, f"{key}.{number}", text) for number, part in enumerate(value))
    if isinstance(value, Namespace | dict):
        parts = vars(value) if isinstance(value, Namespace) else value
        below = {name: f"{key}.{name}".removeprefix(".").replace(".init_args", "") for name in parts}
        new = {name: resolve(part, below[name], text) for name, part in parts.items()}
        return type(value)(**new) if isinstance(value, Namespace) else new
    return value


def hide(text: str) -> str:
    """Return a text with the references in place of the values that they stood for."""
    for value in sorted(_used, key=len, reverse=True):
        text = text.replace(value, _used[value])
    return text


def _held(match: re.Match[str], key: str) -> str:
    """Return what the environment holds for a reference."""
    reference, name = match.group(0, 1)
    if not reference.endswith("}") or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ConfigError(f"{key}: expected ${{env:NAME}} with the name of an environment variable, found {reference}")
    if not (value := os.environ.get(name)):
        raise ConfigError(
            f"{key}: expected a value in the environment variable {name}, found none; set it before the command: "
            f"export {name}=..."
        )
    if len(value) >= SHORTEST:
        _used[value] = reference
    return value
