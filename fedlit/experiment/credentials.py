"""Credentials of the addresses in a configuration: no file holds them, and whoever runs it needs them."""

import json
from collections.abc import Iterator
from typing import Any

from jsonargparse import Namespace

from fedlit.tracking.addresses import MARK, completed, without_credentials

UNUSED = ("config", "tags")
"""Keys whose addresses nobody opens."""


def complete(args: Namespace) -> None:
    """Put the credentials into a configuration of an earlier run, which holds a mark in their place.

    Raises:
        ConfigError: The environment does not have them; names the key, and says what is missing.
    """
    for key, value in list(args.items()):
        if not key.startswith(UNUSED):
            args[key] = _completed(key.replace(".init_args", ""), value)


def as_words(args: Namespace) -> tuple[str, ...]:
    """Return the values that hold credentials as words of a command line, for a process that reads the rest in a file."""
    return tuple(
        f"--{key}={value if isinstance(value, str) else json.dumps(_plain(value))}"
        for key, value in args.items()
        if not key.startswith(UNUSED) and any(without_credentials(text, MARK) != text for text in _texts(value))
    )


def _completed(key: str, value: Any) -> Any:
    if isinstance(value, str):
        return completed(key, value)
    if isinstance(value, list):
        return [_completed(f"{key}.{i}", part) for i, part in enumerate(value)]
    if isinstance(value, (dict, Namespace)):
        for name, part in list(value.items()):
            value[name] = _completed(f"{key}.{name}".replace(".init_args", ""), part)
    return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    parts = value if isinstance(value, list) else dict(value.items()).values() if hasattr(value, "items") else ()
    for part in parts:
        yield from _texts(part)


def _plain(value: Any) -> Any:
    if isinstance(value, Namespace):
        return _plain(value.as_dict())
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return {name: _plain(part) for name, part in value.items()} if isinstance(value, dict) else value
