"""FedProx."""

from fedlit.core.aggregator import Aggregator, ClientContext
from fedlit.core.ranges import NonNegative


class FedProx(Aggregator):
    """FedProx (Li et al., MLSys 2020, arXiv:1812.06127), Algorithm 2: ``mu/2 |w - w_r|^2`` on the local objective.

    ``w_r`` are the weights at the start of the round. What a client keeps to itself (FedBN's norm layers) and
    dual variables are not pulled. Deviation: every client takes the schedule's number of steps instead of
    solving to a tolerance gamma_k.

    Args:
        mu: Strength of the pull, at least 0; 0 is FedAvg.

    Raises:
        ConfigError: mu is negative or infinite.
    """

    governs = "pull towards the start of the round"

    def __init__(self, mu: NonNegative = 0.01) -> None:
        self.mu = mu

    def on_client_round_start(self, ctx: ClientContext) -> None:
        """Pull towards the weights at which the round starts."""
        ctx.correction.pull(ctx.w, self.mu)
