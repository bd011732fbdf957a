"""A queue of SLURM that only keeps jobs, and a sweep that waits in it."""

import sys
from pathlib import Path

import pytest
from reproduced import planning_with_one_parser
from small_slurm import SWEEP, SmallSlurm
from sweeps import write

from fedlit.core.system.processes import CORES
from fedlit.tracking.journal import LATER


@pytest.fixture(scope="module", autouse=True)
def _one_parser():
    with planning_with_one_parser():
        yield


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what ``fedlit job`` sets for the rest of its process."""
    for name in (LATER, CORES):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(sys, "argv", sys.argv)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallSlurm:
    made = SmallSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", made.path)
    return made


@pytest.fixture
def cluster(folder: Path) -> Path:
    file = Path("cluster.yaml")
    file.write_text("partition: gpu\ntime: 2:00:00\ncpus: 4\nparallel: 8\nsetup: module load cuda\nmore: {qos: long}\n")
    return file


@pytest.fixture
def submitted(slurm: SmallSlurm, cluster: Path, fedlit_cli) -> Path:
    """The experiment folder of a sweep that was submitted and waits."""
    write(Path(), SWEEP)
    out = fedlit_cli(f"sweep --config sweep.yaml --on {cluster}").succeeded()
    assert "2 runs are job 1 of SLURM; job 2 repeats this command after them" in out
    return Path("runs/trial")
