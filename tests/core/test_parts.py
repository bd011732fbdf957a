"""The parts that a module declares by its attributes."""

from lightning.pytorch import LightningModule
from torch import nn

from fedlit.core.parts import Parts
from fedlit.models import ImageClassifier


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
