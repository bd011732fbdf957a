"""A script that calls ``fedlit.fit``, run as a command."""

import os
import subprocess
import sys

import pytest

SCRIPT = """\
print("begins")
import sys

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import Dataset

import fedlit
from fedlit.aggregators import Aggregator
from fedlit.testing import check_aggregator


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
check_aggregator(Mine())
print("ends")
"""


@pytest.mark.slow
def test_a_script_without_a_guard_has_workers(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "2 workers" in done.stdout
    assert [line for line in done.stdout.splitlines() if line in ("begins", "ends")] == ["begins", "ends"]


LOADED = """
import sys

from scripted import fit, net, part

fitted = fit(net(), {"north": part(), "south": part()}, workers=2)
print(*sorted({"pandas", "pyarrow", "mlflow", "timm", "sklearn", "pydicom"} & set(sys.modules)))
print(list(fitted.metrics.index))
"""


@pytest.mark.slow
def test_data_sets_of_ones_own_need_no_pandas(tmp_path, monkeypatch):
    """Importing pandas takes a third of a second and 60 MiB."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.stdout.splitlines()[-2:] == ["", "[1, 2]"], done.stdout + done.stderr
