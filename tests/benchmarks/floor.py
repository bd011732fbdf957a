"""Compare a whole run of ``fedlit.fit`` with two bare processes on flat vectors in shared memory.

    python tests/benchmarks/floor.py [densenet] [cnn] [clients] [--turns 7]

densenet   4 clients, DenseNet121, 4 steps of 16 images of 32x32. Limit: 1.05.
cnn        32 clients, a CNN of 60,000 parameters, 8 steps of 32. Limit: 1.10.
clients    512 clients, the same CNN, 1 step of 8. Limit: 1.6.

Each side is a separate command. They alternate after every round (A B A B ...), while the other side waits. On the bare
side, weights, gradients and sums are flat vectors in shared memory, the step is ``p -= lr * g``, batches are cut from
uint8 tensors, and nothing is checked, logged or saved. The other side is ``fedlit.fit`` with its defaults, including
metrics, checkpoints and drift. Times are wall times; the second ratio is of processor time, which other work on the
machine affects less. Start and end: from the command to its end, without its rounds. Memory is PSS of all processes.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

WORKERS, LR, CLASSES = 2, 0.01, tuple(f"class-{i}" for i in range(10))


@dataclass(frozen=True)
class Work:
    """K clients, ``steps`` steps of ``batch`` images each."""

    model: str
    clients: int
    steps: int
    batch: int
    limit: float
    said: str


WORKS = {
    "densenet": Work("densenet", 4, 4, 16, 1.05, "4 clients, DenseNet121, 4 steps of 16"),
    "cnn": Work("cnn", 32, 8, 32, 1.10, "32 clients, CNN of 60k, 8 steps of 32"),
    "clients": Work("cnn", 512, 1, 8, 1.6, "512 clients, CNN of 60k, 1 step of 8"),
}


def network(model: str):
    """Return the network, without fedlit."""
    from torch import nn

    if model == "densenet":
        import timm

        return timm.create_model("densenet121", in_chans=3, num_classes=len(CLASSES))
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2048, 26), nn.ReLU(), nn.Linear(26, len(CLASSES)),
    )  # fmt: skip


def small_cnn():
    """Return the CNN as a module of Lightning."""
    import torch
    from lightning.pytorch import LightningModule

    from fedlit.objectives import BCE

    class SmallCNN(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.classes, layers = CLASSES, network("cnn")
            self.body, self.head, self.objective = layers[:-1], layers[-1], BCE()

        def training_step(self, batch, batch_idx):
            return self.objective(self.head(self.body(batch[0])), batch[1])

        def validation_step(self, batch, batch_idx):
            return self.head(self.body(batch[0]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=LR)

    return SmallCNN()


def pictures(client: int, size: int):
    """Return images [N, 3, 32, 32] uint8 and labels of a client."""
    import torch

    g = torch.Generator().manual_seed(client)
    images = torch.randint(0, 256, (size, 3, 32, 32), generator=g, dtype=torch.uint8)
    return images, torch.randint(0, 2, (size, len(CLASSES)), generator=g).float()


# ---------------------------------------------------------------- the gate: one round at a time


def say(word: str) -> None:
    print(f"GATE {word}", flush=True)


def wait() -> None:
    sys.stdin.readline()


def gate(evaluation: bool = False):
    """Return a callback that waits before each round and before the end, and after each evaluation if asked to."""
    from fedlit.federation.callbacks import Callback

    class Gate(Callback):
        def on_round_start(self, state) -> None:
            say("ready")
            wait()

        def on_evaluation_end(self, state, scores) -> None:
            if evaluation:
                self.on_round_start(state)

        def on_fit_end(self, state) -> None:
            self.on_round_start(state)

    return Gate()


# ---------------------------------------------------------------- bare PyTorch


def flattened(module):
    """Make parameters and floating-point buffers views of flat vectors; returns weights, gradients, statistics."""
    import torch

    parameters = list(module.parameters())
    buffers = [b for b in module.buffers() if b.is_floating_point()]
    w, grad = (torch.zeros(sum(p.numel() for p in parameters)) for _ in range(2))
    stats, offset = torch.zeros(sum(b.numel() for b in buffers)), 0
    for p in parameters:
        place = slice(offset, offset + p.numel())
        w[place] = p.detach().reshape(-1)
        p.data, p.grad = w[place].view(p.shape), grad[place].view(p.shape)
        offset += p.numel()
    offset = 0
    for b in buffers:
        place = slice(offset, offset + b.numel())
        stats[place] = b.reshape(-1)
        b.data = stats[place].view(b.shape)
        offset += b.numel()
    return w, grad, stats


def bare(work: Work, rounds: int) -> None:
    import torch
    import torch.multiprocessing as multiprocessing

    w, _, stats = flattened(network(work.model))
    shared, context = torch.cat([w, stats]).share_memory_(), multiprocessing.get_context("spawn")
    totals = [torch.zeros_like(shared).share_memory_() for _ in range(WORKERS)]
    begin, end = context.Barrier(WORKERS + 1), context.Barrier(WORKERS + 1)
    data = [pictures(k, work.steps * work.batch) for k in range(work.clients)]
    processes = [
        context.Process(
            target=bare_worker, args=(work, data[i::WORKERS], shared, totals[i], begin, end, rounds), daemon=True
        )
        for i in range(WORKERS)
    ]
    for process in processes:
        process.start()
    end.wait()  # all have started, so the other side starts on idle cores
    for _ in range(rounds):
        say("ready")
        wait()
        begin.wait()
        end.wait()
        torch.add(*totals, out=shared)
    say("ready")
    wait()
    for process in processes:
        process.join()


def bare_worker(work: Work, data, shared, total, begin, end, rounds: int) -> None:
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits as loss_of

    torch.set_num_threads(1)
    module = network(work.model)
    w, grad, stats = flattened(module)
    module.train()
    end.wait()
    for epoch in range(rounds):
        begin.wait()
        total.zero_()
        for images, labels in data:
            w.copy_(shared[: len(w)])
            stats.copy_(shared[len(w) :])
            order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
            for rows in order.split(work.batch):
                grad.zero_()
                loss_of(module(images[rows].float().div_(255)), labels[rows]).backward()
                w.sub_(grad, alpha=LR)
            total[: len(w)].add_(w, alpha=1 / work.clients)
            total[len(w) :].add_(stats, alpha=1 / work.clients)
        end.wait()


# ---------------------------------------------------------------- fedlit


def with_fedlit(work: Work, rounds: int, **options) -> None:
    import fedlit  # isort: skip  # first, where import sorters put it in a user's project

    import torch
    from torch.utils.data import Dataset

    from fedlit.schedules import ConstantSchedule

    class Pictures(Dataset):
        def __init__(self, client: int, size: int) -> None:
            self.images, self.labels = pictures(client, size)

        def __len__(self) -> int:
            return len(self.images)

        def batch(self, indices):
            return self.images[indices].float().div_(255), self.labels[indices]

    def densenet():
        from fedlit.models import ImageClassifier

        return ImageClassifier(CLASSES, in_chans=3, optimizer=partial(torch.optim.SGD, lr=LR))

    fedlit.fit(
        densenet() if work.model == "densenet" else small_cnn(),
        {f"client-{k:03d}": Pictures(k, work.steps * work.batch) for k in range(work.clients)},
        rounds=rounds,
        schedule=ConstantSchedule(work.steps, "steps"),
        batch_size=work.batch,
        workers=WORKERS,
        callbacks=[gate()],
        **options,
    )


# ---------------------------------------------------------------- measurements


def processes(root: int) -> list[int]:
    """Return a process and all its descendants."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    tree = [root]
    for process in tree:
        tree += [child for child, parent in parents.items() if parent == process]
    return tree


