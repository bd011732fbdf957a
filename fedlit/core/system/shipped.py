"""The configurations that come with fedlit, which a command finds from any folder, and those that patch another."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parents[2]

CONFIGS = _PACKAGE / "configs" if (_PACKAGE / "configs").is_dir() else _PACKAGE.parent / "configs"
"""The folder ``configs``: in the package if it was installed from a wheel, else in the source tree."""


def placed(name: str, folder: str = "") -> str:
    """Return the path of a file of a folder, or of the one of fedlit with that name if the folder has none."""
    local, shipped = str(Path(folder, name)) if folder else name, str(CONFIGS / name.removeprefix("configs/"))
    # These two answer a text of YAML, which is no name of a file and may be too long for one, with False.
    return shipped if not os.path.exists(local) and os.path.isfile(shipped) else local


def with_shipped(argv: Sequence[str]) -> list[str]:
    """Return a command line in which ``--config`` names files that exist.

    A local file wins over one of fedlit's, whose name may begin with ``configs/`` as in the source tree.
    """
    return list(_found(argv))


def _found(argv: Sequence[str]) -> Iterator[str]:
    before = ""
    for word in argv:
        flag, equals, value = word.partition("=")
        if before in ("-c", "--config"):
            yield placed(word)
        elif equals and flag in ("-c", "--config"):
            yield f"{flag}={placed(value)}"
        else:
            yield word
        before = word


def patched(base: Any, patch: Any) -> Any:
    """Return a base with a patch: mappings are merged key by key, anything else is replaced. None removes a key.

    If the base does not have the key, None remains.
    """
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return patch
    merged = dict(base)
    for key, value in patch.items():
        if value is None and key in base:
            del merged[key]
        else:
            merged[key] = patched(base.get(key), value)
    return merged
