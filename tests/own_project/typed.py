"""An aggregator, an objective, data and a script of a user, as a type checker reads them; no test runs it."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import TensorDataset

import fedlit
from fedlit.aggregators import Aggregator, Client, ClientContext, Layout, Mask, Round, ServerState, State
from fedlit.core.objective import Objective
from fedlit.core.schedule import Plan, Schedule
from fedlit.data import ClientData, FederatedDataModule, PhantomCXR
from fedlit.errors import ConfigError
from fedlit.models import ImageClassifier
from fedlit.testing import check_aggregator, check_data_module


class Pull(Aggregator):
    weights = "uniform"
    governs = "head"

    def __init__(self, mu: float = 0.1) -> None:
        self.mu = mu

    def scope(self, layout: Layout, client: Client) -> Mask:
        return Mask.everything(layout).keeping(layout.groups(("head",)))

    def on_client_round_start(self, ctx: ClientContext) -> None:
        ctx.correction.pull(ctx.w, self.mu * len(ctx.rates))

    def on_after_optimizer_step(self, ctx: ClientContext, batches: Sequence[Any]) -> None:
        ctx.w *= 1 - self.mu
        norm: float = ctx.w.norm().item()
        ctx.scratch["norm"] = norm

    def on_aggregate_end(self, state: State, server: ServerState, mean: State, rnd: Round) -> None:
        server.delta = server.delta.clamp(-self.mu, self.mu)
        server.delta *= rnd.participation


class Margin(Objective):
    margin: Tensor

    def build(self, num_classes: int) -> None:
        self.register_buffer("margin", torch.zeros(num_classes))

    def settle(self, means: State) -> None:
        self.margin.copy_(means["negatives"])

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits - self.margin, labels)


class Noise(FederatedDataModule):
    def __init__(self, size: int = 20, batch_size: int = 4) -> None:
        super().__init__(partition=None, batch_size=batch_size)
        self.size = size
        self.classes = ("Edema", "Mass")

    def setup(self, stage: str | None = None) -> None:
        for name in ("north", "south"):
            part = TensorDataset(torch.rand(self.size, 1, 8, 8), torch.ones(self.size, 2))
            self.clients[name] = ClientData(name, self.classes, part, part)
        print(len(self.clients["north"].train))


class Halving(Schedule):
    def plan(self, index: int) -> Plan:
        return Plan(0, 0.5**index, 1, "epochs", index == 0, False)


check_aggregator(Pull(0.5))
check_data_module(Noise, size=10)
aggregators = [Pull()]
try:
    fitted = fedlit.fit(ImageClassifier(("Edema", "Mass"), "small_cnn", objective=Margin()), Noise(), seed=1,
                        aggregators=aggregators, rounds=2, schedule=Halving(), participation=0.5)  # fmt: skip
    best: float = fitted.test["test/federation/auroc_macro"] + fitted.best_round
    scores: Tensor = fitted.predict(TensorDataset(torch.rand(5, 1, 8, 8)), client="north")
except ConfigError as error:
    print(error)
fedlit.fit(ImageClassifier(("Edema",), "small_cnn"), PhantomCXR(), round=2)  # type: ignore[call-arg]
fedlit.fit(ImageClassifier(("Edema",), "small_cnn"), PhantomCXR(), rounds="2")  # type: ignore[arg-type]
print(fitted.mertics)  # type: ignore[attr-defined]
