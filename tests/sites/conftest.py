"""Sites in the process of the test."""

import pytest
from at_sites import Sites

from fedlit.sites import joining


@pytest.fixture
def sites(monkeypatch) -> Sites:
    made = Sites()
    monkeypatch.setattr(joining, "Processes", made.transport)
    return made
