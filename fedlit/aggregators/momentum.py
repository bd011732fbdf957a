"""Momentum that is averaged with the weights: LocalSGDM and LocalSGDAM."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD

from fedlit.core.aggregator import Aggregator, ClientContext
from fedlit.core.configured_optimizer import configured_optimizer
from fedlit.core.errors import ConfigError
from fedlit.core.flat import Layout
from fedlit.core.messages import Round, ServerState, State
from fedlit.core.ranges import Decay, Within

Newest = Annotated[float, Within("(0, 1)", ", the paper's product of this coefficient and eta")]
"""Weight of the newest estimate in a moving average."""


class AveragedVectors(Aggregator):
    """Base class of LocalSGDM, LocalSGDAM and LocalSCGDAM: vectors [P] that are averaged together with the weights.

    A client starts a round from the server's vectors, changes them with its steps, and sends the change. If a client
    keeps a part of the model to itself, it keeps that part of the vectors too.

    The optimizer's learning rate is the step size along the momentum, so the optimizer has to be plain SGD. Corrections
    by other aggregators of the list, and the optimizer's weight decay, act on the step, not on the momentum.
    """

    weights = "uniform"
    governs: str | tuple[str, ...] = "momentum"

    vectors: tuple[str, ...] = ("u",)

    def configure_model(self, module: nn.Module) -> None:
        """Refuse an optimizer that is not plain SGD."""
        optimizer, name = configured_optimizer(module).optimizer, type(self).__name__
        if type(optimizer) is not SGD:
            raise ConfigError(
                f"{name} keeps its own momentum and steps along it; expected the optimizer SGD, found "
                f"{type(optimizer).__name__}: set model.optimizer: SGD with a learning rate"
            )
        if any(group["momentum"] for group in optimizer.param_groups):
            raise ConfigError(f"{name} keeps its own momentum, as does the optimizer: set model.optimizer.momentum: 0")

    def server_state(self, layout: Layout, w: Tensor) -> State:
        """Start all vectors [P] at zero."""
        return {name: torch.zeros_like(w) for name in self.vectors}

    def client_state(self, layout: Layout) -> State:
        """Start empty; the client's own elements of each vector come with its first round."""
        return {name: layout.zeros()[:0].clone() for name in self.vectors}

    def broadcast(self, state: State, rnd: Round) -> State:
        """Send the vectors [P]."""
        return {name: state[name] for name in self.vectors}

    def on_clients_change(self, state: State, server: ServerState) -> bool:
        """Keep the vectors: every client begins a round with those of the server."""
        return False

    def on_client_round_start(self, ctx: ClientContext) -> None:
        """Start from the server's vectors, with the client's own elements if it keeps some."""
        for name in self.vectors:
            ctx.scratch[name] = ctx.broadcast[name].clone()
            ctx.mask.put(ctx.layout, ctx.state[name], ctx.scratch[name])

    def on_client_round_end(self, ctx: ClientContext) -> State:
        """Send the vectors' changes [P]; keep the client's own elements."""
        for name in self.vectors:
            ctx.state[name] = ctx.mask.part(ctx.layout, ctx.scratch[name])
        return {name: ctx.scratch[name] - ctx.broadcast[name] for name in self.vectors}

    def on_aggregate_end(self, state: State, server: ServerState, mean: State, rnd: Round) -> None:
        """Move the vectors by their mean changes."""
        for name in self.vectors:
            state[name] += mean[name]


class LocalSGDM(AveragedVectors):
    """LocalSGDM (Yu et al., ICML 2019, arXiv:1905.03817), Algorithm 1: SGD whose momentum is communicated too.

    ::

        u_k = momentum u_k + grad f_k(x_k; z),   x_k -= lr u_k
        every I steps:  x_k = mean_k x_k,  and u_k = mean_k u_k (averaged), or u_k = 0 (reset)

    On the ratio loss (``RatioLoss``) it is the LocalSGDM_RL of Zhang et al. (LocalSCGDAM, NeurIPS 2023).

    Args:
        momentum: Share of the momentum that a step keeps, in [0, 1).
        state: Momentum at a communication: ``averaged`` with the weights, ``local``, which each client keeps, or
            ``reset`` to zero.

    Raises:
        ConfigError: momentum is not in [0, 1), or the optimizer is not SGD without momentum.
    """

    def __init__(self, momentum: Decay = 0.9, state: Literal["averaged", "local", "reset"] = "averaged") -> None:
        self.momentum, self.state = momentum, state
        self.vectors = ("u",) if state == "averaged" else ()

    def client_state(self, layout: Layout) -> State:
        """Keep the whole momentum [P] if it is local."""
        return {"u": layout.zeros()} if self.state == "local" else super().client_state(layout)

    def on_client_round_start(self, ctx: ClientContext) -> None:
        """Start from the client's own momentum, or from zero, unless it is averaged."""
        super().on_client_round_start(ctx)
        if self.state != "averaged":
            ctx.scratch["u"] = ctx.state["u"] if self.state == "local" else torch.zeros_like(ctx.w)

    def compute_gradient(self, ctx: ClientContext, batches: Sequence[Any]) -> Tensor:
        """Step along ``momentum u + gradient``, which is the new u."""
        loss = ctx.loss(batches[0], ctx.num_steps)
        ctx.grad.add_(ctx.scratch["u"].mul_(self.momentum).add_(ctx.model.gradient(loss)))
        return loss.detach()


