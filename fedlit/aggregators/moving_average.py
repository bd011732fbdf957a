"""A moving average of the server's model."""

import torch

from fedlit.core.aggregator import Aggregator
from fedlit.core.messages import Round, ServerState, State
from fedlit.core.ranges import Decay


class MovingAverage(Aggregator):
    """Scores the moving average of the server's models, an average of iterates as in Polyak and Juditsky (1992).

    ::

        a_1 = w_1,    a_r = decay a_(r-1) + (1 - decay) w_r        w_r the server's model after round r

    Validation, test, export and runs that start from this one use ``a_r`` and the same average of BatchNorm's
    statistics. Training continues from ``w_r`` and is the same as without it. Parts and personal models that clients
    keep are scored as they are, not averaged.

    Args:
        decay: Weight of the earlier average, in [0, 1); 0 scores the server's model itself.

    Raises:
        ConfigError: ``decay`` is out of range.
    """

    governs = "scored model"

    def __init__(self, decay: Decay = 0.9) -> None:
        self.decay = decay

    def on_round_end(self, state: State, server: ServerState, rnd: Round) -> None:
        """Move the average towards the server's model."""
        new, old = {"w": server.w, "stats": server.stats}, server.scored
        # From the old average, so a constant stays exactly what it is.
        server.scored = {n: torch.lerp(old.get(n, tensor), tensor, 1 - self.decay) for n, tensor in new.items()}
