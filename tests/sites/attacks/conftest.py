"""A site with the file that ``fedlit site init`` writes, and a server that attacks it."""

from collections.abc import Callable

import pytest
from attacker import AttackerHere, a_plan, model_of, write_site

from fedlit.sites.envelope import Envelope
from fedlit.sites.messages import REPLY, End
from fedlit.sites.policy import digest


@pytest.fixture(scope="module")
def attacked(tmp_path_factory) -> AttackerHere:
    """One site for all attacks of a file: it has to survive each of them."""
    return AttackerHere(write_site(tmp_path_factory.mktemp("attacked") / "north", rounds=None))


@pytest.fixture
def approving(attack) -> Callable[..., AttackerHere]:
    """A function that starts a site which has approved one plan, with its first weights, and has prepared it."""

    def start(**changes) -> AttackerHere:
        plan = a_plan(**changes)
        plan["weights"] = Envelope.of("prepare", End(""), model_of(plan)[1]).digest
        server = attack(configs=[digest(plan)])
        assert server.prepare(plan).verb == REPLY
        return server

    return start
