"""Ditto."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedlit.core.aggregator import Aggregator, ClientContext
from fedlit.core.errors import ConfigError
from fedlit.core.flat import Layout
from fedlit.core.messages import State
from fedlit.core.objective import Objective
from fedlit.core.ranges import NonNegative, Positive


class Ditto(Aggregator):
    """Ditto (Li et al., ICML 2021, arXiv:2012.04221), Algorithm 1: a personal model near the federation's.

    ::

        min over v_k:  f_k(v_k) + lam/2 |v_k - w|^2,   w trained as without Ditto, by the other algorithms of the list

        at each local step:  v_k -= lr (grad f_k(v_k) + lam (v_k - w_r)),   w_r the weights at the start of the round

    v_k and its BatchNorm statistics are state of the client; it starts from the weights of its first round. They are
    the model that validation and test score, and that is exported (``personalise``); a client that has not trained has
    the federation's. Dual variables ascend and are not pulled. It costs another forward and backward pass per step,
    on the same batch, and ``self.log`` in a training step logs the mean of both.

    Deviations: v_k takes as many steps as w, in its rounds only, with plain SGD: no momentum, weight decay or clipping.
    The next phase does not get v_k.

    Args:
        lam: Strength of the pull, the paper's lambda, at least 0; 0 is a model that each client trains alone.
        lr: Learning rate of the personal model, with the factors of the round and the client; by default the
            optimizer's.

    Raises:
        ConfigError: A value is out of range; in training, there is no ``lr`` and the optimizer has several.
    """

    governs = "personal model"
    one_model = "FedAvg"

    def __init__(self, lam: NonNegative = 0.1, lr: Positive | None = None) -> None:
        self.lam, self.lr = lam, lr

    def client_state(self, layout: Layout) -> State:
        """Keep v_k [P], its statistics [S], and whether it has begun."""
        return {
            "v": layout.zeros(),
            "stats": torch.zeros(layout.stats_size, dtype=layout.dtype),
            "began": torch.tensor(0),
        }

    def on_client_round_start(self, ctx: ClientContext) -> None:
        """Start v_k from the weights with which the client begins its first round."""
        if not ctx.state["began"]:
            ctx.state |= {"v": ctx.w.clone(), "stats": ctx.stats.clone(), "began": torch.tensor(1)}
        if self.lr is None and len(set(ctx.rates)) > 1:
            raise ConfigError(
                f"Ditto.lr: expected a learning rate, as the optimizer has {len(set(ctx.rates))}, found none; set lr"
            )

    def on_after_optimizer_step(self, ctx: ClientContext, batches: Sequence[Any]) -> None:
        """Take a step of v_k on the batch of the step of w."""
        from fedlit.core.module import loss_of, step_of  # it imports Lightning, which reports of past runs do not need

        module, v, dual = ctx.model.module, ctx.state["v"], ctx.layout.slices["dual"]
        rate = ctx.rates[0] if self.lr is None else self.lr * ctx.rnd.lr_factor * ctx.client.lr_factor
        with ctx.model.at(v, ctx.state["stats"]):
            step = step_of(module, "training_step")
            loss = loss_of(module, ctx.apply(lambda batch: step(batch, ctx.num_steps - 1), batches[0]))
            gradient = ctx.model.gradient(loss)
            gradient[dual].neg_()
            gradient[: dual.start].add_(v[: dual.start] - ctx.start[: dual.start], alpha=self.lam)
            v.sub_(gradient, alpha=rate)
            for objective in (part for part in module.modules() if isinstance(part, Objective)):
                objective.project()

    def personalise(self, state: State, w: Tensor, stats: Tensor) -> None:
        """Put v_k and its statistics in place of the federation's."""
        if state["began"]:
            w.copy_(state["v"])
            stats.copy_(state["stats"])
