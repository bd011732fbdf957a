"""State that a module keeps in plain attributes, where no client could have its own: found in the first round."""

import copy
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric

from fedlit.core.errors import TrainingError

OTHERS = frozenset(vars(LightningModule())) | {"log", "log_dict"}
"""Attributes that belong to PyTorch, to Lightning or to the federation."""

LIBRARIES = ("torch.nn.", "torchmetrics.")
"""Where layers come from that keep nothing in attributes, or nothing that training depends on."""

ABSENT, UNKNOWN = object(), object()
"""Values of an attribute that is not there, and of one that cannot be copied, or is no state by its kind."""

PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
GENERATORS: dict[type, Callable[[Any], Any]] = {
    torch.Generator: lambda g: g.get_state(),
    np.random.Generator: lambda g: g.bit_generator.state,
    np.random.RandomState: lambda g: g.get_state(legacy=False),
    random.Random: lambda g: g.getstate(),
}

Key = tuple[str, str]
"""Name of the submodule, and of its attribute."""


class AttributeWatch:
    """Compare a module's attributes before and after a client's round.

    Args:
        module: The module; its submodules and its objective are looked at too. Not looked at are PyTorch's own layers,
            metrics, and what Lightning keeps.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._parts = {
            name: part
            for name, part in module.named_modules()
            if not isinstance(part, Metric) and not type(part).__module__.startswith(LIBRARIES)
        }
        held = [*module.parameters(), *module.buffers()]
        self._memory = {tensor.untyped_storage().data_ptr() for tensor in held}
        self._before = self._values()
        self._frozen = {n: p.detach().clone() for n, p in module.named_parameters() if not p.requires_grad}

    def check(self, step: Callable[[], Tensor]) -> None:
        """Refuse state in attributes, after the round.

        An attribute that has changed is state if the next step depends on what it was: ``step`` is run again, from the
        values before and after the round. What a step only leaves behind (its activations, the time) or computes once (a
        grid) is no state, nor is a list of losses that grows, as long as the loss does not depend on it.

        Args:
            step: Returns the loss of the client's first step, with the same draws and weights each time.

        Raises:
            TrainingError: A frozen parameter, or an attribute that is state, has changed; names it.
        """
        self._check_frozen()
        now = self._values()
        changed = [key for key in sorted({*self._before, *now}) if not _same(_of(self._before, key), _of(now, key))]
        if not changed:
            return
        held = {key: vars(self._parts[key[0]]).get(key[1], ABSENT) for key in changed}
        try:
            replays = [
                self._replay({key: _of(start, key) for key in changed}, step) for start in (self._before, now, now)
            ]
        finally:
            self._set(held)
        (before, first_loss), (after, loss), (again, _) = replays
        depends = not torch.equal(first_loss, loss)
        carried = [key for key in changed if not _same(before[key], after[key]) and _same(after[key], again[key])]
        growing = [key for key in carried if not depends and _grows(_of(now, key), after[key])]
        for key in carried:
            if key not in growing:
                raise TrainingError(self._refusal(key))
        if growing:
            rank_zero_warn(
                f"{self._name(growing[0])} grows with every step, and nobody empties it: no hook is called at the end of an "
                "epoch here; use self.log"
            )

    def _check_frozen(self) -> None:
        for name, value in self._module.named_parameters():
            if name in self._frozen and not (value.requires_grad is False and torch.equal(self._frozen[name], value)):
                raise TrainingError(
                    f"{type(self._module).__name__}: its frozen parameter {name} changed during training, or is frozen no "
                    "more; it is sent to nobody, so every process would have another one: make it a buffer, which the "
                    "federation averages"
                )

    def _refusal(self, key: Key) -> str:
        part, attribute = key
        value = vars(self._parts[part]).get(attribute)
        if isinstance(value, tuple(GENERATORS)):
            fix = (
                "Draw from the default generators of torch, numpy and random: they are seeded for each client and round"
            )
        else:
            fix = (
                "Make it a buffer, which every client keeps as its own (of integers or bool) or the federation averages (of "
                f"floating point): self.register_buffer({attribute!r}, torch.tensor(0)). self.global_step counts steps already"
            )
        return (
            f"{self._name(key)} is a plain attribute that carries something from step to step: clients take turns on one "
            f"module, in any number of processes, so it would be that of whoever trained last. {fix}"
        )

    def _name(self, key: Key) -> str:
        return ".".join(filter(None, (type(self._module).__name__, *key)))

    def _values(self) -> dict[Key, Any]:
        return {
            (name, attribute): self._copied(value)
            for name, part in self._parts.items()
            for attribute, value in vars(part).items()
            if attribute not in OTHERS
        }

    def _set(self, values: dict[Key, Any]) -> None:
        for (name, attribute), value in values.items():
            if value is ABSENT:
                vars(self._parts[name]).pop(attribute, None)
            else:
                vars(self._parts[name])[attribute] = value

    def _replay(self, start: dict[Key, Any], step: Callable[[], Tensor]) -> tuple[dict[Key, Any], Tensor]:
        self._set({key: self._copied(value) for key, value in start.items()})
        loss = step().detach().clone()
        now = self._values()
        return {key: _of(now, key) for key in start}, loss

    def _copied(self, value: Any, depth: int = 4) -> Any:
        """A copy that later changes do not reach."""
        if value is ABSENT or isinstance(value, PLAIN):
            return value
        if isinstance(value, nn.Parameter) or not depth:
            return UNKNOWN
        if isinstance(value, Tensor):
            return UNKNOWN if value.untyped_storage().data_ptr() in self._memory else value.detach().clone()
        if isinstance(value, (np.ndarray, *GENERATORS)):
            return copy.deepcopy(value)
        if type(value) in (list, tuple, set, deque):
            items = [self._copied(item, depth - 1) for item in value]
            if any(item is UNKNOWN for item in items):
                return UNKNOWN
            return deque(items, value.maxlen) if type(value) is deque else type(value)(items)
        entries = value if isinstance(value, dict) else None if isinstance(value, (nn.Module, type)) else _vars(value)
        if entries is None:
            return UNKNOWN
        copies = {name: self._copied(item, depth - 1) for name, item in entries.items()}
        if any(item is UNKNOWN for item in copies.values()):
            return UNKNOWN
        twin = copy.copy(value)
        (twin if isinstance(value, dict) else vars(twin)).update(copies)
        return twin


def _of(values: dict[Key, Any], key: Key) -> Any:
    return values.get(key, ABSENT)


def _vars(value: Any) -> dict[str, Any] | None:
    """The attributes of an object of somebody's own class, such as a meter; None of anything else."""
    if callable(value) or type(value).__module__.split(".")[0] in ("torch", "numpy", "builtins", "functools"):
        return None
    return getattr(value, "__dict__", None)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal, NaN to NaN; what is unknown is the same as anything."""
    if one is other or one is UNKNOWN or other is UNKNOWN:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype
        return alike and bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, tuple(GENERATORS)):
        state = next(read for kind, read in GENERATORS.items() if isinstance(one, kind))
        return _same(state(one), state(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, (*PLAIN, set)):
        return bool(one == other or (one != one and other != other))
    return _same(vars(one), vars(other))


def _grows(before: Any, after: Any) -> bool:
    """Whether a container has kept all that it held."""
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() <= after.keys() and all(_same(value, after[key]) for key, value in before.items())
    if isinstance(before, (list, deque)) and isinstance(after, (list, deque)):
        return len(before) <= len(after) and all(map(_same, before, after))
    return isinstance(before, set) and isinstance(after, set) and before <= after
