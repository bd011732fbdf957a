"""A composition equals its parts, in order, under one name."""

import inspect

import pytest
import torch
from simulation import Simulation, simulate
from toys import ToyData, ToyNet, composed

from fedlit.aggregators import CODASCA, Aggregator, FedAvg, FedBN, FedProx, LocalSGDM, Scaffold
from fedlit.aggregators.composition import Composition
from fedlit.aggregators.stages import Stages
from fedlit.core.flat import FlatModel
from fedlit.federation.federation import Federation
from fedlit.schedules import ConstantSchedule, Schedule, Stage, StageSchedule

PULLED_MOMENTUM = composed(LocalSGDM(0.9), FedProx(0.3), weights="uniform")
KEPT = composed(FedBN(), Scaffold(0.7))


class Counted(Composition):
    """A composition that overrides a hook that its part has too."""

    def __init__(self) -> None:
        super().__init__(FedProx(0.3))

    def server_state(self, layout, w):
        return super().server_state(layout, w) | {"rounds": torch.tensor(0)}

    def on_aggregate_end(self, state, server, mean, rnd):
        super().on_aggregate_end(state, server, mean, rnd)
        state["rounds"] = state["rounds"] + 1


def stages() -> Schedule:
    return StageSchedule([Stage(2, 1, "steps"), Stage(2, 2, "steps", 0.5)])


def run(aggregators: list[Aggregator], schedule: Schedule | None = None) -> Simulation:
    torch.manual_seed(0)
    schedule = schedule or ConstantSchedule(2, "steps")
    federation = Federation(aggregators, rounds=4, schedule=schedule, participation=0.6)
    return simulate(ToyNet(), ToyData(4, labelled=2), federation, "64-true")


def same(one: Simulation, other: Simulation, parts: list[int]) -> None:
    """Compare weights and states of a composition and of the list of its parts, bit for bit."""
    assert torch.equal(one.server.w, other.server.w)
    assert torch.equal(one.server.stats, other.server.stats)
    pairs = [(one.server.aggregators[0], [other.server.aggregators[i] for i in parts])]
    ours, theirs = one.states, other.states
    pairs += [(ours[n].aggregators[0], [theirs[n].aggregators[i] for i in parts]) for n in ours]
    for merged, states in pairs:
        assert list(merged) == [name for state in states for name in state]
        assert all(torch.equal(merged[name], state[name]) for state in states for name in state)


@pytest.mark.filterwarnings("ignore:Scaffold or CODASCA. the schedule")
@pytest.mark.parametrize(("reset", "output"), [("auto", "average"), ("never", "random")])
def test_codasca_is_the_list_of_scaffold_and_stages(reset, output):
    listed = [FedAvg("uniform"), Scaffold(1.3, reset), Stages(0.2, output)]
    one, other = run([CODASCA(0.2, 1.3, reset, output)], stages()), run(listed, stages())
    same(one, other, [1, 2])


@pytest.mark.parametrize("composition", [PULLED_MOMENTUM, KEPT])
def test_a_composition_is_the_list_of_its_parts(composition):
    same(run([composition]), run([*composition.parts]), [0, 1])


def test_a_composition_may_have_hooks_of_its_own():
    done = run([Counted()])
    assert int(done.server.aggregators[0]["rounds"]) == 4
    assert torch.equal(done.server.w, run([FedProx(0.3)]).server.w)


def test_every_hook_is_forwarded():
    hooks = [name for name, _ in inspect.getmembers(Aggregator, inspect.isfunction) if not name.startswith("_")]
    assert "on_aggregate_end" in hooks
    assert [hook for hook in hooks if hook not in vars(Composition)] == []


def test_scaffold_keeps_its_stage_only_where_it_may_start_anew():
    layout = FlatModel(ToyNet()).layout
    for reset, names in {"never": ["c"], "auto": ["c", "stage"], "always": ["c", "stage"]}.items():
        assert list(Scaffold(1.0, reset).client_state(layout)) == names
