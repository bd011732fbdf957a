"""The mutants of `tests/support/faults.py` still have a place in the code."""

import sys
from pathlib import Path

import pytest
from faults import MUTANTS

BENCHMARKS = Path(__file__).parent / "benchmarks"


def test_every_mutant_has_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from mutants import ROOT, broken

    for mutant in MUTANTS:
        (tmp_path / "fedlit" / mutant.file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fedlit" / mutant.file).write_text((ROOT / "fedlit" / mutant.file).read_text())
        broken(mutant, tmp_path)
        assert (ROOT / "tests" / mutant.tests).exists()
    assert len(MUTANTS) >= 40
    sys.modules.pop("mutants")
