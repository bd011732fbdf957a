"""A torch optimizer over the flat vector."""

import copy
import inspect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from fedlit.core.configured_optimizer import HOOKS, single_optimizer
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.flat import Entry, FlatModel, joined
from fedlit.core.messages import State, stripped

FUSED = {"cuda"}
"""Devices on which a step is one kernel if the optimizer has a fused form; its results differ by rounding."""

OF_TORCH = frozenset(("defaults", "state", "param_groups", "step"))
"""Attributes of every optimizer of torch."""


class FlatOptimizer:
    """The optimizer of ``configure_optimizers``, rebuilt over contiguous segments of the flat vector.

    The class and the hyper-parameters of each group are kept; neighbouring parameters of the flat vector in the same
    group become one. Elementwise optimizers (SGD, Adam and similar) do the same arithmetic in a few operations instead
    of hundreds.

    Attributes:
        name: Name of the optimizer's class.
        segments: The segments of the weight vector that it updates, with the indices of their groups.
        rates: Learning rate of each group.
        configured: What ``configure_optimizers`` returned.

    Raises:
        ConfigError: There is not one elementwise optimizer, or it cannot be rebuilt.
    """

    def __init__(self, module: nn.Module, model: FlatModel) -> None:
        self.configured = configured = single_optimizer(module)
        group_of = {id(p): g for g, group in enumerate(configured.param_groups) for p in group["params"]}
        pairs = zip(model.layout.parameters, model.parameters, strict=True)
        self.segments = segments = joined(
            (entry.offset, entry.offset + entry.size, group_of[id(parameter)])
            for entry, parameter in pairs
            if parameter.requires_grad and id(parameter) in group_of
        )
        groups = []
        for g, group in enumerate(configured.param_groups):
            if flat := [nn.Parameter(model.w[a:b]) for a, b, owner in segments if owner == g]:
                groups.append({**group, "params": flat})
        if not groups:
            raise ConfigError(
                f"{type(module).__name__}: its optimizer trains no parameter", key="optimizer-without-parameters"
            )
        if "fused" in inspect.signature(type(configured).__init__).parameters and _fusible(groups):
            groups = [{**group, "fused": True} for group in groups]
        self._model, self._optimizer = model, _rebuilt(configured, groups)
        self._with_flat, self._shown = sorted({owner for *_, owner in segments}), False
        self._fresh = copy.deepcopy(dict(enumerate(self._states())))
        self.name = type(configured).__name__
        self.rates = [group["lr"] for group in self._optimizer.param_groups]
        options = [{k: v for k, v in g.items() if k not in ("params", "lr")} for g in self._optimizer.param_groups]
        self._groups = copy.deepcopy(options)

    def begin(self, state: State, lr_factor: float) -> None:
        """Start a round from ``state``, or with a fresh state if it is empty; rates are multiplied by ``lr_factor``."""
        self._shown = False
        self._point_at_gradients()
        self._optimizer.state = defaultdict(dict)
        for i, parameter in enumerate(self._parameters()):
            if source := stripped(state, f"{i}/") if state else self._fresh[i]:
                self._optimizer.state[parameter] = {k: self._placed(k, v, parameter) for k, v in source.items()}
        for group, fresh, rate in zip(self._optimizer.param_groups, self._groups, self.rates, strict=True):
            initial = {"params": group["params"], **copy.deepcopy(fresh)}
            group.clear()  # some optimizers count their steps there
            group.update(initial)
            group["lr"] = rate * lr_factor

    @property
    def stateful(self) -> bool:
        """True if the optimizer keeps tensors from step to step."""
        return any(torch.is_tensor(value) for state in self._states() for value in state.values())

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer over the module's own parameters, for hooks; it shares groups and state with the flat one."""
        for group, flat in self._group_pairs():
            group.update({key: value for key, value in flat.items() if key != "params"})
        self.configured.state = defaultdict(dict)
        for parameter, entry, flat in self._parts():
            at = entry.offset - flat.storage_offset()
            self.configured.state[parameter] = {
                key: value.view(-1)[at : at + entry.size].view(entry.shape)
                if torch.is_tensor(value) and value.shape == flat.shape
                else value
                for key, value in self._optimizer.state.get(flat, {}).items()
            }
        self._held = {parameter: dict(state) for parameter, state in self.configured.state.items()}
        self._shown = True
        return self.configured

    def _take_back(self) -> None:
        """Take over what a hook has set in the groups; refuse a replaced part of the state."""
        if not self._shown:
            return
        for group, flat in self._group_pairs():
            flat.update({key: value for key, value in group.items() if key != "params"})
        for parameter, held in self._held.items():
            now = self.configured.state.get(parameter, {})
            if now.keys() != held.keys() or any(now[key] is not value for key, value in held.items()):
                raise TrainingError(
                    f"a hook has replaced state of {self.name}; change it in place", key="optimizer-state-replaced"
                )

    def _group_pairs(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        groups = [self.configured.param_groups[g] for g in self._with_flat]
        return list(zip(groups, self._optimizer.param_groups, strict=True))

    def _parts(self) -> Iterator[tuple[nn.Parameter, Entry, nn.Parameter]]:
        """Parameters of the module, with the stretch of the vector that each is a part of."""
        flats = [(flat.storage_offset(), flat) for flat in self._parameters()]
        for entry, parameter in zip(self._model.layout.parameters, self._model.parameters, strict=True):
            for start, flat in flats:
                if entry.size and start <= entry.offset < start + flat.numel():
                    yield parameter, entry, flat

    def check_rates(self, lr_factor: float) -> None:
        """Refuse rates that a module changed during a round: algorithms compute with those of its start."""
        self._take_back()
        for group, rate in zip(self._optimizer.param_groups, self.rates, strict=True):
            if group["lr"] != rate * lr_factor:
                raise TrainingError(
                    f"a hook has changed the learning rate of {self.name} during a round, from {rate * lr_factor:g} to "
                    f"{group['lr']:g}; rates may change only between rounds: set federation.schedule",
                    key="rate-changed-in-round",
                )

    def step(self) -> None:
        """Take one step along ``grad``."""
        self._take_back()
        self._optimizer.step()

    def state(self) -> State:
        """Return a copy of the optimizer's state as named tensors."""
        named = {}
        for group, fresh in zip(self._optimizer.param_groups, self._groups, strict=True):
            if changed := [key for key in group.keys() - {"params", "lr"} if group[key] != fresh.get(key)]:
                raise ConfigError(
                    f"{self.name} keeps {changed[0]!r} in its parameter groups; use federation.optimizer_state: reset",
                    key="optimizer-group-state",
                )
        for i, state in enumerate(self._states()):
            for key, value in state.items():
                if torch.is_tensor(value):
                    named[f"{i}/{key}"] = value.detach().cpu().clone()
                elif value is not None:
                    raise ConfigError(
                        f"{type(self._optimizer).__name__} keeps {key!r} as {type(value).__name__}, not "
                        "as a tensor; use federation.optimizer_state: reset",
                        key="optimizer-state-not-a-tensor",
                    )
        return named

    def _placed(self, key: str, value: object, parameter: nn.Parameter) -> object:
        """Copy a part of the state to its device: counters of steps stay on the CPU, unless the optimizer is fused."""
        if not torch.is_tensor(value):
            return copy.deepcopy(value)
        group = next(g for g in self._optimizer.param_groups if any(p is parameter for p in g["params"]))
        at_home = key != "step" or group.get("fused") or group.get("capturable")
        return value.detach().to(parameter.device if at_home else value.device, copy=True)

    def _point_at_gradients(self) -> None:
        """Use the model's gradients as those of the parameters; a process that does not train allocates none."""
        for parameter in self._parameters():
            if parameter.grad is None:
                start = parameter.storage_offset()
                parameter.grad = self._model.grad[start : start + parameter.numel()]

    def _parameters(self) -> list[nn.Parameter]:
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def _states(self) -> list[dict]:
        return [self._optimizer.state.get(p, {}) for p in self._parameters()]


def _rebuilt(configured: Optimizer, groups: list[dict]) -> Optimizer:
    """Make an optimizer of the same class over other parameters, with the attributes and hooks of the original.

    Raises:
        ConfigError: Its class cannot be called with its defaults, or its ``step`` was replaced.
    """
    kind = type(configured)
    step = vars(configured).get("step")
    if step is not None and not hasattr(step, "_wrapped_by_lr_sched"):
        raise ConfigError(
            f"{kind.__name__}: its step was replaced on the object, where it updates other weights; define it in "
            "a class",
            key="optimizer-step-replaced",
        )
    known = inspect.signature(kind.__init__).parameters
    try:
        rebuilt = kind(groups, **{k: v for k, v in configured.defaults.items() if k in known})
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{kind.__name__} cannot be rebuilt for the flat vector: {error}; pass all arguments of its __init__ in "
            "the defaults of super().__init__(params, defaults)",
            key="optimizer-not-rebuildable",
        ) from error
    added = {k: v for k, v in vars(configured).items() if not k.startswith("_") and k not in OF_TORCH}
    vars(rebuilt).update(copy.deepcopy(added))
    for hooks in HOOKS:
        getattr(rebuilt, hooks).update(getattr(configured, hooks))
    return rebuilt


def _fusible(groups: Sequence[dict]) -> bool:
    """Return whether torch's fused step applies: on a GPU, if the user has not chosen how a step is computed."""
    choices = ("fused", "foreach", "differentiable", "capturable")
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    return devices <= FUSED and not any(group.get(choice) for group in groups for choice in choices)
