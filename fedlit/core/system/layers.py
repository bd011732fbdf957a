"""Documents in layers: one that has only its differences from another."""

from typing import Any


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
