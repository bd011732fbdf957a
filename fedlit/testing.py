"""Checks for your own aggregators and modules: ``check_aggregator`` and ``check_module``."""

import copy
import io
import pickle
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fedlit.aggregators.fedprox import FedProx
from fedlit.aggregators.surgical import SurgicalHeads
from fedlit.core.aggregator import Aggregator, ClientContext
from fedlit.core.errors import TrainingError, WorkerError
from fedlit.core.fabric import make_fabric
from fedlit.core.messages import ClientData, ClientState, ServerState, State
from fedlit.core.system.pickling import dumps
from fedlit.data.contract import check_data_module as check_data_module
from fedlit.data.federated import FederatedDataModule
from fedlit.federation.assembly import assemble
from fedlit.federation.examinations import OF_MODULES, Behaviour, Trial, examine
from fedlit.federation.federation import Federation
from fedlit.objectives import BCE
from fedlit.schedules import ConstantSchedule

CLASSES = ("Edema", "Effusion", "Nodule")
DTYPES = re.compile(r"float32|\b[Ff]loat\b.*\b[Dd]ouble\b|\b[Dd]ouble\b.*\b[Ff]loat\b", re.DOTALL)
"""Words of errors of torch and fedlit about tensors in single precision among others in double precision."""


class ToyNet(LightningModule):
    """Convolution, BatchNorm, dropout and a linear head over 8x8 images: everything that can break bit equality.

    Args:
        classes: Classes of the head's rows.
        lr: Learning rate of SGD.
        momentum: Momentum of SGD.
        drop: Rate of dropout.
    """

    def __init__(
        self, classes: Sequence[str] = CLASSES, lr: float = 0.1, momentum: float = 0.0, drop: float = 0.2
    ) -> None:
        super().__init__()
        self.classes = tuple(classes)
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(drop))
        self.head = nn.Linear(4 * 6 * 6, len(self.classes))
        self.objective = BCE()
        self.lr, self.momentum = lr, momentum

    def forward(self, images: Tensor) -> Tensor:
        """Map images [B, 1, 8, 8] to logits [B, C]."""
        return self.head(self.body(images))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        return self.objective(self(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Log the loss and return the logits."""
        logits = self(batch[0])
        self.log("loss", self.objective(logits, batch[1]))
        return logits

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return probabilities [B, C]."""
        return self(batch[0]).sigmoid()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=self.momentum)


class ToyData(FederatedDataModule):
    """Random images whose labels follow their brightness; clients differ in size and, optionally, in classes.

    Args:
        clients: Number of clients.
        size: Number of training images of the smallest client.
        labelled: Number of classes that each client labels; client k starts at class k.
        batch_size: Batch size of every client.
    """

    def __init__(self, clients: int = 3, size: int = 12, labelled: int = 3, batch_size: int = 4) -> None:
        super().__init__(partition=None, batch_size=batch_size, image_size=8)
        self._clients, self.size, self.labelled = clients, size, labelled
        self.classes = CLASSES

    def setup(self, stage: str | None = None) -> None:
        """Make the clients, once."""
        if self.clients:
            return
        for k in range(self._clients):
            labelled_classes = [(k + j) % len(CLASSES) for j in range(self.labelled)]
            labelled = (labelled_classes, labelled_classes, range(len(CLASSES)))
            parts = [self._part(100 * k + p, self.size + 2 * k, seen) for p, seen in enumerate(labelled)]
            self.clients[f"site-{k}"] = ClientData(
                f"site-{k}", tuple(CLASSES[c] for c in sorted(labelled_classes)), *parts
            )

    def _part(self, seed: int, size: int, seen: Iterable[int]) -> TensorDataset:
        g = torch.Generator().manual_seed(seed)
        images = torch.randn(size, 1, 8, 8, generator=g) + torch.randn(size, 1, 1, 1, generator=g)
        noise = torch.randn(size, len(CLASSES), generator=g)
        labels = (images.mean((1, 2, 3))[:, None] + 0.3 * noise > 0).float()
        labels[:, [c for c in range(len(CLASSES)) if c not in seen]] = torch.nan
        return TensorDataset(images, labels)


class OwnRows(SurgicalHeads):
    """Masks of SurgicalHeads in a list whose other aggregator may set client weights and govern heads."""

    weights = governs = None  # type: ignore[assignment]


class OtherPull(FedProx):
    """FedProx in a list whose other aggregator may be FedProx."""

    governs = None  # type: ignore[assignment]


def check_aggregator(
    aggregator: Aggregator,
    workers: int = 2,
    module: LightningModule | None = None,
    data: FederatedDataModule | None = None,
) -> None:
    """Run an aggregator through everything that a federation asks of it.

    A toy federation in float64 with partial participation, clients that label different classes and share only their
    own rows, BatchNorm and dropout checks that the aggregator

    * holds only hyper-parameters, and can be sent to other processes;
    * keeps server and client states of fixed names, shapes and dtypes, and never changes its inputs in place;
    * sends finite vectors of the same names in every round;
    * changes no weights after they have been read for sending, when the change would be lost;
    * survives a checkpoint: stopped and resumed with a fresh copy of itself, it gives the same results;
    * does not depend on where clients run: worker processes give the same results as one process;
    * composes: its position in a list with FedProx does not matter.

    Args:
        aggregator: The aggregator, with the hyper-parameters to check.
        workers: Number of processes of the check with several; 1 skips that check (it costs a few seconds).
        module: Module of the federation, for an aggregator that cannot train ``ToyNet``.
        data: Its data, for a module that cannot learn from ``ToyData``.

    Raises:
        AssertionError: Names every problem found.
        WorkerError: A worker process could not start, or died, which says nothing about the aggregator.
    """
    problems: list[str] = []
    before = _pickled(aggregator, problems)
    _report(aggregator, problems if before is None else [])

    def fresh() -> Aggregator:
        return pickle.loads(before or b"")

    def toy(aggregators: list[Aggregator], workers: int = 1) -> _Toy:
        return _Toy(aggregators, workers, module, data)

    def compare(one: _Toy, other: _Toy, problem: str, tolerance: float = 0.0) -> None:
        models = [toy.server.scored | {"server": toy.server.w} for toy in (one, other)]
        distance = max(float((tensor - models[1][name]).abs().max()) for name, tensor in models[0].items())
        if not distance <= tolerance:
            problems.append(f"{problem} (largest difference {distance:.2g})")

    try:
        whole = toy([aggregator, OwnRows()]).rounds(4, lambda toy: _check_states(toy, problems))
        if _pickled(aggregator, []) != before:
            problems.append(
                "its attributes changed during training: an aggregator holds only hyper-parameters; keep values that "
                "change in server_state or client_state, which are checkpointed"
            )
        watched = fresh()
        for hook in ("on_before_send", "on_client_round_end"):
            if watched.implements(hook):
                setattr(watched, hook, _watched(watched, hook, problems))
        toy([watched, OwnRows()]).rounds(1)
        half = toy([fresh(), OwnRows()]).rounds(2)
        resumed = half.through_a_checkpoint([fresh(), OwnRows()]).rounds(2)
        compare(whole, resumed, "stopped and resumed it gives other weights: it needs something outside of its states")
        compare(
            toy([fresh(), OtherPull(0.1)]).rounds(2),
            toy([OtherPull(0.1), fresh()]).rounds(2),
            "before FedProx in the list it gives other weights than after it: add to ctx.correction instead of "
            "setting it, and leave ctx.w and ctx.grad unchanged in on_client_round_start",
            tolerance=1e-9,
        )
        if workers > 1:
            spread = toy([fresh(), OwnRows()], workers)
            with closing(spread.session.engine):
                spread.rounds(4)
            problem = f"over {workers} worker processes it gives other weights: it uses something outside of its states"
            compare(whole, spread, problem)
    except WorkerError:
        raise  # probably a fault of the machine
    except KeyError as error:
        problems.append(
            f"it raised KeyError: {error}; declare names of a state in server_state or client_state, and set those of "
            "scratch in on_client_round_start"
        )
    except (TrainingError, RuntimeError, TypeError, AttributeError, ValueError) as error:
        mixed = "; this check computes in float64: make tensors like others (torch.zeros_like), or with layout.dtype"
        problems.append(f"it raised {type(error).__name__}: {error}{mixed * bool(DTYPES.search(str(error)))}")
    _report(aggregator, problems)


def check_module(module: LightningModule, data: FederatedDataModule, steps: int = 12) -> None:
    """Check that a client's training depends on nothing but its weights, buffers, data and random numbers.

    A run does the same with two steps before its first round: it trains a client, another one and the first again on
    one copy of the module, the first on another copy, and the first in a plain PyTorch loop. More steps find a state
    that matters later.

    Args:
        module: The module; it is left unchanged.
        data: Its data.
        steps: Number of steps of each of these rounds.

    Raises:
        AssertionError: Names the results that differ, by how much, and the attributes that changed.
        ConfigError, TrainingError: As in a run.
    """
    data = copy.deepcopy(data)
    data.setup("fit")
    fabric = make_fabric("cpu")
    examine(module, OF_MODULES)
    problem = Behaviour().problem(Trial(module, [], data.clients, fabric, data.batch_size, steps))
    _report(module, [problem] if problem else [])


class _Toy:
    """A toy federation in progress."""

    def __init__(
        self,
        aggregators: list[Aggregator],
        workers: int,
        module: LightningModule | None,
        data: FederatedDataModule | None,
        participation: float = 0.6,
        precision: str = "64-true",
    ) -> None:
        torch.manual_seed(0)
        self.options = module, data, participation, precision
        self.first_names: list[str] = []
        module = ToyNet() if module is None else copy.deepcopy(module)
        data = ToyData(5, labelled=2) if data is None else copy.deepcopy(data)
        self.federation = Federation(
            aggregators, schedule=ConstantSchedule(3, "steps"), participation=participation, workers=workers
        )
        self.session = assemble(self.federation, module, data, make_fabric("cpu", precision=precision))
        self.server, self.done, _ = self.session.restore(None)
        self.session.initialise_objective(self.server)

    def rounds(self, number: int, after_round: Callable[["_Toy"], None] = lambda toy: None) -> "_Toy":
        """Train some rounds, and return itself."""
        for _ in range(number):
            rnd = self.session.round(self.done)
            down = self.federation.open_round(self.server, rnd, self.session)
            sent, states = _copy(down.tensors()), {n: (s, _copy(s.tensors())) for n, s in self.states.items()}
            total, _ = self.session.engine.run(rnd.cohort, down, rnd)
            _check_unchanged(down.tensors(), sent, "its broadcast (ctx.broadcast)")
            for name, (state, tensors) in states.items():
                _check_unchanged(state.tensors(), tensors, f"the committed state of {name}")
            self.names = sorted(total.vectors)
            self.federation.close_round(self.server, total, rnd, self.session)
            self.done += 1
            after_round(self)
        return self

    @property
    def states(self) -> dict[str, Any]:
        return dict(self.session.engine.client_states())

    def through_a_checkpoint(self, aggregators: list[Aggregator]) -> "_Toy":
        """Return another toy federation that continues from the state of this one."""
        other = _Toy(aggregators, 1, *self.options)
        number = len(aggregators)
        states = {n: ClientState.from_tensors(_reloaded(s.tensors()), number) for n, s in self.states.items()}
        other.session.engine.load_client_states(states)
        other.server = ServerState.from_tensors(_reloaded(self.server.tensors()), number, self.server.layout)
        other.done = self.done
        return other


def _watched(aggregator: Aggregator, hook: str, problems: list[str]) -> Callable:
    """Make the hook also report a change of weights that the client shares, which would be lost."""
    call = getattr(aggregator, hook)

    def watched(ctx: ClientContext, *change: Tensor) -> State | Tensor:
        before, start = ctx.w.clone(), ctx.start.clone()
        returned = call(ctx, *change)
        changed = ctx.w != before
        for segment in ctx.mask.private(ctx.layout):
            changed[segment] = False
        if changed.any():
            problems.append(
                f"{hook} changes ctx.w, which is lost: the change of the weights has already been read; return another "
                "change from on_before_send instead"
            )
        if not torch.equal(ctx.start, start):
            problems.append(f"{hook} changes ctx.start in place; make a new tensor")
        return returned

    return watched


def _check_states(toy: _Toy, problems: list[str]) -> None:
    layout, (aggregator, *_) = toy.session.layout, toy.federation.aggregators or []
    pairs = [("server_state", aggregator.server_state(layout, toy.server.w), toy.server.aggregators[0])]
    pairs += [
        (f"client_state of {n}", aggregator.client_state(layout), s.aggregators[0]) for n, s in toy.states.items()
    ]
    for where, declared, actual in pairs:
        problem = _difference(declared, actual)
        if problem and not any(problem in other for other in problems):
            problems.append(
                f"{where} after round {toy.done}: {problem}; declare all names, shapes and dtypes at the start"
            )
    if toy.done == 1:
        toy.first_names = toy.names
    elif toy.names != toy.first_names:
        problems.append(
            f"round {toy.done} sent {toy.names}, round 1 {toy.first_names}: send the same names every round"
        )


def _difference(declared: State, found: State) -> str:
    if declared.keys() != found.keys():
        return f"expected names {sorted(declared)}, found {sorted(found)}"
    for name, tensor in found.items():
        like = declared[name]
        if not torch.is_tensor(tensor):
            return f"{name!r} is a {type(tensor).__name__}, not a tensor"
        if (tensor.shape, tensor.dtype) != (like.shape, like.dtype):
            kinds = {tensor.dtype, like.dtype} == {torch.float32, torch.float64}
            mixed = "; this check computes in float64: declare it with torch.zeros_like(w) or layout.dtype" * kinds
            return f"{name!r} is {tuple(tensor.shape)} {tensor.dtype}, declared {tuple(like.shape)} {like.dtype}{mixed}"
    return ""


def _check_unchanged(now: State, before: State, what: str) -> None:
    for name, tensor in before.items():
        if not torch.equal(now[name], tensor):
            raise ValueError(f"{what} was changed in place ({name!r}); make a new tensor")


def _pickled(aggregator: Aggregator, problems: list[str]) -> bytes | None:
    try:
        return dumps(copy.copy(aggregator))
    except Exception as error:
        problems.append(
            f"it cannot travel to a worker process: {error}; keep open files, locks and generators out of it"
        )
        return None


def _copy(state: State) -> State:
    return {name: tensor.clone() for name, tensor in state.items()}


def _reloaded(state: State) -> State:
    file = io.BytesIO()
    torch.save(_copy(state), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def _report(checked: object, problems: list[str]) -> None:
    if problems:
        raise AssertionError("\n- ".join((f"{type(checked).__name__}:", *dict.fromkeys(problems))))
