"""The user's optimizer in a client's round."""

import math
import warnings

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from fedlit.core.configured_optimizer import configured_optimizer
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.messages import State

FUSED = {"cuda"}
"""Devices on which a step is one kernel if the optimizer has a fused form; its results differ by rounding."""

RATES = ("params", "lr", "initial_lr")
"""Entries of a parameter group that are those of ``configure_optimizers`` in every round."""


class LocalOptimizer:
    """The optimizer of ``configure_optimizers``, which is called at the start of every client's round.

    It updates the module's own parameters, which are views of the flat vector. A scheduler that the module returns is
    stepped to the number of steps or epochs that the client has trained, as Lightning steps it.

    Attributes:
        optimizer: The optimizer of the round.
        plain: Learning rates at its start, one per parameter group, before they are multiplied by a factor.
        scheduled: Factor of the first of them that its scheduler has chosen.
    """

    optimizer: Optimizer

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module, self._fused = module, device.type in FUSED

    def begin(self, state: State, factor: float, steps: int = 0, epochs: int = 0) -> None:
        """Start a client's round from its kept state, or from none if it is empty.

        Args:
            state: What :meth:`state` has returned at the end of the client's last round.
            factor: Factor of all learning rates.
            steps: Number of steps that the client has trained.
            epochs: Number of its completed passes over its images.
        """
        self._configured = made = configured_optimizer(self._module)
        self.optimizer, groups = made.optimizer, made.optimizer.param_groups
        if self._fused:
            choose_fused(self.optimizer)
        self._options = [dict(group) for group in groups]
        if state:
            self._load(state)
        self._factor, self._stepped, self._asked = factor, 0, False
        self._advance(made.due(steps, epochs))
        self._start, initial = self._rates(), float(groups[0].get("initial_lr", self.plain[0]))
        self.scheduled = float(self.plain[0]) / initial if initial else 1.0

    def follow(self, steps: int, epochs: int) -> None:
        """Let the scheduler set the rates of the next step."""
        if (due := self._configured.due(steps, epochs)) > self._stepped:
            for group, rate in zip(self.optimizer.param_groups, self.plain, strict=True):
                group["lr"] = rate
            self._advance(due)

    def _advance(self, due: int) -> None:
        groups, scheduler = self.optimizer.param_groups, self._configured.scheduler
        if due > self._stepped:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a scheduler's step before the first of the optimizer
                try:
                    for _ in range(self._stepped, due):
                        scheduler.step()
                except ValueError as error:
                    raise TrainingError(
                        f"{type(self._module).__name__}: its {type(scheduler).__name__} cannot step {due} times: "
                        f"{error}; make it for all steps or epochs of a client over all rounds"
                    ) from error
        self._stepped, self.plain = due, [group["lr"] for group in groups]
        for rate in self.plain:
            if not 0 <= float(rate) < math.inf:
                raise TrainingError(
                    f"{type(self._module).__name__}: its {type(scheduler).__name__} has set the learning rate "
                    f"{float(rate):g} after {due} {self._configured.interval}s; expected a finite number, at least 0"
                )
        for group in groups:
            group["lr"] = group["lr"] * self._factor

    def _rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    @property
    def rates(self) -> list[float]:
        """Learning rates of the round, for algorithms that compute with them: they may not change within it."""
        self._asked = True
        return self._start

    def check_rates(self) -> None:
        """Refuse rates that have changed since the round's start if an algorithm has computed with those."""
        if self._asked and (now := self._rates()) != self._start:
            before, after = next(pair for pair in zip(self._start, now, strict=True) if pair[0] != pair[1])
            raise TrainingError(
                f"the learning rate of {type(self.optimizer).__name__} has changed within a round, from {before:g} to "
                f"{after:g}, but an algorithm computes with one rate per round; let rates change only between rounds: "
                "set the schedule's window to the interval between changes, or use federation.schedule"
            )

    def state(self) -> State:
        """Return a copy of the optimizer's ``state_dict`` as named tensors, without its rates and other settings.

        Numbers are tensors whose names begin with ``number/``.
        """
        saved, named = self.optimizer.state_dict(), {}
        parts = {f"state/{number}": values for number, values in saved["state"].items()}
        for number, (group, before) in enumerate(zip(self.optimizer.param_groups, self._options, strict=True)):
            changed = group.keys() - RATES
            parts[f"group/{number}"] = {
                key: group[key] for key in changed if is_number(group[key]) and group[key] != before.get(key)
            }
        for place, values in parts.items():
            for key, value in values.items():
                if torch.is_tensor(value):
                    named[f"{place}/{key}"] = value.detach().cpu().clone()
                elif is_number(value):
                    kind = torch.float64 if isinstance(value, float) else None
                    named[f"number/{place}/{key}"] = torch.tensor(value, dtype=kind)
                elif value is not None:
                    raise ConfigError(
                        f"{type(self.optimizer).__name__} keeps {key!r} as {type(value).__name__}, not as a tensor or "
                        "a number; use federation.optimizer_state: reset"
                    )
        return named

    def _load(self, state: State) -> None:
        saved = self.optimizer.state_dict()
        for name, tensor in state.items():
            number = name.startswith("number/")
            part, place, key = name.removeprefix("number/").split("/", 2)
            held = saved["state"].setdefault(int(place), {}) if part == "state" else saved["param_groups"][int(place)]
            held[key] = tensor.item() if number else tensor.clone()
        self.optimizer.load_state_dict(saved)


def is_number(value: object) -> bool:
    """Return whether a value is a number of Python."""
    return isinstance(value, (bool, int, float))


def choose_fused(optimizer: Optimizer) -> None:
    """Let torch's own optimizers use their fused step, if the user has not chosen how a step is computed."""
    choices = ("fused", "foreach", "differentiable", "capturable")
    if type(optimizer) in (SGD, Adam, AdamW) and not any(g.get(c) for g in optimizer.param_groups for c in choices):
        for group in optimizer.param_groups:
            group["fused"] = True
