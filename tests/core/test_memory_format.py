"""Convolutions compute in channels_last, without any effect on messages."""

import copy

import pytest
import torch
from engine_rounds import assembled, played
from lightning.pytorch import LightningModule
from refusals import refused
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from toys import CLASSES, ToyNet

from fedlit.aggregators import FedAvg, LocalSCGDAM, Scaffold
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.fabric import make_fabric
from fedlit.core.flat import FlatModel
from fedlit.data import ClientData, FederatedDataModule
from fedlit.federation.description import announcement
from fedlit.federation.devices import resolve_memory_format
from fedlit.federation.federation import Federation
from fedlit.federation.monitor import Monitor
from fedlit.federation.session import Session
from fedlit.models import ImageClassifier
from fedlit.objectives import AUCSaddle
from fedlit.schedules import ConstantSchedule


def images(seed: int, channels: int, classes: int) -> TensorDataset:
    g = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(24, channels, 12, 12, generator=g), torch.randint(0, 2, (24, classes), generator=g).float()
    )


class Pictures(FederatedDataModule):
    """Two clients with images of 12x12."""

    def __init__(self, channels: int = 1, classes: tuple[str, ...] = CLASSES) -> None:
        super().__init__(partition=None, batch_size=8)
        self.channels, self.names = channels, classes

    @property
    def classes(self) -> tuple[str, ...]:
        return self.names

    def setup(self, stage: str | None = None) -> None:
        sets = [images(k, self.channels, len(self.names)) for k in range(4)]
        self.clients = {f"site-{k}": ClientData(f"site-{k}", self.names, sets[k], sets[k + 2]) for k in range(2)}


class Dense(nn.Module):
    """A layer of a DenseNet: 1x1, 3x3, and its input in parallel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 16, 1, bias=False))
        self.three = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.three(self.one(x))], 1)


class DenseNet(ToyNet):
    """A DenseNet of two layers with a depthwise convolution between them."""

    any_memory_format = True

    def __init__(
        self, channels: int = 1, classes: tuple[str, ...] = CLASSES, objective: nn.Module | None = None
    ) -> None:
        super().__init__(classes, lr=0.05, momentum=0.0 if objective else 0.9)
        self.body = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1, bias=False),
            Dense(8),
            nn.Conv2d(16, 16, 3, padding=1, groups=16),
            nn.AvgPool2d(2),
            Dense(16),
            nn.Conv2d(24, 120, 1, bias=False),
            nn.BatchNorm2d(120),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(120, len(classes))
        if objective:
            self.objective = objective
            objective.build(len(classes))


class Viewing(DenseNet):
    """A model in an older style: ``view`` needs contiguous features."""

    any_memory_format = False

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body[:-2](images).view(len(images), -1)[:, :120])


class Linear(DenseNet):
    """A model without convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(144, 120))


def made(seed: int = 0, kind: type = DenseNet, **options) -> LightningModule:
    torch.manual_seed(seed)
    return kind(**options)


def session(module, data, memory_format=None, aggregators=(), precision="32-true", **options) -> Session:
    schedule = ConstantSchedule(2, "steps")
    federation = Federation(list(aggregators), 2, schedule, memory_format=memory_format, **{"workers": 1} | options)
    return assembled(federation, module, data, precision)


def trained(*given, rounds: int = 2, **options) -> tuple[Tensor, Tensor]:
    """Weights and statistics after some rounds."""
    ready = session(*given, **options)
    server = played(ready, rounds)
    ready.engine.close()
    return server.w, server.stats


def seen(ready: Session, run) -> list[bool]:
    """Whether each input of each convolution is channels_last in memory."""
    worker = ready.engine._pool.worker
    met = []

    def look(layer, inputs):
        (images,) = inputs
        met.append(images.stride()[1] == 1 and images.stride()[3] == images.shape[1])

    hooks = [m.register_forward_pre_hook(look) for m in worker.local.module.modules() if isinstance(m, nn.Conv2d)]
    run()
    for hook in hooks:
        hook.remove()
    return met


