"""The example of segmentation trains, and its Dice selects the best model. It needs MONAI, which fedlit does not."""

import runpy
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_example_of_segmentation_selects_by_dice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("monai")
    monkeypatch.chdir(tmp_path)
    fitted = runpy.run_path(str(Path(__file__).parent.parent / "docs/segmentation.py"))["main"]()
    dice = fitted.metrics["val/dice"]
    assert dice.max() > 0.5 > dice.iloc[0]
    assert fitted.best_round == dice.idxmax()
    assert {"client/north/dice", "client/east/dice"} <= set(fitted.metrics)
    assert fitted.test["test/federation/dice"] > 0.5
