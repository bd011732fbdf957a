"""``fabric.benchmark`` reaches the process of a run, and its workers."""

import pytest
import torch
from engine_rounds import play_round
from toys import ToyData, ToyNet

from fedlit.core.fabric import make_fabric
from fedlit.core.system import processes
from fedlit.federation.assembly import assemble
from fedlit.federation.federation import Federation
from fedlit.schedules import ConstantSchedule


class Telling(ToyNet):
    def training_step(self, batch, batch_idx):
        self.log("benchmark", float(torch.backends.cudnn.benchmark))
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("benchmark", [None, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_it_is_set_where_clients_train(monkeypatch, benchmark, workers):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(processes, "can_be_copied", lambda: False)  # as with a GPU: a copy would inherit it
    federation = Federation([], schedule=ConstantSchedule(1, "steps"), workers=workers)
    session = assemble(federation, Telling(), ToyData(2), make_fabric("cpu", benchmark=benchmark))
    try:
        server, _, _ = session.restore(None)
        reports = play_round(session, server)
    finally:
        session.engine.close()
    assert {report.logged["benchmark"] for report in reports} == {float(bool(benchmark))}
