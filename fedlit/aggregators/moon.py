"""MOON."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlit.core.aggregator import Aggregator, ClientContext
from fedlit.core.errors import ConfigError
from fedlit.core.examples import IMAGE, part_of
from fedlit.core.flat import Layout
from fedlit.core.messages import State
from fedlit.core.parts import Parts
from fedlit.core.ranges import NonNegative, Positive


class MOON(Aggregator):
    """MOON (Li et al., CVPR 2021, arXiv:2103.16257): model-contrastive learning, Algorithm 1.

    A client's loss draws its features to those of the global model, and away from those of its own last model::

        z, z_glob, z_prev = features of an image by the weights now, at the start of the round, and of the last round
        l_con  = - log ( exp(sim(z, z_glob) / T) / (exp(sim(z, z_glob) / T) + exp(sim(z, z_prev) / T)) )
        loss   = l_sup + mu l_con,       sim(a, b) = a . b / (|a| |b|)

    Features are the input of ``head``; the paper's projection head before it is ``model.projection: 256``. z is that of
    the training step itself. z_glob and z_prev take two more forward passes, in evaluation mode, with the BatchNorm
    statistics of their own models and without dropout, as in the released code. A client has no term in its first
    round; weights and statistics of its last one are its state.

    Args:
        mu: Weight of the contrastive term, at least 0; 0 is FedAvg. 0.1 to 10 in the paper.
        temperature: The temperature T, above 0.

    Raises:
        ConfigError: A value is out of range, or the model has no ``head``; in training, its features are not trained.
    """

    governs = "contrastive term"

    def __init__(self, mu: NonNegative = 1.0, temperature: Positive = 0.5) -> None:
        self.mu, self.temperature = mu, temperature

    def configure_model(self, module: nn.Module) -> None:
        """Refuse a model without a head, whose input are the features."""
        if Parts.of(module).head is None:
            name = type(module).__name__
            raise ConfigError(f"MOON: expected {name} to have layers named head, found none; their input are features")

    def client_state(self, layout: Layout) -> State:
        """Keep the weights [P] and statistics [S] of the last round, and whether there was one."""
        stats = torch.zeros(layout.stats_size, dtype=layout.dtype)
        return {"w": layout.zeros(), "stats": stats, "trained": torch.tensor(0)}

    def on_client_round_start(self, ctx: ClientContext) -> None:
        """Catch the input of the head from now on, unless this is the client's first round."""
        if ctx.state["trained"]:
            hook = ctx.model.module.head.register_forward_pre_hook(lambda _, seen: ctx.scratch.update(z=seen[0]))
            ctx.scratch |= {"hook": hook, "stats": ctx.stats.clone()}

    def extra_loss(self, ctx: ClientContext, batch: Any) -> Tensor:
        """Return the contrastive term of the batch on which the training step has just computed."""
        if "hook" not in ctx.scratch:
            return torch.zeros((), dtype=ctx.w.dtype, device=ctx.w.device)
        z = ctx.scratch.pop("z")
        if not z.requires_grad:
            raise ConfigError("MOON: expected trained features, found a frozen body; leave MOON out here")
        similar = []
        for w, stats in ((ctx.start, ctx.scratch["stats"]), (ctx.state["w"], ctx.state["stats"])):
            with torch.no_grad(), _evaluating(ctx.model.module), ctx.model.at(w, stats):
                ctx.model.module(part_of(batch, 0, IMAGE))
            similar.append(F.cosine_similarity(z.flatten(1), ctx.scratch.pop("z").flatten(1)) / self.temperature)
        return self.mu * F.softplus(similar[1] - similar[0]).mean()

    def on_client_round_end(self, ctx: ClientContext) -> State:
        """Keep the weights and statistics with which the round ends."""
        if hook := ctx.scratch.pop("hook", None):
            hook.remove()
        ctx.state |= {"w": ctx.w.clone(), "stats": ctx.stats.clone(), "trained": torch.tensor(1)}
        return {}


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Context manager in which all layers are in evaluation mode."""
    training = [part for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True
