"""A site with the file that ``fedlit site init`` writes, and a server that attacks it."""

import pytest
from attacker import AttackerHere, write_site


@pytest.fixture(scope="module")
def attacked(tmp_path_factory) -> AttackerHere:
    """One site for all attacks of a file: it has to survive each of them."""
    return AttackerHere(write_site(tmp_path_factory.mktemp("attacked") / "north", rounds=None))
