"""FedDyn."""

from typing import Annotated

import torch
from torch import Tensor

from fedlit.aggregators.server_optimizer import moved
from fedlit.core.aggregator import Aggregator, ClientContext
from fedlit.core.flat import Layout
from fedlit.core.messages import Round, ServerState, State
from fedlit.core.ranges import Within


class FedDyn(Aggregator):
    """FedDyn (Acar et al., ICLR 2021, arXiv:2111.04263), Algorithm 1: dynamic regularisation.

    ::

        client k of the cohort P:  w_k  = argmin f_k(v) - <h_k, v> + alpha/2 |v - w|^2      ctx.correction
                                   h_k -= alpha (w_k - w)                                   on_client_round_end
        server:                    h   -= alpha/m sum_{k in P} (w_k - w)                    on_aggregate_end
                                   w    = mean_{k in P} w_k - h / alpha

    h_k estimates the gradient of f_k at w_k (the paper's ``grad L_k(theta_k)``), and h is the mean of h_k over all m
    clients, absent ones included. At a fixed point no client moves and h is 0, so the gradients of all clients cancel:
    it is a stationary point of the mean objective, for any number of local steps. A row that no client of the cohort
    owns does not move, and its mean over all clients is that over its owners. Dual variables and BatchNorm's statistics
    are averaged. If a run across sites resumes with other clients, h and every h_k start from zero.

    Deviations: a client takes the schedule's steps instead of minimising, and then h_k is not exactly its gradient;
    client weights are the federation's (uniform in the paper; set ``FedAvg(weights: uniform)``).

    Args:
        alpha: Strength of the regulariser, above 0.

    Raises:
        ConfigError: alpha is out of range.
    """

    governs = ("control variates", "pull towards the start of the round")

    def __init__(self, alpha: Annotated[float, Within("(0, inf)", "; FedAvg has no regulariser")] = 0.1) -> None:
        self.alpha = alpha

    def server_state(self, layout: Layout, w: Tensor) -> State:
        """Start h [P] at zero."""
        return {"h": torch.zeros_like(w)}

    def client_state(self, layout: Layout) -> State:
        """Start h_k [P] at zero."""
        return {"h": layout.zeros()}

    def on_clients_change(self, state: State, server: ServerState) -> bool:
        """Set h to zero, and let h_k begin there: the h_k of those who left is not known here, and m is another one."""
        state["h"].zero_()
        return True

    def on_client_round_start(self, ctx: ClientContext) -> None:
        """Subtract h_k from every gradient of the round, and pull towards the server's weights."""
        ctx.correction.bias -= ctx.state["h"]
        ctx.correction.pull(ctx.w, self.alpha)

    def on_client_round_end(self, ctx: ClientContext) -> State:
        """Move h_k against the client's change of the weights that it shares."""
        change = ctx.w - ctx.start
        change[ctx.layout.slices["dual"]] = 0
        for segment in ctx.mask.unshared(ctx.layout):
            change[segment] = 0
        ctx.state["h"] -= self.alpha * change
        return {}

    def on_aggregate_end(self, state: State, server: ServerState, mean: State, rnd: Round) -> None:
        """Move h by the clients' changes, as a mean over all of them, and correct the mean change by it."""
        change = server.delta.clone()
        change[server.layout.slices["dual"]] = 0
        state["h"] -= self.alpha * rnd.participation * change
        server.delta = moved(rnd, server.delta - state["h"] / self.alpha, server.delta)
