"""Freed memory: workers keep it for the next step, and the main process returns it to the system."""

import platform
import resource
import sys
from pathlib import Path

import pytest
from engine_rounds import opened, play_round
from runs import execute
from toys import ToyData, ToyNet

from fedlit.federation.federation import Federation
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
        self.log("pages", float(pages(3)))
        return super().training_step(batch, batch_idx)


glibc = pytest.mark.skipif(
    sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="only glibc can be told what to do with it"
)


@glibc
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_keeps_it_for_the_next_step(workers):
    federation = Federation([], schedule=ConstantSchedule(2, "steps"))
    with opened(federation, Hungry(), ToyData(3), workers=workers) as (session, server):
        reports = play_round(session, server)
    assert max(report.logged["pages"] for report in reports) < 1000  # 6,000 for each time that it was given back


MODELS = """
from toys import ToyData, ToyNet
import torch
from fedlit.core.fabric import make_fabric
from fedlit.federation.federation import Federation
from fedlit.federation.assembly import assemble
from fedlit.schedules import ConstantSchedule

def held() -> int:
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))

class Deep(ToyNet):
    def __init__(self):
        super().__init__()
        self.body.extend(torch.nn.Linear(128, 128) for _ in range(600))

module, data = Deep(), ToyData(2)
size, before = sum(p.nbytes for p in module.parameters()), held()
federation = Federation([], rounds=1, schedule=ConstantSchedule(1, "steps"), workers=2)
made = assemble(federation, module, data, make_fabric("cpu"))
print((held() - before) / size)
made.engine.close()
"""


@glibc
def test_a_session_holds_the_servers_weights_and_no_more(tmp_path: Path):
    done = execute(MODELS, tmp_path)
    assert done.wait() == 0, done.output
    assert 0.5 < float(done.output) < 1.6  # one more if a copy of the model or of its parameters is kept
