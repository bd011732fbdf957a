"""A ValueError or RuntimeError of a custom class names the class, the method, the file and the line."""

import pandas as pd
import pytest
import torch
from refusals import refused

from fedlit.aggregators import FedAvg
from fedlit.core.errors import ConfigError, DataError, TrainingError
from fedlit.data import ByOrganisation, Partition
from fedlit.experiment.mistakes import custom_code, named_errors


class Rule(Partition):
    def __init__(self, rule):
        self.rule = rule

    def assign(self, records, seed):
        return self.rule()


class Helper:
    def read(self):
        raise ValueError("expected a scanner, found none")


class Scanner:
    def open(self):
        raise RuntimeError("no scanner")


class Net(torch.nn.Module):
    def forward(self, values):
        raise ValueError("expected a scanner, found none")


class Impossible(FedAvg):
    def before(self):
        raise ConfigError("expected one class, found two")


def test_the_nearest_line_of_the_package_is_named():
    line = f"line {Helper.read.__code__.co_firstlineno + 1}): expected a scanner, found none"
    with refused(DataError, "Rule.assign (", f"test_custom.py, {line}"), named_errors():
        Rule(Helper().read).assign(None, 0)


def test_an_error_of_another_package_counts_as_that_of_the_method_that_called_it():
    with refused(DataError, "Rule.assign (", "test_custom.py, line ", "Unable to parse"), named_errors():
        Rule(lambda: pd.to_numeric(pd.Series(["x"]))).assign(None, 0)


def test_a_runtime_error_is_one_line_too():
    with refused(TrainingError, "Rule.assign (", "test_custom.py, line ", "no scanner"), named_errors():
        Rule(Scanner().open).assign(None, 0)


def test_a_refusal_of_a_configuration_remains_one():
    with refused(ConfigError, "Impossible.before", "expected one class"), named_errors():
        Impossible().before()


@pytest.mark.parametrize(
    "call",
    [
        Helper().read,
        lambda: Net()(1),
        lambda: Rule(lambda: FedAvg(weights="none")).assign(None, 0),
        lambda: Rule(lambda: {}["scanner"]).assign(None, 0),
        lambda: Partition().assign(None, 0),
        lambda: ByOrganisation().assign(None, 0),
    ],
    ids=["another class", "a module", "an error of fedlit", "another error", "an abstract method", "a class of fedlit"],
)
def test_other_errors_stay_as_they_are(call):
    with pytest.raises(Exception) as caught, named_errors():
        call()
    assert not custom_code(caught.value)
    assert "test_custom.py, line" not in str(caught.value)
