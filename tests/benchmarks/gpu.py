"""Measure images per second on a GPU: fedlit compared with bare loops.

    python tests/benchmarks/gpu.py [network] [small] [workers] [compile] [--batch 32 128] [--steps 40] [--turns 5]
                                   [--device cuda] [--json FILE] [--tiny]

DenseNet121 on augmented images of 224 pixels, four clients:

- (a) an ordinary loop: NCHW, fp32, a DataLoader of 8 workers over the memory map;
- (b) the best bare loop: channels_last, bf16, images on the GPU, its step captured as a CUDA graph, cuDNN's benchmark;
- (b, launched) the same without the graph;
- (c) fedlit with federated averaging, bf16-mixed, cuDNN's benchmark, including rounds and their sums;
- (c, 4 workers) the same in four processes, one client each;
- (d) (c) with CODASCA and SurgicalHeads on the AUC objective.

``small``: for many small clients of a network of 60,000 parameters, (e) compares fedlit with a bare loop over the same
clients and, if it is installed (``pip install 'pfl[pytorch]'``), with pfl-research's simulation, which also has its
images on the GPU. ``workers`` trains 32 of these clients in 1, 2, 4 and 8 processes on one GPU. ``compile`` compares
(c) with ``federation.compile``, and with CUDA graphs in it.

The sides alternate (A B C D A B ...); a ratio is the median over turns. Limits: (c) at least 0.95 of (b), and above
(a); (d) at least 0.95 of (c). ``--tiny`` uses a small network and small images, to try the command without a GPU; its
figures are meaningless.
"""

import argparse
import importlib.util
import io
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fedlit.aggregators import CODASCA, Aggregator, SurgicalHeads
from fedlit.core import local_model
from fedlit.core.fabric import make_fabric
from fedlit.core.messages import ClientData
from fedlit.data.in_memory import GivenClients
from fedlit.data.pictures.augmentation import XrayAugmentation
from fedlit.data.pictures.images import ImageStore, LabelledImages
from fedlit.data.pictures.resident import ResidentStore
from fedlit.federation.assembly import assemble
from fedlit.federation.federation import Federation
from fedlit.models import ImageClassifier
from fedlit.objectives import AUCSaddle
from fedlit.schedules import ConstantSchedule, PracticeSchedule, Schedule

CLASSES = tuple(f"class-{i}" for i in range(10))
CLIENTS = 4
LR = 0.01
PARTS = ("network", "small", "workers", "compile")
Turn = Callable[[], object]


@dataclass(frozen=True)
class Size:
    """Sizes of the benchmark."""

    backbone: str
    pixels: int
    images: int
    loaders: int
    small_clients: int
    small_steps: int


FULL = Size("densenet121", 224, 512, 8, 256, 8)
TINY = Size("small_cnn", 28, 16, 0, 6, 2)


def pictures(size: Size, folder: str, clients: int, images: int) -> list[LabelledImages]:
    """Return training sets of clients in one store; each client leaves one class unlabelled."""
    draw = np.random.default_rng(0)
    store = ImageStore.from_array(
        draw.integers(0, 256, (clients * images, 1, size.pixels, size.pixels), dtype=np.uint8), folder
    )
    sets = []
    for k in range(clients):
        rows = np.arange(k * images, (k + 1) * images)
        labels = draw.integers(0, 2, (images, len(CLASSES))).astype(np.float32)
        labels[:, k % len(CLASSES)] = np.nan
        sets.append(LabelledImages(store, rows, labels, rows.astype(str), augment=XrayAugmentation()))
    return sets


def network(backbone: str, **options) -> ImageClassifier:
    """Return the model that every side trains."""
    torch.manual_seed(0)
    return ImageClassifier(CLASSES, backbone, optimizer=lambda p: torch.optim.SGD(p, lr=LR), **options)


def whole(sets: list[LabelledImages]) -> LabelledImages:
    """Return the images of all clients as one data set."""
    rows = np.concatenate([part.indices for part in sets])
    labels = np.concatenate([part.labels.numpy() for part in sets])
    return LabelledImages(sets[0].store, rows, labels, rows.astype(str), augment=sets[0].augment)


