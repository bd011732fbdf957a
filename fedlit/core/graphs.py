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
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torchmetrics import Metric

from fedlit.core.aggregator import Aggregator, ClientContext
from fedlit.core.errors import TrainingError
from fedlit.core.fabric import FederationFabric
from fedlit.core.flat import FlatModel
from fedlit.core.optimizer import FlatOptimizer
from fedlit.core.training_hooks import TrainingHooks

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

    def __init__(self, steps: "CapturedSteps", run: Callable[[], Values]) -> None:
        self._steps, self._run, self._taken = steps, run, 0
        self._values: Values = []
        self._replay: Callable[[], None] | None = None

    def __call__(self) -> Values:
        """Take it in one of the three ways."""
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
        with self._steps.recorder.beside() as waits:
            values = self._run()
        if self._taken == WARM:
            self._check(values, waits, fabric.asked, drawn != _drawn())
        self._values = values
        return values

    def _check(self, values: Values, waits: Sequence[str], counts: bool, draws: bool) -> None:
        """Refuse what a recording would do otherwise than the step.

        Raises:
            TrainingError: Says what.
        """
        numbers = [name for name, value in values if not torch.is_tensor(value)]
        others = [name for name, _ in values] != [name for name, _ in self._values]
        reasons = {
            f"it waits for the device ({next(iter(waits), ''):.120})": waits,
            "it reads self.global_step or self.current_epoch, which a graph would not count": counts,
            "it draws from the generators of Python or NumPy, which a graph cannot": draws,
            f"it logs {next(iter(numbers), '')!r} as a number, which a graph would repeat; log a tensor": numbers,
            "it does not log the same at every step": others,
        }
        if found := [reason for reason, holds in reasons.items() if holds]:
            raise self._steps.refused(found[0])

    def _write(self) -> None:
        for (_, place), (_, value) in zip(self._values, self._run(), strict=True):
            place.copy_(value)


class CapturedStep:
    """The step on batches of one form, whose tensors are copied to one place.

    Args:
        steps: What it belongs to.
        leaves: Tensors of one of these batches, on the device.
        tree: How they hang together.
    """

    def __init__(self, steps: "CapturedSteps", leaves: Sequence[Tensor], tree: TreeSpec) -> None:
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
            loss = self._steps.whole(self._batch)
        return [("", loss), *((name, value) for name, values in logged.items() for value in values)]


class Steps(Protocol):
    """How local steps are taken: one by one, or replayed."""

    def compute_gradient(self, contexts: Sequence[ClientContext], batches: Sequence[Any], number: int) -> Tensor:
        """Take a step until ``on_before_optimizer_step``: the gradient; returns the loss."""

    def update(self) -> None:
        """Take the rest of the step: along the gradient."""


class CapturedSteps:
    """The steps of one model that are replayed; those on batches of another size are taken as they are.

    Args:
        recorder: Of the device.
        fabric: Collects what the module logs.
        plain: The same steps, taken one by one.
        moved: Gives a batch on the device.
        ready: Whether steps may be recorded yet: the first ones tell more of a module than later ones.
        size: Number of examples in a batch whose step is recorded.
        hooked: Whether an aggregator looks at the gradient before the optimizer, so that the rest is recorded by itself.
        name: Of the module's class.
    """

    def __init__(
        self,
        recorder: Recorder,
        fabric: FederationFabric,
        plain: Steps,
        moved: Callable[[Any], Any],
        ready: Callable[[], bool],
        size: int,
        hooked: bool,
        name: str,
    ) -> None:
        self.recorder, self.fabric = recorder, fabric
        self._plain, self._moved, self._ready = plain, moved, ready
        self._size, self._hooked, self._name = size, hooked, name
        self._forms: dict[Any, CapturedStep] = {}
        self._rest = Part(self, lambda: plain.update() or [])
        self._replayed = False

    def compute_gradient(self, contexts: Sequence[ClientContext], batches: Sequence[Any], number: int) -> Tensor:
        """Take a step until the hook, or all of it where there is no hook."""
        self._replayed = self._ready() and self._has(batches[0])
        if not self._replayed:
            return self._plain.compute_gradient(contexts, batches, number)
        leaves, tree = tree_flatten(self._moved(batches[0]))
        key = (tree, *((leaf.shape, leaf.stride(), leaf.dtype) for leaf in leaves))
        if key not in self._forms:
            self._forms[key] = CapturedStep(self, leaves, tree)
        return self._forms[key](leaves)

    def update(self) -> None:
        """Take the rest of the step, if it is left."""
        if not self._replayed:
            self._plain.update()
        elif self._hooked:
            self._rest()

    def whole(self, batch: Any) -> Tensor:
        """Take, of the step on a batch, what is recorded together; returns the loss."""
        loss = self._plain.compute_gradient((), (batch,), 0)
        if not self._hooked:
            self._plain.update()
        return loss

    def refused(self, reason: str) -> TrainingError:
        """Say why a step cannot be recorded."""
        return TrainingError(capture_refused(self._name, reason))

    def _has(self, batch: Any) -> bool:
        """Tell whether the step on a batch is recorded.

        Raises:
            TrainingError: It holds something else than tensors.
        """
        leaves, _ = tree_flatten(batch)
        if others := [leaf for leaf in leaves if not torch.is_tensor(leaf)]:
            raise self.refused(f"its batches hold a {type(others[0]).__name__} beside tensors")
        return bool(leaves) and leaves[0].shape[:1] == (self._size,)


def capture_obstacle(model: FlatModel, optimizer: FlatOptimizer, aggregators: Sequence[Aggregator]) -> str:
    """Say why the steps of a model cannot be recorded, as far as that is known before the first; "" where they can."""
    if computing := [type(a).__name__ for a in aggregators if a.implements("compute_gradient")]:
        return f"{computing[0]} computes the gradient itself"
    if adding := [type(a).__name__ for a in aggregators if a.implements("extra_loss")]:
        return f"{adding[0]} adds to the loss"
    if hooks := sorted(TrainingHooks(model.module).called):
        return f"its {hooks[0]} runs in Python"
    if any(isinstance(part, Metric) for part in model.module.modules()):
        return "it has metrics of torchmetrics, which count in Python"
    if model.own.names:
        return f"its buffer {model.own.names[0]} is no statistic: every client has another one"
    return optimizer.capture_obstacle()


def capture_refused(name: str, reason: str) -> str:
    """Refuse ``federation.cuda_graph: true`` in words."""
    return f"federation.cuda_graph: true, but the steps of {name} cannot be recorded: {reason}; leave it out"


def _drawn() -> tuple:
    """Where the generators of Python and NumPy are."""
    kind, keys, place, *normal = np.random.get_state()
    return random.getstate(), kind, keys.tobytes(), place, normal
