"""Users' modules: their steps and metrics, names of logged values, and the parts that they declare."""

from pathlib import Path

import pytest
import torch
from foreigners import Plain, Unvalidated
from lightning.pytorch import LightningModule
from runs import Place
from torch import nn
from torchmetrics import MeanMetric

from fedlit.core.fabric import make_fabric
from fedlit.core.logged import metric_names
from fedlit.core.module import collect_logs, step_of
from fedlit.core.parts import Parts
from fedlit.federation.examinations import OF_MODULES, examine
from fedlit.models import ImageClassifier


class WithMean(Unvalidated):
    """Logs the mean of its metric."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = MeanMetric()


def test_a_module_of_two_processes_logs_metrics_of_its_own(tmp_path: Path):
    """torchmetrics would gather from all ranks at each logged value, but ranks take different numbers of steps."""
    place = Place(tmp_path, "--data foreigners.Digits --model foreigners.Plain --federation.rounds 2")
    ranks = place.ranks("--name two")
    one = place.fit("--name one --fabric.accelerator cpu")
    for command in (*ranks, one):
        assert command.wait() == 0, command.output
    two = dict((row[:2], float(row[2])) for row in place.run("two").metrics())
    for step, key, value in place.run("one").metrics():
        assert two[step, key] == pytest.approx(float(value), rel=1e-5), key


def test_a_metric_is_accumulated_until_the_round_ends():
    module, fabric = WithMean(), make_fabric("cpu")
    collect_logs(module, fabric)
    for rounds in range(2):
        fabric.begin()
        for batch in ([1.0, 3.0], [11.0 + rounds]):
            module.mean.update(torch.tensor(batch))
            module.log("mean", module.mean, on_epoch=True)
        assert fabric.means() == {"mean": pytest.approx(5 + rounds / 3)}


def test_what_is_not_for_the_logger_is_not_logged():
    module, fabric = WithMean(), make_fabric("cpu")
    collect_logs(module, fabric)
    module.log("shown", 1.0, prog_bar=True, logger=False)
    module.log_dict({"kept": torch.tensor(2.0, requires_grad=True)}, sync_dist=True)
    assert list(fabric.logged) == ["kept"]
    assert not fabric.logged["kept"][0].requires_grad


def test_a_step_may_leave_the_number_of_its_batch_out():
    assert step_of(Unvalidated(), "training_step").__func__ is Unvalidated.training_step
    g = torch.Generator().manual_seed(0)
    batch = torch.randn(2, 1, 4, 4, generator=g), torch.tensor([0, 3])
    plain = Plain()
    collect_logs(plain, make_fabric("cpu"))
    torch.testing.assert_close(step_of(plain, "training_step")(batch, 5), plain.training_step(batch))


def test_a_plain_module_is_accepted_without_a_word(recwarn: pytest.WarningsRecorder):
    examine(Plain(), OF_MODULES)
    examine(Unvalidated(), OF_MODULES)
    assert not recwarn.list


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


def test_the_classifier_has_all_parts():
    model = ImageClassifier(("Edema", "Nodule"), backbone="small_cnn", trainable="head")
    parts = Parts.of(model)
    assert (parts.classes, parts.head) == (("Edema", "Nodule"), model.head)
    assert (parts.objective, parts.fixed_features) == (model.objective, model.body)
    parts.train_only("all")
    assert Parts.of(model).fixed_features is None


def test_a_module_may_lack_any_of_them():
    assert Parts.of(nn.Linear(2, 1)) == Parts()


def test_an_attribute_that_is_no_module_is_no_part():
    module = LightningModule()
    module.head, module.objective = "head", len
    assert (Parts.of(module).head, Parts.of(module).objective) == (None, None)
