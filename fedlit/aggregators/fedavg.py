"""Federated averaging."""

from typing import Literal

from fedlit.core.aggregator import Aggregator


class FedAvg(Aggregator):
    """FedAvg (McMahan et al., AISTATS 2017, arXiv:1602.05629), Algorithm 1: the neutral element of composition.

    A list without it averages too; naming it sets the client weights pi_k. Every other algorithm changes some of these
    lines, by the hook that belongs to a line::

        line                                  place                                     hook
        for r = 1, 2, ...:                    federation/federation.py, Federation.fit
            S = the cohort of the round       federation/session.py, Session.round
            send w to every client k in S     federation/session.py, Session.broadcast  broadcast
            for k in S, in parallel:          federation/engines/base.py, Engine.run
                w_k = w                       core/local_model.py, LocalModel.begin     on_client_round_start
                for t = 1..I:                 core/rounds.py, client_round
                    g   = grad f_k(w_k; z)    core/local_model.py, LocalModel.step      compute_gradient
                    w_k = w_k - lr g          core/local_model.py, LocalModel.step      on_before_optimizer_step
                send pi_k (w_k - w)           core/rounds.py, client_round              on_before_send
            w = w + mean of (w_k - w)         federation/server.py, server_round        on_aggregate_end

    The mean is over the cohort with the weights pi_k. Statistics of BatchNorm are averaged like the weights.

    Args:
        weights: Client weights. ``examples`` weighs client k by n_k / n as in the paper, ``uniform`` by 1 / K.
    """

    governs = "client weights"

    def __init__(self, weights: Literal["examples", "uniform"] = "examples") -> None:
        self.weights = weights
