"""NPA, CODA and CODA+: stagewise descent-ascent with periodic averaging."""

from typing import Literal

from fedlit.aggregators.stages import Stages
from fedlit.core.errors import ConfigError
from fedlit.core.messages import Measured, Round, ServerState, State
from fedlit.schedules import Schedule


class CODAPlus(Stages):
    """CODA+ (Yuan et al., "Federated Deep AUC Maximization", ICML 2021, arXiv:2102.04635), Algorithms 1 and 2.

    ::

        for s = 1..S:  v_s, alpha_s = DSG+(v_{s-1}, alpha_{s-1}, eta_s, T_s, I_s, gamma)      the schedule's stages

        DSG+:  v_k = v_0, alpha_k = alpha_0 on every client
               for t = 0..T-1:
                   v_k     -= eta (grad_v F_k(v_k, alpha_k; z) + gamma (v_k - v_0))          ctx.correction.pull
                   alpha_k += eta grad_alpha F_k(v_k, alpha_k; z)                            the vector's dual slice
                   every I steps:  v_k = mean_k v_k,  alpha_k = mean_k alpha_k               FedAvg, uniform weights
               return the mean over clients and iterates                                     output: average

    v are the network's weights and the objective's a, b; alpha is whatever the objective maximises over, so this is
    federated averaging on any saddle objective (``AUCSaddle`` for FDAM's), and on one without a dual it is FedAvg with
    stages.

    Deviations: the output of a stage is its last iterate unless ``output: average`` is set, which is Algorithm 2. The
    code of the experiments (LibAUC) continues from the last iterate too, and centres the next stage at the average:
    ``output: centre``. BatchNorm's statistics are averaged at each communication.

    Gamma is 0.001 to 0.002 in the paper's experiments.
    """

    weights = "uniform"


class CODA(CODAPlus):
    """CODA (Guo et al., ICML 2020, arXiv:2005.02426): CODA+ that recomputes alpha at the start of each stage.

    Every client scores an extra sample (``federation.measure_batches``). Alpha becomes the exact maximiser at the
    current weights, which for the AUC objective is ``m + E[h | y=0] - E[h | y=1]`` over all clients together, with the
    federation's weights, whatever its start. A class without positives, or without negatives, in the sample keeps its
    alpha. Scores are computed as in training: BatchNorm normalises each batch of the sample by its own statistics.

    Deviations, each with the paper's side as a setting: pooled instead of a mean of the clients' own class means, which
    a client without positives lacks (``AUCSaddle(dual_means: clients)``); the gradient of the proximal term is added to
    the step, instead of an implicit step (``proximal: implicit``); the last iterate instead of the average
    (``output: average``).
    """

    def measures(self, rnd: Round, when: Literal["before", "after"]) -> bool:
        """Ask for scores at the start of each stage except the first, whose start is measured anyway."""
        return super().measures(rnd, when) or (when == "before" and rnd.first_of_stage and rnd.index > 0)

    def on_measure_end(
        self, state: State, server: ServerState, measured: Measured, rnd: Round, when: Literal["before", "after"]
    ) -> None:
        """Set alpha to the maximiser at the weights at the start of the stage."""
        super().on_measure_end(state, server, measured, rnd, when)
        if when == "before" and rnd.first_of_stage:
            dual = server.layout.slices["dual"]
            server.w[dual] = measured.w[dual]


class NPA(CODAPlus):
    """NPA, the naive parallel algorithm (FDAM, section 1): CODA+ that communicates after every local step.

    With identical steps at all clients it is stochastic descent-ascent on a batch K times as large.

    Raises:
        ConfigError: The schedule's window is not one step.
    """

    def check_schedule(self, schedule: Schedule, rounds: int) -> None:
        """Refuse a window of more than one step."""
        super().check_schedule(schedule, rounds)
        for index in range(rounds):
            plan = schedule.plan(index)
            if (plan.window, plan.unit) != (1, "steps"):
                raise ConfigError(
                    f"NPA communicates after every step, but the schedule's window is {plan.window} {plan.unit}; set "
                    "federation.schedule's window to 1 and its unit to steps, or use CODAPlus"
                )
