"""Stages: a sequence of proximal sub-problems, each centred at the output of the previous one."""

from math import isfinite
from typing import Literal

import torch
from torch import Tensor

from fedlit.core.aggregator import Aggregator, ClientContext
from fedlit.core.errors import ConfigError
from fedlit.core.flat import Layout
from fedlit.core.messages import Measured, Round, ServerState, State
from fedlit.core.randomness import generator
from fedlit.core.ranges import NonNegativeOrInf

Output = Literal["last", "average", "random", "centre"]
Proximal = Literal["explicit", "implicit"]


class Stages(Aggregator):
    """Stages of CODA+ and CODASCA: ``f(v, alpha) + gamma/2 |v - v_0|^2`` in each stage (FDAM, eq. 5).

    ``v_0`` are the weights at the start of the stage, the output of the previous one; dual variables are never pulled.
    Learning rate, window and length of the stages are the schedule's. In a round the term is one entry of the
    correction, ``gamma w - gamma v_0``; the centre is part of every broadcast, so a client that missed the first round
    of a stage has it too.

    Args:
        gamma: Coefficient of the proximal term (FDAM's experiments quote its inverse, 500 to 1000, as 1/gamma); 0 for
            none.
        output: Output of a stage. ``last``: the last iterate. ``average``: the mean over clients and local iterates
            (FDAM, Algorithm 2), with re-estimated BatchNorm statistics. ``random``: the model after one round of the
            stage, drawn from the seed (FDAM, Algorithm 4). ``centre``: training continues from the last iterate, and
            the next stage is centred at the mean over clients and local iterates, as in the experiments' code (LibAUC).
            Rounds within a stage always continue from the last iterate.
        proximal: The term in a local step of rate eta. ``explicit``: its gradient is added, as in FDAM. ``implicit``:
            the step is ``argmin_v <g, v> + |v - v_t|^2 / (2 eta) + gamma/2 |v - v_0|^2``, as in CODA's paper (Guo et
            al., 2020), that is ``(v_t - eta g + eta gamma v_0) / (1 + eta gamma)``; after a step of another optimizer
            than SGD it is the proximal operator of the term.

    Raises:
        ConfigError: gamma is negative, or above 10; in training, a step is implicit and the optimizer has several
            rates.
    """

    governs = "pull towards the start of the stage"

    def __init__(
        self, gamma: NonNegativeOrInf = 1e-3, output: Output = "last", proximal: Proximal = "explicit"
    ) -> None:
        if gamma > 10:
            raise ConfigError(
                f"federation.aggregators: gamma is the coefficient of gamma/2 |v - v_0|^2, found {gamma:g}, which "
                f"looks like its inverse; did you mean {1 / gamma if isfinite(gamma) else 1e-3:g}?"
            )
        self.gamma, self.output, self.proximal = gamma, output, proximal

    @property
    def averages(self) -> bool:
        """True if the iterates of a stage are summed."""
        return self.output in ("average", "centre")

    def server_state(self, layout: Layout, w: Tensor) -> State:
        """Start with the initial weights as the centre v_0 [P], and the state that the output of a stage needs."""
        state = {"centre": w.clone(), "began": torch.tensor(0)}
        if self.averages:
            state |= {"sum": torch.zeros_like(w), "windows": torch.tensor(0)}
        if self.output == "random":
            state |= {"w": w.clone(), "stats": torch.zeros(layout.stats_size, dtype=w.dtype)}
        return state

    def on_round_start(self, state: State, server: ServerState, rnd: Round) -> None:
        """Set the centre to the weights at the start of a stage; consider them as its random output."""
        if rnd.first_of_stage:
            moved = self.output == "centre" and int(state["windows"]) > 0
            state["centre"] = state["sum"] / state["windows"] if moved else server.w.clone()
            state["began"] = torch.tensor(rnd.index)
            if self.averages:
                state["sum"], state["windows"] = torch.zeros_like(server.w), torch.tensor(0)
        elif self.output == "random":
            self._consider(state, server, rnd.index - int(state["began"]), rnd)

    def broadcast(self, state: State, rnd: Round) -> State:
        """Send the centre [P]."""
        return {"centre": state["centre"]}

    def on_client_round_start(self, ctx: ClientContext) -> None:
        """Pull towards the centre in every step of the round."""
        if self.proximal == "explicit":
            ctx.correction.pull(ctx.broadcast["centre"], self.gamma)
        elif len(set(ctx.rates)) > 1:
            raise ConfigError(
                f"{type(self).__name__}: an implicit proximal step needs one learning rate, but the optimizer has "
                f"{', '.join(f'{rate:g}' for rate in ctx.rates)}; set proximal: explicit"
            )
        if self.averages:
            ctx.scratch["iterates"] = torch.zeros_like(ctx.w)

    def on_after_optimizer_step(self, ctx: ClientContext, batches: object) -> None:
        """Take the proximal part of an implicit step; sum the iterates."""
        if self.proximal == "implicit":
            strength = self.gamma * ctx.rates[0]
            primal = ctx.mask.owned.clone()
            primal[ctx.layout.groups(("dual",))] = False
            for start, stop, pulled in ctx.layout.spans(primal):
                if pulled:
                    part, centre = ctx.w[start:stop], ctx.broadcast["centre"][start:stop]
                    part.add_(centre, alpha=strength).div_(1 + strength)
        if self.averages:
            ctx.scratch["iterates"] += ctx.w

    def on_client_round_end(self, ctx: ClientContext) -> State:
        """Send the mean of the iterates, minus the start [P], for an output that averages."""
        if not self.averages:
            return {}
        return {"iterates": ctx.scratch["iterates"].div_(ctx.num_steps).sub_(ctx.start)}

    def on_aggregate_end(self, state: State, server: ServerState, mean: State, rnd: Round) -> None:
        """Sum the means of all rounds of the stage for an output that averages."""
        if self.averages:
            state["sum"] += rnd.window * (server.w + mean["iterates"])
            state["windows"] += rnd.window

    def on_stage_end(self, state: State, server: ServerState, rnd: Round) -> None:
        """Set the weights to the output of the stage, from which the next stage starts."""
        if self.output == "average":
            server.w.copy_(state["sum"] / state["windows"])
        if self.output == "random":
            self._consider(state, server, rnd.index - int(state["began"]) + 1, rnd)
            server.w.copy_(state["w"])
            server.stats.copy_(state["stats"])

    def measures(self, rnd: Round, when: Literal["before", "after"]) -> bool:
        """Ask for BatchNorm's statistics of an averaged output."""
        return self.measures_moments(rnd, when)

    def measures_moments(self, rnd: Round, when: Literal["before", "after"]) -> bool:
        """Ask for BatchNorm's statistics at the end of a stage with ``output: average``."""
        return when == "after" and self.output == "average" and rnd.last_of_stage

    def on_measure_end(
        self, state: State, server: ServerState, measured: Measured, rnd: Round, when: Literal["before", "after"]
    ) -> None:
        """Use the estimated statistics."""
        if self.measures_moments(rnd, when):
            assert measured.normalisation is not None  # as asked for
            server.stats.copy_(measured.normalisation)

    def _consider(self, state: State, server: ServerState, rounds: int, rnd: Round) -> None:
        """Keep the model after the stage's round ``rounds`` with probability 1/rounds: all are equally likely."""
        draw = torch.rand(1, generator=generator(rnd.seed, "stage output", int(state["began"]), rounds))
        if float(draw) * rounds < 1:
            state["w"], state["stats"] = server.w.clone(), server.stats.clone()
