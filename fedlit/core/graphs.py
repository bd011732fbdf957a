"""Local steps that are recorded once, as CUDA graphs, and replayed for every client in every round.

Weights, gradients, statistics, momenta and corrections lie at one address as long as the process lives. So a step that was
recorded for one client is the step of every other, once the batch has been copied to where the recorded one lay.
"""

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torchmetrics import Metric

from fedlit.core.aggregator import Aggregator
from fedlit.core.errors import TrainingError
from fedlit.core.fabric import FederationFabric
from fedlit.core.flat import FlatModel
from fedlit.core.optimizer import FlatOptimizer

WARM = 3
"""Steps of each form that are taken as they are before one is recorded: libraries set themselves up in the first ones."""

Values = list[tuple[str, Any]]
"""What a step gives: its loss under the name "", and what the module has logged."""


class Recorder(Protocol):
    """Records what is done on a device, so that it can be done again."""

    def beside(self) -> AbstractContextManager[list[str]]:
        """Within, what is done is done where it will be recorded; gives, at the end, what a recording cannot contain."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Run the Python of some work without doing it; what is returned does it, without the Python."""


class CUDARecorder:
    """Records CUDA graphs that share one pool of memory: only one runs at a time, and none leaves anything in it.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream, self._pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        self._draws = torch.cuda.default_generators[self._stream.device_index]

    @contextmanager
    def beside(self) -> Iterator[list[str]]:
        """Work on the stream of the recordings; gives the warnings of operations that wait for the GPU."""
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
        """Capture work as a graph; other threads may go on with copies meanwhile, dropout draws anew at each replay."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._draws)
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return graph.replay


RECORDERS: dict[str, Callable[[torch.device], Recorder]] = {"cuda": CUDARecorder}
"""Devices whose steps can be recorded, by their type."""


class Part:
    """A part of a step: taken as it is at first, then recorded, then replayed.

    Args:
        steps: What it belongs to.
        run: Takes it; returns the loss and what was logged, as far as it gives any.
    """

    def __init__(self, steps: "RecordedSteps", run: Callable[[], Values]) -> None:
        self._steps, self._run, self._taken = steps, run, 0
        self._values: Values = []
        self._replay: Callable[[], None] | None = None

    def __call__(self) -> Values:
        """Take it in one of the three ways."""
        if self._steps.reason:
            return self._run()
        if self._replay is None and self._taken < WARM:
            return self._warm()
        if self._replay is None:
            self._values = [(name, torch.empty_like(value)) for name, value in self._values]
            try:
                self._replay = self._steps.recorder.record(self._write)
            except (RuntimeError, ValueError) as error:
                self._steps.give_up(f"it cannot be captured: {str(error).splitlines()[0]:.200}")
                return self._run()
        self._replay()
        return [(name, value.clone()) for name, value in self._values]

    def _warm(self) -> Values:
        self._taken += 1
        drawn, fabric = _drawn(), self._steps.fabric
        fabric.asked = False
        with self._steps.recorder.beside() as waits:
            values = self._run()
        if self._taken == WARM:
            numbers = [name for name, value in values if not torch.is_tensor(value)]
            reasons = [
                (waits, lambda: f"it waits for the device ({waits[0]:.120})"),
                (
                    fabric.asked,
                    lambda: "it reads self.global_step or self.current_epoch, which a graph would not count",
                ),
                (drawn != _drawn(), lambda: "it draws from the generators of Python or NumPy, which a graph cannot"),
                (numbers, lambda: f"it logs {numbers[0]!r} as a number, which a graph would repeat; log a tensor"),
                (
                    [name for name, _ in values] != [name for name, _ in self._values],
                    lambda: "it does not log the same at every step",
                ),
            ]
            for reason in (say() for found, say in reasons if found):
                self._steps.give_up(reason)
                break
        self._values = values
        return values

    def _write(self) -> None:
        for (_, place), (_, value) in zip(self._values, self._run(), strict=True):
            place.copy_(value)


