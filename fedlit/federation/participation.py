"""Participation plans, which say which clients train in a round."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import inf

import torch

from fedlit.core.errors import ConfigError
from fedlit.core.randomness import generator
from fedlit.core.ranges import Count, UpToOne
from fedlit.core.system.argument_types import Checked

WHERE = "federation.participation"


class Participation(Checked):
    """Base class of participation plans: pure functions of their arguments, so a resume needs no state.

    A plan implements :meth:`cohort`, or :meth:`select` if it depends on the clients' losses.
    """

    def cohort(self, clients: Sequence[str], index: int, seed: int) -> Iterable[str]:
        """Return the clients, at least one and in any order, that train in the round with this index, from 0."""
        raise NotImplementedError

    def select(self, clients: Sequence[str], index: int, seed: int, losses: Mapping[str, float]) -> Iterable[str]:
        """Return the clients of a round, given what earlier rounds reported; by default :meth:`cohort`.

        A round must have as many clients for any losses. Sites send nothing more than with another plan: the mean loss
        of a round is in every reply. But each site of a round gets the names of its cohort, so a plan that follows the
        losses shows the others whose losses were high.

        Args:
            clients: Names of all clients, in order.
            index: Index of the round, from 0.
            seed: Seed of the run.
            losses: Mean training loss of the last round of each client that has trained; checkpoints keep them.
        """
        return self.cohort(clients, index, seed)

    def check(self, clients: Sequence[str], rounds: int) -> None:
        """Refuse clients, or a number of rounds, that the plan does not fit.

        Raises:
            ConfigError: Names what was expected, what was found, and the fix.
        """

    def share(self, clients: Sequence[str]) -> float:
        """Return the mean share of the clients that train in a round, for estimates of costs."""
        return 1.0


class Cohorts:
    """The cohorts of a run's rounds, as a plan draws them: before the first round, and again for each round.

    Args:
        plan: The plan.
        clients: Names of all clients, in order.
        rounds: Number of rounds.
        seed: Seed of the run.

    Attributes:
        smallest, largest: Numbers of clients in the smallest and in the largest cohort.
        idle: Clients that are in no cohort.
        losses: Mean training loss of the last round of each client that has trained, for plans that follow it.

    Raises:
        ConfigError: The plan does not fit the clients, or returns something other than names of clients.
    """

    def __init__(self, plan: Participation, clients: Sequence[str], rounds: int, seed: int) -> None:
        plan.check(clients, rounds)
        self._plan, self._seed, self._clients = plan, seed, dict.fromkeys(clients)
        self.losses: dict[str, float] = {}
        self._follows = type(plan).select is not Participation.select
        sizes, taking_part, self._hashes = set(), set(), []
        for index in range(rounds):
            cohort = self._drawn(index)
            sizes.add(len(cohort))
            taking_part.update(cohort)
            self._hashes.append(hash(cohort))  # a tuple for each round could take much memory
        self.smallest, self.largest = min(sizes), max(sizes)
        self.idle = [name for name in clients if name not in taking_part and not self._follows]

    def learn(self, losses: Mapping[str, float]) -> None:
        """Take the losses of a round; an undefined one has no place in an order, so the client keeps its last."""
        self.losses |= {name: loss for name, loss in losses.items() if loss == loss}

    def of(self, index: int) -> tuple[str, ...]:
        """Return the clients of a round, in their order.

        Raises:
            ConfigError: They are not those that the plan drew before.
        """
        cohort = self._drawn(index)
        if self._follows:
            if not self.smallest <= len(cohort) <= self.largest:
                raise ConfigError(
                    f"{self._where(index)}: expected {self.smallest} to {self.largest} clients, as without any losses, "
                    f"found {len(cohort)}; return as many for any losses"
                )
        elif index < len(self._hashes) and hash(cohort) != self._hashes[index]:
            raise ConfigError(
                f"{self._where(index)}: expected the same clients whenever it is asked for this round, found others; "
                "draw only from numpy_generator(seed, 'cohort', str(index)) and keep nothing between calls, because a "
                "resumed run would continue differently"
            )
        return cohort

    def _drawn(self, index: int) -> tuple[str, ...]:
        drawn = self._plan.select([*self._clients], index, self._seed, dict(self.losses))
        names = [*islice(drawn, len(self._clients) + 1)]
        if unknown := [name for name in names if not isinstance(name, str) or name not in self._clients]:
            raise ConfigError(f"{self._where(index)}: expected names among {self._named}, found {unknown[0]!r:.60}")
        taking_part = set(names)
        cohort = tuple(name for name in self._clients if name in taking_part)
        if len(cohort) < len(names) or not cohort:
            twice = next((repr(name) for name in cohort if names.count(name) > 1), "none")
            raise ConfigError(
                f"{self._where(index)}: expected at least one client, each once, found {twice}"
                f"{' more than once' * bool(cohort)}; return every client that trains exactly once"
            )
        return cohort

    def _where(self, index: int) -> str:
        return f"{WHERE}: {type(self._plan).__name__}.{'select' if self._follows else 'cohort'}, round {index + 1}"

    @property
    def _named(self) -> str:
        more = f" and {len(self._clients) - 12} more" if len(self._clients) > 12 else ""
        return f"{', '.join([*self._clients][:12])}{more}"


class Share(Participation):
    """A share of the clients, drawn for each round; what a number stands for.

    Args:
        of_clients: The share, in (0, 1].

    Raises:
        ConfigError: It is out of range.
    """

    def __init__(self, of_clients: UpToOne = 1.0) -> None:
        self.of_clients = of_clients

    def cohort(self, clients: Sequence[str], index: int, seed: int) -> list[str]:
        """Draw the clients of a round."""
        if self.of_clients == 1:
            return list(clients)
        drawn = torch.randperm(len(clients), generator=generator(seed, "cohort", index))
        number = max(1, round(self.of_clients * len(clients)))
        return [clients[i] for i in sorted(drawn[:number].tolist())]

    def share(self, clients: Sequence[str]) -> float:
        """Return the share."""
        return self.of_clients


class Cyclic(Participation):
    """Groups of clients that take turns: every client trains in one of so many rounds.

    Client number i, in the order of the data, is in group i modulo the number of groups.

    Args:
        groups: Number of groups, at least 1 and at most the number of clients.

    Raises:
        ConfigError: There are fewer groups than one, or more than clients.
    """

    def __init__(self, groups: Count) -> None:
        self.groups = groups

    def cohort(self, clients: Sequence[str], index: int, seed: int) -> list[str]:
        """Return the group whose turn it is."""
        return list(clients[index % self.groups :: self.groups])

    def check(self, clients: Sequence[str], rounds: int) -> None:
        """Refuse groups without clients."""
        if self.groups > len(clients):
            raise ConfigError(
                f"{WHERE}: Cyclic expected at most {len(clients)} groups, one per client, found {self.groups}; "
                "lower groups"
            )

    def share(self, clients: Sequence[str]) -> float:
        """Return the share of one group."""
        return 1 / self.groups


class Timetable(Participation):
    """A table of the rounds in which each client trains.

    Args:
        rounds: The rounds of each client by its name, counted from 1, such as ``{NIH: [1, 2, 3], CheXpert: [1, 3]}``.
        period: Number of rounds after which the table starts again. By default it has to cover all rounds.

    Raises:
        ConfigError: A round is below 1, beyond the period or named twice, a round has no client, or clients and table
            differ.
    """

    def __init__(self, rounds: dict[str, list[int]], period: int | None = None) -> None:
        for name, of_client in rounds.items():
            if len(set(of_client)) < len(of_client):
                raise ConfigError(f"{WHERE}: Timetable names rounds of {name!r} twice: {of_client}")
            if wrong := [number for number in of_client if number < 1 or (period is not None and number > period)]:
                most = f" to {period}, the period," if period is not None else ""
                raise ConfigError(f"{WHERE}: Timetable expected rounds from 1{most} for {name!r}, found {wrong[0]}")
        self.rounds, self.period = rounds, period

    def cohort(self, clients: Sequence[str], index: int, seed: int) -> list[str]:
        """Return the clients of which the table names the round."""
        number = index % self.period + 1 if self.period else index + 1
        return [name for name in clients if number in self.rounds[name]]

    def check(self, clients: Sequence[str], rounds: int) -> None:
        """Refuse a table of other clients, or with a round of none."""
        check_names("Timetable", self.rounds, clients)
        if missing := [name for name in clients if not self.rounds.get(name)]:
            raise ConfigError(
                f"{WHERE}: Timetable expected rounds of every client, found none of {', '.join(map(repr, missing))}; "
                "name them, or leave the clients out with federation.clients"
            )
        for number in range(1, (self.period or rounds) + 1):
            if not any(number in of_client for of_client in self.rounds.values()):
                raise ConfigError(f"{WHERE}: Timetable has no client in round {number}; add one or set period")

    def share(self, clients: Sequence[str]) -> float:
        """Return the share of the table's places that are filled."""
        named = [number for of_client in self.rounds.values() for number in of_client]
        return len(named) / (len(self.rounds) * (self.period or max(named)))


