"""Sites with personal heads, or with a whole model of their own."""

from collections.abc import Sequence
from typing import Annotated, Any

from fedlit.core.aggregator import Aggregator, ClientContext
from fedlit.core.errors import ConfigError
from fedlit.core.flat import Layout
from fedlit.core.messages import Client, Mask
from fedlit.core.ranges import Within
from fedlit.schedules import Schedule


class PersonalHeads(Aggregator):
    """The personalised baseline (PFL) of surgical aggregation (Kulkarni et al., arXiv:2301.06683), section 3.2.2.

    Clients share the body and keep their own task block, for their own classes, trained from the common start. The
    variables that an objective has per class stay with it. There is no single global model: validation and test score
    every client's images with that client's model, a server's test set with each client's in turn, and a class counts
    only if the client labels it.
    """

    weights = "uniform"
    governs = "head"
    one_model = "SurgicalHeads"

    def scope(self, layout: Layout, client: Client) -> Mask:
        """Keep the head and the objective's variables at the client."""
        return Mask.everything(layout).keeping(layout.groups(("head", "dual")))


class FedPer(PersonalHeads):
    """FedPer (Arivazhagan et al., 2019, arXiv:1912.00818): base layers are averaged, personalisation layers are not.

    ::

        client:  (w_base, w_k) take all local steps together, from the server's w_base and the client's own w_k
        server:  w_base = sum_k gamma_k w_base,k      gamma_k = n_k / n, or the run's client weights

    Personalisation layers are what the module names ``head``. It differs from PersonalHeads in the client weights.

    Deviation: the paper's personal part may be several last layers; here it is the head.
    """

    weights = "examples"  # type: ignore[assignment]


class FedRep(PersonalHeads):
    """FedRep (Collins et al., ICML 2021, arXiv:2102.07078), Algorithm 1: first the head of a client, then the body.

    ::

        client:  the first steps of a round:  h_k -= lr grad_h f_k(h_k, phi)        phi, the body, as received
                 the other steps:             phi -= lr grad_phi f_k(h_k, phi)      h_k fixed
        server:  phi = mean_k phi_k

    A part that does not step keeps its values, even if the optimizer has momentum or weight decay; to the optimizer its
    gradient is 0. Norm layers belong to the body, and BatchNorm's statistics follow every forward pass. Heads are the
    clients' own, as in PersonalHeads, and so are variables that an objective has per class, which step with the head.

    Deviation: corrections of other algorithms, such as control variates, act on the part that steps.

    Args:
        head: Number of steps, or epochs if the schedule counts those, in which the head trains at the start of a round;
            the schedule's window counts these and those of the body.

    Raises:
        ConfigError: ``head`` is below 1, or a round has no steps left for the body.
    """

    def __init__(
        self, head: Annotated[int, Within("[1, inf)", "; PersonalHeads trains both parts together")] = 1
    ) -> None:
        self.head = head

    def check_schedule(self, schedule: Schedule, rounds: int) -> None:
        """Refuse a round that ends before the body's turn."""
        for plan in map(schedule.plan, range(rounds)):
            if plan.window <= self.head:
                raise ConfigError(
                    f"FedRep.head: expected fewer {plan.unit} than the schedule's window of {plan.window}, found "
                    f"{self.head}; raise federation.schedule's window, which counts the steps of head and body"
                )

    def on_client_round_start(self, ctx: ClientContext) -> None:
        """Find the steps of the head."""
        ctx.scratch["head_steps"] = ctx.window // ctx.rnd.window * self.head

    def on_before_optimizer_step(self, ctx: ClientContext) -> None:
        """Remove the gradient of the part that does not step, and remember its weights."""
        still = self._still(ctx)
        ctx.grad[still] = 0
        if ctx.num_steps in (0, ctx.scratch["head_steps"]):
            ctx.scratch["still"] = ctx.w[still].clone()

    def on_after_optimizer_step(self, ctx: ClientContext, batches: Sequence[Any]) -> None:
        """Restore the part that did not step, which momentum or weight decay may have moved."""
        ctx.w[self._still(ctx, steps=1)] = ctx.scratch["still"]

    def _still(self, ctx: ClientContext, steps: int = 0) -> slice:
        head = ctx.layout.slices["head"].start
        return slice(0, head) if ctx.num_steps - steps < ctx.scratch["head_steps"] else slice(head, ctx.layout.size)


class LocalOnly(Aggregator):
    """Local training alone, the lower baseline: every client keeps all of its model, and nothing is sent.

    Each client trains from the common start, in its rounds, with the federation's schedule; validation and test score
    it with its own model. The upper baseline, one model on the data of all clients, is ``data.pooled: true``.
    """

    governs = ("norm", "head", "body")
    one_model = "FedAvg"

    def scope(self, layout: Layout, client: Client) -> Mask:
        """Keep everything at the client."""
        return Mask.everything(layout).keeping(list(range(layout.num_groups)))
