"""State in buffers: each client keeps its own, and so does a resumed run."""

from pathlib import Path

import pytest
import torch
from foreigners import Digits
from strangers import fit_in_each_way, having, seeded, stepping
from torch import nn
from torch.nn import functional as F

import fedlit
from fedlit.schedules import ConstantSchedule

pytestmark = pytest.mark.filterwarnings("ignore")


class Renorm(nn.BatchNorm1d):
    """Computes with the count of its batches."""

    def forward(self, images):
        return super().forward(images) / self.num_batches_tracked


def normalised(module) -> None:
    module.net = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))


def evaluating(module, loss, batch):
    module.net[1].eval()
    return F.cross_entropy(module.net(batch[0].flatten(1)), batch[1])


KEPT = {
    "a count of a norm of one's own": having(lambda m: setattr(m, "net", nn.Sequential(nn.Linear(16, 4), Renorm(4)))),
    "a layer that a step puts into evaluation mode": stepping(evaluating, normalised),
}


@pytest.mark.parametrize("what", KEPT)
def test_each_client_has_its_own_and_a_resumed_run_too(what: str, tmp_path: Path):
    fit_in_each_way(KEPT[what], tmp_path)


def moved(module, loss, batch):
    module.mean += 1
    return loss


@pytest.mark.parametrize(
    "body", [{}, {"state_dict": lambda m, *given, **named: {}}], ids=["as it is", "own state_dict"]
)
def test_the_model_that_is_returned_has_buffers_that_no_state_dict_holds(body: dict, tmp_path: Path):
    make = stepping(moved, lambda m: m.register_buffer("mean", torch.zeros(()), persistent=False), **body)
    options = {"rounds": 2, "schedule": ConstantSchedule(2, "steps"), "workers": 1, "logger": False}
    fitted = fedlit.fit(seeded(make), Digits(), run_dir=tmp_path, **options)
    assert float(fitted.model.mean) == 4
