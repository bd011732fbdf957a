"""Captured steps, replayed for every client, give the same results as normal steps."""

import copy
import itertools

import numpy as np
import pytest
import torch
from engine_rounds import everything, played
from pictures import CLASSES, Small, data, network
from refusals import raising, refused
from tape import TapeRecorder
from torch import Tensor
from torchmetrics import MeanMetric

from fedlit.aggregators import CODASCA, FedBN, FedProx, LocalSGDM, Scaffold, SurgicalHeads
from fedlit.core import optimizer
from fedlit.core.fabric import make_fabric
from fedlit.core.messages import ClientData
from fedlit.data.in_memory import GivenClients
from fedlit.data.pictures.augmentation import XrayAugmentation
from fedlit.federation.assembly import assemble
from fedlit.federation.description import announcement
from fedlit.federation.engines import captured
from fedlit.federation.federation import Federation
from fedlit.federation.monitor import Monitor
from fedlit.federation.session import Session
from fedlit.models import ImageClassifier
from fedlit.objectives import AUCSaddle
from fedlit.schedules import ConstantSchedule, PracticeSchedule

STEPS = 6


class Recordable(Small):
    """A convolution, BatchNorm, dropout, and a custom optimizer."""

    def __init__(self, make=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)) -> None:
        super().__init__()
        self.make = make

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.make(self.parameters())


def saddle() -> ImageClassifier:
    return network(objective=AUCSaddle(clamp=True))


def practice() -> PracticeSchedule:
    return PracticeSchedule(STEPS, 60, 6)


CASES = {
    "FedAvg": (network, Federation),
    "momentum, dropout": (Recordable, Federation),
    "Nesterov, decay": (
        lambda: Recordable(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
        Federation,
    ),
    "Adam": (lambda: Recordable(lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True)), Federation),
    "AdamW, state kept": (
        lambda: Recordable(lambda p: torch.optim.AdamW(p, lr=0.01)),
        lambda: Federation(optimizer_state="keep"),
    ),
    "momentum kept": (Recordable, lambda: Federation(optimizer_state="keep")),
    "rates of clients": (Recordable, lambda: Federation(lr_factors={"two": 0.3})),
    "SCAFFOLD": (network, lambda: Federation([Scaffold()])),
    "FedProx": (network, lambda: Federation([FedProx(0.1)])),
    "SCAFFOLD, FedProx, FedBN": (network, lambda: Federation([Scaffold(), FedProx(0.1), FedBN()])),
    "FedProx, clipped": (Recordable, lambda: Federation([FedProx(0.1)], gradient_clip=0.1)),
    "SCAFFOLD, clamped": (network, lambda: Federation([Scaffold()], gradient_clamp=0.01)),
    "CODASCA, SurgicalHeads": (saddle, lambda: Federation([CODASCA(), SurgicalHeads()], schedule=practice())),
}


@pytest.fixture
def recorders(monkeypatch) -> list[TapeRecorder]:
    """Recorders that let CPUs capture steps as GPUs do."""
    made: list[TapeRecorder] = []

    def make(device) -> TapeRecorder:
        made.append(TapeRecorder(device))
        return made[-1]

    monkeypatch.setattr(captured, "RECORDERS", {"cpu": make})
    monkeypatch.setattr("fedlit.federation.examinations.machine.RECORDERS", {"cpu": make})
    monkeypatch.setattr(optimizer, "FUSED", {"cpu"})
    return made


def uneven(folder) -> GivenClients:
    """Clients of 15, 10 and 9 images in batches of 4, so that most have a smaller one; one labels one class."""
    given = data(folder, XrayAugmentation())
    given.clients["three"].classes = CLASSES[:1]
    return given


def session(module, federation, folder, cuda_graph, device="cpu", **options) -> Session:
    if not isinstance(federation.schedule, PracticeSchedule):
        federation.schedule = ConstantSchedule(STEPS, "steps")
    federation.workers, federation.cuda_graph = 1, cuda_graph
    return assemble(federation, module, uneven(folder), make_fabric(device, **options))


