"""Mistakes in a call of ``fedlit.fit`` raise clear errors before anything is written."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from scripted import Net, fit, net, part
from torch.utils.data import DataLoader, IterableDataset, Subset
from toys import ToyData

from fedlit.aggregators import Scaffold
from fedlit.core.errors import ConfigError, TrainingError


class Untrainable(LightningModule):
    pass


class Tied(Net):
    """Two layers that share memory but not a parameter; copies of the model would not share it."""

    def __init__(self):
        super().__init__()
        self.tail = torch.nn.Linear(64, 2)
        self.tail.weight.data = self.head.weight.data


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Stream(IterableDataset):
    def __iter__(self):
        yield from ()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: fit(Net), "model: expected LightningModule, found the class Net; write Net\\(...\\)"),
        (lambda: fit(torch.nn.Linear(2, 2)), "model: expected LightningModule, found a Linear"),
        (lambda: fit(Untrainable()), "found no training_step; define it"),
        (lambda: fit(Tied()), "Tied: its parameters head.weight and tail.weight share memory"),
        (lambda: fit(net(), {}), "clients: expected at least one, such as {'north': .*found none"),
        (lambda: fit(net(), [part(), part()]), "clients: expected .*found \\[a TensorDataset, a TensorDataset\\]"),
        (lambda: fit(net(), {"north": part(), "North ": part()}), "'north' and 'North ' are the same in files"),
        (lambda: fit(net(), {".north": part(), "north": part()}), "'.north' and 'north' are the same in files"),
        (lambda: fit(net(), {1: part()}), "clients: expected names that are texts, found 1; write '1'"),
        (lambda: fit(net(), {"north": 3}), "client 'north', training: expected a data set .* found a int; it has no"),
        (lambda: fit(net(), {"north": part().tensors}), "client 'north', training: .* found a Tensor; .*TensorDataset"),
        (lambda: fit(net(), {"north": DataLoader(part())}), "found a DataLoader; give its data set"),
        (lambda: fit(net(), {"north": Stream()}), "found a Stream; an example is asked for by its index"),
        (lambda: fit(net(), {"north": {"train": part()}}), "found a dict; .* are a tuple"),
        (lambda: fit(net(), {"north": [part(), part()]}), "found a list; .*are a tuple: \\(train, val, test\\)"),
        (lambda: fit(net(), {"north": (part(),) * 4}), "client 'north': expected .*found a tuple of 4"),
        (lambda: fit(net(), {"north": (None, part())}), "client 'north': .*without a training set"),
        (lambda: fit(net(), {"north": (part(), Subset(part(), []))}), "client 'north', validation: .*is empty"),
        (lambda: fit(net(), {"north": part(1)}), "at least 2 training samples.*'north' \\(1\\)"),
        (lambda: fit(aggregators=Scaffold()), "aggregators: expected a list of Aggregator, .*write \\[Scaffold"),
        (lambda: fit(aggregators=[Scaffold]), "found \\[the class Scaffold\\]; write Scaffold\\(...\\)"),
        (lambda: fit(aggregators=["Scaffold"]), "aggregators: expected a list of Aggregator, found \\['Scaffold'\\]"),
        (lambda: fit(rounds="3"), "rounds: expected a whole number, found '3'"),
        (lambda: fit(rounds=0), "federation.rounds: expected at least 1, found 0"),
        (lambda: fit(optimizer_state="drop"), "optimizer_state: expected 'reset' or 'keep', found 'drop'"),
        (lambda: fit(seed=True), "seed: expected a whole number, found True"),
        (lambda: fit(schedule={"window": 1}), "schedule: expected Schedule, found a dict"),
        (lambda: fit(logger="csv"), "logger: expected Tracker or Logger or a list of Tracker or Logger or"),
        (lambda: fit(name="a/b"), "name: expected a name of letters"),
        (lambda: fit(precision="16"), "fabric.precision"),
        (lambda: fit(net(), ToyData()), "batch_size: ToyData has its own"),
    ],
    ids=[
        "class", "module", "untrainable", "tied", "nobody", "a list", "one name", "with a dot", "number as name", "number",
        "tensors", "loader", "stream", "dict", "list of sets", "four sets", "no training set", "empty set",
        "one example", "one aggregator", "aggregator class", "aggregator name", "text", "no rounds", "word",
        "truth value", "schedule", "logger", "path", "precision", "batch size twice",
    ],
)  # fmt: skip
def test_mistakes_are_told_in_words(given, words):
    with pytest.raises(ConfigError, match=words):
        given()
    assert not Path("runs").exists()


def test_predictions_of_something_else():
    fitted = fit()
    with pytest.raises(ConfigError, match=r"predict: expected a data set .*found a Tensor"):
        fitted.predict(torch.zeros(2, 1, 8, 8))
    fitted.model.forward = lambda images: {"logits": images}
    with pytest.raises(TrainingError, match=r"Net.forward returned a dict"):
        fitted.predict(part())


def test_a_model_that_cannot_predict_says_what_it_lacks():
    class Silent(Net):
        forward = LightningModule.forward

        def training_step(self, batch, batch_idx):
            return self.head(batch[0].flatten(1)).square().mean()

        validation_step = LightningModule.validation_step

    fitted = fit(Silent())
    with pytest.raises(TrainingError, match=r"Silent has neither predict_step nor forward, .*def predict_step"):
        fitted.predict(part())


def test_names_of_algorithms_are_for_yaml():
    words = r"aggregators: expected a list of Aggregator, found \['FedBN'\]; names are for YAML, in Python write FedBN"
    with pytest.raises(ConfigError, match=words):
        fit(aggregators=["FedBN"])


def test_a_misspelt_argument_is_reported_with_a_similar_name():
    with pytest.raises(TypeError, match=r"fit\(\) got an unexpected keyword argument 'round'; did you mean rounds\?"):
        fit(net(), round=3)
