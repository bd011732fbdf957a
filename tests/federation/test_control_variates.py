"""The warning at the start of a run whose control variates do not fit its optimizer."""

import pytest

from fedlit.aggregators import CODASCA, FedAvg, FedProx, Scaffold
from fedlit.core.governing import ADAPTIVE, control_variates_warning, governed


@pytest.mark.parametrize("optimizer", sorted(ADAPTIVE))
def test_an_adaptive_optimizer_is_warned_of(optimizer: str):
    said = control_variates_warning(["Scaffold"], optimizer)
    assert said.startswith(f"Scaffold corrects the gradients by control variates, and {optimizer} then rescales")


def test_sgd_and_other_algorithms_are_not():
    assert control_variates_warning(["Scaffold"], "SGD") == ""
    assert control_variates_warning([], "Adam") == ""
    assert ["control variates" in governed(cls()) for cls in (Scaffold, CODASCA, FedAvg, FedProx)] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.slow
def test_it_is_said_before_the_first_round(tmp_path, monkeypatch, fedlit_cli):
    monkeypatch.chdir(tmp_path)
    code, out, err = fedlit_cli(
        "fit --model ImageClassifier --model.backbone small_cnn --fast_dev_run true"
        " --model.optimizer Adam --model.optimizer.lr 0.01 --federation.workers 1 --federation.aggregators=[Scaffold]"
        " --data PhantomCXR --data.hospitals 2 --data.images 60 --data.image_size 32 --data.batch_size 8 --logger false"
    )
    assert code == 0, err
    assert "warning: Scaffold corrects the gradients by control variates" in out