def plain(size: Size, sets: list[LabelledImages], batch: int, steps: int, device: torch.device) -> Turn:
    """Return (a), an ordinary loop."""
    model = network(size.backbone).to(device).train()
    optimizer = model.configure_optimizers()
    loader = DataLoader(
        whole(sets),
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=size.loaders,
        persistent_workers=size.loaders > 0,
        pin_memory=device.type == "cuda",
    )
    endless = itertools.chain.from_iterable(itertools.repeat(loader))

    def turn() -> None:
        for images, labels in itertools.islice(endless, steps):
            optimizer.zero_grad()
            moved = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            model.training_step(moved, 0).backward()
            optimizer.step()

    return turn


def best(
    backbone: str,
    sets: list[LabelledImages],
    batch: int,
    steps: int,
    device: torch.device,
    bf16: bool,
    graph: bool = True,
) -> Turn:
    """Return (b), the best bare loop, with one model and no clients; without ``graph`` its steps are launched."""
    torch.backends.cudnn.benchmark = True
    model = network(backbone).to(device, memory_format=torch.channels_last).train()
    fused = {"fused": True} if device.type == "cuda" else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, **fused)
    data = whole(sets)
    data = data.placed(ResidentStore(data.store, device), device)

    def step(images: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16, cache_enabled=False):
            loss = model.training_step((images, labels), 0)
        loss.backward()
        optimizer.step()

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            order = torch.randperm(len(data))
            for start in range(0, len(data) - batch + 1, batch):
                images, labels = data.batch(order[start : start + batch])
                yield images.to(memory_format=torch.channels_last), labels

    endless = batches()
    run = graphed(step, next(endless)) if device.type == "cuda" and graph else step

    @with_benchmark
    def turn() -> None:
        for images, labels in itertools.islice(endless, steps):
            run(images, labels)

    return turn


def graphed(step: Callable[[Tensor, Tensor], None], batch: tuple[Tensor, Tensor]) -> Callable[[Tensor, Tensor], None]:
    """Return a captured step for batches of the same shape; if capture fails, print the reason and return the step."""
    images, labels = (part.clone() for part in batch)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(images, labels)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step(images, labels)
    except RuntimeError as error:
        print(f"(b) runs without a graph: {str(error).splitlines()[0]}")
        return step

    def replay(other: Tensor, targets: Tensor, held: object = step) -> None:  # a graph does not hold its model's memory
        images.copy_(other)
        labels.copy_(targets)
        graph.replay()

    return replay


def with_benchmark(turn: Turn, benchmark: bool = True) -> Turn:
    """Return a turn during which cuDNN chooses its algorithms by their time, or does not."""

    def timed_choice() -> object:
        torch.backends.cudnn.benchmark = benchmark
        return turn()

    return timed_choice


def fedlit(
    sets: list[LabelledImages],
    batch: int,
    schedule: Schedule,
    device: str,
    precision: str,
    model: ImageClassifier,
    aggregators: list[Aggregator],
    surgical: bool = False,
    **settings,
) -> Turn:
    """Return (c), (d) or (e), a round of a federation including the server's part."""
    clients = {}
    for k, images in enumerate(sets):
        labelled = tuple(c for i, c in enumerate(CLASSES) if not surgical or i != k % len(CLASSES))
        clients[f"site-{k}"] = ClientData(f"site-{k}", labelled, images)
    settings = {"workers": 1} | settings
    federation = Federation(aggregators, rounds=10_000, schedule=schedule, **settings)
    data = GivenClients(clients, CLASSES, batch_size=batch)
    session = assemble(federation, model, data, make_fabric(device, precision=precision, benchmark=True))
    server, _, _ = session.restore(None)
    session.initialise_objective(server)
    rounds = itertools.count()

    @with_benchmark
    def turn() -> None:
        rnd = session.round(next(rounds))
        total, _ = session.engine.run(rnd.cohort, federation.open_round(server, rnd, session), rnd)
        federation.close_round(server, total, rnd, session)

    return turn


