"""CODASCA: CODA+ with control variates for primal and dual variables."""

from typing import Literal

from fedlit.aggregators.composition import Composition
from fedlit.aggregators.scaffold import Scaffold
from fedlit.aggregators.stages import Output, Stages
from fedlit.core.ranges import Count


class CODASCA(Composition):
    """CODASCA (Yuan et al., "Federated Deep AUC Maximization", ICML 2021, arXiv:2102.04635), Algorithms 3 and 4.

    It is exactly the list of ``Scaffold`` and ``Stages``, on any objective::

        for s = 1..S:  v_s, alpha_s = DSGSCA+(v_{s-1}, alpha_{s-1}, eta_l, eta_g, I_s, R_s, gamma)   federation.schedule

        DSGSCA+:  c_k = 0 on every client, c = 0                            Scaffold: reset
                  for r = 1..R:
                      for t = 0..I-1:                                       core/rounds.py, client_round
                          v_k -= eta_l (grad_v F_k(v_k, alpha_k; z)         core/local_model.py, LocalModel.step
                                        + gamma (v_k - v_{s-1})             Stages.on_client_round_start
                                        - c_v,k + c_v)                      Scaffold.on_client_round_start
                          alpha_k += eta_l (grad_alpha F_k(v_k, alpha_k; z)     the same vector: its dual slice
                                            - c_alpha,k + c_alpha)
                      c_k = mean of the round's gradients (eq. 7)           Scaffold.on_client_round_end
                      c   = mean_k c_k                                      Scaffold.on_aggregate_end
                      v, alpha += eta_g (mean_k of their changes)           Scaffold.on_aggregate_end
                  return v, alpha after a random round                      Stages.on_stage_end, output: random

    The paper's ``F_k^s`` is F_k with the proximal term, the second line of the step. One vector holds v and alpha, with
    the sign of alpha's gradient reversed. Statistics of BatchNorm are averaged; ``eta_g`` never changes them.

    Deviations: c_k is the mean of the gradients themselves, with the proximal term, which is eq. 6 in exact arithmetic
    without its loss of digits at small steps; the output of a stage is its last iterate unless ``output: random`` is
    said; with a part of the clients in the cohort c follows SCAFFOLD's rule, which is an extension.

    Args:
        gamma: Coefficient of the proximal term.
        eta_g: Server learning rate on v and alpha; the theory's is sqrt(K), the experiments' 0.99 to 1.1.
        reset: Whether control variates start from zero at each stage, as in Algorithm 4. With ``auto`` the schedule
            decides: stage lists and the theory's schedule restart, the practice schedule does not.
        output: Output of a stage: ``last``, ``average``, ``random`` or ``centre``.
        extra_batches: Number of further batches after each round from which c_k is computed, at the weights that the
            client received (the alternative below eq. 7); by default c_k is the mean of the round's gradients.

    Raises:
        ConfigError: gamma is negative or above 10 (probably its inverse); eta_g is not above 0; a stage has one round
            and control variates are reset.
    """

    weights = "uniform"
    metrics_help = Scaffold.metrics_help | Stages.metrics_help

    def __init__(
        self,
        gamma: float = 1e-3,
        eta_g: float = 1.0,
        reset: Literal["auto", "always", "never"] = "auto",
        output: Output = "last",
        extra_batches: Count | None = None,
    ) -> None:
        super().__init__(Scaffold(eta_g, reset, extra_batches), Stages(gamma, output))
