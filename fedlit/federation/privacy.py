"""The account of a run whose steps are private: the epsilon of each client."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedlit.core.aggregator import PrivateAggregator
from fedlit.core.batches import PoissonStream
from fedlit.core.errors import CheckpointError
from fedlit.core.messages import State
from fedlit.core.schedule import Schedule
from fedlit.federation.participation import Cohorts

SIMULATED = "not private: reproducible noise"
"""Stands with every epsilon of a simulation, whose noise follows from the run's seed."""

OF_SITES = "noise of the sites' own secrets; each site counts all runs in its ledger"
"""Stands with every epsilon of a run whose clients are at sites."""

COVERED = (
    "epsilon covers the training images of a patient, in this run; not numbers of images and labels, validation and "
    "test results, or other runs on the same data"
)


class Account:
    """The cost of private steps: a pure function of the plan and the number of rounds, so a resume needs no state.

    Args:
        aggregator: The algorithm that makes steps private.
        number: Its place in the list of aggregators.
        streams: The batches of each client.
        schedule: Windows of the rounds.
        cohorts: Clients of the rounds.
        simulated: Whether the noise follows from the run's seed.
    """

    def __init__(
        self, aggregator: PrivateAggregator, number: int, streams: Mapping[str, PoissonStream], schedule: Schedule,
        cohorts: Cohorts, simulated: bool = True,
    ) -> None:  # fmt: skip
        self.aggregator, self.number, self.streams, self.simulated = aggregator, number, streams, simulated
        self._schedule, self._cohorts = schedule, cohorts
        self._rounds, self._steps = 0, Counter[str]()

    @property
    def worth(self) -> str:
        """The worth of an epsilon of this run, in words."""
        return SIMULATED if self.simulated else OF_SITES

    def check_resumed(self, path: Path, states: Sequence[State], initial: Sequence[State]) -> None:
        """Refuse to resume a run with other private steps: the account is that of one kind of steps.

        Raises:
            CheckpointError: Clip, batch size or a given noise differ from those of the checkpoint.
        """
        held, new = states[self.number], initial[self.number]
        fixed = [name for name in new if name != "noise" or self.aggregator.epsilon is None]
        if changed := [name for name in fixed if not torch.equal(held[name], new[name])]:
            name = changed[0]
            raise CheckpointError(
                f"{path}: expected {type(self.aggregator).__name__} with {name} {held[name]:g}, found {new[name]:g}; "
                "use the run's config.yaml, or start a new run"
            )

    def taken(self, rounds: int) -> dict[str, tuple[float, int]]:
        """Return the probability with which each client draws a patient, and its number of steps in so many rounds."""
        if rounds < self._rounds:
            self._rounds, self._steps = 0, Counter()
        for index in range(self._rounds, rounds):
            plan = self._schedule.plan(index)
            for name in self._cohorts.of(index):
                self._steps[name] += plan.window * (self.streams[name].steps_per_epoch if plan.unit == "epochs" else 1)
        self._rounds = rounds
        return {name: (stream.rate, self._steps[name]) for name, stream in self.streams.items()}

    def epsilons(self, states: Sequence[State], rounds: int, closer: bool = False) -> dict[str, float]:
        """Return the epsilon of each client after so many rounds; ``closer`` is that of the aggregator's ``spent``."""
        taken, state = self.taken(rounds), states[self.number]
        different = {each: self.aggregator.spent(state, each, closer) for each in {*taken.values()}}
        return {name: different[each] for name, each in taken.items()}

    def exceeded(self, states: Sequence[State], rounds: int) -> str:
        """Return why a run cannot go on to so many rounds, or ""."""
        budget = self.aggregator.epsilon
        if budget is None or (most := max(self.epsilons(states, rounds).values())) <= budget:
            return ""
        return f"round {rounds} would bring epsilon to {most:.3g}, and the budget is {budget:g}"

    def lines(self, states: Sequence[State], rounds: int) -> list[str]:
        """Return lines that say what so many rounds cost, and what they do not cover."""
        epsilons = self.epsilons(states, rounds)
        name = max(epsilons, key=lambda each: epsilons[each])
        prv = self.aggregator.spent(states[self.number], self.taken(rounds)[name], closer=True)
        by_prv = f" ({prv:.2f} by PRV)" if math.isfinite(prv) else ""
        alone = [each for each, stream in self.streams.items() if self.simulated and not stream.named]
        images = f"; an image counts as a patient at {', '.join(alone[:6])}, which names none" if alone else ""
        return [
            f"differential privacy after {rounds} rounds: epsilon {epsilons[name]:.2f}{by_prv} at delta "
            f"{self.aggregator.delta:g}, the most of {len(epsilons)} clients ({name}); "
            f"{self.aggregator.words(states[self.number])}; {self.worth}",
            COVERED + images,
            *(
                f"warning: {type(self.aggregator).__name__}.delta is above 1 / patients of client {each!r}, "
                f"1 / {stream.declared}: epsilon may then not hold for one of them; lower it"
                for each, stream in self.streams.items() if self.aggregator.delta > 1 / stream.declared
            ),
        ]  # fmt: skip

    def record(self, states: Sequence[State], rounds: int, closer: bool) -> dict[str, Any]:
        """Return the account as values for JSON, with ``closer`` also by the second bound."""
        prv = self.epsilons(states, rounds, closer=True) if closer else {}
        clients = {}
        for name, epsilon in self.epsilons(states, rounds).items():
            rate, steps = self.taken(rounds)[name]
            bounds = {"epsilon": epsilon} | ({"epsilon_prv": prv[name]} if closer else {})
            clients[name] = {
                "patients": self.streams[name].declared, "rate": rate, "steps": steps,
                **{bound: value if math.isfinite(value) else None for bound, value in bounds.items()},
            }  # fmt: skip
        aggregator = self.aggregator
        return {
            "private": not self.simulated, "why": self.worth, "covers": COVERED, "delta": aggregator.delta,
            "budget": aggregator.epsilon, "mechanism": aggregator.words(states[self.number]), "rounds": rounds,
            "clients": clients, "says": self.lines(states, rounds) if closer else [],
        }  # fmt: skip