def trained(ready: Session) -> dict[str, Tensor]:
    """The state after three rounds, by name."""
    reports = []
    server = played(ready, after=lambda server, of_round: reports.extend(of_round))
    logged = {f"{i} {r.client}": torch.tensor([r.loss, *r.logged.values()]) for i, r in enumerate(reports)}
    return everything(ready, server) | logged


def both(case, tmp_path, device: str = "cpu", **options) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    make_module, make_federation = CASES[case]
    results = []
    for number, cuda_graph in enumerate((False, True)):
        torch.manual_seed(1)
        ready = session(make_module(), make_federation(), tmp_path / str(number), cuda_graph, device, **options)
        results.append(trained(ready))
        ready.engine.close()
    return results[0], results[1]


FAST = ("FedAvg", "momentum, dropout", "Adam", "SCAFFOLD, FedProx, FedBN", "CODASCA, SurgicalHeads")


@pytest.mark.parametrize("case", [c if c in FAST else pytest.param(c, marks=pytest.mark.slow) for c in CASES])
def test_three_rounds_are_bit_for_bit_those_without(case, tmp_path, recorders):
    wanted, found = both(case, tmp_path)
    (recorder,) = recorders
    hooked = "SCAFFOLD" in case or "CODASCA" in case
    assert recorder.recorded == 1 + hooked  # one form of batch; with a hook between, the optimizer's part by itself
    assert recorder.warmed == captured.WARM * (1 + hooked)
    assert recorder.replayed > 20
    assert wanted.keys() == found.keys()
    differing = [name for name, tensor in wanted.items() if not torch.equal(tensor, found[name])]
    assert not differing


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("case", CASES)
def test_on_a_gpu_graph_and_eager_agree(case, precision, tmp_path):
    wanted, found = both(case, tmp_path, "cuda", precision=precision)
    assert wanted.keys() == found.keys()
    close = {"rtol": 1e-3, "atol": 1e-5} if precision == "32-true" else {"rtol": 0.05, "atol": 0.01}
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, **close, equal_nan=True)


class Changed(Recordable):
    """Its step returns what a function makes of the module, the loss and the batch."""

    def __init__(self, change) -> None:
        super().__init__()
        self.change = change

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.change(self, super().training_step(batch, batch_idx), batch)


