"""A module trains as in a plain PyTorch loop for each client, or is refused: the corpus, and what the probe says."""

import copy
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from corpus import CORPUS, REGISTER, OfClass, adamw, extra, of_some_clients
from engine_rounds import play_round, unprobed
from foreigners import Digits, One, Two
from refusals import refused
from strangers import by_hand, fit, having, play, seeded, settings, stepping, vector
from torch import Tensor

from fedlit.aggregators import FedProx, Scaffold
from fedlit.core.errors import ConfigError
from fedlit.core.fabric import make_fabric
from fedlit.federation.assembly import assemble
from fedlit.federation.examinations import Behaviour, Trial
from fedlit.objectives import AUCSaddle
from fedlit.testing import ToyData, ToyNet, check_module

pytestmark = pytest.mark.filterwarnings("ignore")


def refusal(make: Callable, steps: int = 2) -> str:
    data = Digits()
    data.setup()
    return Behaviour().problem(Trial(seeded(make), [], data.clients, make_fabric("cpu"), data.batch_size, steps))


def federated(make: Callable) -> dict[str, Tensor]:
    """Train without the probe and without files; return the server's parameters and statistics."""
    session = assemble(settings(), seeded(make), Two(), make_fabric("cpu"))
    server, *_ = session.restore(None)
    for number in range(2):
        play_round(session, server, number)
    return {name: value.clone() for name, value in session.model(server).state_dict().items()}


def distance(make: Callable) -> float:
    """Return the distance of a federation from plain loops, in which clients train in another order."""
    REGISTER["n"] = OfClass.calls = 0
    ours = federated(make)
    REGISTER["n"] = OfClass.calls = 0
    theirs = by_hand(make, Two())
    if ours.keys() != theirs.keys():
        return math.inf
    compared = [name for name, value in ours.items() if value.is_floating_point()]
    return max(float((ours[name] - theirs[name]).nan_to_num().abs().max()) for name in compared)


@pytest.mark.parametrize("name", CORPUS)
def test_it_is_refused_exactly_if_it_is_not_the_plain_loop(name: str):
    same, make = CORPUS[name]
    assert (refusal(make) == "") == same
    with unprobed():
        assert (distance(make) <= 1e-6) == same


def late(after: int) -> type:
    def step(module, loss, batch):
        module.steps += module.global_step >= after
        return loss / (1 + module.steps)

    return stepping(step, lambda module: setattr(module, "steps", 0))


def test_a_state_of_later_steps_is_seen_by_more_of_them():
    assert refusal(late(4)) == ""
    assert "Strange.steps" in refusal(late(4), steps=4)


def test_the_check_for_authors_takes_more_steps_and_leaves_the_module_as_it_is():
    module = seeded(late(8))
    before = copy.deepcopy(module.state_dict())
    check_module(module, Digits(), steps=2)
    with pytest.raises(AssertionError, match=r"Strange\.steps"):
        check_module(module, Digits())
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)
    assert module.steps == 0


def test_what_the_first_client_leaves_behind_is_seen():
    assert "another client was first" in refusal(CORPUS["a mean of the first batch"][1])


def test_an_attribute_that_stays_as_it_was_is_not_named():
    assert "Attributes that changed" not in refusal(CORPUS["an attribute of a parameter's memory in the loss"][1])


NAMED = {
    "a counter of calls in slots": ("on the same copy", "Strange.count"),
    "a teacher in a list": ("on the same copy", "Strange.others"),
    "a frozen teacher that follows": ("on the same copy", "teacher.weight"),
    "a rate of dropout that rises": ("on the same copy", "Strange.net.1.p"),
    "a counter in a global": ("on the same copy", "register_buffer"),
    "two layers of the same memory": ("in a plain PyTorch loop", "share memory"),
}


@pytest.mark.parametrize("what", NAMED)
def test_the_refusal_names_what_differs(what: str, tmp_path: Path):
    with refused(ConfigError, "'site-0'", *NAMED[what]):
        fit(seeded(CORPUS[what][1]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_objective_that_is_not_yet_measured_is_probed_too():
    torch.manual_seed(0)
    module, data = type("OwnSaddle", (ToyNet,), {})(), ToyData()
    module.objective = AUCSaddle()
    module.objective.build(len(module.classes))
    data.setup()
    assert Behaviour().problem(Trial(module, [], data.clients, make_fabric("cpu"), data.batch_size)) == ""


def test_clipping_counts_the_gradients_that_are_optimized():
    make = having(configure_optimizers=lambda m: torch.optim.SGD([m.net.bias], lr=0.5))
    w = play(make, One(), gradient_clip=0.05)
    torch.testing.assert_close(w, vector(by_hand(make, One(), clip=0.05)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("algorithm", [FedProx(0.5), Scaffold()], ids=["FedProx", "Scaffold"])
def test_a_correction_of_zero_does_not_move_it(algorithm):
    make = having(extra, configure_optimizers=adamw)
    w = play(make, aggregators=[algorithm])
    start = vector(seeded(make).extra.state_dict())
    assert torch.equal(w[-len(start) :], start)


def test_a_correction_of_other_clients_reaches_it(tmp_path: Path):
    make = stepping(of_some_clients, extra)
    corrected, states = fit(seeded(make), tmp_path / "corrected", aggregators=[Scaffold()])
    plain = play(make)
    of_extra = slice(len(plain) // 2, None)
    assert [bool(state.aggregators[0]["c"][of_extra].any()) for state in states.values()] == [True, False, True]
    assert not torch.allclose(corrected[of_extra], plain[of_extra], atol=1e-6)

    def of_all_clients(module, loss, batch):
        return of_some_clients(module, loss, batch) + 0 * sum(p.sum() for p in module.extra.parameters())

    used = play(stepping(of_all_clients, extra), aggregators=[Scaffold()])
    torch.testing.assert_close(corrected, used, rtol=0, atol=1e-6)
