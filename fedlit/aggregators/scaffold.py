"""SCAFFOLD."""

import warnings
from collections import Counter
from typing import Literal

import torch
from torch import Tensor

from fedlit.core.aggregator import Aggregator, ClientContext
from fedlit.core.errors import ConfigError
from fedlit.core.flat import Layout
from fedlit.core.messages import Round, ServerState, State
from fedlit.core.ranges import Count, Positive
from fedlit.schedules import Schedule


class Scaffold(Aggregator):
    """SCAFFOLD (Karimireddy et al., ICML 2020, arXiv:1910.06378), Algorithm 1, by default with option II of line 12.

    Local step (eq. 3): ``w -= lr (g_k(w) - c_k + c)``. After a client's round its control variate becomes the mean of
    the local gradients of that round. This is option II (eq. 4) in exact arithmetic, without the loss of digits in
    ``(w_r - w_k) / (steps lr)`` at small rates, and correct for any optimizer. If the optimizer has a weight decay, it
    is not exact: eq. 4 then contains the mean decay, and the mean gradient does not. The server adds ``|S|/N`` of the
    mean change to ``c`` (eq. 5); for sites that share only a part of the model the factor is per element, owners in the
    cohort over all owners, so ``c`` stays the owners' weighted mean of ``c_k``. If a run across sites resumes with
    other clients, ``c`` and every ``c_k`` start from zero again and keep nothing of a client that left.

    Deviation: client weights are the federation's (uniform in the paper; set ``FedAvg(weights: uniform)``).

    Args:
        eta_g: Server learning rate on the weights, above 0 (the paper's global step size).
        reset: Whether control variates start from zero at each stage of the schedule. By default they never do, as in
            the paper. ``always`` is Algorithm 4 of CODASCA, and with ``auto`` the schedule decides: stage lists and the
            theory's schedule restart, the practice schedule does not.
        extra_batches: Number of further batches after each round from which a client computes its control variate, at
            the weights that it received: option I. By default it is option II, which costs no batch. The gradient is
            that of the loss and of proximal terms; it is not clipped.

    Raises:
        ConfigError: eta_g is not above 0, or a stage has one round and control variates are reset with each stage.
    """

    governs = "control variates"
    metrics_help = {
        "drift/c_norm": "Norm of the server's control variate, without its dual part.",
        "drift/c_norm_dual": "Norm of the dual part of the server's control variate.",
        "drift/c_k_norm": "Root mean square of the norms of the clients' control variates, without their dual parts.",
        "drift/c_k_norm_dual": "Root mean square of the norms of the dual parts of the clients' control variates.",
    }

    def __init__(
        self,
        eta_g: Positive = 1.0,
        reset: Literal["never", "auto", "always"] | None = None,
        extra_batches: Count | None = None,
    ) -> None:
        self.eta_g, self.reset, self.extra_batches = eta_g, reset or "never", extra_batches

    def check_schedule(self, schedule: Schedule, rounds: int) -> None:
        """Refuse a stage of one round, and warn about short ones, if control variates are reset with each stage."""
        plans = [schedule.plan(index) for index in range(rounds)] if self.reset != "never" else []
        stages = Counter(plan.stage for plan in plans if self._resets(plan.restarts))
        if plans and not plans[-1].last_of_stage:
            stages.pop(plans[-1].stage, None)
        shortest = min(stages.values(), default=5)
        if shortest == 1:
            raise ConfigError(
                "Scaffold or CODASCA: the schedule has a stage of one round, but control variates that are reset "
                "with each stage need a round to form (CODASCA without them is CODA+); use longer stages, or reset: "
                "never"
            )
        if shortest < 5:
            warnings.warn(
                f"Scaffold or CODASCA: the schedule has a stage of {shortest} rounds. Control variates are reset with "
                "each stage, so its first round runs without them; use longer stages, or reset: never, for more of "
                "their effect",
                stacklevel=2,
            )

    def server_state(self, layout: Layout, w: Tensor) -> State:
        """Start c [P] at zero."""
        return {"c": torch.zeros_like(w), "squares": torch.zeros(2, dtype=w.dtype)}

    def client_state(self, layout: Layout) -> State:
        """Start c_k [P] at zero; with a reset the client also stores its stage."""
        stage = {"stage": torch.tensor(0)} if self.reset != "never" else {}
        return {"c": layout.zeros()} | stage

    def on_round_start(self, state: State, server: ServerState, rnd: Round) -> None:
        """Set c to zero at the start of a stage that resets."""
        if rnd.first_of_stage and self._resets(rnd.restarts):
            state["c"].zero_()

    def broadcast(self, state: State, rnd: Round) -> State:
        """Send c [P]."""
        return {"c": state["c"]}

    def on_clients_change(self, state: State, server: ServerState) -> bool:
        """Set c to zero, and let c_k begin there: the c_k of those who left is not known here, and N is another one."""
        state["c"].zero_()
        return True

    def on_client_round_start(self, ctx: ClientContext) -> None:
        """Add ``c - c_k`` to every gradient of the round (eq. 3); first set c_k to zero in a new stage that resets."""
        if self.reset != "never":
            # Compare numbers, so that a client that missed the first round of a stage is reset too.
            if self._resets(ctx.rnd.restarts) and int(ctx.state["stage"]) != ctx.rnd.stage:
                ctx.state["c"].zero_()
            ctx.state["stage"] = torch.tensor(ctx.rnd.stage)
        ctx.scratch["shift"] = ctx.broadcast["c"] - ctx.state["c"]
        ctx.scratch["sum"] = torch.zeros_like(ctx.grad)
        ctx.correction.bias += ctx.scratch["shift"]

    def on_before_optimizer_step(self, ctx: ClientContext) -> None:
        """Sum the gradients that the optimizer uses."""
        ctx.scratch["sum"] += ctx.grad

    def on_client_round_end(self, ctx: ClientContext) -> State:
        """Set c_k to the mean gradient without the correction; send its change [P] and its squared norms [2]."""
        new = ctx.scratch["sum"].div_(ctx.num_steps) if self.extra_batches is None else self._at_start(ctx)
        new.sub_(ctx.scratch["shift"])
        for segment in ctx.mask.unshared(ctx.layout):
            new[segment] = 0  # nothing was corrected there
        delta = new - ctx.state["c"]
        ctx.state["c"] = new
        return {"c": delta, "squares": _squares(new, ctx.layout)}

    def _at_start(self, ctx: ClientContext) -> Tensor:
        """Return the mean gradient [P] of further batches at the received weights, with the correction (option I)."""
        mean, dual, number = torch.zeros_like(ctx.grad), ctx.layout.slices["dual"], self.extra_batches or 1
        for _ in range(number):
            with ctx.model.at(ctx.start, ctx.stats.clone()):  # the statistics of these batches are not the client's
                mean.add_(ctx.model.gradient(ctx.loss(ctx.next_batch(), ctx.num_steps)), alpha=1 / number)
        mean[dual].neg_()
        ctx.correction.add_to(mean, ctx.start)
        return mean

    def on_aggregate_end(self, state: State, server: ServerState, mean: State, rnd: Round) -> None:
        """Move c by the owners' mean change (eq. 5), and scale the change of the weights by ``eta_g``."""
        state["c"] += rnd.participation * mean["c"]
        state["squares"] = mean["squares"]
        server.delta *= self.eta_g

    def diagnostics(self, state: State, layout: Layout) -> dict[str, float]:
        """Return norms of the server's control variate and of the clients' (root mean square), primal and dual."""
        norms: dict[str, float] = {}
        for name, squares in (("c", _squares(state["c"], layout)), ("c_k", state["squares"])):
            primal, dual = (square**0.5 for square in squares.tolist())
            norms |= {f"drift/{name}_norm": primal, f"drift/{name}_norm_dual": dual}
        return norms

    def _resets(self, restarts: bool) -> bool:
        return self.reset == "always" or (self.reset == "auto" and restarts)


def _squares(vector: Tensor, layout: Layout) -> Tensor:
    """Return the squared norms of the primal and the dual part, [2]."""
    dual = layout.slices["dual"]
    return torch.stack([(part @ part).cpu() for part in (vector[: dual.start], vector[dual])])
