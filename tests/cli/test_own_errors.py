"""Errors of the user's own classes: one line with the class, the method, the file and the line."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from refusals import refused
from torch.utils.data import TensorDataset

import fedlit
from fedlit.core.errors import FedlitError
from fedlit.models import ImageClassifier

CLASSES = """
from fedlit.core.objective import Objective
from fedlit.data import Partition
from fedlit.federation.callbacks import Callback


class Refusing(Callback):
    def __init__(self, much: int = 1):
        raise ValueError("broken")


class Rule(Partition):
    def assign(self, records, seed):
        refuse()


class Ratio(Objective):
    def forward(self, logits, labels):
        return logits.square().mean()

    def measure(self, logits, labels, all_labels):
        return {"mean": logits.mean(0)}

    def settle(self, means):
        raise ValueError("broken")


class Watching(Callback):
    def on_round_end(self, state):
        raise ValueError("broken")


class Typo(Callback):
    def on_round_end(self, state):
        raise KeyError("broken")


def refuse():
    raise ValueError("broken")
"""

RUN = (
    "fit --data.images 60 --data.hospitals 2 --data.image_size 16 --model.backbone small_cnn --federation.workers 1 "
    "--federation.rounds 1 --logger false --data"
)


@pytest.fixture
def classes(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_classes", raising=False)
    Path("own_classes.py").write_text(CLASSES)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ("PhantomCXR --callbacks+=own_classes.Refusing", "Refusing.__init__"),
        ("PhantomCXR --data.partition own_classes.Rule", "Rule.assign"),
    ],
)
def test_a_value_error_is_one_line(options: str, place: str, classes, fedlit_cli):
    code, _, err = fedlit_cli(f"{RUN} {options}")
    assert code in (1, 2)
    (line,) = (line for line in err.splitlines() if line.startswith("fedlit: error: "))
    assert re.fullmatch(rf"fedlit: error: .*{re.escape(place)} \(\S+own_classes.py, line \d+\): broken.*", line)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "place"),
    [({"objective": "Ratio"}, "Ratio.settle"), ({"callbacks": "Watching"}, "Watching.on_round_end")],
)
def test_a_value_error_in_python_is_named(options: dict, place: str, classes):
    made = {key: getattr(import_module("own_classes"), name)() for key, name in options.items()}
    part = TensorDataset(torch.rand(8, 1, 16, 16), torch.randint(2, (8, 1)).float())
    model = ImageClassifier(("Edema",), "small_cnn", objective=made.get("objective"))
    followers = [made["callbacks"]] if "callbacks" in made else None
    with refused(FedlitError, place, "own_classes.py, line", "broken"):
        fedlit.fit(model, {"north": (part, part, part)}, rounds=1, workers=1, callbacks=followers)


def test_another_error_keeps_its_traceback(classes, fedlit_cli):
    with pytest.raises(KeyError, match="broken"):
        fedlit_cli(f"{RUN} PhantomCXR --callbacks+=own_classes.Typo")
