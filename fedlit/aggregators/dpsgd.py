"""DPSGD: differential privacy of single patients."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from fedlit.aggregators.accounting import Steps, epsilon_of, noise_for, prv_epsilon_of
from fedlit.core.aggregator import ClientContext, PrivateAggregator
from fedlit.core.errors import ConfigError
from fedlit.core.flat import Layout
from fedlit.core.gradients import LEAST, clipped_sum
from fedlit.core.messages import Round, State
from fedlit.core.ranges import Fraction, NonNegative, Positive, Within


class DPSGD(PrivateAggregator):
    """DP-SGD (Abadi et al., CCS 2016, arXiv:1607.00133), Algorithm 1: each patient's gradient clipped, and noise.

    ::

        L_t   each patient with probability q, and one of its images                      core/batches.py, PoissonStream
        g_i   = grad f(w; image i)                    by itself, over all weights: primal, dual, and what a client keeps
        g_i  <- g_i min(1, clip / |g_i|)                                                  core/gradients.py
        g     = (sum over L_t of g_i + noise clip N(0, I)) / B                            B: data.batch_size

    q is B / n, with the client's number of patients n down to two digits. Neither B nor q follows the draw. What other
    algorithms of the list make of noised gradients costs no privacy: corrections are added after the noise, control
    variates are means of noised gradients, and optimizer, server and means over clients see nothing else.

    Epsilon and delta are those of a client: of one patient more or less among its training patients, towards all who
    see everything that it sends in the run. A client whose data set names no patients protects single images. They do
    not cover numbers of images and labels, validation and test results, and other runs on the same data.

    **In a simulation the noise follows from the seed**, so that a run can be repeated: it shows what privacy costs, and
    is not private itself. A site makes it from a secret of its own, and counts epsilon over all of its runs.

    Deviations: patients in place of examples; one client's gradients at a time, not of the federation.

    Args:
        clip: Largest norm C of a patient's gradient, at least 1e-6; infinity does not clip, and needs ``noise: 0``.
        noise: Noise multiplier sigma, or:
        epsilon: Budget of a client for the whole run, for which the least noise is computed before the first round. A
            resumed run keeps that noise, and stops before a round that would exceed the budget.
        delta: Probability that epsilon does not hold, below 1 / patients.

    Raises:
        ConfigError: There is no delta, not exactly one of noise and epsilon, or noise with an infinite clip.
    """

    metrics_help = {"privacy/epsilon": "Largest epsilon of a client so far, at the delta of DPSGD."}

    def __init__(
        self, clip: Annotated[float, Within(f"[{LEAST}, inf]")] = 1.0, noise: NonNegative | None = None,
        epsilon: Positive | None = None, delta: Fraction | None = None,
    ) -> None:  # fmt: skip
        if delta is None:
            raise ConfigError("DPSGD.delta: expected a probability below 1 / patients, found none; set it")
        if (noise is None) == (epsilon is None):
            raise ConfigError(f"DPSGD: expected one of noise and epsilon, found {'none' if noise is None else 'both'}")
        if math.isinf(clip) and noise != 0:
            raise ConfigError("DPSGD.clip: expected a finite norm, found inf, which no noise hides; lower it")
        self.clip, self.delta, self.noise, self.epsilon = clip, delta, noise, epsilon

    def server_state(self, layout: Layout, w: Tensor) -> State:
        """Hold clip and noise multiplier; the latter is NaN before :meth:`plan` has computed it."""
        held = {"noise": math.nan if self.noise is None else self.noise, "clip": self.clip}
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in held.items()}

    def plan(self, state: State, planned: Mapping[str, tuple[float, int]], batch_size: int) -> None:
        """Compute the noise with which no client exceeds epsilon in its planned steps, by rate and number."""
        state["batch_size"] = torch.tensor(batch_size)
        if self.epsilon is not None:
            noise = 0.0
            for rate, steps in sorted({*planned.values()}, reverse=True):  # the highest rate needs most, as a rule
                if epsilon_of([Steps(noise, rate, steps)], self.delta) > self.epsilon:
                    noise = noise_for(self.epsilon, self.delta, rate, steps)
            state["noise"] = torch.tensor(noise, dtype=torch.float64)

    def words(self, state: State) -> str:
        """Return noise and clip."""
        return f"noise {float(state['noise']):.4g}, clip {self.clip:g}"

    def spent(self, state: State, taken: tuple[float, int], closer: bool = False) -> float:
        """Return the epsilon of a client after so many steps at a rate; with ``closer`` by PRV in place of RDP."""
        account = prv_epsilon_of if closer else epsilon_of
        return account([Steps(float(state["noise"]), *taken)], self.delta)

    def broadcast(self, state: State, rnd: Round) -> State:
        """Send the noise multiplier."""
        return {"noise": state["noise"]}

    def compute_gradient(self, ctx: ClientContext, batches: Sequence[Any]) -> Tensor:
        """Add the noised sum of clipped gradients; the loss stays with the client.

        Raises:
            ConfigError: A statistic of the module follows the images, which no noise covers.
        """
        (drawn,), before, noise = batches, ctx.stats.clone(), float(ctx.broadcast["noise"])
        step = ctx.num_steps
        total = clipped_sum(ctx.model, lambda each: ctx.loss(each, step), drawn.examples, self.clip, first=step == 0)
        ctx.model.gather_statistics()
        if not torch.equal(ctx.stats.nan_to_num(), before.nan_to_num()):
            raise ConfigError("DPSGD: a buffer of the model changes with the images, and no noise covers it; freeze it")
        if not noise >= 0:
            raise ConfigError("DPSGD: expected a noise multiplier from the server, found none")
        if noise:
            # In float64: a gradient below the last digit of its noise would not be hidden.
            normal = torch.from_numpy(drawn.generator.standard_normal(len(total)))
            total.add_(normal.to(total), alpha=noise * self.clip)
        ctx.grad.add_(total, alpha=1 / drawn.batch_size)
        return torch.zeros_like(total[:1])
