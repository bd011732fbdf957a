"""SCAFFOLD."""

import torch
from torch import Tensor

from fedlit.aggregators.base import Aggregator, ClientContext
from fedlit.errors import ConfigError
from fedlit.flat import Layout
from fedlit.messages import Round, ServerState, State


class Scaffold(Aggregator):
    """SCAFFOLD (Karimireddy et al., ICML 2020, arXiv:1910.06378), Algorithm 1 with option II for the control variates.

    Local step (eq. 3): ``w -= lr (g_k(w) - c_k + c)``. After a client's round its control variate becomes the
    mean of the local gradients of that round, which is option II (eq. 4) in exact arithmetic, without losing
    digits to ``(w_r - w_k) / (steps lr)`` at small rates, and right for any optimizer. The server adds
    ``|S|/N`` of the mean change to ``c`` (eq. 5); with sites that share only a part of the model the factor is
    per element, owners present over all owners, so that ``c`` stays the owners' weighted mean of ``c_k``.

    Deviation: client weights are the federation's (the paper: uniform; say ``FedAvg(weights: uniform)``).

    Args:
        eta_g: server learning rate, above 0, on the weights (the paper's global step size).

    Raises:
        ConfigError: eta_g is not above 0.
    """

    def __init__(self, eta_g: float = 1.0) -> None:
        if not eta_g > 0:
            raise ConfigError(f"Scaffold: eta_g must be above 0, found {eta_g}")
        self.eta_g = eta_g

    def server_state(self, layout: Layout, w: Tensor) -> State:
        return super().server_state(layout, w) | {"c": torch.zeros_like(w), "squares": torch.zeros(2, dtype=w.dtype)}

    def client_state(self, layout: Layout) -> State:
        return {"c": layout.zeros()}

    def broadcast(self, state: State, rnd: Round) -> State:
        return {"c": state["c"]}

    def on_client_round_start(self, ctx: ClientContext) -> None:
        ctx.scratch["shift"] = ctx.down["c"] - ctx.state["c"]
        ctx.scratch["sum"] = torch.zeros_like(ctx.grad)
        ctx.drift.bias += ctx.scratch["shift"]

    def on_before_optimizer_step(self, ctx: ClientContext) -> None:
        ctx.scratch["sum"] += ctx.grad

    def on_client_round_end(self, ctx: ClientContext) -> State:
        new = ctx.scratch["sum"].div_(ctx.num_steps).sub_(ctx.scratch["shift"])
        for stretch in ctx.mask.unshared(
            ctx.layout
        ):  # no drift was corrected there, so there is nothing to learn of it
            new[stretch] = 0
        delta = new - ctx.state["c"]
        ctx.state["c"] = new
        return {"c": delta, "squares": _squares(new, ctx.layout)}

    def on_aggregate_end(self, state: State, server: ServerState, mean: State, rnd: Round) -> None:
        state["c"] += rnd.participation * mean["c"]
        state["squares"] = mean["squares"]
        server.delta *= self.eta_g

    def diagnostics(self, state: State, layout: Layout) -> dict[str, float]:
        """Norms of the server's control variate and of the clients' (root mean square), primal and dual."""
        norms = {}
        for name, squares in (("c", _squares(state["c"], layout)), ("c_k", state["squares"])):
            primal, dual = squares.sqrt().tolist()
            norms |= {f"drift/{name}_norm": primal, f"drift/{name}_norm_dual": dual}
        return norms


def _squares(vector: Tensor, layout: Layout) -> Tensor:
    """Squared norms of the primal and the dual part, [2]."""
    dual = layout.slices["dual"]
    return torch.stack([(part @ part).cpu() for part in (vector[: dual.start], vector[dual])])
