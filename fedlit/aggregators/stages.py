"""Stages: a sequence of proximal sub-problems, each centred at the output of the one before."""

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedlit.aggregators.base import Aggregator, ClientContext
from fedlit.errors import ConfigError
from fedlit.flat import Layout
from fedlit.messages import Round, ServerState, State
from fedlit.randomness import generator

if TYPE_CHECKING:
    from fedlit.measuring import Measured

Output = Literal["last", "average", "random"]


class Stages(Aggregator):
    """What CODA+ and CODASCA share: ``f(v, alpha) + gamma/2 |v - v_0|^2`` in each stage (FDAM, eq. 5).

    ``v_0`` are the weights at the start of the stage, which is the output of the one before; dual variables are never
    pulled. Learning rate, window and length of the stages are the schedule's. Within a round the term is one entry of the
    drift, ``gamma w - gamma v_0``; the centre travels with every broadcast, so that a client that missed the first round
    of a stage has it too.

    Args:
        gamma: coefficient of the proximal term (FDAM's experiments quote its inverse, 500 to 1000, as 1/gamma); 0 is none.
        output: of a stage. ``last``: the last iterate. ``average``: the mean over clients and local iterates (FDAM,
            Algorithm 2), with BatchNorm's statistics estimated anew. ``random``: the model after one round of the stage,
            drawn from the seed (FDAM, Algorithm 4). In between, rounds go on from the last iterate.

    Raises:
        ConfigError: gamma is negative, or above 10.
    """

    def __init__(self, gamma: float = 1e-3, output: Output = "last") -> None:
        name = type(self).__name__
        if not gamma >= 0:
            raise ConfigError(f"{name}: gamma must be at least 0, found {gamma}")
        if gamma > 10:
            raise ConfigError(
                f"{name}: gamma is the coefficient of gamma/2 |v - v_0|^2, found {gamma:g}, which looks like its "
                f"inverse; did you mean {1 / gamma:g}?"
            )
        self.gamma, self.output = gamma, output

    def server_state(self, layout: Layout, w: Tensor) -> State:
        state = super().server_state(layout, w) | {"centre": w.clone(), "began": torch.tensor(0)}
        if self.output == "average":
            state |= {"sum": torch.zeros_like(w), "windows": torch.tensor(0)}
        if self.output == "random":
            state |= {"w": w.clone(), "stats": torch.zeros(layout.stats_size, dtype=w.dtype)}
        return state

    def on_round_start(self, state: State, server: ServerState, rnd: Round) -> None:
        if rnd.first_of_stage:
            state["centre"], state["began"] = server.w.clone(), torch.tensor(rnd.index)
            if self.output == "average":
                state["sum"], state["windows"] = torch.zeros_like(server.w), torch.tensor(0)
        elif self.output == "random":
            self._consider(state, server, rnd.index - int(state["began"]), rnd)

    def broadcast(self, state: State, rnd: Round) -> State:
        return super().broadcast(state, rnd) | {"centre": state["centre"]}

    def on_client_round_start(self, ctx: ClientContext) -> None:
        super().on_client_round_start(ctx)
        ctx.drift.pull(ctx.down["centre"], self.gamma)
        if self.output == "average":
            ctx.scratch["start"], ctx.scratch["iterates"] = ctx.w.clone(), torch.zeros_like(ctx.w)

    def on_after_optimizer_step(self, ctx: ClientContext, batches: object) -> None:
        if self.output == "average":
            ctx.scratch["iterates"] += ctx.w

    def on_client_round_end(self, ctx: ClientContext) -> State:
        sent = super().on_client_round_end(ctx)
        if self.output == "average":
            sent["iterates"] = ctx.scratch["iterates"].div_(ctx.num_steps).sub_(ctx.scratch["start"])
        return sent

    def on_aggregate_end(self, state: State, server: ServerState, mean: State, rnd: Round) -> None:
        super().on_aggregate_end(state, server, mean, rnd)
        if self.output == "average":
            state["sum"] += rnd.window * (server.w + mean["iterates"])
            state["windows"] += rnd.window

    def on_stage_end(self, state: State, server: ServerState, rnd: Round) -> None:
        if self.output == "average":
            server.w.copy_(state["sum"] / state["windows"])
        if self.output == "random":
            self._consider(state, server, rnd.index - int(state["began"]) + 1, rnd)
            server.w.copy_(state["w"])
            server.stats.copy_(state["stats"])

    def measures(self, rnd: Round, when: Literal["before", "after"]) -> bool:
        return when == "after" and self.output == "average" and rnd.last_of_stage

    def on_measure_end(
        self, state: State, server: ServerState, measured: "Measured", rnd: Round, when: Literal["before", "after"]
    ) -> None:
        if when == "after" and self.output == "average":
            server.stats.copy_(measured.normalisation)

    def _consider(self, state: State, server: ServerState, rounds: int, rnd: Round) -> None:
        """Keep the model after the stage's round ``rounds`` with probability 1/rounds: in the end each is as likely."""
        draw = torch.rand(1, generator=generator(rnd.seed, "stage output", int(state["began"]), rounds))
        if float(draw) * rounds < 1:
            state["w"], state["stats"] = server.w.clone(), server.stats.clone()