class Availability(Participation):
    """Clients that are available by chance, each in every round independently of all others.

    If fewer than ``least`` are, those join that came closest to it.

    Args:
        shares: Probability that a client takes part in a round, in (0, 1]: one for all, or by name. Clients without one
            always take part.
        least: Smallest number of clients in a round.

    Raises:
        ConfigError: A probability is out of range, a client is unknown, or there are fewer clients than ``least``.
    """

    def __init__(self, shares: UpToOne | dict[str, UpToOne], least: Count = 1) -> None:
        self.shares, self.least = shares, least

    def cohort(self, clients: Sequence[str], index: int, seed: int) -> list[str]:
        """Draw the clients of a round."""
        drawn = torch.rand(len(clients), generator=generator(seed, "availability", index), dtype=torch.float64).tolist()
        ratios = [number / share for number, share in zip(drawn, self._shares(clients), strict=True)]
        limit = max(1.0, sorted(ratios)[self.least - 1])
        return [name for name, ratio in zip(clients, ratios, strict=True) if ratio <= limit]

    def check(self, clients: Sequence[str], rounds: int) -> None:
        """Refuse other clients, or too few."""
        check_names("Availability", self.shares if isinstance(self.shares, dict) else (), clients)
        if self.least > len(clients):
            raise ConfigError(f"{WHERE}: Availability expected at least {self.least} clients, found {len(clients)}")

    def share(self, clients: Sequence[str]) -> float:
        """Return the mean probability."""
        return sum(self._shares(clients)) / len(clients)

    def _shares(self, clients: Sequence[str]) -> list[float]:
        return [self.shares.get(n, 1.0) if isinstance(self.shares, dict) else self.shares for n in clients]


