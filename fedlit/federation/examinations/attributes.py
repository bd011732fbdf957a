"""Training state that a module keeps in plain attributes instead of buffers, found in the round that changes it."""

import copy
import dis
import random
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric

from fedlit.core.errors import TrainingError

OTHERS = frozenset(vars(LightningModule())) | {"log", "log_dict", "optimizers"}
"""Attributes that belong to PyTorch, to Lightning or to the federation."""

LIBRARIES = ("torch.nn.", "torchmetrics.")
"""Packages whose layers keep no state in attributes, or none that training depends on."""

SETTABLE = frozenset(("p", "momentum"))
"""Attributes of PyTorch's layers that training depends on and a step may set, in dropout and in BatchNorm."""

OUTSIDE = ("the class ", "the module ")
"""Prefixes of holders that are not submodules."""

ABSENT, UNKNOWN = object(), object()
"""Values of a missing attribute, and of one that cannot be copied or cannot be state."""

PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
GENERATORS: dict[type, Callable[[Any], Any]] = {
    torch.Generator: lambda g: g.get_state(),
    np.random.Generator: lambda g: g.bit_generator.state,
    np.random.RandomState: lambda g: g.get_state(legacy=False),
    random.Random: lambda g: g.getstate(),
}

Key = tuple[str, str]
"""Name of the submodule, class or file, and of its attribute."""


@dataclass(frozen=True)
class Holder:
    """Holder of attributes: an object, a class, or a module's globals.

    Attributes:
        names: Names to watch; None for all.
    """

    place: dict[str, Any] | type
    names: frozenset[str] | None = None

    @property
    def entries(self) -> Mapping[str, Any]:
        """Its attributes by name."""
        return self.place if isinstance(self.place, dict) else vars(self.place)

    def watched(self) -> list[tuple[str, Any]]:
        """Return the names and values to watch."""
        names = self.entries.keys() - OTHERS if self.names is None else self.names
        return [(name, self.entries[name]) for name in names if name in self.entries]

    def put(self, name: str, value: Any) -> None:
        """Set an attribute, or remove it."""
        if isinstance(self.place, type):
            delattr(self.place, name) if value is ABSENT else setattr(self.place, name, value)
        elif value is ABSENT:
            self.place.pop(name, None)
        else:
            self.place[name] = value