def counting(module: Recordable, loss: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Count the steps for a warm-up."""
    return loss * min(1.0, (module.global_step + 1) / 5)


COUNT = itertools.count()
LATE = {
    "waits": (lambda m, loss, batch: loss if loss.item() < 100 else loss / 2,
              "it waits for the device (aten._local_scalar_dense"),
    "draws": (lambda m, loss, batch: loss + float(np.random.rand()) / 100,
              "it draws from the generators of Python or NumPy"),
    "counts": (counting, "it reads self.global_step or self.current_epoch"),
    "logs numbers": (lambda m, loss, batch: m.log("size", len(batch[0])) or loss,
                     "it logs 'size' as a number, which a graph would repeat; log a tensor"),
    "logs sometimes": (lambda m, loss, batch: (len(batch[0]) == 4 and next(COUNT) % 2 and m.log("mean", loss)) or loss,
                       "it does not log the same names at every step"),
}  # fmt: skip
"""What shows in a step, and what is said of it."""


@pytest.mark.parametrize("case", LATE)
@pytest.mark.parametrize("aggregators", [[], [Scaffold()]], ids=["alone", "before a hook"])
def test_what_a_step_shows_ends_the_run_in_words(case, aggregators, tmp_path, recorders):
    change, said = LATE[case]
    with refused("step-not-capturable", "cuda_graph", "Changed", "cannot", said):
        trained(session(Changed(change), Federation(copy.deepcopy(aggregators)), tmp_path, True))
    assert recorders[0].recorded == 0


def with_metric() -> Recordable:
    module = Recordable()
    module.mean = MeanMetric()
    return module


def with_counter() -> Recordable:
    module = Recordable()
    module.register_buffer("seen", torch.tensor(0))
    return module


EARLY = {
    "gradient": (network, [LocalSGDM()], "LocalSGDM computes the gradient itself"),
    "metric": (with_metric, [], "it has metrics of torchmetrics, which count in Python"),
    "buffer": (with_counter, [], "its buffer seen is not a statistic: every client has its own"),
    "optimizer": (lambda: Recordable(lambda p: torch.optim.RMSprop(p, lr=0.01)), [],
                  "RMSprop computes its step on the host; SGD, Adam, AdamW can"),
    "dampening": (lambda: Recordable(lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, dampening=0.1)), [],
                  "the optimizer's first step differs from the others (dampening)"),
    "foreach": (lambda: Recordable(lambda p: torch.optim.SGD(p, lr=0.01, foreach=True)), [],
                "the optimizer computes with foreach: true; leave it out"),
}  # fmt: skip


@pytest.mark.parametrize("case", EARLY)
def test_what_is_known_before_is_said_before(case, tmp_path, recorders):
    make_module, aggregators, reason = EARLY[case]
    with refused("check-captured-steps", "cuda_graph: true", type(make_module()).__name__, reason):
        session(make_module(), Federation(aggregators), tmp_path, True)
    assert not recorders


def monitor(ready: Session) -> Monitor:
    return Monitor.resolve(ready.federation, {"val/loss": 0.0})


def test_nothing_is_recorded_unless_it_is_asked_for(tmp_path, recorders):
    for wish in ("auto", False):
        trained(session(network(), Federation(), tmp_path / str(wish), wish))
    assert not recorders


def test_what_cannot_be_captured_is_an_error(tmp_path, recorders, monkeypatch):
    error = RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")
    monkeypatch.setattr(TapeRecorder, "record", raising(error))
    with refused("step-not-capturable", "leave"):
        trained(session(network(), Federation(), tmp_path, True))


def test_batches_that_hold_more_than_tensors_are_refused(tmp_path, recorders):
    named = {n: [(*d.train[i], f"image {i}") for i in range(len(d.train))] for n, d in uneven(tmp_path).clients.items()}
    clients = {name: ClientData(name, CLASSES, examples) for name, examples in named.items()}
    federation = Federation(schedule=ConstantSchedule(STEPS, "steps"), workers=1, cuda_graph=True)
    ready = assemble(federation, Recordable(), GivenClients(clients, CLASSES, batch_size=4), make_fabric("cpu"))
    with refused("step-not-capturable"):
        trained(ready)
    assert recorders[0].warmed == 0


def test_what_depends_on_python_would_be_frozen_and_the_tape_shows_it(tmp_path, recorders, monkeypatch):
    """The stand-in does not run Python again: without the checks a step that counts would differ."""
    monkeypatch.setattr(captured.Part, "_check", lambda *found: None)
    results = []
    for number, cuda_graph in enumerate((False, True)):
        torch.manual_seed(1)
        results.append(trained(session(Changed(counting), Federation(), tmp_path / str(number), cuda_graph)))
    assert recorders[0].recorded == 1
    assert not torch.equal(results[0]["w"], results[1]["w"])


def test_a_cpu_records_nothing(tmp_path):
    ready = session(network(), Federation(), tmp_path, "auto")
    assert "CUDA" not in announcement(ready, monitor(ready))[0]
    with refused("check-captured-steps", "cuda_graph", "set"):
        session(network(), Federation(), tmp_path, True)
    with refused("argument-type", "cuda_graph", "True or False or 'auto'", "'always'"):
        Federation(cuda_graph="always")


def test_the_record_says_so(tmp_path, recorders):
    ready = session(network(), Federation(), tmp_path, True)
    assert announcement(ready, monitor(ready))[0].endswith("; one CUDA graph per step")
