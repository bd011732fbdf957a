"""Mistakes in a call of ``fedlit.fit`` raise clear errors before anything is written."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from refusals import refused
from scripted import Net, fit, net, part, two
from torch.utils.data import DataLoader, Subset
from toys import ToyData

from fedlit.aggregators import Scaffold
from fedlit.core.errors import ConfigError, TrainingError

pytestmark = pytest.mark.usefixtures("folder")


class Untrainable(LightningModule):
    pass


class Tied(Net):
    """Two layers that share memory but not a parameter; copies of the model would not share it."""

    def __init__(self):
        super().__init__()
        self.tail = torch.nn.Linear(64, 2)
        self.tail.weight.data = self.head.weight.data


@pytest.mark.parametrize(
    ("given", "mistake"),
    [
        (lambda: fit(Net), (ConfigError, "model", "LightningModule", "the class Net", "write Net")),
        (lambda: fit(Untrainable()), (ConfigError, "found no training_step", "define it")),
        (lambda: fit(Tied()), (ConfigError, "Tied", "tail.weight", "share memory")),
        (lambda: fit(net(), {}), (ConfigError, "{'north'")),
        (lambda: fit(net(), [part(), part()]), (ConfigError, "clients", "[a TensorDataset, a TensorDataset]")),
        (lambda: fit(net(), {"north": part(), "North ": part()}), (ConfigError, "'north' and 'North '")),
        (lambda: fit(net(), {1: part()}), (ConfigError, "clients", "found 1", "'1'")),
        (lambda: fit(net(), {"north": part().tensors}), (ConfigError, "north", "TensorDataset")),
        (lambda: fit(net(), {"north": DataLoader(part())}), (ConfigError, "DataLoader")),
        (lambda: fit(net(), {"north": {"train": part()}}), (ConfigError, "dict", "are a tuple")),
        (lambda: fit(net(), {"north": (part(),) * 4}), (ConfigError, "client 'north'", "of 4")),
        (lambda: fit(net(), {"north": (None, part())}), (ConfigError, "client 'north'")),
        (lambda: fit(net(), {"north": (part(), Subset(part(), []))}), (ConfigError, "'north', validation")),
        (lambda: fit(net(), {"north": part(1)}), (ConfigError, "'north'")),
        (lambda: fit(aggregators=Scaffold()), (ConfigError, "aggregators", "write [Scaffold")),
        (lambda: fit(aggregators=[Scaffold]), (ConfigError, "[the class Scaffold]", "write Scaffold")),
        (lambda: fit(rounds="3"), (ConfigError, "rounds", "a whole number", "'3'")),
        (lambda: fit(rounds=0), (ConfigError, "rounds", "found 0")),
        (lambda: fit(optimizer_state="drop"), (ConfigError, "optimizer_state", "'reset' or 'keep'", "'drop'")),
        (lambda: fit(schedule={"window": 1}), (ConfigError, "schedule", "Schedule", "a dict")),
        (lambda: fit(name="a/b"), (ConfigError, "name")),
        (lambda: fit(net(), ToyData()), (ConfigError, "batch_size: ToyData")),
    ],
)
def test_mistakes_are_told_in_words(given, mistake):
    with refused(*mistake):
        given()
    assert not Path("runs").exists()


def test_predictions_of_something_else():
    fitted = fit(rounds=1, figures=False)
    with refused(ConfigError, "predict", "Tensor"):
        fitted.predict(torch.zeros(2, 1, 8, 8))
    fitted.model.forward = lambda images: {"logits": images}
    with refused(TrainingError, "Net.forward", "dict"):
        fitted.predict(part())


def test_a_model_that_cannot_predict_says_what_it_lacks():
    class Silent(Net):
        forward = LightningModule.forward

        def training_step(self, batch, batch_idx):
            return self.head(batch[0].flatten(1)).square().mean()

        validation_step = LightningModule.validation_step

    fitted = fit(Silent(), two(), rounds=1, figures=False)
    with refused(TrainingError, "Silent"):
        fitted.predict(part())


def test_a_misspelt_argument_is_reported_with_a_similar_name():
    with pytest.raises(TypeError, match=r"fit\(\) got an unexpected keyword argument 'round'; did you mean rounds\?"):
        fit(net(), round=3)
