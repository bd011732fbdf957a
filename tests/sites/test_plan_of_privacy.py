"""A site refuses private steps, because their noise would follow from a seed that the server knows."""

from attacker import a_plan
from refusals import refused

from fedlit.core.errors import ConfigError
from fedlit.sites.plan import read_plan, table_of

PRIVATE = {"class_path": "DPSGD", "init_args": {"clip": 1.0, "delta": 1e-5, "noise": 1.0}}


def test_a_site_refuses_a_plan_with_private_steps():
    read_plan(a_plan(), table_of())
    with refused(ConfigError, "DPSGD", "--sites"):
        read_plan(a_plan() | {"aggregators": [PRIVATE]}, table_of())
