"""CODASCA: CODA+ with control variates for primal and dual variables."""

import warnings
from collections import Counter
from typing import Literal

import torch

from fedlit.aggregators.base import ClientContext
from fedlit.aggregators.scaffold import Scaffold
from fedlit.aggregators.stages import Output, Stages
from fedlit.errors import ConfigError
from fedlit.flat import Layout
from fedlit.messages import Round, ServerState, State
from fedlit.schedules import Schedule


class CODASCA(Stages, Scaffold):
    """CODASCA (Yuan et al., "Federated Deep AUC Maximization", ICML 2021, arXiv:2102.04635), Algorithms 3 and 4.

    ::

        for s = 1..S:  v_s, alpha_s = DSGSCA+(v_{s-1}, alpha_{s-1}, eta_l, eta_g, I_s, R_s, gamma)

        DSGSCA+:  c_k = 0 on every client                                                    reset
                  for r = 1..R:
                      for t = 0..I-1:
                          v_k     -= eta_l (grad_v F_k^s(v_k, alpha_k; z) - c_v,k + c_v)     Stages' and Scaffold's drift
                          alpha_k += eta_l (grad_alpha F_k^s(v_k, alpha_k; z) - c_alpha,k + c_alpha)
                      c_k = mean over the round of the gradients used (eq. 7)                Scaffold
                      c   = mean_k c_k,  v = v + eta_g (mean_k v_k - v),  alpha likewise
                  return v, alpha after a random round                                       output: random

    ``F_k^s`` includes the proximal term. One vector holds v and alpha, with the sign of alpha's gradient turned, so this is
    the composition of SCAFFOLD and stages and nothing else, on any objective. Statistics of BatchNorm are averaged;
    ``eta_g`` never touches them.

    Deviations: c_k is the mean of the gradients themselves, with the proximal term, which is eq. 6 in exact arithmetic
    without its loss of digits at small steps; the output of a stage is its last iterate unless ``output: random`` is said;
    with a part of the clients in the cohort c follows SCAFFOLD's rule, which is an extension.

    Args:
        gamma: coefficient of the proximal term.
        eta_g: server learning rate on v and alpha; the theory's is sqrt(K), the experiments' 0.99 to 1.1.
        reset: control variates start from zero at each stage, as in Algorithm 4: ``auto`` as the schedule has it (stage
            lists and the theory's schedule restart, the practice schedule does not), ``always`` or ``never``.
        output: of a stage: ``last``, ``average``, ``random``.

    Raises:
        ConfigError: gamma is negative or above 10 (its inverse?); eta_g is not above 0; a stage of one round with reset.
    """

    weights = "uniform"

    def __init__(
        self,
        gamma: float = 1e-3,
        eta_g: float = 1.0,
        reset: Literal["auto", "always", "never"] = "auto",
        output: Output = "last",
    ) -> None:
        Stages.__init__(self, gamma, output)
        Scaffold.__init__(self, eta_g)
        self.reset = reset

    def check_schedule(self, schedule: Schedule, rounds: int) -> None:
        plans = [schedule.plan(index) for index in range(rounds)]
        stages = Counter(plan.stage for plan in plans if self._resets(plan.restarts))
        if plans and not plans[-1].last_of_stage:
            stages.pop(plans[-1].stage, None)
        shortest = min(stages.values(), default=5)
        if shortest == 1:
            raise ConfigError(
                "CODASCA: the schedule has a stage of one round, and control variates that are reset with each stage "
                "need a round to form: that is CODA+. Use longer stages, or CODASCA's reset: never"
            )
        if shortest < 5:
            warnings.warn(
                f"CODASCA: the schedule has a stage of {shortest} rounds; control variates are reset with each stage, and "
                "the first round of each runs without them. Longer stages, or reset: never, keep more of their effect",
                stacklevel=2,
            )

    def client_state(self, layout: Layout) -> State:
        return super().client_state(layout) | {"stage": torch.tensor(0)}

    def on_round_start(self, state: State, server: ServerState, rnd: Round) -> None:
        super().on_round_start(state, server, rnd)
        if rnd.first_of_stage and self._resets(rnd.restarts):
            state["c"].zero_()

    def on_client_round_start(self, ctx: ClientContext) -> None:
        # By number, so that a client that missed the first round of a stage starts anew as well.
        if self._resets(ctx.rnd.restarts) and int(ctx.state["stage"]) != ctx.rnd.stage:
            ctx.state["c"].zero_()
        ctx.state["stage"] = torch.tensor(ctx.rnd.stage)
        super().on_client_round_start(ctx)

    def _resets(self, restarts: bool) -> bool:
        return self.reset == "always" or (self.reset == "auto" and restarts)
