"""Local steps that are captured once, as CUDA graphs, and replayed for every client in every round.

Weights, gradients, statistics, momenta and corrections keep their addresses as long as the process lives. So a step
that was captured for one client is the step of every other, once the batch is copied to the address of the captured
one.
"""

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torchmetrics import Metric

from fedlit.core.aggregator import Aggregator, ClientContext
from fedlit.core.errors import TrainingError
from fedlit.core.flat import FlatModel
from fedlit.core.local_model import LocalModel
from fedlit.core.optimizer import FlatOptimizer
from fedlit.core.training_hooks import TrainingHooks

WARM = 3
"""Number of steps per batch signature that run normally before one is captured: libraries initialise themselves in the
first."""

RECORDED = ("SGD", "Adam", "AdamW")
"""Optimizers whose step can be captured: their state starts at zero, and their kernels read the rate from the
device."""

Values = list[tuple[str, Any]]
"""Results of a step: its loss under the name "", and the values that the module has logged."""


class CUDARecorder:
    """Captures CUDA graphs that share one memory pool: only one runs at a time, and none leaves data in it."""

    def __init__(self, device: torch.device) -> None:
        self._stream, self._pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        self._draws = torch.cuda.default_generators[self._stream.device_index]

    @contextmanager
    def warming(self) -> Iterator[list[str]]:
        """Context manager that works on the capture stream; yields the warnings of operations that wait for the GPU."""
        present, mode, waits = torch.cuda.current_stream(), torch.cuda.get_sync_debug_mode(), []
        self._stream.wait_stream(present)
        with torch.cuda.stream(self._stream), warnings.catch_warnings(record=True) as met:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield waits
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        present.wait_stream(self._stream)
        waits += [str(warned.message) for warned in met if "called a synchronizing" in str(warned.message)]

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture work as a graph without executing it; the result executes it, without the Python code around it.

        Other threads may copy meanwhile, and dropout draws new numbers at each replay.
        """
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._draws)
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return graph.replay


RECORDERS: dict[str, Callable[[torch.device], CUDARecorder]] = {"cuda": CUDARecorder}
"""Recorders by the type of the devices whose steps can be captured."""


class Part:
    """Part of a step: run normally at first, then captured, then replayed."""

    def __init__(self, steps: "CapturedSteps", run: Callable[[], Values]) -> None:
        self._steps, self._run, self._taken = steps, run, 0
        self._values: Values = []
        self._replay: Callable[[], None] | None = None

    def __call__(self) -> Values:
        """Run it in one of the three ways."""
        if self._replay is None and self._taken < WARM:
            return self._warm()
        if self._replay is None:
            self._values = [(name, torch.empty_like(value)) for name, value in self._values]
            try:
                self._replay = self._steps.recorder.record(self._write)
            except (RuntimeError, ValueError) as error:
                raise self._steps.refused(f"it cannot be captured: {str(error).splitlines()[0]:.200}") from error
        self._replay()
        return [(name, value.clone()) for name, value in self._values]

    def _warm(self) -> Values:
        self._taken += 1
        drawn, fabric = _drawn(), self._steps.fabric
        fabric.asked = False
        with self._steps.recorder.warming() as waits:
            values = self._run()
        if self._taken == WARM:
            self._check(values, waits, fabric.asked, drawn != _drawn())
        self._values = values
        return values

    def _check(self, values: Values, waits: Sequence[str], counts: bool, draws: bool) -> None:
        """Refuse a step that would give other results when replayed."""
        numbers = [name for name, value in values if not torch.is_tensor(value)]
        others = [name for name, _ in values] != [name for name, _ in self._values]
        reasons = {
            f"it waits for the device ({next(iter(waits), ''):.120})": waits,
            "it reads self.global_step or self.current_epoch, which a graph would not count": counts,
            "it draws from the generators of Python or NumPy, which a graph cannot": draws,
            f"it logs {next(iter(numbers), '')!r} as a number, which a graph would repeat; log a tensor": numbers,
            "it does not log the same names at every step": others,
        }
        if obstacles := [reason for reason, holds in reasons.items() if holds]:
            raise self._steps.refused(obstacles[0])

    def _write(self) -> None:
        for (_, place), (_, value) in zip(self._values, self._run(), strict=True):
            place.copy_(value)


class CapturedStep:
    """The step on batches of one signature, whose tensors are copied to fixed addresses."""

    def __init__(self, steps: "CapturedSteps", leaves: Sequence[Tensor], tree: TreeSpec) -> None:
        self._places = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in leaves]
        self._batch, self._steps = tree_unflatten(self._places, tree), steps
        self._part = Part(steps, self._run)

    def __call__(self, leaves: Sequence[Tensor]) -> Tensor:
        """Take the step on a batch and return its loss."""
        for place, tensor in zip(self._places, leaves, strict=True):
            place.copy_(tensor, non_blocking=True)
        (_, loss), *logged = self._part()
        for name, value in logged:
            self._steps.fabric.logged[name].append(value)
        return loss

    def _run(self) -> Values:
        with self._steps.fabric.separate_log() as logged:
            loss = self._steps.whole(self._batch)
        return [("", loss), *((name, value) for name, values in logged.items() for value in values)]


class CapturedSteps:
    """Replayed steps of one model; steps on batches of another size run normally.

    The first steps run normally too, because they reveal more about a module than later ones. If an aggregator reads
    the gradient before the optimizer, the rest of the step is captured separately.

    Raises:
        TrainingError: Its steps cannot be captured.
    """

    def __init__(self, local: LocalModel) -> None:
        if reason := capture_obstacle(local.flat, local.optimizer, local.aggregators):
            raise TrainingError(capture_refused(type(local.module).__name__, reason), key="capture-obstacle")
        local.optimizer.fix_addresses()
        if any(aggregator.implements("on_client_round_start") for aggregator in local.aggregators):
            local.correction.fix_addresses()
        device = local.flat.w.device
        self.recorder, self.fabric, self._local = RECORDERS[device.type](device), local.fabric, local
        self._hooked = any(aggregator.implements("on_before_optimizer_step") for aggregator in local.aggregators)
        self._captured: dict[Any, CapturedStep] = {}
        self._rest = Part(self, lambda: local.update() or [])
        self._replayed = False

    def compute_gradient(self, contexts: Sequence[ClientContext], batches: Sequence[Any], number: int) -> Tensor:
        """Take a step up to the hook, or all of it without a hook."""
        self._replayed = self._local.learns and self._local.watched and self._has(batches[0])
        if not self._replayed:
            return self._local.compute_gradient(contexts, batches, number)
        leaves, tree = tree_flatten(self._local.moved(batches[0]))
        signature = (tree, *((leaf.shape, leaf.stride(), leaf.dtype) for leaf in leaves))
        if signature not in self._captured:
            self._captured[signature] = CapturedStep(self, leaves, tree)
        return self._captured[signature](leaves)

    def update(self) -> None:
        """Take the rest of the step, if any is left."""
        if not self._replayed:
            self._local.update()
        elif self._hooked:
            self._rest()

    def whole(self, batch: Any) -> Tensor:
        """Take the part of a step that is captured together; return the loss."""
        loss = self._local.compute_gradient((), (batch,), 0)
        if not self._hooked:
            self._local.update()
        return loss

    def refused(self, reason: str) -> TrainingError:
        """Return the error of a step that cannot be captured."""
        return TrainingError(capture_refused(type(self._local.module).__name__, reason), key="step-not-capturable")

    def _has(self, batch: Any) -> bool:
        """Return whether the step on a batch is captured; refuse a batch of anything but tensors."""
        leaves, _ = tree_flatten(batch)
        if others := [leaf for leaf in leaves if not torch.is_tensor(leaf)]:
            raise self.refused(f"its batches hold a {type(others[0]).__name__} besides tensors")
        return bool(leaves) and leaves[0].shape[:1] == (self._local.training.captured,)


def capture_obstacle(model: FlatModel, optimizer: FlatOptimizer, aggregators: Sequence[Aggregator]) -> str:
    """Return why a model's steps cannot be captured, as far as is known before the first; "" if nothing is known."""
    if computing := [type(a).__name__ for a in aggregators if a.implements("compute_gradient")]:
        return f"{computing[0]} computes the gradient itself"
    if adding := [type(a).__name__ for a in aggregators if a.implements("extra_loss")]:
        return f"{adding[0]} adds to the loss"
    if hooks := sorted(TrainingHooks(model.module).called):
        return f"its {hooks[0]} runs in Python"
    if any(isinstance(part, Metric) for part in model.module.modules()):
        return "it has metrics of torchmetrics, which count in Python"
    if model.own.names:
        return f"its buffer {model.own.names[0]} is not a statistic: every client has its own"
    if optimizer.name not in RECORDED:
        return f"{optimizer.name} computes its step on the host; {', '.join(RECORDED)} can"
    for group in optimizer.configured.param_groups:
        if group.get("dampening"):
            return "the optimizer's first step differs from the others (dampening)"
        if options := [option for option in ("foreach", "differentiable") if group.get(option)]:
            return f"the optimizer computes with {options[0]}: true; leave it out"
    return ""


def capture_refused(name: str, reason: str) -> str:
    """Return the error message for a step that ``federation.cuda_graph: true`` cannot capture."""
    return f"federation.cuda_graph: true, but the steps of {name} cannot be captured: {reason}; leave it out"


def _drawn() -> tuple:
    kind, keys, position, *normal = np.random.get_state()
    return random.getstate(), kind, keys.tobytes(), position, normal
