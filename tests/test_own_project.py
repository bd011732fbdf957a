"""A user's algorithm runs from its own folder, without changes to fedlit."""

import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from runs import execute

from fedlit.testing import check_aggregator
from fedlit.tracking.base import MetricsFile

PROJECT = Path(__file__).parent / "own_project"
FEDLIT = "from fedlit.cli.main import main; main()"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project, outside of fedlit's repository."""
    return Path(shutil.copytree(PROJECT, tmp_path / "own_project", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_project"]:  # of another test
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(PROJECT))


def by_hand(rounds: int, lr: float = 0.05, window: int = 3, beta: float = 0.8, eta_g: float = 0.5) -> list[float]:
    """The server's number after every round; 6 of the 8 examples want 1, 2 of them -2."""
    x, v, path = 0.0, 0.0, []
    for _ in range(rounds):
        left = (1 - lr) ** window  # of the way to a hospital's optimum, after its local steps
        delta = 6 / 8 * (1 - left) * (1.0 - x) + 2 / 8 * (1 - left) * (-2.0 - x)
        v = beta * v + delta
        x += eta_g * v
        path.append(x)
    return path


@pytest.mark.slow
def test_the_project_runs_from_its_folder_and_gives_the_numbers_of_its_paper(project: Path):
    """The console script finds the classes in the working directory."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(Path(sys.executable).with_name("fedlit")), "fit", "--config", "config.yaml"]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "ServerMomentum over 2 clients" in done.stdout

    (directory,) = (project / "runs" / "momentum").iterdir()
    path = by_hand(6)
    server = torch.load(directory / "checkpoints" / "round-000006" / "server.pt", weights_only=True)
    torch.testing.assert_close(server["w"], torch.tensor([path[-1]], dtype=torch.float64), rtol=1e-12, atol=0)

    rows = {(step, key): value for step, key, value in MetricsFile(directory / "metrics.csv").rows()}
    for number, x in enumerate(path, start=1):
        loss = 6 / 8 * (x - 1) ** 2 / 2 + 2 / 8 * (x + 2) ** 2 / 2
        assert rows[number, "val/loss"] == pytest.approx(loss, rel=1e-6)


@pytest.mark.slow
def test_a_callback_of_the_project_follows_the_rounds(project: Path):
    named = "my_project.stop_when_settled.StopWhenSettled"
    options = ["--callbacks", f"[{{class_path: {named}, init_args: {{tolerance: 0.1}}}}]", "--federation.rounds", "50"]
    said = execute(FEDLIT, project, "fit", "--config", "config.yaml", *options).succeeded()
    (directory,) = (project / "runs" / "momentum").iterdir()
    rows = {(step, key): value for step, key, value in MetricsFile(directory / "metrics.csv").rows()}
    path = [0.0, *by_hand(50)]
    moved = [abs(b - a) for a, b in pairwise(path)]
    rounds = 1 + next(i for i, length in enumerate(moved) if length < 0.1)
    assert f"stopped after round {rounds}: the weights moved by" in said
    assert [rows[number, "own/moved"] for number in range(1, rounds + 1)] == pytest.approx(moved[:rounds], rel=1e-6)
    assert (rounds + 1, "own/moved") not in rows
    plain = ["--federation.rounds", str(rounds + 2), "--ckpt_path", "last"]
    # Callbacks do not train: a run goes on without one, or with another.
    execute(FEDLIT, project, "fit", "--config", "config.yaml", *plain).succeeded()
    weights = torch.load(directory / "checkpoints" / f"round-{rounds + 2:06d}" / "server.pt", weights_only=True)["w"]
    assert float(weights) == pytest.approx(path[rounds + 2], rel=1e-9)


def test_the_aggregator_passes_the_check_for_authors(importable: None):
    from my_project.server_momentum import ServerMomentum

    check_aggregator(ServerMomentum())
