"""The dissimilarity of the clients' gradients at a common point."""

import torch
from torch import Tensor

from fedlit.core.aggregator import Aggregator, ClientContext
from fedlit.core.errors import ConfigError
from fedlit.core.flat import Layout
from fedlit.core.messages import Round, ServerState, State
from fedlit.core.ranges import Count


class GradientDissimilarity(Aggregator):
    """The client drift ``D^2`` of FDAM's Assumption 2 (Yuan et al., ICML 2021, arXiv:2102.04635, eq. 4), measured.

    ::

        D_v^2     = 1/K sum_k |grad_v f_k(v, alpha) - grad_v f(v, alpha)|^2
        D_alpha^2 = 1/K sum_k |grad_alpha f_k(v, alpha) - grad_alpha f(v, alpha)|^2,     f = 1/K sum_k f_k

    at the federation's (v, alpha) at the start of a round. It trains nothing, and can join a list with any algorithm.
    Each client takes two gradients g, h of separate batches before its first step. As ``E <g, h> = |grad f_k|^2``, the
    estimate ``mean <g_k, h_k> - <mean g_k, mean h_k>`` is free of batch noise, unlike ``mean |g_k|^2 - |mean g_k|^2``;
    so it may be negative if clients are similar. D is 0 on homogeneous data.

    Gradients are computed as in training: BatchNorm normalises each batch by its own statistics, which are restored
    afterwards. The batches come from the client's stream: a run with this aggregator draws other batches than one
    without it. In a round that measures it sends two vectors as long as the weights. With federation.weights the means
    over clients are weighted.

    Args:
        every: Rounds between measurements.
        batches: Batches of each of the two gradients.

    Raises:
        ConfigError: Fewer than one round or batch; in training, a client does not share all of the model.
    """

    metrics_help = {
        "drift/gradient_dissimilarity": "Spread D^2 of the clients' gradients in the weights at a common point (FDAM, "
        "Assumption 2).",
        "drift/gradient_dissimilarity_dual": "The same in the dual variables.",
    }

    def __init__(self, every: Count = 1, batches: Count = 1) -> None:
        self.every, self.batches = every, batches

    def server_state(self, layout: Layout, w: Tensor) -> State:
        """Keep the last measurement: in the weights, in the dual variables."""
        return {"measured": torch.full((2,), torch.nan, dtype=w.dtype)}

    def on_client_round_start(self, ctx: ClientContext) -> None:
        """Compute two gradients at the server's weights; only the position in the stream changes."""
        if ctx.rnd.index % self.every:
            return
        if not ctx.mask.owned.all():
            raise ConfigError(
                f"GradientDissimilarity: client {ctx.client.name!r} does not share all of the model, but gradients are "
                "compared at one common model; leave it out, or the algorithm that keeps a part"
            )
        stats = ctx.stats.clone()
        ctx.scratch["gradients"] = [self._gradient(ctx) for _ in range(2)]
        ctx.stats.copy_(stats)

    def on_client_round_end(self, ctx: ClientContext) -> State:
        """Send both gradients [P], and their inner products in the weights and in the dual variables."""
        if "gradients" not in ctx.scratch:
            return {}
        first, second = ctx.scratch["gradients"]
        return {"first": first, "second": second, "products": _products(ctx.layout, first, second)}

    def on_aggregate_end(self, state: State, server: ServerState, mean: State, rnd: Round) -> None:
        """Subtract the products of the means from the mean of the products."""
        if mean:
            together = _products(server.layout, mean["first"], mean["second"])
            state["measured"] = (mean["products"] - together).to(state["measured"])

    def diagnostics(self, state: State, layout: Layout) -> dict[str, float]:
        """Return the last measurement."""
        names = list(self.metrics_help)[: 1 + (layout.slices["dual"].stop > layout.slices["dual"].start)]
        return {name: float(value) for name, value in zip(names, state["measured"], strict=False)}

    def _gradient(self, ctx: ClientContext) -> Tensor:
        batches = [ctx.next_batch() for _ in range(self.batches)]
        return torch.stack([ctx.model.gradient(ctx.loss(batch, 0)) for batch in batches]).mean(0)


def _products(layout: Layout, one: Tensor, other: Tensor) -> Tensor:
    """Return the inner products of two vectors [P] in the weights and in the dual variables, [2]."""
    dual = layout.slices["dual"]
    return torch.stack([one[: dual.start] @ other[: dual.start], one[dual] @ other[dual]])
