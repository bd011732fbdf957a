"""Puts ``configs/`` into the wheel, as the folder ``fedlit/configs``; all else is in ``pyproject.toml``."""

from pathlib import Path
from shutil import copytree, ignore_patterns

from setuptools import setup
from setuptools.command.build_py import build_py


class WithConfigs(build_py):
    """Copies the configurations beside the package; an editable install finds them in the source tree."""

    def run(self) -> None:
        """Build the package, and copy the folder."""
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib) / "fedlit/configs"
            copytree("configs", folder, dirs_exist_ok=True, ignore=ignore_patterns("__pycache__"))


setup(cmdclass={"build_py": WithConfigs})
