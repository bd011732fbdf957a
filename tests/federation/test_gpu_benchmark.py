"""The benchmark of a GPU runs here, on a small network."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "gpu.py"


@pytest.fixture
def ran(monkeypatch, capsys):
    """Runs the command line of the benchmark: its exit code, and what it printed on stdout and stderr."""

    def run(*options: str) -> tuple[int, str, str]:
        monkeypatch.syspath_prepend(str(BENCHMARK.parent))
        monkeypatch.setattr(sys, "argv", [str(BENCHMARK), *options])
        code = 0
        try:
            runpy.run_path(str(BENCHMARK), run_name="__main__")
        except SystemExit as stopped:
            code = stopped.code or 0
        return code, *capsys.readouterr()

    return run


@pytest.mark.slow
def test_the_benchmark_of_a_gpu_can_be_tried_on_a_cpu(ran):
    code, out, err = ran("--device", "cpu", "--tiny")
    assert code == 0, err
    for side in ("a", "b", "c", "d", "e, bare", "e"):
        assert f"({side}) " in out
    for ratio in ("(c) over (b)", "(c) over (a)", "(d) over (c)"):
        assert f"{ratio}: " in out
    assert "the figures are meaningless" in out


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.slow
def test_without_a_gpu_it_says_how_to_try_it(ran):
    code, _, err = ran()
    assert code == 2
    assert "use --device cpu --tiny" in err
