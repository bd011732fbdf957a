"""The classic methods in lists with each other, with personal parts of the model, and over processes."""

import copy

import pytest
import torch
from engine_rounds import everything, opened, play_round
from simulation import federated, simulate
from toys import ToyData, ToyNet, with_objective

from fedlit.aggregators import (
    CODASCA,
    MOON,
    Aggregator,
    Ditto,
    FedAdam,
    FedBN,
    FedBNPlus,
    FedDyn,
    FedNova,
    FedProx,
    FedRep,
    FedYogi,
    PersonalHeads,
    Scaffold,
    ServerOptimizer,
    SurgicalHeads,
)
from fedlit.federation.federation import Federation
from fedlit.federation.participation import Cyclic
from fedlit.objectives import AUCSaddle, FedLC
from fedlit.schedules import Stage, StageSchedule


def names_of(listed: list[Aggregator]) -> str:
    return "+".join(type(aggregator).__name__ for aggregator in listed)


DECAYING = ServerOptimizer(lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1))


@pytest.mark.parametrize(
    "aggregators",
    [
        [DECAYING], [FedDyn()], [FedNova(), MOON(), Ditto(), FedAdam(), Scaffold()],
    ],
    ids=names_of,
)  # fmt: skip
def test_parts_that_clients_keep_stay_as_they_are_at_the_server(aggregators):
    listed = [*aggregators, FedBN(), PersonalHeads()]
    torch.manual_seed(0)
    done = simulate(ToyNet(), ToyData(4, labelled=2), federated(listed, 2, participation=Cyclic(2)), "32-true")
    torch.manual_seed(0)
    module = ToyNet()
    for name in ("head.weight", "head.bias", "body.1.weight", "body.1.bias"):
        assert torch.equal(done.tensor(name), module.get_parameter(name))
    assert not torch.equal(done.tensor("body.0.weight"), module.body[0].weight)
    assert done.server.w.isfinite().all()


def test_personal_heads_go_with_corrections_and_server_steps():
    listed = [FedRep(1), FedDyn(), FedAdam(), FedBN()]
    assert simulate(ToyNet(), ToyData(3), federated(listed, rounds=2), "32-true").server.w.isfinite().all()


@pytest.mark.parametrize(
    "aggregators",
    [
        [SurgicalHeads(), FedBNPlus(), Scaffold(0.7)], [CODASCA(0.4, 1.3, "never"), FedBN(), FedProx(0.2)],
    ],
    ids=names_of,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:FedBNPlus freezes")
def test_the_order_of_a_list_does_not_matter(aggregators):
    schedule, ends = StageSchedule([Stage(2, 2, "steps"), Stage(1, 2, "steps", 0.5)]), []
    for listed in (aggregators, aggregators[::-1], aggregators[1:] + aggregators[:1]):
        torch.manual_seed(0)
        module = with_objective(AUCSaddle()).double()
        ends.append(simulate(module, ToyData(3, labelled=2), Federation([*listed], schedule=schedule)).server.w)
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_worker_processes_give_the_same_states_of_objectives_and_personal_models():
    found = []
    for workers in (1, 2):
        federation = federated([MOON(), Ditto(), FedYogi()], participation=Cyclic(2))
        torch.manual_seed(0)
        with opened(federation, with_objective(FedLC()), ToyData(4, labelled=2), workers) as (session, server):
            for index in range(3):
                play_round(session, server, index)
            found.append(copy.deepcopy(everything(session, server)))
    assert found[0].keys() == found[1].keys()
    assert any("objective.counts" in name for name in found[0])
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name
