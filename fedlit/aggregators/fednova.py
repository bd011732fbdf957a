"""FedNova."""

import torch
from torch import Tensor, nn
from torch.optim import SGD

from fedlit.core.aggregator import Aggregator, ClientContext
from fedlit.core.configured_optimizer import configured_optimizer
from fedlit.core.errors import ConfigError
from fedlit.core.messages import Round, ServerState, State
from fedlit.core.ranges import Decay


class FedNova(Aggregator):
    """FedNova (Wang et al., NeurIPS 2020, arXiv:2007.07481): updates are normalised by the length of local training.

    A client's change is ``w_k - w = -lr G_k a_k``, where the columns of G_k are its gradients and a_k says how much
    each of them counts in the end. FedAvg is then led by clients that take more steps; FedNova averages directions::

        d_k    = (w_k - w) / |a_k|_1                                                       on_before_send
        w     += tau_eff sum_k pi_k d_k,   tau_eff = sum_k pi_k |a_k|_1                    on_aggregate_end

        |a_k|_1 = tau                                                     SGD, tau steps
                  (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)       with momentum rho
                  (1 - (1 - lr mu)^tau) / (lr mu)                         with the proximal term mu of FedProx

    Proximal terms of other algorithms in the list (FedProx, CODA+) are found in the correction, so that a momentum and
    a pull may also meet. Without differences in the number of steps FedNova is FedAvg. Momentum has to start from zero
    in each round, as ``|a_k|_1`` counts this round's gradients only, so ``federation.optimizer_state: keep`` is
    refused. Combine it with FedAvgM for the paper's server momentum.

    Deviations: means are over the cohort and over the owners of a row, tau_eff is one number for the cohort (and one
    for dual variables, which nothing pulls). A client's factor of the learning rate (``lr_factors``) counts as
    a part of ``|a_k|_1``. The released code takes the mean number of steps for tau_eff if there is a proximal term,
    and counts steps twice if there is a momentum as well.

    Args:
        momentum: Momentum of the model's optimizer, in [0, 1).

    Raises:
        ConfigError: The momentum is out of range, or the model's optimizer is not SGD with it; in training, something
            pulls and the optimizer has several rates.
    """

    governs = ("normalisation of updates", "momentum")

    def __init__(self, momentum: Decay = 0.0) -> None:
        self.momentum = momentum
        self.optimizer_state = "reset" if momentum else None

    def configure_model(self, module: nn.Module) -> None:
        """Refuse an optimizer whose a_k is another one."""
        optimizer = configured_optimizer(module).optimizer
        if type(optimizer) is not SGD:
            raise ConfigError(
                f"FedNova: expected the optimizer SGD, for which it knows how much each gradient counts, found "
                f"{type(optimizer).__name__}: set model.optimizer: SGD"
            )
        for group in optimizer.param_groups:
            if group["momentum"] != self.momentum or group["dampening"] or group["nesterov"]:
                raise ConfigError(
                    f"FedNova.momentum: expected that of the model's optimizer, {group['momentum']:g}, which has no "
                    f"nesterov and no dampening, found {self.momentum:g}; set both to the same value"
                )

    def on_before_send(self, ctx: ClientContext, change: Tensor) -> Tensor:
        """Divide the change by ``|a_k|_1``."""
        for start, stop, pull in ctx.layout.spans(ctx.correction.decay):
            change[start:stop].div_(self._length(ctx, pull))
        return change

    def on_client_round_end(self, ctx: ClientContext) -> State:
        """Send ``|a_k|_1`` of the weights and of dual variables, [2]."""
        lengths = [self._length(ctx, pull) for pull in (float(ctx.correction.decay.max()), 0.0)]
        return {"lengths": torch.tensor(lengths, dtype=ctx.layout.dtype)}

    def on_aggregate_end(self, state: State, server: ServerState, mean: State, rnd: Round) -> None:
        """Multiply the mean direction by tau_eff."""
        dual, (primal_steps, dual_steps) = server.layout.slices["dual"], mean["lengths"].tolist()
        server.delta[: dual.start] *= primal_steps
        server.delta[dual] *= dual_steps

    def _length(self, ctx: ClientContext, pull: float) -> float:
        if pull and len(set(ctx.rates)) > 1:
            raise ConfigError(
                f"FedNova: expected one learning rate together with a proximal term, found {len(set(ctx.rates))}; use "
                "one parameter group"
            )
        return ctx.client.lr_factor * length(ctx.num_steps, self.momentum, pull * ctx.rates[0])


def length(steps: int, momentum: float, pull: float) -> float:
    """Return ``|a_k|_1``: how far so many steps of rate 1 along a constant gradient of 1 go, pulled to their start."""
    moved = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1 - pull * moved
        moved += velocity
    return moved
