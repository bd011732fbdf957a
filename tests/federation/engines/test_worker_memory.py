"""What a worker process does with the memory that a step frees."""

import platform
import resource
import sys

import pytest
from toys import ToyData, ToyNet

from fedlit.core.fabric import make_fabric
from fedlit.federation.federation import Federation
from fedlit.federation.session import Session
from fedlit.schedules import ConstantSchedule


def pages(times: int) -> int:
    """Pages that the system gives to this process while it takes and frees 24 MB so many times."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        freed = [bytearray(b"1") * 2**23 for _ in range(3)]
        del freed
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


class Hungry(ToyNet):
    def training_step(self, batch, batch_idx):
        pages(1)
        self.log("pages", float(pages(20)))
        return super().training_step(batch, batch_idx)


@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="it is a setting of glibc")
def test_a_worker_keeps_it_for_the_next_step():
    federation = Federation([], rounds=1, schedule=ConstantSchedule(2, "steps"), workers=2)
    session = Session(federation, Hungry(), ToyData(3), make_fabric("cpu"))
    server, rnd = session.restore(None)[0], session.round(0)
    try:
        _, reports = session.engine.run(rnd.cohort, session.broadcast(server, rnd), rnd)
    finally:
        session.engine.close()
    assert max(report.logged["pages"] for report in reports) < 1000  # 6,000 for each time that it was given back
