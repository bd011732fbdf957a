"""The benchmark of a GPU runs here, on a small network."""

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "gpu.py"


@pytest.mark.slow
def test_the_benchmark_of_a_gpu_can_be_tried_on_a_cpu(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    monkeypatch.setattr(sys, "argv", [str(BENCHMARK), "--device", "cpu", "--tiny"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCHMARK), run_name="__main__")
    assert not ended.value.code
    out = capsys.readouterr().out
    for side in ("a", "b", "c", "d", "e, bare", "e"):
        assert f"({side}) " in out
    for ratio in ("(c) over (b)", "(c) over (a)", "(d) over (c)"):
        assert f"{ratio}: " in out
    assert "the figures are meaningless" in out
