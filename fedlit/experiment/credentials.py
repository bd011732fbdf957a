"""Credentials in the addresses of a configuration, which no file contains."""

import json
from typing import Any

from jsonargparse import Namespace

from fedlit.tracking.addresses import MARK, completed, without_credentials

UNUSED = ("config", "tags")
"""Keys whose addresses are not opened."""


def complete(args: Namespace) -> None:
    """Put credentials from the environment into the configuration of an earlier run, which has marks instead.

    Raises:
        ConfigError: The environment lacks them; names the key and the variables.
    """
    for key, value in list(args.items()):
        if not key.startswith(UNUSED):
            args[key] = _completed(key.replace(".init_args", ""), value)


def as_words(args: Namespace) -> tuple[str, ...]:
    """Return the values with credentials as options of a command line, which accompany a file with the others."""
    values = {key: value for key, value in args.items() if not key.startswith(UNUSED)}
    texts = {k: v if isinstance(v, str) else json.dumps(v, default=_as_json) for k, v in values.items()}
    return tuple(f"--{key}={text}" for key, text in texts.items() if without_credentials(text, MARK) != text)


def _completed(key: str, value: Any) -> Any:
    if isinstance(value, str):
        return completed(key, value)
    if isinstance(value, list):
        return [_completed(f"{key}.{i}", part) for i, part in enumerate(value)]
    if isinstance(value, (dict, Namespace)):
        for name, part in list(value.items()):
            value[name] = _completed(f"{key}.{name}".replace(".init_args", ""), part)
    return value


def _as_json(value: Any) -> Any:
    return value.as_dict() if isinstance(value, Namespace) else str(value)
