"""Processes that do not run the script which started them."""

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import spawn


@contextmanager
def without_main() -> Iterator[None]:
    """Start processes that do not import the script or notebook which this one runs.

    A script would begin to train a second time, unless a guard keeps it from it.
    """
    tell = spawn.get_preparation_data

    def without(name: str) -> dict:
        return {key: value for key, value in tell(name).items() if not key.startswith("init_main")}

    spawn.get_preparation_data = without
    try:
        yield
    finally:
        spawn.get_preparation_data = tell
