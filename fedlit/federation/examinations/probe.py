"""One probe of a user's module and optimizer by what they do: clients take turns on one copy, in any process."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fedlit.core.aggregator import Aggregator
from fedlit.core.batches import BatchStream
from fedlit.core.buffers import counters_of
from fedlit.core.fabric import FederationFabric
from fedlit.core.hooks import initial_client_state
from fedlit.core.local_model import LocalModel, configured
from fedlit.core.local_training import LocalTraining
from fedlit.core.measuring import objective_of
from fedlit.core.messages import Broadcast, Client, ClientData, Round
from fedlit.core.module import TrainingHooks, collect_logs, copy_of, loss_of, readable_errors, step_of
from fedlit.core.optimizer import LocalOptimizer
from fedlit.core.randomness import seed_process
from fedlit.core.rounds import client_round
from fedlit.core.system.pickling import dumps
from fedlit.federation.examinations.examination import Examination

STEPS, CLOSE = 2, 1e-4
"""Number of steps of a round, and the largest difference from a plain loop relative to the move."""

UNSHARED = (
    "A federation trains all parameters as one vector, so no parameter or buffer may share memory with another one: "
    "assign the one parameter to both places instead of its data, or clone() it"
)
"""Advice for what trains differently in a plain loop."""

KNOWN = frozenset(("fedlit", "torch", "torchvision", "torchmetrics", "timm"))
"""Packages whose layers carry nothing from one client to the next."""

OTHERS = frozenset(vars(LightningModule())) | {"log", "log_dict", "optimizers"}
"""Attributes that belong to PyTorch, to Lightning or to the federation."""

State = dict[str, Tensor]


@dataclass(frozen=True)
class Trial:
    """The module, the clients and the machine of a probe.

    Attributes:
        clients: Data of the clients, of which the first two train.
        steps: Number of steps of a round.
    """

    module: LightningModule
    aggregators: list[Aggregator]
    clients: Mapping[str, ClientData]
    fabric: FederationFabric
    batch_size: int
    steps: int = STEPS


class Behaviour(Examination[Trial]):
    """A client's round gives the same weights after any other client's, in any copy, and in a plain loop."""

    name = "behaviour"
    advice = (
        "Clients take turns on one module, in any number of processes: register what a step needs of the steps before "
        "as a buffer, with self.register_buffer(name, tensor); floating-point buffers are averaged, and each client "
        "keeps its own of the others"
    )

    def problem(self, trial: Trial) -> str:
        """Train a client, another one and the first again on one copy, then both on another one and in a plain loop.

        On the other copy they train in the other order, so what a module keeps of the first batch it meets is seen.

        A module or a plain loop that fails is left to the first round.
        """
        module = trial.module
        if all(type(part).__module__.split(".")[0] in KNOWN for part in module.modules()):
            return ""
        first, *others = trial.clients
        copy, another = (_Turns(trial) for _ in range(2))
        before = _attributes(copy.module)
        try:
            once = copy.round(first)
            for turns in (copy, another):
                turns.round(others[0] if others else first, position=trial.steps)
            again, elsewhere = copy.round(first), another.round(first)
            plainly = _plain_loop(trial, first) if objective_of(module) is None and not copy.ascends else None
        except Exception:  # of the module or its data; the first round names the client and the step
            return ""
        after = _attributes(copy.module)
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        kind = type(module).__name__
        named = f" Attributes that changed: {', '.join(f'{kind}.{name}' for name in changed)}." if changed else ""
        exact = 0.0 if trial.fabric.device.type == "cpu" else CLOSE
        cases = [
            (again, exact, "after another client has trained on the same copy of the module", self.advice),
            (elsewhere, exact, "on another copy of the module, on which another client was first", self.advice),
        ]
        if plainly is not None:
            cases.append((plainly, CLOSE, "in a plain PyTorch loop", UNSHARED))
        for other, bound, where, advice in cases:
            if difference := _difference(copy.start, once, other, bound):
                return (
                    f"{kind}: expected the same weights from the same {trial.steps} steps of client {first!r}, found "
                    f"others {where}: {difference}.{named} {advice}"
                )
        return ""


class _Turns:
    """A copy of the module on which clients take turns, as in a federation without algorithms."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self.module = trial, configured(trial.fabric, copy_of(trial.module), trial.aggregators)
        self._local = LocalModel(trial.fabric, self.module, [], LocalTraining())
        stats = self._local.flat.stats
        # An objective's constants are NaN until all clients have measured them; any share does here.
        self._down = Broadcast(self._local.flat.w.clone(), torch.where(stats.isnan(), 0.5, stats), [])
        self.start = _state(self.module)

    @property
    def ascends(self) -> bool:
        """Return whether parameters are maximised, which a plain loop would minimise."""
        dual = self._local.layout.slices["dual"]
        return dual.start < dual.stop

    def round(self, name: str, position: int = 0) -> State:
        """Train a client's round from the start, with the batches from a position on; return all values."""
        local, data = self._local, self._trial.clients[name]
        state = initial_client_state([], local.layout)
        state.batches = position
        stream = BatchStream(data.train, self._trial.batch_size, 0, name)
        rnd = Round(
            index=0, stage=0, lr_factor=1.0, window=self._trial.steps, unit="steps", seed=0, first_of_stage=True,
            last_of_stage=False, cohort=(name,),
        )  # fmt: skip
        with readable_errors(self.module, f"training client {name!r}"):
            client_round(local, stream, Client(name, data.classes, len(data.train), 1.0), state, self._down, rnd)
        return _state(self.module)


