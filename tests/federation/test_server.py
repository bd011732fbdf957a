"""The server's part of a round."""

import pytest
import torch
from engine_rounds import opened, run
from refusals import refused
from toys import ToyData, ToyNet

from fedlit.aggregators import FedBN, LocalSGDM, Scaffold, SurgicalHeads
from fedlit.core.errors import TrainingError
from fedlit.federation.federation import Federation
from fedlit.federation.server import server_round
from fedlit.schedules import ConstantSchedule


def replies(aggregators, workers=1):
    """Aggregators, the server's state, a round, and the sum of what clients sent in it."""
    torch.manual_seed(0)
    federation = Federation(aggregators, rounds=2, schedule=ConstantSchedule(2, "steps"))
    with opened(federation, ToyNet(), ToyData(3, labelled=2), workers) as (session, server):
        rnd, total, _ = run(session, server)
    return federation.aggregators, server, total, rnd


@pytest.mark.parametrize("aggregators", [[], [Scaffold(0.7), SurgicalHeads()], [LocalSGDM(), FedBN()]])
def test_means_take_the_memory_of_the_sums(aggregators):
    aggregators, server, total, rnd = replies(aggregators)
    before, start, places = total.clone(), server.w.clone(), {n: v.data_ptr() for n, v in total.vectors.items()}
    server_round(aggregators, server, total, rnd)
    assert not torch.equal(server.w, start)
    assert set(total.vectors) == set(before.vectors) - {"squares"}
    assert all(vector.data_ptr() == places[name] for name, vector in total.vectors.items())
    if not aggregators:
        torch.testing.assert_close(server.w - start, before.vectors["w"] / before.weight, atol=1e-7, rtol=0)
    assert torch.equal(total.mask_weight, before.mask_weight)
    assert total.weight == before.weight


def test_a_sum_from_worker_processes_outlives_them():
    (_, _, one, _), (_, _, two, _) = replies([Scaffold()]), replies([Scaffold()], workers=2)
    assert all(torch.equal(vector, two.vectors[name]) for name, vector in one.vectors.items())


def test_a_sum_that_is_not_finite_changes_nothing():
    aggregators, server, total, rnd = replies([Scaffold()])
    total.vectors["0/c"][3] = torch.nan
    w, c = server.w.clone(), server.aggregators[0]["c"].clone()
    with refused(TrainingError, "round 1", "'0/c'"):
        server_round(aggregators, server, total, rnd)
    assert torch.equal(server.w, w)
    assert torch.equal(server.aggregators[0]["c"], c)