class HighestLoss(Participation):
    """Power of choice (Cho, Wang and Joshi, 2020, arXiv:2010.01243), with stale losses (rpow-d).

    In each round, ``candidates`` clients are drawn, and of these the ``clients`` with the highest training losses in
    their last round train; clients that have not trained yet come first.

    Deviation: candidates are drawn with equal probabilities, and not with probabilities p_k.

    Args:
        clients: Number of clients in a round.
        candidates: Number of clients that are drawn, at least ``clients``. By default all.

    Raises:
        ConfigError: There are fewer candidates than clients in a round, or fewer clients than candidates.
    """

    def __init__(self, clients: Count, candidates: Count | None = None) -> None:
        self.clients, self.candidates = clients, candidates

    def select(self, clients: Sequence[str], index: int, seed: int, losses: Mapping[str, float]) -> list[str]:
        """Return the candidates with the highest losses."""
        drawn = torch.randperm(len(clients), generator=generator(seed, "cohort", index))[: self.candidates].tolist()
        return sorted((clients[i] for i in drawn), key=lambda name: -losses.get(name, inf))[: self.clients]

    def check(self, clients: Sequence[str], rounds: int) -> None:
        """Refuse numbers that do not fit the clients."""
        candidates = len(clients) if self.candidates is None else self.candidates
        if not self.clients <= candidates <= len(clients):
            raise ConfigError(
                f"{WHERE}: HighestLoss expected at most {len(clients)} candidates, and at most as many clients in a "
                f"round, found {candidates} and {self.clients}; lower them"
            )

    def share(self, clients: Sequence[str]) -> float:
        """Return the share of the clients in a round."""
        return self.clients / len(clients)


def check_names(plan: str, named: Iterable[str], clients: Sequence[str]) -> None:
    """Refuse names that are not those of clients."""
    if unknown := [name for name in named if name not in clients]:
        raise ConfigError(
            f"{WHERE}: {plan} expected names among {', '.join(clients)}, found {', '.join(map(repr, unknown))}"
        )