def with_pfl(backbone: str, sets: list[LabelledImages], batch: int, device: torch.device, bf16: bool) -> Turn:
    """Return (e), a round of pfl-research over the same clients, one epoch each, without its evaluations."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    class Network(ImageClassifier):
        def loss(self, images: Tensor, labels: Tensor) -> Tensor:
            return self.training_step((images, labels), 0)

        def metrics(self, images: Tensor, labels: Tensor) -> dict:
            return {}

    torch.manual_seed(0)
    network, store = Network(CLASSES, backbone), ResidentStore(sets[0].store, device)
    held = [part.placed(store, device) for part in sets]
    data = FederatedDataset(
        lambda k: Dataset(list(held[k].batch(torch.arange(len(held[k]))))),
        get_user_sampler("minimize_reuse", list(range(len(sets)))),
    )
    central = torch.optim.SGD(network.parameters(), lr=1.0)
    amp = torch.bfloat16 if bf16 else None
    model = PyTorchModel(network, torch.optim.SGD, central, amp_dtype=amp)
    backend = SimulatedBackend(data, data)
    once = NNAlgorithmParams(2, 2, len(sets), None)
    training = NNTrainHyperParams(local_batch_size=batch, local_num_epochs=1, local_learning_rate=LR)

    def turn() -> None:
        algorithm = FederatedAveraging()
        algorithm._current_central_iteration = 1  # the first iteration evaluates all users before and after
        with redirect_stdout(io.StringIO()):
            algorithm.run(once, backend, model, training)

    return turn


def timed(sides: dict[str, Turn], turns: int, images: int, device: torch.device) -> dict[str, list[float]]:
    """Return images per second of each side and turn, without the first turn."""
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(turns + 1):
        for side, turn in sides.items():
            wait(device)
            began = time.perf_counter()
            turn()
            wait(device)
            if number:
                speeds[side].append(images / (time.perf_counter() - began))
    for side, values in speeds.items():
        print(f"  ({side}) {statistics.median(values):,.0f} images per second")
    return speeds


def wait(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def verdict(speeds: dict[str, list[float]], side: str, other: str, limit: float) -> bool:
    """Print a ratio of two sides and its limit, and return True if it holds."""
    ratio = statistics.median(a / b for a, b in zip(speeds[side], speeds[other], strict=True))
    print(f"  ({side}) over ({other}): {ratio:.3f}, limit {limit}: {'pass' if ratio >= limit else 'FAIL'}")
    return ratio >= limit


@dataclass(frozen=True)
class Bench:
    """What all parts share.

    Attributes:
        size: Sizes of networks and data.
        turns: Turns of each side.
        fabric: Accelerator and precision.
        device: The device itself.
        folder: Where pictures lie.
    """

    size: Size
    turns: int
    fabric: tuple[str, str]
    device: torch.device
    folder: str

    @property
    def bf16(self) -> bool:
        """Whether autocast is on."""
        return self.device.type == "cuda"

    def network(self, batches: list[int], steps: int) -> Iterator[tuple[str, dict[str, list[float]]]]:
        """Compare (a) to (d)."""
        size = self.size
        window = max(1, steps // CLIENTS)
        steps = window * CLIENTS
        sets = pictures(size, self.folder, CLIENTS, size.images)
        stages, constant = PracticeSchedule(window, 10_000_000, 10_000_000), ConstantSchedule(window, "steps")
        for batch in batches:
            print(f"{size.backbone}, {size.pixels} pixels, batch {batch}:")
            plain_turn = plain(size, sets, batch, steps, self.device)
            codasca = network(size.backbone, objective=AUCSaddle())
            sides = {
                "a": with_benchmark(plain_turn, False),
                "b": best(size.backbone, sets, batch, steps, self.device, self.bf16),
                "b, launched": best(size.backbone, sets, batch, steps, self.device, self.bf16, graph=False),
                "c": fedlit(sets, batch, constant, *self.fabric, network(size.backbone), []),
                "c, 4 workers": fedlit(sets, batch, constant, *self.fabric, network(size.backbone), [], workers=4),
                "d": fedlit(sets, batch, stages, *self.fabric, codasca, [CODASCA(), SurgicalHeads()], surgical=True),
            }
            yield f"{size.backbone}, batch {batch}", timed(sides, self.turns, steps * batch, self.device)

    def small(self, batch: int) -> Iterator[tuple[str, dict[str, list[float]]]]:
        """Compare (e) with a bare loop and with pfl-research."""
        size = Size("small_cnn", 28, 0, 0, self.size.small_clients, self.size.small_steps)
        sets = pictures(size, self.folder, size.small_clients, batch * size.small_steps)
        print(f"{size.small_clients} clients of a small CNN, {size.small_steps} steps of {batch} each:")
        count = size.small_clients * size.small_steps
        schedule = ConstantSchedule(size.small_steps, "steps")
        sides = {
            "e, bare": best(size.backbone, sets, batch, count, self.device, self.bf16),
            "e": fedlit(sets, batch, schedule, *self.fabric, network(size.backbone), []),
        }
        if importlib.util.find_spec("pfl"):
            sides["e, pfl-research"] = with_pfl(size.backbone, sets, batch, self.device, self.bf16)
        else:
            print("  pfl-research is not installed")
        yield "small clients", timed(sides, self.turns, count * batch, self.device)

    def workers(self, batch: int) -> Iterator[tuple[str, dict[str, list[float]]]]:
        """Compare numbers of worker processes on one device."""
        clients, steps = min(32, self.size.small_clients), self.size.small_steps
        size = Size("small_cnn", 28, 0, 0, clients, steps)
        sets = pictures(size, self.folder, clients, batch * steps)
        print(f"{clients} clients of a small CNN, {steps} steps of {batch} each, by worker processes:")
        sides = {}
        for number in (1, 2, 4, 8)[: 2 if clients < 8 else 4]:
            schedule = ConstantSchedule(steps, "steps")
            sides[f"{number}"] = fedlit(sets, batch, schedule, *self.fabric, network(size.backbone), [], workers=number)
        yield "workers", timed(sides, self.turns, clients * steps * batch, self.device)

    def compile(self, batches: list[int], steps: int) -> Iterator[tuple[str, dict[str, list[float]]]]:
        """Compare (c) with itself compiled, and compiled to CUDA graphs."""
        size = self.size
        sets = pictures(size, self.folder, CLIENTS, size.images)
        schedule, batch = ConstantSchedule(max(1, steps // CLIENTS), "steps"), batches[0]
        print(f"{size.backbone}, {size.pixels} pixels, batch {batch}, compiled:")
        sides = {"c": fedlit(sets, batch, schedule, *self.fabric, network(size.backbone), [])}
        for name, options in (("compiled", {}), ("CUDA graphs", {"triton.cudagraphs": True})):
            local_model.COMPILING = {"options": {"fallback_random": True} | options}
            turn = fedlit(sets, batch, schedule, *self.fabric, network(size.backbone), [], compile=True)
            began = time.perf_counter()
            try:
                turn()
            except Exception as error:
                print(f"  ({name}) failed: {str(error).splitlines()[0]}")
                continue
            print(f"  ({name}) its first round took {time.perf_counter() - began:.0f} s")
            sides[name] = turn
        count = max(1, steps // CLIENTS) * CLIENTS * batch
        yield "compiled", timed(sides, self.turns, count, self.device)


def main() -> int:
    """Measure, print, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(PARTS)}; by default the first three")
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, help="file for all speeds, by part, side and turn")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    parts = args.parts or list(PARTS[:3])
    if unknown := set(parts) - set(PARTS):
        parser.error(f"expected any of {', '.join(PARTS)}, found {', '.join(sorted(unknown))}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device: expected a CUDA device, found none; use --device cpu --tiny to try the command")
    device, bf16 = make_fabric(args.device).device, args.device == "cuda"
    batches, steps, turns = ([4], CLIENTS, 1) if args.tiny else (args.batch, args.steps, args.turns)
    small = 4 if args.tiny else 32
    name = torch.cuda.get_device_name(device) if bf16 else "CPU"
    print(f"{name}, PyTorch {torch.__version__}{', tiny: the figures are meaningless' * args.tiny}")
    every, held = {}, []
    with TemporaryDirectory() as folder:
        fabric = (args.device, "bf16-mixed" if bf16 else "32-true")
        bench = Bench(TINY if args.tiny else FULL, turns, fabric, device, folder)
        made = {
            "network": lambda: bench.network(batches, steps),
            "small": lambda: bench.small(small),
            "workers": lambda: bench.workers(small),
            "compile": lambda: bench.compile(batches, steps),
        }
        for part in parts:
            for title, speeds in made[part]():
                every[title] = speeds
                if part == "network":
                    limits = (("c", "b", 0.95), ("c", "a", 1.0), ("d", "c", 0.95))
                    held += [verdict(speeds, *limit) for limit in limits]
                if args.json:
                    args.json.write_text(json.dumps({"device": name, "torch": torch.__version__, "speeds": every}))
    return int(not all(held) and not args.tiny)


if __name__ == "__main__":
    sys.exit(main())
