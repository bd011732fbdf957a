"""Six of the kills of `tests/benchmarks/kills.py`: each resumed run equals the uninterrupted one."""

import pytest
from kills import SETTINGS, Killing

KILLS = [
    ("pool", "group", 0.3), ("pool", "main", 0.8), ("pool", "worker", 0.5), ("ranks", "group", 0.6),
    ("ranks", "worker", 0.4), ("phases", "group", 0.25),
]  # fmt: skip


@pytest.fixture(scope="module")
def killings(tmp_path_factory) -> dict[str, Killing]:
    return {name: Killing(setting, tmp_path_factory.mktemp(name)) for name, setting in SETTINGS.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "target", "moment"), KILLS)
def test_killed_in_the_middle_of_training(killings, setting, target, moment):
    outcome = killings[setting].kill(target, moment)
    while outcome is None:
        moment /= 2
        outcome = killings[setting].kill(target, moment)
    assert (outcome.differs, outcome.left) == ([], [])
