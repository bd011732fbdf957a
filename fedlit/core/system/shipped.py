"""The folder of the configurations that come with fedlit."""

from pathlib import Path

_PACKAGE = Path(__file__).parents[2]

CONFIGS = _PACKAGE / "configs" if (_PACKAGE / "configs").is_dir() else _PACKAGE.parent / "configs"
"""The folder ``configs``: in the package if it was installed from a wheel, else in the source tree."""
