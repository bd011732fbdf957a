"""Server optimizers: the mean change of a round is a gradient that the server's own optimizer steps along."""

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from fedlit.core.aggregator import Aggregator
from fedlit.core.errors import ConfigError
from fedlit.core.flat import Layout
from fedlit.core.messages import Round, ServerState, State
from fedlit.core.ranges import Decay, Positive

NOT_ELEMENTWISE = {
    "LBFGS": "it needs a closure",
    "Adafactor": "it factors each weight matrix",
    "Muon": "it orthogonalises each weight matrix",
    "SparseAdam": "it needs sparse gradients",
    **dict.fromkeys(("LARS", "Lars", "LAMB", "Lamb"), "its rate depends on the norm of each layer"),
}

DECAYS = ("weight_decay", "lambd")
"""Options of optimizers whose step depends on the weights themselves, not only on gradients."""


class ServerOptimizer(Aggregator):
    """FedOpt (Reddi et al., ICLR 2021, arXiv:2003.00295), Algorithm 1, with any elementwise optimizer of PyTorch.

    ::

        delta = mean_k (w_k - w)             over the cohort, with the federation's client weights
        w     = ServerOpt(w, -delta)         one step of the optimizer, whose gradient is -delta

    SGD with rate 1 is FedAvg bit for bit. The state of the optimizer is the server's, and is checkpointed. A row that
    no client of the cohort owns does not move, and neither do its moments; a counter of steps counts all rounds. Dual
    variables take the same step, as their change already is one of ascent. Statistics of BatchNorm are averaged.

    Args:
        optimizer: Optimizer of the server. ``FedAdam``, ``FedYogi`` and ``FedAdagrad`` are the paper's, which differ
            from PyTorch's.

    Raises:
        ConfigError: The optimizer does not compute each element on its own, or its state is not made of tensors.
    """

    governs = "server optimizer"

    def __init__(self, optimizer: Callable[[Iterable], Optimizer] = lambda p: SGD(p, lr=1.0)) -> None:
        self.optimizer = optimizer
        made, where = optimizer([nn.Parameter(torch.zeros(1))]), f"{type(self).__name__}.optimizer"
        if reason := NOT_ELEMENTWISE.get(type(made).__name__):
            raise ConfigError(f"{where}: {type(made).__name__} cannot work on one vector: {reason}; use SGD or Adam")

    def server_state(self, layout: Layout, w: Tensor) -> State:
        """Count rounds, and keep the optimizer's tensors as they are before its first gradient."""
        parameter, optimizer = self._along(torch.zeros_like(w), torch.zeros_like(w))
        groups = copy.deepcopy([{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups])
        optimizer.step()
        optimizer_state = optimizer.state[parameter]
        changed = [
            k for group, old in zip(optimizer.param_groups, groups, strict=True) for k in old if group[k] != old[k]
        ]
        if strange := changed or [k for k, v in optimizer_state.items() if not torch.is_tensor(v) and v is not None]:
            raise ConfigError(
                f"{type(self).__name__}.optimizer: expected all state of {type(optimizer).__name__} as tensors, found "
                f"{strange[0]!r}, which no checkpoint would hold; use another optimizer"
            )
        return {"rounds": torch.tensor(0)} | {k: v for k, v in optimizer_state.items() if torch.is_tensor(v)}

    def on_aggregate_end(self, state: State, server: ServerState, mean: State, rnd: Round) -> None:
        """Replace the mean change by a step of the optimizer, where a client of the cohort owns the element."""
        decays = any(
            group.get(key) for group in self._along(server.w[:1], server.w[:1])[1].param_groups for key in DECAYS
        )
        start = server.w if decays else torch.zeros_like(server.w)  # from zero, the step has all its digits
        parameter, optimizer = self._along(start.clone(), -server.delta)
        if state["rounds"]:
            optimizer.state[parameter] = {k: v.clone() for k, v in state.items() if k != "rounds"}
        optimizer.step()
        for name, new in optimizer.state[parameter].items():
            if torch.is_tensor(new):
                state[name] = moved(rnd, new, state[name]) if new.shape == server.w.shape else new
        state["rounds"] = state["rounds"] + 1
        server.delta = moved(rnd, parameter.detach() - start, torch.zeros_like(start))

    def _along(self, weights: Tensor, gradient: Tensor) -> tuple[nn.Parameter, Optimizer]:
        parameter = nn.Parameter(weights)
        parameter.grad = gradient
        return parameter, self.optimizer([parameter])


class FedAvgM(ServerOptimizer):
    """FedAvgM (Hsu et al., 2019, arXiv:1909.06335): federated averaging with server momentum.

    ``v = momentum v + mean_k (w_k - w)``, ``w += lr v``: :class:`ServerOptimizer` with SGD.

    Args:
        momentum: Share of v that a round keeps, in [0, 1); 0 with rate 1 is FedAvg.
        lr: Server learning rate, above 0; 1 in the paper.

    Raises:
        ConfigError: A value is out of range.
    """

    def __init__(self, momentum: Decay = 0.9, lr: Positive = 1.0) -> None:
        self.momentum, self.lr = momentum, lr
        super().__init__(lambda p: SGD(p, lr=lr, momentum=momentum))


def moved(rnd: Round, new: Tensor, old: Tensor) -> Tensor:
    """Return the new values [P] of elements that a client of the cohort owns, and the old ones of all others."""
    return torch.where(rnd.participation > 0, new, old)
