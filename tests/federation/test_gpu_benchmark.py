"""The benchmark of a GPU runs here, on a small network."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "gpu.py"


def ran(*options: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, BENCHMARK, *options], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_benchmark_of_a_gpu_can_be_tried_on_a_cpu():
    done = ran("--device", "cpu", "--tiny")
    assert done.returncode == 0, done.stderr
    for side in ("a", "b", "c", "d", "e, bare", "e"):
        assert f"({side}) " in done.stdout
    for ratio in ("(c) over (b)", "(c) over (a)", "(d) over (c)"):
        assert f"{ratio}: " in done.stdout
    assert "the figures say nothing" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.slow
def test_without_a_gpu_it_says_how_to_try_it():
    done = ran()
    assert done.returncode == 2
    assert "no CUDA device here; --device cpu --tiny" in done.stderr
