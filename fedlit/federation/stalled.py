"""Detection of a federation whose weights never change."""

from collections.abc import Sequence

from fedlit.core.errors import TrainingError
from fedlit.core.messages import ClientReport, Round


class StalledTraining:
    """Some client's weights change in the first rounds of a run.

    A single client may have a reason not to change, such as unknown labels, and so may a round, such as the first of a
    warm-up from a learning rate of 0. The error is raised only when every client has had a round that trains, and none
    has changed.

    Args:
        clients: Names of the clients of the federation.
        over: Whether to skip the check, as for a resumed run.
    """

    name = "stalled training"
    advice = "check that the loss depends on the weights"

    def __init__(self, clients: Sequence[str], over: bool) -> None:
        self._waiting, self._over = set(clients), over

    def after(self, rnd: Round, reports: Sequence[ClientReport], module: str) -> None:
        """Process the reports of a round.

        Raises:
            TrainingError: No client's weights have changed since the start.
        """
        if self._over or rnd.window == 0 or rnd.lr_factor == 0:
            return
        self._over = any(not report.still for report in reports)
        self._waiting -= {report.client for report in reports}
        if self._over or self._waiting:
            return
        reasons = ", or ".join(sorted({report.still for report in reports}))
        raise TrainingError(
            f"round {rnd.index + 1}: {module} does not train: no client's weights changed, because {reasons}; "
            f"{self.advice} (detach, a copy of a layer, a factor of 0)"
        )
