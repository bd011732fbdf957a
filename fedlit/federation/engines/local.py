"""The engine of one machine: parallel workers, or only this process."""

from typing import Literal

from fedlit.core.fabric import FederationFabric
from fedlit.core.system.processes import cores, may_have_children
from fedlit.federation.engines.base import Engine, InProcessPool, Program
from fedlit.federation.engines.pool import ProcessPool


def wanted_workers(setting: int | Literal["auto"], fabric: FederationFabric) -> int:
    """Return the number of workers for the setting ``federation.workers``, before it is limited to the clients."""
    if setting != "auto":
        return setting
    return cores() if fabric.device.type == "cpu" else 1


class LocalEngine(Engine):
    """Engine that simulates a federation in one process or in ``workers`` parallel processes.

    On a CPU two clients with one thread each are faster than one client with two threads. Replies are added in cohort
    order, so results are bit-identical for any number of workers.
    """

    def __init__(self, program: Program, fabric: FederationFabric, workers: int = 1) -> None:
        alone = workers > 1 and not may_have_children()
        workers = 1 if alone else workers
        super().__init__(ProcessPool(program, fabric, workers) if workers > 1 else InProcessPool(program, fabric))
        self.where = f"{workers} workers" if workers > 1 else f"one worker on {fabric.device}"
        if alone:
            self.where += " (this process belongs to a multiprocessing pool and cannot start workers)"
