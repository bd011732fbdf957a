"""Awkward modules and data: noise, slowness, wrong numbers, exceptions, and a tracker that leaves traces."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from toys import CLASSES, ToyData, ToyNet

from fedlit.aggregators import Aggregator
from fedlit.data import ClientData
from fedlit.federation.callbacks import Callback, FitState
from fedlit.tracking.base import Tracker


class Wrapped(Dataset):
    """The examples of another data set, without its other attributes."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.dataset[index]


class Noisy(Wrapped):
    """Draws noise from the process's default generator at every access, as torchvision's augmentation does."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, labels = super().__getitem__(index)
        return image + 0.1 * torch.randn(image.shape), labels


class NoisyData(ToyData):
    """Toy data with noise on every training image."""

    def setup(self, stage: str | None = None) -> None:
        super().setup(stage)
        for name, data in self.clients.items():
            if not isinstance(data.train, Noisy):
                self.clients[name] = ClientData(name, data.classes, Noisy(data.train), data.val, data.test)


class WideNet(ToyNet):
    """A head so wide that a client's state is larger than what travels inside a message.

    Args:
        classes: of the data.
        momentum: of SGD.
        adam: Adam in place of SGD.
    """

    def __init__(self, classes: tuple[str, ...] = CLASSES, momentum: float = 0.0, adam: bool = False) -> None:
        super().__init__(classes, momentum=momentum)
        self.head = nn.Sequential(nn.Linear(4 * 6 * 6, 80), nn.ReLU(), nn.Linear(80, len(self.classes)))
        self.adam = adam

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3) if self.adam else super().configure_optimizers()


class Stumbling(ToyNet):
    """A module that fails on batches of one size, which only some clients of the toy data have.

    Args:
        classes: of the data.
        what: ``nan``: its loss is NaN; ``raise``: an exception; ``sleep``: it takes half a second; ``kill``: its
            process dies.
        size: of the batches.
        until: a path; once it exists all goes well.
    """

    def __init__(self, classes: tuple[str, ...] = CLASSES, what: str = "nan", size: int = 2, until: str = "") -> None:
        super().__init__(classes)
        self.what, self.size, self.until = what, size, until

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if len(batch[0]) != self.size or (self.until and Path(self.until).exists()):
            return loss
        if self.what == "nan":
            return loss * float("nan")
        if self.what == "raise":
            raise ArithmeticError("this client has had enough")
        if self.what == "kill" and multiprocessing.parent_process() is not None:  # the probe trains in this process
            os.kill(os.getpid(), 9)
        time.sleep(0.5)
        return loss


class Slow(ToyNet):
    """Every step takes at least ``seconds``."""

    def __init__(self, classes: tuple[str, ...] = CLASSES, seconds: float = 0.01, momentum: float = 0.0) -> None:
        super().__init__(classes, momentum=momentum)
        self.seconds = seconds

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        time.sleep(self.seconds)
        return super().training_step(batch, batch_idx)


class Counting(Aggregator):
    """Counts a client's rounds in its state."""

    def client_state(self, layout) -> dict[str, Tensor]:
        return {"rounds": torch.zeros(1, dtype=torch.int64)}

    def on_client_round_end(self, ctx) -> dict[str, Tensor]:
        ctx.state["rounds"] = ctx.state["rounds"] + 1
        return {}


class StatusFile(Tracker):
    """Writes how the run ended to ``status.txt`` of its directory."""

    def start(self, run, metrics) -> None:
        self.directory = run.directory
        (self.directory / "status.txt").write_text("RUNNING")

    def finish(self, status) -> None:
        (self.directory / "status.txt").write_text(status)


class Diverging(ToyNet):
    """Its loss is NaN from a client's ``after``-th round on (with a local step a round).

    Args:
        classes: of the data.
        after: rounds that go well.
    """

    def __init__(self, classes: tuple[str, ...] = CLASSES, after: int = 5) -> None:
        super().__init__(classes)
        self.after = after
        self.register_buffer("first", torch.zeros(()))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        if batch_idx == 0:
            self.first += 1  # a statistic: the server's mean counts rounds
        loss = super().training_step(batch, batch_idx)
        return loss * float("nan") if self.first > self.after + 0.5 else loss


class Sleepy(StatusFile):
    """Says so and sleeps, at start-up or when the final test's metrics come.

    Args:
        when: ``start`` or ``test``.
    """

    def __init__(self, when: str = "start") -> None:
        self.when = when

    def start(self, run, metrics) -> None:
        super().start(run, metrics)
        self._sleep(self.when == "start")

    def log_metrics(self, metrics, step) -> None:
        self._sleep(self.when == "test" and any(key.startswith("test/") for key in metrics))

    def _sleep(self, now: bool) -> None:
        if now:
            print("sleeping", flush=True)
            time.sleep(60)


class Killer(Tracker):
    """Kills the run when a round's metrics come, which ``metrics.csv`` has by then and the checkpoint has not.

    Args:
        step: of the metrics; 0 kills at the start of the run.
        phase: The phase that is killed, if the run has phases.
    """

    def __init__(self, step: int, phase: str = "") -> None:
        self.step, self.phase, self.here = step, phase, False

    def of_phase(self) -> "Killer":
        return Killer(self.step, self.phase)

    def start(self, run, metrics) -> None:
        self.here = self.phase == (run.directory.name if run.phase_of else "")
        self.log_metrics({}, 0)

    def log_metrics(self, metrics, step) -> None:
        if self.here and step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class SignalsASite(Callback):
    """Sends a signal to the process of the second site before round 3, and wakes it before round 5.

    Args:
        signum: The signal.
    """

    def __init__(self, signum: int) -> None:
        self.signum = signum

    def on_round_start(self, state: FitState) -> None:
        sites = {child.name: child.pid for child in multiprocessing.active_children()}
        (state.run.directory / "signalled.txt").write_text(" ".join(map(str, sites.values())))
        if state.done == 2:
            os.kill(sites["fedlit-site-site-2"], self.signum)
        if state.done == 4:
            os.kill(sites["fedlit-site-site-2"], signal.SIGCONT)
