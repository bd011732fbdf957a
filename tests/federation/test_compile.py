"""``federation.compile``: the forward pass through torch.compile, compiled once for all clients."""

from types import SimpleNamespace

import pytest
import torch
from engine_rounds import played, scored
from pictures import Small, data
from refusals import refused
from torch import Tensor, nn

from fedlit.core import local_model
from fedlit.core.errors import ConfigError
from fedlit.core.fabric import make_fabric
from fedlit.federation.assembly import assemble
from fedlit.federation.examinations import Compiler
from fedlit.federation.federation import Federation
from fedlit.federation.session import Session
from fedlit.schedules import ConstantSchedule


class OneLayer(Small):
    """As little as can be compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Identity(), nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 2))


def has_compiler() -> bool:
    return not Compiler().problem(torch.device("cpu"))


def session(folder, module=Small, **options) -> Session:
    """Three clients of 15, 10 and 9 images in batches of 4: each has its own smaller last batch."""
    federation = Federation(schedule=ConstantSchedule(6, "steps"), workers=1, **options)
    torch.manual_seed(1)
    return assemble(federation, module(), data(folder), make_fabric("cpu"))


def trained(ready: Session, score: bool = True) -> Tensor:
    server = played(ready, after=lambda server, _: score and scored(ready, server))
    return torch.cat([server.w, server.stats])


@pytest.mark.slow
def test_no_client_compiles_anew(tmp_path, monkeypatch):
    from torch._dynamo.utils import counters

    monkeypatch.setattr(local_model, "COMPILING", {"backend": "eager"})  # captured as ever, and run as it is
    wanted = trained(session(tmp_path))
    torch._dynamo.reset()
    counters.clear()
    found = trained(session(tmp_path, compile=True))
    # A full batch, a batch of any size, and both without gradients for evaluation.
    assert 2 <= counters["stats"]["unique_graphs"] <= 4
    assert not counters["graph_break"]
    assert torch.equal(found, wanted)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
def test_compiled_rounds_agree_to_rounding(tmp_path):
    """Compilation takes minutes on a busy machine, for any model."""
    from torch._inductor import config

    torch._dynamo.reset()
    wanted = trained(session(tmp_path, OneLayer), score=False)
    with config.patch(compile_threads=1):  # each further compiling process would import PyTorch first
        found = trained(session(tmp_path, OneLayer, compile=True), score=False)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_without_a_compiler_it_is_refused_before_training(tmp_path):
    from torch._inductor import config  # monkeypatch would hide the key from later tests

    with config.patch({"cpp.cxx": ("no-such-compiler",)}), refused(ConfigError, "federation.compile", "install g++"):
        session(tmp_path, compile=True)
    session(tmp_path, compile=False)
    assert not Compiler().problem(SimpleNamespace(type="cuda"))
