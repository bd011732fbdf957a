"""Toys that are not probed: tests in `tests/federation` hold what a run finds out about a module before it trains."""

from collections.abc import Iterator

import pytest

from fedlit.federation.examinations.probe import Behaviour


@pytest.fixture(scope="module", autouse=True)
def _unprobed_toys() -> Iterator[None]:
    """Leave out the ten steps on copies of the module, which were a fifth of a short run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Behaviour, "problem", lambda self, trial: "")
        yield