class AttributeWatch:
    """Check that steps carry no state to the next one outside of buffers, and that frozen parameters do not change.

    Attributes are compared before and after each client's round.

    Args:
        module: The module. Watched are the attributes of it, of its submodules and objective and of their classes,
            globals that their methods name, and states of metrics, except for PyTorch's own layers and what Lightning
            keeps.
    """

    name = "attributes"
    advice = "make it a buffer, which each client keeps as its own or the federation averages"

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._holders: dict[str, Holder] = {}
        self._metrics = {name for name, part in module.named_modules() if isinstance(part, Metric)}
        for name, part in module.named_modules():
            if isinstance(part, Metric):
                self._holders[name] = Holder(vars(part), frozenset(part._defaults))
            elif not type(part).__module__.startswith(LIBRARIES):
                self._holders[name] = Holder(vars(part))
                _add_classes(self._holders, type(part))
            elif settable := SETTABLE & vars(part).keys():
                self._holders[name] = Holder(vars(part), settable)
        self._hidden = _hidden(module)
        for place, part in self._hidden.items():
            self._holders |= {place: Holder(part._parameters), f"{place} ": Holder(part._buffers)}
        self._structure = [(name, part, _names(part)) for name, part in module.named_modules()]
        tensors = [*module.parameters(), *module.buffers()]
        self._memory = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self._frozen = {n: p.detach().clone() for n, p in module.named_parameters() if not p.requires_grad}
        self._before: dict[Key, Any] = {}
        self._harmless: set[Key] = set()

    def begin(self) -> None:
        """Remember the attributes before a round, without copying those that are unchanged since the last one."""
        live = dict(self._live())
        for key in self._before.keys() - live.keys():
            del self._before[key]
        for key, value in live.items():
            if not self._is(key, value):
                self._before[key] = self._copied(value)

    def check(self, step: Callable[[], Tensor]) -> None:
        """Refuse state in attributes, after the round.

        A changed attribute is state if the next step depends on its value: ``step`` is run again, from the values
        before and after the round. Values that a step only leaves behind (its activations, the time) or computes once
        (a grid) are not state, nor is a growing list of losses, as long as the loss does not depend on it; those are
        not checked again. The counts of a metric are state if the loss depends on them.

        Args:
            step: Returns the loss of the client's first step, with the same random numbers and weights each time.

        Raises:
            TrainingError: A frozen parameter, or an attribute that is state, has changed; names it.
        """
        self._check_frozen()
        self._check_structure()
        live = dict(self._live())
        changed = sorted(
            {key for key, value in live.items() if not self._is(key, value)} | self._before.keys() - live.keys()
        )
        if not changed:
            return
        now = {key: self._copied(live[key]) for key in changed if key in live}
        try:
            replays = [
                self._replay({key: _of(start, key) for key in changed}, step) for start in (self._before, now, now)
            ]
        finally:
            self._set({key: _of(live, key) for key in changed})
        (before, first_loss), (after, loss), (again, _) = replays
        depends = not torch.equal(first_loss, loss)
        carried = [key for key in changed if not _same(before[key], after[key]) and _same(after[key], again[key])]
        counted = [key for key in carried if key[0] in self._metrics]
        growing = [key for key in carried if not depends and _grows(_of(now, key), after[key]) and key not in counted]
        for key in carried:
            if key not in growing and (depends or key not in counted):
                raise TrainingError(self._refusal(key), key="state-in-attributes")
        if growing:
            rank_zero_warn(
                f"{self._name(growing[0])} grows with every step and is never emptied, because no hook is called at "
                "the end of an epoch; use self.log instead"
            )
        self._harmless.update(changed)

    def _check_frozen(self) -> None:
        for name, value in self._module.named_parameters():
            if name in self._frozen and not (value.requires_grad is False and torch.equal(self._frozen[name], value)):
                raise TrainingError(
                    f"{type(self._module).__name__}: its frozen parameter {name} changed during training, or was "
                    "unfrozen; it is never synchronised: register it as a buffer, which the federation averages",
                    key="frozen-parameter-changed",
                )

    def _check_structure(self) -> None:
        for prefix, part, names in self._structure:
            if changed := names ^ _names(part):
                place = ".".join(filter(None, (type(self._module).__name__, prefix, min(changed)[0])))
                raise TrainingError(
                    f"{place}: a layer, parameter or buffer was made, replaced or removed during training, which other "
                    "processes do not see; make it in __init__",
                    key="structure-changed",
                )

    def _refusal(self, key: Key) -> str:
        place, attribute = key
        value = self._holders[place].entries.get(attribute)
        if place in self._metrics:
            return (
                f"{self._name((place, ''))} is a metric that the loss depends on: it keeps counting over all clients "
                "that take turns on one module; compute the loss from the batch only"
            )
        if place.strip() in self._hidden:
            fix = "It is a weight of a layer that the module does not list as its own: keep such weights as buffers"
        elif isinstance(value, tuple(GENERATORS)):
            fix = (
                "Draw from the default generators of torch, numpy and random: they are seeded for each client and round"
            )
        else:
            fix = (
                "Make it a buffer, which each client keeps as its own (integers or bool) or the federation averages "
                f"(floating point): self.register_buffer({attribute!r}, torch.tensor(0)). self.global_step already "
                "counts steps"
            )
        return (
            f"{self._name(key)} is a plain attribute that carries state from step to step: clients take turns on one "
            f"module, in any number of processes, so each would read the value of the client before it. {fix}"
        )

    def _name(self, key: Key) -> str:
        if key[0].startswith(OUTSIDE):
            return f"{key[1]} of {key[0]}"
        return ".".join(filter(None, (type(self._module).__name__, key[0].strip(), key[1])))

    def _live(self) -> Iterator[tuple[Key, Any]]:
        for place, holder in self._holders.items():
            for name, value in holder.watched():
                if (place, name) not in self._harmless:
                    yield (place, name), value

    def _is(self, key: Key, value: Any) -> bool:
        return _same(_of(self._before, key), value) if key in self._before else self._copied(value) is UNKNOWN

    def _set(self, values: dict[Key, Any]) -> None:
        for (place, name), value in values.items():
            self._holders[place].put(name, value)

    def _replay(self, start: dict[Key, Any], step: Callable[[], Tensor]) -> tuple[dict[Key, Any], Tensor]:
        self._set({key: self._copied(value) for key, value in start.items()})
        loss = step().detach().clone()
        now = {(place, name): self._copied(_of(self._holders[place].entries, name)) for place, name in start}
        return now, loss

    def _copied(self, value: Any, depth: int = 4) -> Any:
        """Return a copy that later changes do not reach."""
        if value is ABSENT or isinstance(value, PLAIN):
            return value
        if not depth:
            return UNKNOWN
        if isinstance(value, nn.Parameter):
            known = value.untyped_storage().data_ptr() in self._memory
            return UNKNOWN if known else nn.Parameter(value.detach().clone(), value.requires_grad)
        if isinstance(value, Tensor):
            return UNKNOWN if value.untyped_storage().data_ptr() in self._memory else value.detach().clone()
        if isinstance(value, (np.ndarray, bytearray, array, *GENERATORS)):
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
        if isinstance(value, dict):
            twin.update(copies)
        else:
            for name, item in copies.items():
                object.__setattr__(twin, name, item)
        return twin


