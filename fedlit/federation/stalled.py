"""A federation whose weights never move: it is stopped once every client has had its turn."""

from collections.abc import Sequence

from fedlit.core.errors import TrainingError
from fedlit.core.messages import ClientReport, Round


class StalledTraining:
    """Some client's weights move in the first rounds of a run.

    One client may stand still for a good reason, such as labels that nobody knows, and so may a round, such as the first of
    a warm-up that starts at a rate of 0. So all clients have to stand still, each in a round that trains.

    Args:
        clients: Names of the clients of the federation.
        over: Whether there is nothing to watch: a run that goes on has moved before.
    """

    name = "stalled"
    advice = "look for a loss that the weights do not lead to"

    def __init__(self, clients: Sequence[str], over: bool) -> None:
        self._waiting, self._over = set(clients), over

    def after(self, rnd: Round, reports: Sequence[ClientReport], module: str) -> None:
        """Look at how a round went for its cohort.

        Raises:
            TrainingError: No client's weights have moved since the start.
        """
        if self._over or rnd.window == 0 or rnd.lr_factor == 0:
            return
        self._over = any(not report.still for report in reports)
        self._waiting -= {report.client for report in reports}
        if self._over or self._waiting:
            return
        reasons = ", or ".join(sorted({report.still for report in reports}))
        raise TrainingError(
            f"round {rnd.index + 1}: {module} does not train: no client's weights have moved, as {reasons}; look for a loss "
            "that the weights do not lead to (detach, a copy of a layer, a factor of 0)"
        )
