"""A module trains as in a plain PyTorch loop for each client, or is refused: one table with its truth."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from corpus import COPIES, MEMORY, OPTIMIZERS, REGISTER, STATE, UNUSED, OfClass, extra, of_some_clients
from foreigners import Digits, One
from hostile import spread
from own_optimizers import TRAINED
from refusals import refused
from strangers import by_hand, fit, having, plain_federation, seeded, settings, stepping
from torch import Tensor, nn

from fedlit.aggregators import FedProx, Scaffold
from fedlit.core.errors import ConfigError
from fedlit.core.fabric import make_fabric
from fedlit.federation.assembly import assemble
from fedlit.federation.examinations import Behaviour, Trial
from fedlit.objectives import AUCSaddle
from fedlit.testing import ToyData, ToyNet
from fedlit.tracking.base import Tracker
from fedlit.tracking.run import Run

pytestmark = pytest.mark.filterwarnings("ignore")

TABLE = STATE | COPIES | MEMORY | TRAINED | UNUSED


def refusal(make: Callable, steps: int = 2) -> str:
    data = Digits()
    data.setup()
    return Behaviour().problem(Trial(seeded(make), [], data.clients, make_fabric("cpu"), data.batch_size, steps))


def federated(make: Callable, folder: Path) -> dict[str, Tensor]:
    """Train without the probe; return the server's parameters and statistics."""
    federation, run = settings(), Run(folder / "run", Tracker())
    session = assemble(federation, seeded(make), Digits(), make_fabric("cpu"))
    federation.fit(session, run)
    server, *_ = session.restore(max((folder / "run/checkpoints").glob("round-*")))
    return {name: value.clone() for name, value in session.model(server).state_dict().items()}


def distance(make: Callable, folder: Path) -> float:
    """Return the distance of a federation from plain loops, in which clients train in another order."""
    REGISTER["n"] = OfClass.calls = 0
    ours = federated(make, folder)
    REGISTER["n"] = OfClass.calls = 0
    theirs = plain_federation(make)
    if ours.keys() != theirs.keys():
        return math.inf
    compared = [name for name, value in ours.items() if value.is_floating_point()]
    return max(float((ours[name] - theirs[name]).nan_to_num().abs().max()) for name in compared)


@pytest.mark.parametrize("row", spread(TABLE))
def test_it_is_refused_exactly_if_it_is_not_the_plain_loop(row: Callable, tmp_path: Path, monkeypatch):
    problem = refusal(row)
    with monkeypatch.context() as without:
        without.setattr(Behaviour, "problem", lambda examination, trial: "")
        assert bool(problem) == (distance(row, tmp_path) > 1e-6)


def late(module, loss, batch):
    module.steps += module.global_step >= 4
    return loss / (1 + module.steps)


def test_a_state_of_later_steps_is_seen_by_more_of_them():
    make = stepping(late, lambda module: setattr(module, "steps", 0))
    assert refusal(make) == ""
    assert "Strange.steps" in refusal(make, steps=4)


def test_what_the_first_client_leaves_behind_is_seen():
    assert "another client was first" in refusal(STATE["a mean of the first batch"])


NAMED = {
    "a counter of calls in slots": ("on the same copy", "Strange.count", "register_buffer"),
    "a teacher in a list": ("on the same copy", "Strange.others"),
    "a frozen teacher that follows": ("on the same copy", "teacher.weight"),
    "a rate of dropout that rises": ("on the same copy", "Strange.net.1.p"),
    "a counter in a global": ("on the same copy", "register_buffer"),
    "two layers of the same memory": ("in a plain PyTorch loop", "share memory", "clone()"),
}


@pytest.mark.parametrize("what", NAMED)
def test_the_refusal_names_what_differs(what: str, tmp_path: Path):
    with refused(ConfigError, "'site-0'", *NAMED[what]):
        fit(seeded(TABLE[what]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class OwnSaddle(ToyNet):
    """A module of one's own with an objective whose constants are measured before the first round."""


def test_an_objective_that_is_not_yet_measured_is_probed_too():
    torch.manual_seed(0)
    module, data = OwnSaddle(), ToyData()
    module.objective = AUCSaddle()
    module.objective.build(len(module.classes))
    data.setup()
    assert Behaviour().problem(Trial(module, [], data.clients, make_fabric("cpu"), data.batch_size)) == ""


def test_clipping_counts_the_gradients_that_are_optimized(tmp_path: Path):
    module = seeded(having(configure_optimizers=lambda m: torch.optim.SGD([m.net.bias], lr=0.5)))
    w, _ = fit(module, tmp_path / "run", data=One(), gradient_clip=0.05)
    torch.testing.assert_close(w, by_hand(module, One(), clip=0.05), rtol=0, atol=1e-6)


def flattened(layer: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in layer.parameters()])


@pytest.mark.parametrize("algorithm", [FedProx(0.5), Scaffold()], ids=["FedProx", "Scaffold"])
def test_a_correction_of_zero_does_not_move_it(algorithm, tmp_path: Path):
    make = having(extra, configure_optimizers=OPTIMIZERS["AdamW"])
    w, _ = fit(seeded(make), tmp_path / "run", aggregators=[algorithm])
    start = flattened(seeded(make).extra)
    assert torch.equal(w[-len(start) :], start)


def test_a_correction_of_other_clients_reaches_it(tmp_path: Path):
    make = stepping(of_some_clients, extra, configure_optimizers=OPTIMIZERS["SGD"])
    corrected, states = fit(seeded(make), tmp_path / "corrected", aggregators=[Scaffold()])
    plain, _ = fit(seeded(make), tmp_path / "plain")
    of_extra = slice(len(plain) // 2, None)
    assert [bool(state.aggregators[0]["c"][of_extra].any()) for state in states.values()] == [True, False, True]
    assert not torch.allclose(corrected[of_extra], plain[of_extra], atol=1e-6)