@pytest.mark.parametrize(("channels", "wanted"), [(1, None), (3, None), (1, "contiguous")])
def test_every_convolution_sees_the_format_in_training_evaluation_and_measuring(channels, wanted):
    from fedlit.federation.evaluation import client_views

    ready = session(made(channels=channels), Pictures(channels), wanted)
    server, _, _ = ready.restore(None)
    rnd = ready.round(0)
    down = ready.broadcast(server, rnd)
    for run in (
        lambda: ready.engine.run(rnd.cohort, down, rnd),
        lambda: ready.engine.evaluate(client_views(ready.data, "val"), down),
        lambda: ready.measure(server, rnd),
    ):
        met = seen(ready, run)
        assert met
        assert all(met) == (wanted is None)
        assert any(met) == (wanted is None)


AUC = {"classes": ("only",), "objective": AUCSaddle()}
AGREEING = {
    "Scaffold": ({}, Scaffold()),
    "FedAvg": ({"channels": 3}, FedAvg()),
    "double backward": (AUC, LocalSCGDAM(first_order=False)),
}


@pytest.mark.parametrize("case", AGREEING)
def test_rounds_agree_with_contiguous_ones_to_rounding(case):
    options, aggregator = AGREEING[case]
    model, data = made(**options), Pictures(options.get("channels", 1), options.get("classes", CLASSES))
    plain = trained(model, data, "contiguous", [aggregator], rounds=1)
    last = trained(model, data, "channels_last", [aggregator], rounds=1)
    start = FlatModel(copy.deepcopy(model)).w
    for found, wanted in zip(last, plain, strict=True):
        assert not torch.equal(wanted[: len(start)], start[: len(wanted)])
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)  # 4e-5 on some processors


def test_the_flat_vectors_keep_their_order():
    model = made()
    plain, last = (FlatModel(copy.deepcopy(model), channels_last) for channels_last in (False, True))
    assert torch.equal(plain.w, last.w)
    assert plain.layout.fingerprint == last.layout.fingerprint
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters, last.parameters, strict=True))
    vector = torch.randn(last.layout.size)
    with last.at(vector):
        assert all(torch.equal(p, v) for p, v in zip(last.parameters, plain.views(vector), strict=True))
    strides = {e.name: p.stride() for e, p in zip(last.layout.parameters, last.parameters, strict=True)}
    assert strides["body.1.one.2.weight"] == (8, 1, 8, 8)
    assert strides["body.2.weight"] == (9, 1, 3, 1)
    assert strides["body.1.three.2.weight"] == (144, 9, 3, 1)


def test_two_workers_give_the_bits_of_one():
    one, two = (trained(made(), Pictures(), rounds=1, precision="bf16-mixed", workers=workers) for workers in (1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


AUTO = {
    "dense": (made, "32-true", "channels_last"),
    "64-true": (made, "64-true", "contiguous"),
    "views": (lambda: made(kind=Viewing), "32-true", "contiguous"),
    "no convolution": (Linear, "32-true", ""),
    "small_cnn": (lambda: ImageClassifier(CLASSES, "small_cnn"), "32-true", "contiguous"),
    "densenet121": (lambda: ImageClassifier(CLASSES, "densenet121", stem="small"), "32-true", "channels_last"),
}


@pytest.mark.parametrize(("module", "precision", "name"), AUTO.values(), ids=AUTO)
def test_auto_chooses_it_where_it_pays_and_works(module, precision, name):
    assert resolve_memory_format(None, make_fabric("cpu", precision=precision), module()) == name


@pytest.mark.parametrize(("module", "name"), [(made, "channels_last"), (Linear, "")])
def test_the_choice_is_announced(module, name):
    ready = session(module(), Pictures())
    assert ready.resolved.memory_format == name
    first = announcement(ready, Monitor.resolve(ready.federation, {"val/loss": 0.0}))[0]
    assert first.endswith(f"one worker on cpu; {name}" if name else "one worker on cpu")


def test_a_module_that_cannot_is_told_what_to_set():
    with refused(TrainingError, "Viewing"):
        trained(made(kind=Viewing), Pictures(), "channels_last")
    trained(made(kind=Viewing), Pictures())


def test_channels_last_without_convolutions_is_refused():
    with refused(ConfigError, "Linear"):
        session(Linear(), Pictures(), "channels_last")
