"""Configurations of strangers: which code they name, without importing it."""

import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
"""A string by which code can be imported."""

WORD = re.compile(r"[\w.+-]*")
"""A string that is no JSON, no YAML and no path to another folder: in the place of an object, these would be read as one."""


def foreign(value: object, known: Sequence[str]) -> list[str]:
    """Return the code that a configuration names and that is not known, each once.

    Args:
        value: The configuration: mappings, lists and values.
        known: Modules whose code is known, and all within them, such as ``torch.optim``.
    """
    within = tuple(f"{module}." for module in known)
    return list(dict.fromkeys(_foreign(value, within)))


def _foreign(value: object, known: tuple[str, ...], key: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _foreign(part, known, str(name))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _foreign(part, known)
    elif isinstance(value, str) and not _harmless(value, known, key):
        yield value


def _harmless(text: str, known: tuple[str, ...], key: str) -> bool:
    """Tell whether a string is the path of a known class, or no path, no file and no text of an object at all."""
    if PATH.fullmatch(text) and text.startswith(known):
        return True
    return key != "class_path" and bool(WORD.fullmatch(text)) and not Path(text).exists() and not _is_module(text)


def _is_module(path: str) -> bool:
    if not PATH.fullmatch(path):
        return False
    try:
        return importlib.util.find_spec(path.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
