"""The sides that ``gpu.py`` compares: bare loops, fedlit, and pfl-research. A turn trains a number of steps."""

import io
import itertools
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fedlit.aggregators import Aggregator
from fedlit.core.fabric import make_fabric
from fedlit.core.messages import ClientData
from fedlit.data.in_memory import GivenClients
from fedlit.data.pictures.augmentation import XrayAugmentation
from fedlit.data.pictures.images import ImageStore, LabelledImages
from fedlit.data.pictures.store import ResidentStore
from fedlit.federation.assembly import assemble
from fedlit.federation.federation import Federation
from fedlit.models import ImageClassifier
from fedlit.schedules import Schedule

CLASSES = tuple(f"class-{i}" for i in range(10))
CLIENTS = 4
LR = 0.01
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
