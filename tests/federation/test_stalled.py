"""A federation whose weights never move is stopped, and one that has a reason to stand still is not."""

import pytest
import torch
from foreigners import Unvalidated
from refusals import refused
from strangers import fit, seeded, stepping

from fedlit.core.errors import TrainingError
from fedlit.core.messages import ClientReport, Round
from fedlit.federation.examinations import StalledTraining

NAMES = ["one", "two"]


ZERO = "every gradient is zero"


def played(lr_factor: float = 1.0, window: int = 1) -> Round:
    return Round(0, 0, lr_factor, window, "steps", 0, True, True)


def reports(*still: str, names: list[str] = NAMES) -> list[ClientReport]:
    return [ClientReport(name, 1, 1, 0.0, 0.0, 0, still=why) for name, why in zip(names, still, strict=True)]


def test_all_clients_have_to_stand_still():
    watch = StalledTraining(NAMES, over=False)
    watch.after(played(), reports(ZERO, ""), "Mine")
    watch.after(played(), reports(ZERO, ZERO), "Mine")
    with refused(TrainingError, "round 1: Mine", ZERO):
        StalledTraining(NAMES, over=False).after(played(), reports(ZERO, ZERO), "Mine")


def test_every_client_has_its_turn_first():
    watch = StalledTraining(NAMES, over=False)
    watch.after(played(), reports(ZERO, names=["one"]), "Mine")
    with pytest.raises(TrainingError):
        watch.after(played(), reports(ZERO, names=["two"]), "Mine")


@pytest.mark.parametrize("rnd", [played(lr_factor=0.0), played(window=0)], ids=["warm-up", "measuring"])
def test_rounds_without_steps_or_without_a_rate_do_not_count(rnd):
    StalledTraining(NAMES, over=False).after(rnd, reports(ZERO, ZERO), "Mine")


def test_a_run_that_goes_on_has_moved_before():
    StalledTraining(NAMES, over=True).after(played(), reports(ZERO, ZERO), "Mine")


class Lonely(Unvalidated):
    """Learns only at one client."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * float(batch[0].mean() > 1.5)


def test_a_client_that_learns_nothing_is_legal(tmp_path):
    fit(seeded(Lonely), tmp_path / "run")


def test_the_first_checkpoint_stays_where_nothing_moves(tmp_path):
    with refused(TrainingError, "Strange"):
        fit(seeded(stepping(lambda module, loss, batch: loss * 0)), tmp_path / "run")
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["round-000000"]


def test_a_client_whose_gradient_comes_later_counts_as_moving(tmp_path):
    late = stepping(lambda module, loss, batch: loss * (module.global_step % 2))
    w, _ = fit(seeded(late), tmp_path / "run")
    assert torch.isfinite(w).all()