def _add_classes(holders: dict[str, Holder], kind: type) -> None:
    """Add a user's class and those above it as holders, and the globals that their methods name."""
    for each in kind.__mro__:
        if each.__module__.split(".")[0] in ("torch", "lightning", "torchmetrics", "timm", "builtins", "fedlit"):
            continue
        holders[f"the class {each.__module__}.{each.__qualname__}"] = Holder(each, frozenset(vars(each)) - OTHERS)
        for function in vars(each).values():
            if isinstance(function, FunctionType):
                place = f"the module {function.__module__}"
                before = holders[place].names if place in holders else frozenset()
                holders[place] = Holder(function.__globals__, before | _globals_of(function))


def _globals_of(function: FunctionType) -> frozenset[str]:
    """Names of globals that a function uses, and that functions of the same file do which it calls."""
    names, asked = frozenset(), [function]
    for each in asked:
        new = _globals_in(each.__code__) - names
        names |= new
        called = (function.__globals__.get(name) for name in new)
        asked.extend(f for f in called if isinstance(f, FunctionType) and f.__globals__ is function.__globals__)
    return names


def _globals_in(code: CodeType) -> frozenset[str]:
    """Return the names of globals that a function and its inner functions use."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname.endswith("_GLOBAL")}
    return frozenset(names).union(*(_globals_in(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _of(values: Mapping[Any, Any], key: Any) -> Any:
    return values.get(key, ABSENT)


def _vars(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object of a user's class, such as a meter; None for anything else."""
    if isinstance(value, type) or type(value).__module__.split(".")[0] in ("torch", "numpy", "builtins", "functools"):
        return None
    slots = [name for kind in type(value).__mro__ for name in _slots(kind) if hasattr(value, name)]
    if not slots:
        return getattr(value, "__dict__", None)
    return getattr(value, "__dict__", {}) | {name: getattr(value, name) for name in slots}


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _names(part: nn.Module) -> set[tuple[str, int]]:
    """Names of a layer's layers, with their identity, and of its parameters and buffers."""
    return {(name, id(child)) for name, child in part._modules.items()} | {
        (name, 0) for name in (*part._parameters, *part._buffers)
    }


def _hidden(module: nn.Module) -> dict[str, nn.Module]:
    """Layers in attributes, lists and dicts that are no submodules, by their place."""
    submodules, hidden = set(module.modules()), {}
    for prefix, part in module.named_modules():
        if type(part).__module__.startswith(LIBRARIES):
            continue
        for name, value in vars(part).items():
            for key, each in (("", value), *(() if name in OTHERS else _items(value))):
                if isinstance(each, nn.Module) and each not in submodules:
                    place = ".".join(filter(None, (prefix, name, str(key))))
                    hidden |= {f"{place}.{inner}".rstrip("."): layer for inner, layer in each.named_modules()}
    return hidden


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, (list, tuple)) else ()


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, with NaN equal to NaN; an unknown value equals any."""
    if one is other or one is UNKNOWN or other is UNKNOWN:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, tuple(GENERATORS)):
        state = next(read for kind, read in GENERATORS.items() if isinstance(one, kind))
        return _same(state(one), state(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, (*PLAIN, set, bytearray, array)):
        return bool(one == other or (one != one and other != other))
    return _same(_vars(one), _vars(other))


def _grows(before: Any, after: Any) -> bool:
    """Return whether a container still holds all that it held."""
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() <= after.keys() and all(_same(value, after[key]) for key, value in before.items())
    if isinstance(before, (list, deque)) and isinstance(after, (list, deque)):
        return len(before) <= len(after) and all(map(_same, before, after))
    return isinstance(before, set) and isinstance(after, set) and before <= after
