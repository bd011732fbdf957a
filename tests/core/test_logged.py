"""Names of logged values in the metrics of a stage."""

import pytest

from fedlit.core.logged import metric_names


@pytest.mark.parametrize(
    ("stage", "name", "expected"),
    [
        ("val", "val_loss", "loss"), ("val", "val/loss", "loss"), ("val", "valid_loss", "loss"),
        ("val", "validation loss", "loss"), ("val", "loss", "loss"), ("val", "value_loss", "value_loss"),
        ("val", "val", "val"), ("val", "val_", "val_"), ("val", "loss/val", "loss/val"),
        ("val", "train_loss", "train_loss"), ("train", "train_acc", "acc"), ("train", "training.acc", "acc"),
        ("train", "trained_on", "trained_on"), ("train", "val_loss", "val_loss"),
    ],
)  # fmt: skip
def test_the_prefix_of_the_stage_is_dropped(stage, name, expected):
    assert metric_names([name], stage, ()) == {name: expected}


def test_a_name_of_fedlit_is_left_to_it():
    assert metric_names(["train_loss", "train_acc"], "train", ("loss",)) == {
        "train_loss": "train_loss", "train_acc": "acc"
    }  # fmt: skip


def test_values_that_would_share_a_name_keep_their_own():
    same = ["loss", "val_loss", "valid_loss", "val_f1"]
    assert metric_names(same, "val", ()) == {
        "loss": "loss",
        "val_loss": "val_loss",
        "valid_loss": "valid_loss",
        "val_f1": "f1",
    }
