"""Federated averaging."""

from typing import Literal

from fedlit.aggregators.base import Aggregator


class FedAvg(Aggregator):
    """FedAvg (McMahan et al., AISTATS 2017, arXiv:1602.05629), Algorithm 1: the neutral element of composition.

    A round's result is the weighted mean of the clients' weights, and of their BatchNorm statistics. With a
    part of the clients in the cohort the mean is over that part. A list without it averages all the same;
    naming it states the client weights.

    Args:
        weights: ``examples`` weighs client k by n_k / n as in the paper, ``uniform`` by 1 / K.
    """

    def __init__(self, weights: Literal["examples", "uniform"] = "examples") -> None:
        self.weights = weights
