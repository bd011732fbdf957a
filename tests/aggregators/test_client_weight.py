"""Client weights of an aggregator's own, which all means follow."""

import math

import pytest
import torch
from engine_rounds import opened, run
from refusals import refused
from toys import ToyData, ToyNet

from fedlit.aggregators import Aggregator
from fedlit.core.errors import ConfigError
from fedlit.federation.federation import Federation
from fedlit.schedules import ConstantSchedule
from fedlit.testing import check_aggregator


class FedDisco(Aggregator):
    """FedDisco (Ye et al., ICML 2023, arXiv:2305.19229): ``p_k ~ n_k / n - a d_k + b``, with the discrepancy d_k.

    d_k is the distance of a client's label distribution from the uniform one. The weights are kept above 0.
    """

    def __init__(self, a: float = 0.5, b: float = 0.1) -> None:
        self.a, self.b = a, b

    def client_weight(self, client, counts):
        shares = counts[0] / counts[0].sum()
        return max(client.weight - self.a * (shares - 1 / len(shares)).norm() + self.b, 1e-9)


def means(aggregators: list[Aggregator]) -> tuple[dict, dict, dict]:
    """Return the clients, the means of one round, and each client's own vectors."""
    torch.manual_seed(0)
    federation = Federation(aggregators, schedule=ConstantSchedule(2, "steps"))
    with opened(federation, ToyNet(), ToyData(3)) as (session, server):
        rnd, total, _ = run(session, server)
        down, each = session.broadcast(server, rnd), {}
        for name in session.clients:
            payload, _ = session.engine.run([name], down, rnd)
            each[name] = {key: vector / payload.weight for key, vector in payload.vectors.items()}
        counts = session.data.counts()
        return session.clients, {k: v / total.weight for k, v in total.vectors.items()}, each, counts


def test_all_means_follow_the_weights_of_feddisco():
    clients, mean, each, counts = means([FedDisco()])
    positives = counts[counts["split"] == "train"].pivot(index="client", columns="class", values="positives")
    shares = positives.div(positives.sum(1), axis=0).to_numpy()
    sizes = torch.tensor([client.examples for client in clients.values()]).double()
    expected = (sizes / sizes.sum()).numpy() - 0.5 * ((shares - 1 / 3) ** 2).sum(1) ** 0.5 + 0.1
    weights = {name: client.weight for name, client in clients.items()}
    assert list(weights.values()) == pytest.approx(expected / expected.sum(), rel=1e-12)
    assert list(weights.values()) != pytest.approx(sizes / sizes.sum(), rel=1e-2)
    for key in ("w", "stats"):  # BatchNorm's statistics too
        torch.testing.assert_close(mean[key], sum(weights[name] * own[key] for name, own in each.items()))


def test_it_may_be_used_as_any_other_aggregator():
    check_aggregator(FedDisco(), workers=1)


@pytest.mark.parametrize("weight", [0, math.nan, math.inf, None])
def test_only_positive_numbers_are_weights(weight):
    class Fixed(Aggregator):
        def client_weight(self, client, counts):
            return weight

    with refused(ConfigError, "Fixed.client_weight", "'site-0'", "above 0", str(weight)):
        means([Fixed()])