def _plain_loop(trial: Trial, name: str) -> State:
    """Train the same round without a flat vector, as one would in PyTorch, with the hooks of Lightning."""
    fabric, module = trial.fabric, configured(trial.fabric, copy_of(trial.module), trial.aggregators)
    module.to(fabric.device)
    collect_logs(module, fabric)
    still = [part for part in module.modules() if module.training and not part.training]
    module.train()
    for part in still:
        part.training = False
    seed_process(0, "round", 0, name)
    local, hooks, training_step = (
        LocalOptimizer(module, fabric.device),
        TrainingHooks(module),
        step_of(module, "training_step"),
    )
    local.begin({}, 1.0)
    optimizer, stream = local.optimizer, BatchStream(trial.clients[name].train, trial.batch_size, 0, name)
    module.optimizers = lambda use_pl_optimizer=True: optimizer
    for step in range(trial.steps):
        fabric.count(step, step // stream.steps_per_epoch)
        local.follow(*fabric.counts)
        if step % stream.steps_per_epoch == 0:
            hooks.call("on_train_epoch_start")
        batch = fabric.to_device(fabric.strategy.precision.convert_input(stream[step]))
        hooks.start_batch(batch, step)
        with fabric.autocast():
            output = training_step(batch, step)
        loss = loss_of(module, output)
        hooks.keep(output, loss)
        optimizer.zero_grad()
        loss.backward()
        hooks.call("on_after_backward")
        hooks.call("on_before_optimizer_step", optimizer)
        optimizer.step()
        hooks.end_batch(batch, step)
    return _state(module)


def _state(module: nn.Module) -> State:
    """Return copies of all parameters and buffers, but for the counts of torch's BatchNorm, which have no effect."""
    held, counters = [*module.named_parameters(), *module.named_buffers()], counters_of(module)
    return {name: value.detach().clone() for name, value in held if name not in counters}


def _difference(start: State, one: State, other: State, bound: float) -> str:
    """Return how two results of the same start differ by more than a bound relative to the move; "" if not."""
    moves = [
        _distance(value, one[name]) for name, value in start.items() if name in one and one[name].shape == value.shape
    ]
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other or one[name].shape != other[name].shape:
            return f"{name} exists in one of them, or has another shape there"
        if (distance := _distance(one[name], other[name])) > bound * max(moves):
            return f"{name} is {distance:.2g} away after a move of {max(moves):.2g}"
    return ""


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).nan_to_num().abs().max()) if one.numel() else 0.0


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return the values of attributes by name, as bytes, as far as they can be pickled."""
    values = {}
    for prefix, part in module.named_modules():
        for name in vars(part).keys() - OTHERS:
            try:
                values[f"{prefix}.{name}".lstrip(".")] = dumps(vars(part)[name])
            except Exception:
                continue
    return values
