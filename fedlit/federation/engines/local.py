"""One machine, K clients: workers side by side, or this process alone."""

from typing import Literal

from fedlit.core.fabric import FederationFabric
from fedlit.core.system.processes import cores
from fedlit.federation.engines.base import Engine, InProcessPool, Program
from fedlit.federation.engines.pool import ProcessPool


def wanted_workers(setting: int | Literal["auto"], fabric: FederationFabric) -> int:
    """Number of workers that a run takes for ``federation.workers``, where as many clients take part."""
    if setting != "auto":
        return setting
    return cores() if fabric.device.type == "cpu" else 1


class LocalEngine(Engine):
    """Simulates a federation in one process, or in ``workers`` processes that run clients side by side.

    On a CPU two clients with one thread each are faster than one client with two. Replies are added in cohort
    order, so the numbers are the same, bit for bit, whatever the number of workers.

    Args:
        program: what to train.
        fabric: device and precision.
        workers: processes; 1 trains in this one.
    """

    def __init__(self, program: Program, fabric: FederationFabric, workers: int = 1) -> None:
        super().__init__(ProcessPool(program, fabric, workers) if workers > 1 else InProcessPool(program, fabric))
        self.where = f"{workers} workers" if workers > 1 else f"one worker on {fabric.device}"
