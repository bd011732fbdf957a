"""One machine, K clients: workers side by side, or this process alone."""

from collections.abc import Mapping, Sequence

from fedlit.engines.base import InProcess, OnReply, Program, Scores, View
from fedlit.engines.pool import ProcessPool
from fedlit.fabric import FederationFabric
from fedlit.messages import Broadcast, ClientReport, ClientState, Payload, Round


class LocalEngine:
    """Simulates a federation in one process, or in ``workers`` processes that run clients side by side.

    On a CPU two clients with one thread each are faster than one client with two. Replies are added in cohort
    order, so the numbers are the same, bit for bit, whatever the number of workers.

    Args:
        program: what to train.
        fabric: device and precision.
        workers: processes; 1 trains in this one.
    """

    def __init__(self, program: Program, fabric: FederationFabric, workers: int = 1) -> None:
        self._pool = ProcessPool(program, fabric, workers) if workers > 1 else InProcess(program, fabric)
        self.where = f"{workers} workers" if workers > 1 else f"one worker on {fabric.device}"
        self._states: dict[str, ClientState] = {}
        self._waiting: dict[str, ClientState] = {}

    def run(
        self, cohort: Sequence[str], down: Broadcast, rnd: Round, on_reply: OnReply = lambda report: None
    ) -> tuple[Payload, list[ClientReport]]:
        total, reports, self._waiting = None, [], {}
        for payload, state, report in self._pool.train(cohort, self._states, down, rnd):
            self._waiting[report.client] = state
            reports.append(report)
            on_reply(report)
            if total is None:
                total = payload.clone()
            else:
                total.add_(payload)
        return total, reports

    def commit(self) -> None:
        self._states |= self._waiting
        self._waiting = {}

    def evaluate(self, views: Sequence[View], down: Broadcast) -> list[Scores]:
        return list(self._pool.evaluate(views, self._states, down))

    def client_states(self) -> Mapping[str, ClientState]:
        return self._states

    def load_client_states(self, states: Mapping[str, ClientState]) -> None:
        self._states = dict(states)

    def close(self) -> None:
        self._pool.close()
