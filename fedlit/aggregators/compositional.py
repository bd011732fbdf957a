"""LocalSCGDAM: federated compositional deep AUC maximisation."""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from fedlit.aggregators.momentum import LocalSGDAM, Newest
from fedlit.core.aggregator import ClientContext
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.examples import images_of, labels_for
from fedlit.core.flat import FlatModel, Layout
from fedlit.core.messages import Measured, Round, ServerState, State
from fedlit.core.parts import Parts
from fedlit.core.ranges import Within
from fedlit.objectives.cross_entropy import BCE

EXCHANGED = ("inner", "outer")


class LocalSCGDAM(LocalSGDAM):
    """LocalSCGDAM (Zhang et al., "Federated Compositional Deep AUC Maximization", NeurIPS 2023), Algorithm 1.

    ``min over x, max over y, f(g(x), y)`` with ``g(x) = x - rho grad CE(x)`` (arXiv:2304.10101, eq. 2 and 4)::

        h_k = g_k(x_k; xi),  u_k, v_k = the gradients below, at the start, of each client's own batches
        for t = 0, 1, ...:
            x_k -= lr u_k,   y_k += lr v_k
            h_k = (1 - alpha) h_k + alpha g_k(x_k; xi)                           at the new point, not yet averaged
            q   = grad_g f_k(h_k, y_k; zeta)
            u_k = (1 - beta_x) u_k + beta_x (q - rho H_k(x_k; xi) q)             H: the Hessian of the cross-entropy
            v_k = (1 - beta_y) v_k + beta_y grad_y f_k(h_k, y_k; zeta)
            every p steps:  x, y, h, u, v = their means over the clients         p: the schedule's window

    x are the network's weights and the objective's a, b; y is its dual; both are one vector, and so are u and v. g
    changes only the network. ``alpha``, ``beta_x``, ``beta_y`` and ``lr`` are the paper's products alpha*eta, beta*eta
    and gamma*eta, the only effect of its constants; gamma_y*eta is ``lr`` times the objective's ``dual_scale``. The
    Jacobian's product with q is exact, a Hessian-vector product by a second backward pass. The loss of a step is f at
    (h, y).

    The paper does not say which model is deployed: x or h, at which eq. 2 takes the loss. The default is x. With
    ``deploy: h`` the federation's weights are h, training continues from x, and a measuring round after every round
    estimates BatchNorm's statistics at h; what a client keeps to itself is evaluated at x.

    ``inner: in_place`` is another algorithm: that of the released code (PDSCA in LibAUC, read, not copied) of the
    paper's reference [39], Yuan et al., ICLR 2022. The step of cross-entropy stays in the weights, without a Hessian::

        h_k = (1 - alpha) h_k + alpha (x_k - rho grad CE(x_k; xi)),  x_k = h_k,  u_k, v_k as above with H = 0,
        x_k -= lr u_k,   y_k += lr v_k

    where rho falls with the schedule as lr does, and a, b and y, which cross-entropy does not have, are not averaged in
    h. Clients communicate when x is h; the very first step is from the initial weights. In that code v_k is
    2 (m + b - a) - 2 alpha without a moving average, gradients are clamped, and its regularisation is that of
    ``Stages`` with a weight decay: settings of ``AUCSaddle`` and of the federation.

    Both passes are in training mode and update BatchNorm's running statistics, the one at x before the one at h. If
    ``drift/curvature``, the mean of |rho H q| over that of |q|, is not well below 1, rho is too large; from scratch 0.1
    was.

    It trains a module with one class that maps images to logits [B, 1], whose ``training_step`` returns f of a
    batch, and whose objective has a dual: ``ImageClassifier`` with ``AUCSaddle``. NaN labels count in neither loss. It
    works in all precisions of fedlit; in bf16-mixed the weights' vectors stay in float32.

    With heterogeneous clients, the mean of J_k^T q_k is not the gradient of the paper's eq. 4, the product of the
    means, even with exact gradients and p = 1: a bias of the order of rho and alpha. Algorithm 1 suits mild
    heterogeneity. ``outer: exchanged`` is an extension that removes the bias: at each communication clients also
    average grad CE and q, and until the next each corrects its own by the difference between the federation's mean and
    its own of the last round, as SCAFFOLD does with gradients. This costs two more vectors at the server, at every
    client and in every message.

    Deviations: those of LocalSGDAM, for h too.

    Args:
        rho: Step of the inner function, above 0.
        alpha: Weight of the newest inner value in h, in (0, 1).
        beta_x: Weight of the newest gradient in x, in (0, 1).
        beta_y: Weight of the newest gradient in y, in (0, 1).
        first_order: Leave the Hessian out, J = 1: for models without a second derivative; fails at large rho.
        same_batch: Use one batch for xi and zeta instead of two independent ones.
        outer: Gradients that make up the outer step: ``local``, as in Algorithm 1, or ``exchanged`` among clients.
        inner: The inner step: ``exact``, as in Algorithm 1, or ``in_place``, in the weights.
        deploy: Model that is evaluated and deployed, ``x`` or ``h``; with ``inner: in_place`` they are the same.

    Raises:
        ConfigError: rho is not above 0; a weight is outside of (0, 1); the module has more than one class, or its
            objective no dual; the optimizer is not SGD without momentum; ``inner: in_place`` is combined with
            ``outer: exchanged``, ``first_order`` or ``deploy: h``.
    """

    vectors = ("u", "h")
    metrics_help = {
        "drift/curvature": "Mean of |rho H q| over that of |q|: the share of the outer gradient q that the Hessian of "
        "the inner step, of rate rho, changes."
    }

    def __init__(
        self,
        rho: Annotated[float, Within("(0, inf]", "; without an inner step use LocalSGDAM")] = 0.01,
        alpha: Newest = 0.5,
        beta_x: Newest = 0.1,
        beta_y: Newest = 0.1,
        first_order: bool = False,
        same_batch: bool = False,
        outer: Literal["local", "exchanged"] = "local",
        inner: Literal["exact", "in_place"] = "exact",
        deploy: Literal["x", "h"] = "x",
    ) -> None:
        super().__init__(beta_x, beta_y)
        self.rho, self.alpha, self.first_order, self.same_batch = rho, alpha, first_order, same_batch
        self.outer, self.inner, self.deploy = outer, inner, deploy
        for name, is_set in (("outer: exchanged", outer == "exchanged"), ("first_order: true", first_order)):
            if is_set and inner == "in_place":
                raise ConfigError(
                    f"LocalSCGDAM: {name} changes Algorithm 1's product with the Jacobian, which inner: in_place does "
                    "not have; leave one of them out"
                )
        if deploy == "h" and inner == "in_place":
            raise ConfigError("LocalSCGDAM: with inner: in_place x is h whenever clients communicate; leave deploy out")
        if outer == "exchanged":
            self.governs = ("momentum", "control variates")  # of q, as in SCAFFOLD
        self.batches_per_step = 1 if same_batch else 2
        self._exchanged = EXCHANGED if outer == "exchanged" else ()
        self._curves = not (first_order or inner == "in_place")

    def configure_model(self, module: nn.Module) -> None:
        """Refuse a module of several classes, or one whose objective has no dual."""
        super().configure_model(module)
        classes, name = Parts.of(module).classes, type(module).__name__
        if len(classes) != 1:
            raise ConfigError(
                f"LocalSCGDAM is for one class against the rest; {name} has {len(classes)} classes"
                f"{': ' + ', '.join(classes) if classes else ''}; choose one in the data, or use LocalSGDAM or CODASCA"
            )
        if not any(getattr(part, "dual_parameters", ()) for part in module.modules()):
            raise ConfigError(
                f"LocalSCGDAM needs an objective with a dual variable as its outer function; {name} has none: set "
                "model.objective: AUCSaddle"
            )

    def measures(self, rnd: Round, when: Literal["before", "after"]) -> bool:
        """Ask for BatchNorm's statistics at h, if it is deployed, after every round."""
        return when == "after" and self.deploy == "h"

    def on_measure_end(
        self, state: State, server: ServerState, measured: Measured, rnd: Round, when: Literal["before", "after"]
    ) -> None:
        """Use the statistics at h."""
        if self.measures(rnd, when):
            assert measured.normalisation is not None  # as asked for
            server.stats.copy_(measured.normalisation)

    def server_state(self, layout: Layout, w: Tensor) -> State:
        """Add to u and h the exchanged gradients, and the norms behind ``drift/curvature``."""
        return super().server_state(layout, w) | {
            **{name: torch.zeros_like(w) for name in self._exchanged},
            "norms": torch.zeros(2, dtype=w.dtype),
            **({"apart": torch.tensor(0)} if self.deploy == "h" else {}),
        }

    def client_state(self, layout: Layout) -> State:
        """Add the exchanged gradients that the client last sent."""
        return super().client_state(layout) | {name: layout.zeros() for name in self._exchanged}

    def on_clients_change(self, state: State, server: ServerState) -> bool:
        """Set exchanged gradients to zero, here and at the clients, as SCAFFOLD does; u and h go on."""
        for name in self._exchanged:
            state[name].zero_()
        return bool(self._exchanged)

    def on_round_start(self, state: State, server: ServerState, rnd: Round) -> None:
        """Start h at the weights; continue from x if the weights are h."""
        if not state["started"]:
            state["h"] = server.w.clone()  # kept for elements without an owner
        if self.deploy == "h" and state["apart"]:  # a repeated round already starts at x
            h = server.w.clone()
            server.w.copy_(state["h"])
            state["h"], state["apart"] = h, torch.tensor(0)

    def broadcast(self, state: State, rnd: Round) -> State:
        """Send u and h, and with ``outer: exchanged`` the federation's mean gradients."""
        return super().broadcast(state, rnd) | {name: state[name] for name in self._exchanged}

    def on_client_round_start(self, ctx: ClientContext) -> None:
        """Prepare the corrections of exchanged gradients, and the first estimates."""
        ctx.scratch["norms"] = torch.zeros(2, dtype=ctx.w.dtype, device=ctx.w.device)
        for name in self._exchanged:
            shift = ctx.broadcast[name] - ctx.state[name]
            for segment in ctx.mask.unshared(ctx.layout):
                shift[segment] = 0
            ctx.scratch[f"{name} shift"], ctx.scratch[f"{name} sum"] = shift, torch.zeros_like(ctx.w)
        super().on_client_round_start(ctx)
        for name in self._exchanged:
            ctx.scratch[f"{name} sum"].zero_()  # the mean over the round counts only its steps

    def on_client_round_end(self, ctx: ClientContext) -> State:
        """Send the changes of u and h, and of the exchanged gradients."""
        sent = super().on_client_round_end(ctx)
        for name in self._exchanged:
            new = ctx.scratch[f"{name} sum"].div_(ctx.num_steps)
            for segment in ctx.mask.unshared(ctx.layout):
                new[segment] = 0
            sent[name], ctx.state[name] = new - ctx.state[name], new
        return sent | {"norms": ctx.scratch["norms"]} if self._curves else sent

    def on_aggregate_end(self, state: State, server: ServerState, mean: State, rnd: Round) -> None:
        """Move the exchanged gradients as SCAFFOLD moves c, per element by the owners in the cohort."""
        super().on_aggregate_end(state, server, mean, rnd)
        for name in self._exchanged:
            state[name] += rnd.participation * mean[name]
        state["norms"] = mean.get("norms", state["norms"])
        if self.deploy == "h":
            x = server.w + server.delta
            server.delta, state["h"], state["apart"] = state["h"] - server.w, x, torch.tensor(1)

    def diagnostics(self, state: State, layout: Layout) -> dict[str, float]:
        """Return ``drift/curvature``, the Hessian's share of the outer gradient; only for the exact Jacobian."""
        curved, outer = state["norms"].tolist()
        return {"drift/curvature": curved / outer} if outer > 0 else {}

    def _estimate(self, ctx: ClientContext, batches: Sequence[Any], start: bool) -> tuple[Tensor, Tensor]:
        model, h, dual = ctx.model, ctx.scratch["h"], ctx.layout.slices["dual"]
        entropy = ctx.apply(lambda batch: _cross_entropy(model.module, batch), batches[0])
        in_place = self.inner == "in_place"
        found = torch.autograd.grad(entropy, model.parameters, create_graph=self._curves, allow_unused=True)
        apart = [e for e, slope in zip(ctx.layout.parameters, found, strict=True) if slope is None and in_place]
        slopes = [torch.zeros_like(p) if s is None else s for p, s in zip(model.parameters, found, strict=True)]
        inner = self._corrected(ctx, "inner", torch.cat([slope.detach().reshape(-1) for slope in slopes]))
        rho = self.rho * ctx.rnd.lr_factor if in_place else self.rho
        h.lerp_(torch.sub(ctx.w, inner, alpha=rho, out=inner), 1.0 if start else self.alpha)
        for segment in (dual, *(slice(entry.offset, entry.offset + entry.size) for entry in apart)):
            h[segment] = ctx.w[segment]  # f is at h and the present y
        with model.at(h):
            loss = ctx.loss(batches[0 if self.same_batch else 1], ctx.num_steps)
            outer = self._corrected(ctx, "outer", model.gradient(loss))
        if in_place and not start:
            ctx.w.copy_(h)
        if self._curves:
            curved = _hessian_product(model, slopes, outer, entropy)
            ctx.scratch["norms"] += torch.stack([self.rho * curved.norm(), outer.norm()])
            outer.sub_(curved, alpha=self.rho)
        return loss.detach(), outer

    def _corrected(self, ctx: ClientContext, name: str, gradient: Tensor) -> Tensor:
        """Return a client's gradient; if gradients are exchanged, corrected by the others' difference from it."""
        if name not in self._exchanged:
            return gradient
        ctx.scratch[f"{name} sum"] += gradient
        return gradient.add_(ctx.scratch[f"{name} shift"])