class Form:
    """The step on batches of one form, whose tensors are copied to one place.

    Args:
        steps: What it belongs to.
        leaves: Tensors of one of these batches, on the device.
        tree: How they hang together.
    """

    def __init__(self, steps: "RecordedSteps", leaves: Sequence[Tensor], tree: TreeSpec) -> None:
        self._places = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in leaves]
        self._batch, self._steps = tree_unflatten(self._places, tree), steps
        self._part = Part(steps, self._run)

    def __call__(self, leaves: Sequence[Tensor]) -> Tensor:
        """Take the step on a batch; returns its loss."""
        for place, tensor in zip(self._places, leaves, strict=True):
            place.copy_(tensor, non_blocking=True)
        (_, loss), *logged = self._part()
        for name, value in logged:
            self._steps.fabric.logged[name].append(value)
        return loss

    def _run(self) -> Values:
        with self._steps.fabric.apart() as logged:
            loss = self._steps.descend(self._batch)
        return [("", loss), *((name, value) for name, values in logged.items() for value in values)]


class RecordedSteps:
    """The steps of one model that are replayed; those on batches of another size are taken as they are.

    Attributes:
        reason: Why nothing is recorded any more, or "".

    Args:
        recorder: Of the device.
        fabric: Collects what the module logs.
        descend: The step on a batch until the aggregators' hook, or all of it where there is no hook; returns the loss.
        update: The rest, after the hook.
        size: Number of examples in a batch whose step is recorded.
        must: Whether it is an error that a step cannot be recorded.
        name: Of the module's class.
    """

    def __init__(
        self,
        recorder: Recorder,
        fabric: FederationFabric,
        descend: Callable[[Any], Tensor],
        update: Callable[[], None],
        size: int,
        must: bool,
        name: str,
    ) -> None:
        self.recorder, self.fabric, self.descend, self.reason = recorder, fabric, descend, ""
        self._size, self._must, self._name = size, must, name
        self._forms: dict[Any, Form] = {}
        self._update = Part(self, lambda: update() or [])

    def has(self, batch: Any) -> bool:
        """Tell whether the step on a batch is taken here."""
        if self.reason:
            return False
        leaves, _ = tree_flatten(batch)
        if others := [leaf for leaf in leaves if not torch.is_tensor(leaf)]:
            self.give_up(f"its batches hold a {type(others[0]).__name__} beside tensors")
            return False
        return bool(leaves) and leaves[0].shape[:1] == (self._size,)

    def take(self, batch: Any) -> Tensor:
        """Take a step on a batch that is on the device, up to the hook; returns its loss."""
        leaves, tree = tree_flatten(batch)
        key = (tree, *((leaf.shape, leaf.stride(), leaf.dtype) for leaf in leaves))
        if key not in self._forms:
            self._forms[key] = Form(self, leaves, tree)
        return self._forms[key](leaves)

    def update(self) -> None:
        """Take the rest of the step, after the hook."""
        self._update()

    def give_up(self, reason: str) -> None:
        """Record nothing any more, and say why.

        Raises:
            TrainingError: It was asked for.
        """
        self.reason = reason
        if self._must:
            raise TrainingError(refusal(self._name, reason))
        rank_zero_warn(notice(self._name, reason))


def hindrance(model: FlatModel, optimizer: FlatOptimizer, aggregators: Sequence[Aggregator]) -> str:
    """Say why the steps of a model cannot be recorded, as far as that is known before the first; "" where they can."""
    if computing := [type(a).__name__ for a in aggregators if a.implements("compute_gradient")]:
        return f"{computing[0]} computes the gradient itself"
    if any(isinstance(part, Metric) for part in model.module.modules()):
        return "it has metrics of torchmetrics, which count in Python"
    if model.own.names:
        return f"its buffer {model.own.names[0]} is no statistic: every client has another one"
    return optimizer.hindrance()


def refusal(name: str, reason: str) -> str:
    """Refuse ``federation.cuda_graph: true`` in words."""
    return f"federation.cuda_graph: true, but the steps of {name} cannot be recorded: {reason}; set auto or false"


def notice(name: str, reason: str) -> str:
    """Say that steps are not recorded."""
    return f"{name} trains without a CUDA graph: {reason}"


def _drawn() -> tuple:
    """Where the generators of Python and NumPy are."""
    kind, keys, place, *normal = np.random.get_state()
    return random.getstate(), kind, keys.tobytes(), place, normal