class LocalSGDAM(AveragedVectors):
    """LocalSGDAM (Sharma et al., ICML 2022, arXiv:2203.04850): local descent-ascent along moving averages of gradients.

    As the baseline of LocalSCGDAM (Zhang et al., NeurIPS 2023), in the order of its Algorithm 1::

        u_k, v_k = gradients in x and y at the start, of each client's own batch
        for t = 0, 1, ...:
            x_k -= lr u_k,   y_k += lr v_k
            u_k = (1 - beta_x) u_k + beta_x grad_x f_k(x_k, y_k; z)              at the new point, not yet averaged
            v_k = (1 - beta_y) v_k + beta_y grad_y f_k(x_k, y_k; z)
            every p steps:  x, y, u, v = their means over the clients

    x and y are one vector, y its dual slice (``AUCSaddle``'s alpha), and so are u and v. Without a dual it is SGD along
    a moving average. ``beta_x``, ``beta_y`` and ``lr`` are the paper's products beta*eta and gamma*eta, the only effect
    of its constants; gamma_y*eta is ``lr`` times the objective's ``dual_scale``. The loss of a step is that at its end
    point.

    Deviations: where a client keeps a part of the model to itself it keeps that part of u; a client that takes part
    later than others starts from the server's u.

    Args:
        beta_x: Weight of the newest gradient in x, in (0, 1).
        beta_y: Weight of the newest gradient in y, in (0, 1).

    Raises:
        ConfigError: A weight is outside of (0, 1), or the optimizer is not SGD without momentum.
    """

    def __init__(self, beta_x: Newest = 0.1, beta_y: Newest = 0.1) -> None:
        self.beta_x, self.beta_y = beta_x, beta_y

    def server_state(self, layout: Layout, w: Tensor) -> State:
        """Add a flag for the existence of first estimates."""
        return super().server_state(layout, w) | {"started": torch.tensor(0)}

    def broadcast(self, state: State, rnd: Round) -> State:
        """Add the flag for the existence of first estimates."""
        return super().broadcast(state, rnd) | {"started": state["started"]}

    def on_client_round_start(self, ctx: ClientContext) -> None:
        """Make the first estimates: in the first round, or for elements that only this client has."""
        super().on_client_round_start(ctx)
        began, private = bool(ctx.broadcast["started"]), ctx.mask.private(ctx.layout)
        if began and not (private and not len(ctx.state["u"])):
            return
        averaged = {name: ctx.scratch[name].clone() for name in self.vectors}
        self._advance(ctx, [ctx.next_batch() for _ in range(self.batches_per_step)], start=True)
        if began:  # a late client lacks estimates only for what it keeps to itself
            for name, vector in averaged.items():
                ctx.mask.put(ctx.layout, ctx.mask.part(ctx.layout, ctx.scratch[name]), vector)
            ctx.scratch |= averaged

    def compute_gradient(self, ctx: ClientContext, batches: Sequence[Any]) -> Tensor:
        """Step along u; the loss is that at the end of the step."""
        ctx.grad.add_(ctx.scratch["u"])
        ctx.scratch["loss"] = torch.zeros((), dtype=ctx.w.dtype, device=ctx.w.device)
        return ctx.scratch["loss"]

    def on_after_optimizer_step(self, ctx: ClientContext, batches: Sequence[Any]) -> None:
        """Bring u to the new point."""
        # The loss of the step is known only now; losses are read at the end of the round.
        ctx.scratch["loss"].copy_(self._advance(ctx, batches))

    def on_aggregate_end(self, state: State, server: ServerState, mean: State, rnd: Round) -> None:
        """Move u by its mean change, and note that estimates exist."""
        super().on_aggregate_end(state, server, mean, rnd)
        state["started"] = torch.tensor(1)

    def _advance(self, ctx: ClientContext, batches: Sequence[Any], start: bool = False) -> Tensor:
        """Update the moving averages at the current point, or start them with the first estimates; return the loss."""
        loss, gradient = self._estimate(ctx, batches, start)
        dual = ctx.layout.slices["dual"]
        for segment, beta in ((slice(0, dual.start), self.beta_x), (dual, self.beta_y)):
            ctx.scratch["u"][segment].lerp_(gradient[segment], 1.0 if start else beta)
        return loss

    def _estimate(self, ctx: ClientContext, batches: Sequence[Any], start: bool) -> tuple[Tensor, Tensor]:
        """Return a loss, and the gradient [P] in x and y."""
        loss = ctx.loss(batches[0], ctx.num_steps)
        return loss.detach(), ctx.model.gradient(loss)