def _cross_entropy(module: nn.Module, batch: Any) -> Tensor:
    logits = module(images_of(batch))
    return BCE()(logits, labels_for(logits, batch))


def _hessian_product(model: FlatModel, slopes: Sequence[Tensor], q: Tensor, loss: Tensor) -> Tensor:
    """Return H q [P], by a second backward pass through the gradients ``slopes``; it lies in the model's ``grad``."""
    known = [(slope, part) for slope, part in zip(slopes, model.views(q), strict=True) if slope.requires_grad]
    model.grad.zero_()
    model.use_gradients()
    try:
        # Not autograd.grad, which skips paths without parameters: functions differentiable only once hide them.
        torch.autograd.backward([slope for slope, _ in known], [part for _, part in known])
    except RuntimeError as error:
        native = re.search(r"derivative for '?(?:aten::)?(\w+)'? is not implemented", str(error))
        if native is None and not re.search(r"differentiate twice|[Dd]ouble backward", str(error)):
            raise
        name = native[1] if native else ", ".join(dict.fromkeys(_custom_functions(loss))) or "an operation"
        raise TrainingError(
            f"LocalSCGDAM: {name} has no second derivative, which the exact Jacobian needs ({error}); set "
            "first_order: true, or use a model without this operation"
        ) from error
    return model.grad


def _custom_functions(loss: Tensor) -> Iterator[str]:
    """Yield the names of functions in a graph whose backward pass is Python code that may run only once."""
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting.extend(following for following, _ in node.next_functions)
        function = getattr(node, "_forward_cls", None)
        if function is not None and hasattr(function.backward, "__wrapped__"):
            yield function.__name__
