"""A script that calls ``fedlit.fit``, run as a command."""

import os
import subprocess
import sys

import pytest

SCRIPT = """\
print("begins")
import gc, sys
gc.disable()  # imports are a fifth faster

import scripted
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import Dataset

import fedlit
from fedlit.aggregators import Aggregator


class Numbers(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.tensor([float(index)])


class Mine(Aggregator):
    def on_aggregate_end(self, state, server, mean, rnd):
        server.delta = server.delta / 2


class Number(LightningModule):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        assert sys.begun or sys.platform != "linux"
        return ((self.x - batch) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


sys.begun = True  # on Linux a worker is a copy of this process, and imports nothing
numbers = {"north": Numbers(), "south": Numbers()}
alone, beside = (fedlit.fit(Number(), numbers, aggregators=[Mine()], rounds=2, workers=n) for n in (1, 2))
assert torch.equal(alone.model.x, beside.model.x)
fitted = scripted.fit(scripted.net(), {"north": scripted.part(), "south": scripted.part()}, workers=2)
print("imported:", sorted({"pandas", "pyarrow", "mlflow", "timm", "sklearn", "pydicom"} & set(sys.modules)))
print("rounds:", list(fitted.metrics.index))

from fedlit.testing import check_aggregator

check_aggregator(Mine())
print("ends")
"""


@pytest.mark.slow
def test_a_script_without_a_guard_has_workers_and_imports_no_pandas_for_data_sets_of_its_own(tmp_path, monkeypatch):
    """Importing pandas takes a third of a second and 60 MiB."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "2 workers" in done.stdout
    said = ("begins", "imported: []", "rounds: [1, 2]", "ends")
    assert [line for line in done.stdout.splitlines() if line in said] == [*said]
