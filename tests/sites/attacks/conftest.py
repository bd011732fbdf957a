"""A site with the file that ``fedlit site init`` writes, in a process of its own, and a server that attacks it."""

from collections.abc import Callable, Iterator

import pytest
from attacker import Attacker, write_site


@pytest.fixture(scope="module")
def attacked(tmp_path_factory) -> Iterator[Attacker]:
    """One site for all attacks of a file: it has to survive each of them."""
    made = Attacker(write_site(tmp_path_factory.mktemp("attacked") / "north", rounds=None))
    yield made
    made.close()


@pytest.fixture
def attack(tmp_path) -> Iterator[Callable[..., Attacker]]:
    """Starts a site with keys of its policy changed."""
    made = []

    def start(name: str = "north", **policy) -> Attacker:
        made.append(Attacker(write_site(tmp_path / name, **policy)))
        return made[-1]

    yield start
    for each in made:
        each.close()