def processor_seconds(root: int) -> float:
    ticks = 0
    for process in processes(root):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def pss_mib(root: int, kind: str = "Pss") -> float:
    """Return the proportional set size of a process and its descendants; ``Pss_File`` is that of mapped files."""
    total = 0
    for process in processes(root):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:"))
    return total / 1024


def timed(
    actions: dict[Any, Callable[[], object]], turns: int, clock: Callable[[], float] = time.perf_counter
) -> dict[Any, list[float]]:
    """Return the seconds of each action in each turn but the first; the actions alternate."""
    spent: dict[Any, list[float]] = {name: [] for name in actions}
    for turn in range(turns + 1):
        for name, action in actions.items():
            began = clock()
            action()
            if turn:
                spent[name].append(clock() - began)
    return spent


class Side:
    """A command that runs one round at a time.

    Args:
        script: The file of the benchmark.
        arguments: Arguments of the command.
        folder: Working directory of the command.
    """

    def __init__(self, script: str, arguments: list[str], folder: str) -> None:
        here, began = Path(script).resolve(), time.perf_counter()
        path = os.pathsep.join(filter(None, (str(here.parents[2]), os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, str(here), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self.wall: list[float] = []
        self.processor: list[float] = []
        self.pss = 0.0
        self._ready()
        self.outside = time.perf_counter() - began

    def round(self) -> None:
        processor, began = processor_seconds(self.process.pid), time.perf_counter()
        self._go()
        self._ready()
        self.wall.append(time.perf_counter() - began)
        self.processor.append(processor_seconds(self.process.pid) - processor)
        self.pss = max(self.pss, pss_mib(self.process.pid))

    def end(self) -> None:
        began = time.perf_counter()
        self._go()
        if self.process.wait():
            raise RuntimeError(f"a side exited with status {self.process.returncode}")
        self.outside += time.perf_counter() - began

    def _go(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def _ready(self) -> None:
        for line in self.process.stdout:
            if line.strip() == "GATE ready":
                return
        raise RuntimeError(f"a side exited early with status {self.process.wait()}")


def alternate(sides: list[Side], turns: int) -> None:
    """Run the rounds of two sides in turns, after one round each that does not count, and end both."""
    for turn in range(turns + 1):
        for side in sides if turn % 2 else reversed(sides):
            side.round()
    for side in sides:
        side.end()


def against(name: str, turns: int) -> None:
    work = WORKS[name]
    with TemporaryDirectory() as folder:
        commands = [["--side", side, name, "--turns", str(turns + 1)] for side in ("bare", "fedlit")]
        sides = [Side(__file__, command, folder) for command in commands]
        alternate(sides, turns)
    floor, ours = sides
    ratios = [
        statistics.median(mine / bare for mine, bare in zip(a[1:], b[1:], strict=True))
        for a, b in ((ours.wall, floor.wall), (ours.processor, floor.processor))
    ]
    steady = [statistics.median(side.wall[1:]) for side in sides]
    print(
        f"| {work.said} | {steady[0]:.3f} s | {steady[1]:.3f} s | {ratios[0]:.2f} | {ratios[1]:.2f} | {work.limit} "
        f"| {floor.wall[0] - steady[0]:.1f}, {ours.wall[0] - steady[1]:.1f} s "
        f"| {floor.outside:.1f}, {ours.outside:.1f} s | {floor.pss:.0f}, {ours.pss:.0f} MiB |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", default=[], help=f"names among {', '.join(WORKS)} (default: all)")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--side", choices=("bare", "fedlit"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        {"bare": bare, "fedlit": with_fedlit}[args.side](WORKS[args.works[0]], args.turns)
        return
    print(
        "| work | bare | fedlit | ratio | of processor time | limit | first round above a steady one | start and end "
        "| PSS |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in args.works or WORKS:
        against(name, args.turns)


if __name__ == "__main__":
    main()
