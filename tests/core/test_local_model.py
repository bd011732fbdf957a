"""Memory of a client's round: vectors that no algorithm needs are not allocated."""

import pytest
import torch
from toys import CLASSES, ToyNet

from fedlit.aggregators import Aggregator, FedAvg, FedBN, FedProx
from fedlit.core.fabric import make_fabric
from fedlit.core.hooks import initial_client_state
from fedlit.core.local_model import LocalModel, LocalTraining
from fedlit.core.messages import Broadcast, Client, Round


class Watches(Aggregator):
    """Reads the start of a round after its end."""

    def on_client_round_end(self, ctx):
        return {"start": ctx.start}


@pytest.mark.parametrize(
    ("aggregator", "sent", "corrected"),
    [(FedAvg(), True, False), (FedBN(), False, False), (Watches(), False, False), (FedProx(0.1), False, True)],
    ids=["FedAvg", "FedBN", "a hook", "FedProx"],
)
def test_a_round_keeps_only_the_vectors_that_somebody_needs(aggregator, sent, corrected):
    """Without hooks and personal parts, a client starts at the sent weights, and there is no correction."""
    torch.manual_seed(0)
    local = LocalModel(make_fabric("cpu"), ToyNet(), [aggregator], LocalTraining())
    client, rnd = Client("alone", CLASSES, 4, 1.0), Round(0, 0, 1.0, 1, "steps", 0, True, True, cohort=("alone",))
    down = Broadcast(local.flat.w + 0.01, local.flat.stats.clone(), [{}])
    expected = down.w.clone()
    batch = torch.randn(4, 1, 8, 8), torch.ones(4, 3)
    assert "grad" not in vars(local.flat)
    state = initial_client_state([aggregator], local.layout)
    state.w = local.mask(client).part(local.layout, expected) + 0.01  # what it has of its own differs
    contexts = local.begin(client, state, down, rnd, 1, lambda: batch)
    assert (local.start is down.w) == sent
    assert ("bias" in vars(local.correction)) == corrected
    began = local.flat.w.clone()
    local.step(contexts, [batch], 0)
    into = torch.empty_like(expected)
    reply = local.end(contexts, down, into)
    assert reply["w"] is into
    assert torch.equal(down.w, expected)
    assert torch.equal(reply["w"], local.flat.w - began)
    assert reply["w"].count_nonzero() > 0
