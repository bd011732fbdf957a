"""The table of what one client's round and its model refuse, and ranges of numbers."""

import math

import pytest
from lightning.fabric.accelerators import cuda
from refusals import refused, table
from toys import ToyNet

from fedlit.core.errors import ConfigError, DataError
from fedlit.core.fabric import make_fabric
from fedlit.core.flat import Layout
from fedlit.core.ranges import Within
from fedlit.data.phantom.hospitals import Hospital
from fedlit.data.sampler import Sampler
from fedlit.federation.participation import Availability
from fedlit.federation.settings import Settings


def cumulative():
    module = ToyNet()
    module.body[1].momentum = None
    Layout.of(module)


def mixed():
    module = ToyNet()
    module.head.double()
    Layout.of(module)


MISTAKES = [
    ("BatchNorm of a whole history", cumulative, ConfigError, "body.1"),
    ("two dtypes", mixed, ConfigError, "torch.float32 (body.0.weight), torch.float64 (head.weight"),
    ("a precision", lambda: make_fabric("cpu", precision="16-mixed"), ConfigError, "fabric.precision", "'16-mixed'"),
    ("an accelerator", lambda: make_fabric("gpuu"), ConfigError, "fabric.accelerator", "'gpuu'", "has cpu"),
    ("a bool as a number", lambda: Hospital("north", 9, prevalence={"Mass": True}), DataError,
        "Hospital.prevalence['Mass']: expected a number, found True"),
    ("None as a dict", lambda: Sampler(None), DataError, "found positives None"),
    ("None as a share", lambda: Hospital("north", 9, prevalence={"Edema": None}), DataError, "found None"),
    ("None as noise", lambda: Hospital("north", 9, noise=None), DataError, "found None"),
    ("None as a probability", lambda: Availability({"north": None}), ConfigError, "found None"),
    ("None as a factor", lambda: Settings(lr_factors={"north": None}), ConfigError, "found None"),
]  # fmt: skip


@table(MISTAKES)
def test_it_is_refused(provoke, kind, names):
    with refused(kind, *names):
        provoke()


def test_more_gpus_than_the_machine_has_are_refused(monkeypatch: pytest.MonkeyPatch):
    """Lightning's own error was a traceback, because its class is none of Python's."""
    monkeypatch.setattr(cuda.CUDAAccelerator, "is_available", staticmethod(lambda: True))
    monkeypatch.setattr(cuda, "num_cuda_devices", lambda: 1)
    monkeypatch.setattr(cuda, "_get_all_visible_cuda_devices", lambda: [0])
    with refused(ConfigError, "'cuda' with devices [3]", "only has: [0]"):
        make_fabric("cuda", [3])


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, 1)", (0, 0.5), (-0.1, 1, 2)),
        ("(0, 1]", (0.5, 1), (0, 1.1)),
        ("(0, inf)", (1e-9, 1e9), (0, -1, math.inf)),
        ("[1, inf)", (1, 7), (0, math.inf)),
        ("[0, inf]", (0, math.inf), (-1,)),
    ],
)
def test_ends_of_an_interval(interval: str, inside: tuple[float, ...], outside: tuple[float, ...]) -> None:
    for value in inside:
        Within(interval).check("A.b", value)
    for value in (*outside, math.nan):
        with pytest.raises(ConfigError, match=rf"^A\.b: expected .*, found {value}$"):
            Within(interval).check("A.b", value)
