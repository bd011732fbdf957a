import pickle
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from runs import execute

from fedlit.core.system.pickling import dumps

SCRIPT = """
import sys
import torch
from torch.utils import data

aten = torch.ops.aten
relu = torch.ops.aten.relu.default


class Named:
    def __init__(self):
        self.classes, self.ops, self.backends, self.library, self.distributed = "abcde"
        self.net = torch.nn.Linear(2, 2)
        self.data = data.TensorDataset(torch.ones(1))

    def __call__(self):
        with torch.backends.cudnn.flags(enabled=False):
            return relu(self.net.weight) + aten.neg(self.net.bias) + torch.ops.aten.add.Tensor(self.net.weight, 1.0)
"""
FRESH = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb'))().tolist())"


def test_attributes_of_a_scripts_class_may_have_the_names_of_modules(tmp_path: Path):
    """As ``self.classes`` beside ``torch.nn``, with which ``torch.classes`` is sent, in a process that is no copy."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(SCRIPT, "script.py", "exec"), names)
    made = names["Named"]()
    assert pickle.loads(dumps(type(made))).__call__.__code__.co_filename == "script.py"  # as errors of a worker name it
    (tmp_path / "made").write_bytes(dumps(made))
    assert execute(FRESH, tmp_path, "made").succeeded().strip() == str(made().tolist())


@pytest.mark.parametrize(
    "name",
    ["classes", "ops", "backends.cudnn", "ops.aten.relu", "ops.aten.add.Tensor", "_VF", "nn"],
)  # fmt: skip
def test_what_a_library_has_once_is_itself_again(name: str):
    named = attrgetter(name)(torch)
    assert pickle.loads(dumps(named)) is named


def test_a_module_that_nobody_can_import_keeps_its_error():
    class Replaced(ModuleType):
        pass

    with pytest.raises(TypeError, match="cannot pickle 'Replaced' object"):
        dumps(Replaced("replaced"))
