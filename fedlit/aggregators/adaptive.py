"""Adaptive server optimizers: FedAdagrad, FedAdam and FedYogi."""

from abc import abstractmethod

import torch
from torch import Tensor

from fedlit.aggregators.server_optimizer import moved
from fedlit.core.aggregator import Aggregator
from fedlit.core.flat import Layout
from fedlit.core.messages import Round, ServerState, State
from fedlit.core.ranges import Decay, Positive


class AdaptiveServer(Aggregator):
    """Adaptive federated optimization (Reddi et al., ICLR 2021, arXiv:2003.00295), Algorithm 2.

    ::

        delta = mean_k (w_k - w)                                  over the cohort
        m     = beta_1 m + (1 - beta_1) delta
        v     = v + delta^2                                       FedAdagrad
                v - (1 - beta_2) delta^2 sign(v - delta^2)        FedYogi
                beta_2 v + (1 - beta_2) delta^2                   FedAdam
        w    += lr m / (sqrt(v) + tau)

    m starts at 0 and v at tau^2. Unlike PyTorch's Adam there is no correction of the start; tau is added to the root
    and sets how adaptive the step is: a large one makes all elements step alike. A row that no client of the cohort
    owns does not move, and neither do its m and v. Dual variables take the same step; statistics of BatchNorm are
    averaged.

    Deviation: client weights are the federation's (uniform in Algorithm 2, by the number of images in the experiments).

    Args:
        lr: Server learning rate eta, above 0.
        beta_1: Share of m that a round keeps, in [0, 1).
        tau: The paper's degree of adaptivity, above 0.

    Raises:
        ConfigError: A value is out of range.
    """

    governs = "server optimizer"

    def __init__(self, lr: Positive, beta_1: Decay, tau: Positive) -> None:
        self.lr, self.beta_1, self.tau = lr, beta_1, tau

    @abstractmethod
    def second(self, v: Tensor, squares: Tensor) -> Tensor:
        """Return the new v [P], given the squares [P] of the mean change."""

    def server_state(self, layout: Layout, w: Tensor) -> State:
        """Start m [P] at 0 and v [P] at tau^2."""
        return {"m": torch.zeros_like(w), "v": torch.full_like(w, self.tau**2)}

    def on_aggregate_end(self, state: State, server: ServerState, mean: State, rnd: Round) -> None:
        """Update m and v, and replace the mean change by the adaptive step."""
        m = self.beta_1 * state["m"] + (1 - self.beta_1) * server.delta
        v = self.second(state["v"], server.delta**2)
        # MKL's root of float32 has another last digit on processors with AVX-512.
        step = self.lr * m / (v.double().sqrt().to(v.dtype) + self.tau)
        state["m"], state["v"] = moved(rnd, m, state["m"]), moved(rnd, v, state["v"])
        server.delta = moved(rnd, step, torch.zeros_like(step))


class FedAdagrad(AdaptiveServer):
    """FedAdagrad (Reddi et al., ICLR 2021, arXiv:2003.00295), Algorithm 2: ``v = v + delta^2``.

    All other lines are those of :class:`fedlit.aggregators.adaptive.AdaptiveServer`: ``m = beta_1 m + (1 - beta_1)
    delta``, ``w += lr m / (sqrt(v) + tau)``, with m = 0 and v = tau^2 at the start.

    Args:
        lr: Server learning rate, above 0.
        beta_1: Share of m that a round keeps, in [0, 1); 0 in the paper's experiments.
        tau: The paper's degree of adaptivity, above 0.

    Raises:
        ConfigError: A value is out of range.
    """

    def __init__(self, lr: Positive = 0.01, beta_1: Decay = 0.0, tau: Positive = 1e-3) -> None:
        super().__init__(lr, beta_1, tau)

    def second(self, v: Tensor, squares: Tensor) -> Tensor:
        """Return the sum of all squares."""
        return v + squares


class FedAdam(AdaptiveServer):
    """FedAdam (Reddi et al., ICLR 2021, arXiv:2003.00295), Algorithm 2: ``v = beta_2 v + (1 - beta_2) delta^2``.

    All other lines are those of :class:`fedlit.aggregators.adaptive.AdaptiveServer`: ``m = beta_1 m + (1 - beta_1)
    delta``, ``w += lr m / (sqrt(v) + tau)``, with m = 0 and v = tau^2 at the start, and no correction of the start.

    Args:
        lr: Server learning rate, above 0.
        beta_1: Share of m that a round keeps, in [0, 1).
        beta_2: Share of v that a round keeps, in [0, 1).
        tau: The paper's degree of adaptivity, above 0.

    Raises:
        ConfigError: A value is out of range.
    """

    def __init__(self, lr: Positive = 0.01, beta_1: Decay = 0.9, beta_2: Decay = 0.99, tau: Positive = 1e-3) -> None:
        super().__init__(lr, beta_1, tau)
        self.beta_2 = beta_2

    def second(self, v: Tensor, squares: Tensor) -> Tensor:
        """Return the moving average of the squares."""
        return self.beta_2 * v + (1 - self.beta_2) * squares


class FedYogi(FedAdam):
    """FedYogi (Reddi et al., ICLR 2021, arXiv:2003.00295), Algorithm 2: v changes by a bounded amount.

    ``v = v - (1 - beta_2) delta^2 sign(v - delta^2)``. All other lines are those of
    :class:`fedlit.aggregators.adaptive.AdaptiveServer`: ``m = beta_1 m + (1 - beta_1) delta``,
    ``w += lr m / (sqrt(v) + tau)``, with m = 0 and v = tau^2 at the start.

    Args:
        lr: Server learning rate, above 0.
        beta_1: Share of m that a round keeps, in [0, 1).
        beta_2: The change of v is 1 - beta_2 times the squares, in [0, 1).
        tau: The paper's degree of adaptivity, above 0.

    Raises:
        ConfigError: A value is out of range.
    """

    def second(self, v: Tensor, squares: Tensor) -> Tensor:
        """Return v, moved towards the squares by a share of them."""
        return v - (1 - self.beta_2) * squares * (v - squares).sign()
