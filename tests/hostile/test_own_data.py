"""Custom data modules that override ``setup()``, and the names of their classes."""

import sys

import pytest
import torch
from support.hostile import Refused, check_refused, each

MODULE = """\
import torch
from lightning.pytorch import LightningModule
from torch.utils.data import TensorDataset

from fedlit.data import ClientData, FederatedDataModule


class Nameless(FederatedDataModule):
    named = ()

    def __init__(self):
        super().__init__(partition=None, batch_size=4)

    def setup(self, stage=None):
        for seed, name in enumerate(("east", "west")):
            g = torch.Generator().manual_seed(seed)
            labels = torch.tensor([[0, 1], [1, 0]]).repeat(6, 1).float()
            part = TensorDataset(torch.randn(12, 1, 32, 32, generator=g), labels)
            self.clients[name] = ClientData(name, self.named, part, part, part)


class Late(Nameless):
    def setup(self, stage=None):
        self.classes = ("Edema", "Mass")
        super().setup(stage)


class Twice(Nameless):
    def __init__(self):
        super().__init__()
        self.classes = ["Edema", "Edema"]


class Named(Nameless):
    named = ("Edema", "Mass")


class OfTheClass(Named):
    classes = ("Edema", "Mass")


class Computed(Named):
    @property
    def classes(self):
        return self.named


class Net(LightningModule):
    def __init__(self, classes):
        super().__init__()
        self.classes = tuple(classes)
        self.head = torch.nn.Linear(32 * 32, len(self.classes))

    def training_step(self, batch, batch_idx):
        logits = self.validation_step(batch, batch_idx)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, batch[1])

    def validation_step(self, batch, batch_idx):
        return self.head(batch[0].flatten(1))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Unscored(Net):
    def __init__(self):
        super().__init__(("Edema", "Mass"))
        del self.classes
"""

OPTIONS = "--federation.rounds 1 --federation.workers 1 --logger false --fast_dev_run true"
FILES = {"own_classes.py": MODULE}
ONES_OWN = f"fit --model own_classes.Net {OPTIONS} --data own_classes."


def named(what: str, kind: str, *words: str) -> Refused:
    return Refused(what, ONES_OWN + kind, words, FILES)


INPUTS = [
    named(
        "no classes", "Nameless", "Nameless.classes: expected class names, which Net needs", "self.classes", "__init__"
    ),
    named("classes that setup sets", "Late", "Late.classes: expected class names", "setup() is called after"),
    named("a class twice", "Twice", "Twice.classes: expected different names", "'Edema' twice"),
    Refused(
        "no classes for the classifier that ships",
        f"fit --model ImageClassifier {OPTIONS} --data own_classes.Nameless",
        ("model.classes is empty", "self.classes in __init__"),
        FILES,
    ),
]


@pytest.fixture(autouse=True)
def importable(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "own_classes", raising=False)


@each(INPUTS)
def test_it_is_refused_by_name(given, fedlit_cli):
    check_refused(given, fedlit_cli)


@pytest.mark.parametrize("kind", ["OfTheClass", "Computed"])
def test_classes_as_an_attribute_or_a_property_reach_the_model(kind, fedlit_cli, tmp_path):
    (tmp_path / "own_classes.py").write_text(MODULE)
    torch.manual_seed(0)
    out = fedlit_cli(ONES_OWN + kind).succeeded()
    assert "Edema" in out
    assert "mean over defined classes" in out


def test_a_model_that_takes_no_classes_needs_none(fedlit_cli, tmp_path):
    (tmp_path / "own_classes.py").write_text(MODULE)
    fedlit_cli(f"fit --model own_classes.Unscored {OPTIONS} --data own_classes.Nameless").succeeded()
