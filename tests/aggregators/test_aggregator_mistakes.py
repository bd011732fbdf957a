"""The table of what aggregators refuse: values, two algorithms for one thing, and models that they cannot train."""

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import torch
from refusals import refused, table
from saddle_toys import Scorer, Sites
from simulation import federated, simulate
from torch import nn
from toys import Quadratic, ToyData, ToyNet, TwoRates, composed, program

from fedlit.aggregators import (
    CODA,
    CODASCA,
    MOON,
    Aggregator,
    CoordinateMedian,
    Ditto,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedBN,
    FedBNPlus,
    FedDyn,
    FedNova,
    FedProx,
    FedRep,
    GradientDissimilarity,
    LocalOnly,
    LocalSCGDAM,
    LocalSGDAM,
    LocalSGDM,
    NormBound,
    PersonalHeads,
    Scaffold,
    ServerOptimizer,
    SurgicalHeads,
    TrimmedMean,
)
from fedlit.core.errors import ConfigError, DataError, TrainingError
from fedlit.core.fabric import make_fabric
from fedlit.federation.assembly import assemble
from fedlit.federation.engines.ranks import FabricEngine
from fedlit.federation.federation import Federation
from fedlit.objectives import BCE


def train(aggregator, module=None, data=None, *others, rounds=1):
    federation = federated([aggregator, *others], rounds, 1)
    return simulate(module or ToyNet(), data or ToyData(2), federation, "32-true")


def score(aggregator, **options):
    return train(aggregator, Scorer(**options), Sites())


def together(*aggregators):
    return Federation(list(aggregators))


class TwoRatesOfASaddle(Scorer):
    def configure_optimizers(self):
        body, head = {"params": self.body.parameters()}, {"params": self.head.parameters(), "lr": 0.1}
        return torch.optim.SGD([body, head], lr=0.3)


class Frozen(ToyNet):
    def __init__(self):
        super().__init__()
        self.body.requires_grad_(False)


class Untrained(ToyNet):
    def training_step(self, batch, batch_idx):
        raise AssertionError("it trained")


class Wide(Sites):
    """Two labels per image, where the model has one class."""

    def setup(self, stage=None):
        super().setup(stage)
        for client in self.clients.values():
            client.train.tensors = (client.train.tensors[0], client.train.tensors[1].expand(-1, 2))


class WithoutGradient(Aggregator):
    def extra_loss(self, ctx, batch):
        return (ctx.w - 1).square().sum()


class LooksAtTheLoss(Aggregator):
    def on_before_optimizer_step(self, ctx):
        with torch.no_grad():
            assert ctx.loss(ctx.next_batch(), ctx.num_steps) > 0


class Pulls(Aggregator):
    def extra_loss(self, ctx, batch):
        return sum(each.square().sum() for each in ctx.model.module.parameters())


def test_an_extra_loss_has_a_value_without_gradients():
    train(LooksAtTheLoss(), None, None, Pulls())


class Misspelt(Aggregator):
    def on_before_sending(self, ctx, update):
        update.zero_()


class Undeclared(Scaffold):
    governs = None


class CountsInGroups(torch.optim.SGD):
    def __init__(self, params):
        super().__init__([{"params": params, "count": 0}], lr=1.0)

    def step(self, closure=None):
        self.param_groups[0]["count"] += 1
        super().step(closure)


class CountsInState(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        self.state[self.param_groups[0]["params"][0]]["count"] = 1


def two_replies_of_three():
    given = federated([CoordinateMedian()], 1, 1)
    session = assemble(given, ToyNet(), ToyData(3), make_fabric("cpu"))
    server, _, _ = session.restore(None)
    rnd = session.round(0)
    rnd = replace(rnd, cohort=rnd.cohort[:2])
    session.engine.run(rnd.cohort, given.open_round(server, session.round(0), session), rnd)


def two_processes():
    FabricEngine(program(ToyNet(), [FedBN(), NormBound()], ToyData(3)), SimpleNamespace(world_size=2))


VALUES = [
    ("CODASCA.eta_g of -1", lambda: CODASCA(eta_g=-1.0), ConfigError, "eta_g", "found -1"),
    ("Ditto.lr of 0", lambda: Ditto(lr=0.0), ConfigError, "found 0"),
    ("FedAdam.beta_2 of 1", lambda: FedAdam(beta_2=1.0), ConfigError, "FedAdam.beta_2"),
    ("FedNova.momentum of 1", lambda: FedNova(1.0), ConfigError, "found 1"),
    ("FedProx.mu of -1", lambda: FedProx(-1.0), ConfigError, "FedProx.mu"),
    ("LocalSCGDAM.rho of 0", lambda: LocalSCGDAM(rho=0.0), ConfigError, "found 0"),
    ("LocalSCGDAM.alpha of 1", lambda: LocalSCGDAM(alpha=1.0), ConfigError, "alpha", "found 1"),
    ("LocalSGDAM.beta_x of NaN", lambda: LocalSGDAM(beta_x=math.nan), ConfigError, "beta_x", "nan"),
    ("NormBound of infinity", lambda: NormBound(math.inf), ConfigError, "inf"),
    ("Scaffold.eta_g of 0", lambda: Scaffold(0.0), ConfigError, "Scaffold.eta_g"),
    ("ServerOptimizer of LBFGS", lambda: ServerOptimizer(torch.optim.LBFGS), ConfigError, "LBFGS"),
    ("TrimmedMean of 0.5", lambda: TrimmedMean(0.5), ConfigError, "found 0.5"),
]

TOGETHER = [
    *((f"{type(a).__name__} with {type(b).__name__}", partial(together, a, b), ConfigError, type(a).__name__,
       type(b).__name__) for a, b in [
        (FedAvgM(), FedAdam()), (FedDyn(), FedProx()), (FedDyn(), Scaffold()), (FedNova(), LocalSGDM()),
        (FedRep(), PersonalHeads()), (LocalOnly(), FedBN()), (NormBound(), TrimmedMean()),
    ]),
    ("FedBN with FedBNPlus among others", lambda: together(FedBN(), SurgicalHeads(), FedBNPlus()), ConfigError,
        "FedBN", "FedBNPlus", "keep one"),
    ("two weightings", lambda: together(FedAvg("examples"), FedAvg("uniform")), ConfigError, "weights"),
    ("a part with a composition", lambda: together(LocalSGDM(), composed(LocalSGDM(0.9), weights="uniform")),
        ConfigError, "LocalSGDM", "Composed"),
    ("the same part twice", lambda: composed(LocalSGDM(), LocalSGDM(), weights="uniform"), ConfigError,
        "Composed", "LocalSGDM", "keep one"),
    ("a part with another weighting", lambda: composed(LocalSGDM()), ConfigError, "LocalSGDM", "'uniform'"),
    ("control variates twice", lambda: composed(Scaffold(), CODASCA(), weights="uniform"), ConfigError, "Composed",
        "control variates"),
    ("the same reduction twice", lambda: composed(NormBound(), NormBound(1.0)), ConfigError, "NormBound", "keep one"),
    ("one name of two states", lambda: train(composed(Undeclared(), Undeclared())), ConfigError, "Composed", "'c'"),
    ("clip and clamp", lambda: Federation(gradient_clip=1.0, gradient_clamp=1.0), ConfigError,
        "federation.gradient_clamp"),
    ("an outer product exchanged in place", lambda: LocalSCGDAM(inner="in_place", outer="exchanged"), ConfigError,
        "outer", "exchanged"),
    ("first order in place", lambda: LocalSCGDAM(inner="in_place", first_order=True), ConfigError, "first_order",
        "true"),
    ("deploying h in place", lambda: LocalSCGDAM(inner="in_place", deploy="h"), ConfigError, "deploy"),
    ("FedNova keeping momentum", lambda: federated([FedNova(0.9)], optimizer_state="keep"), ConfigError, "FedNova",
        "set it to reset"),
    ("a head that leaves no step", lambda: federated([FedRep(3)], window=3), ConfigError, "FedRep.head",
        "window of 3, found 3"),
]  # fmt: skip

TRAINING = [
    ("dissimilarity of personal parts", lambda: train(SurgicalHeads(), None, ToyData(labelled=1),
        GradientDissimilarity()), ConfigError, "'site-0'"),
    ("Ditto without one rate", lambda: train(Ditto(), TwoRates()), ConfigError, "has 2"),
    ("CODA without one rate", lambda: train(CODA(0.4, proximal="implicit"), TwoRatesOfASaddle(nn.Linear(4, 4)),
        Sites()), ConfigError, "0.3, 0.1"),
    ("FedNova of two rates", lambda: train(FedNova(), TwoRates(), None, FedProx(0.1)), ConfigError, "found 2"),
    ("FedNova and momentum", lambda: train(FedNova(), ToyNet(momentum=0.9)), ConfigError, "FedNova"),
    ("LocalSGDM and momentum", lambda: score(LocalSGDM(), objective=BCE(), momentum=0.9), ConfigError, "LocalSGDM"),
    ("LocalSCGDAM and BCE", lambda: score(LocalSCGDAM(), objective=BCE()), ConfigError, "LocalSCGDAM"),
    ("LocalSCGDAM and two classes", lambda: score(LocalSCGDAM(), classes=("Edema", "Nodule")), ConfigError,
        "Scorer", "has 2", "Edema, Nodule"),
    ("LocalSCGDAM and wide labels", lambda: train(LocalSCGDAM(), Scorer(), Wide()), DataError, "client 'site-0'",
        "[B, 1]", "[5, 2]"),
    ("an extra loss of the weights", lambda: train(WithoutGradient()), TrainingError, "WithoutGradient.extra_loss",
        "with a gradient", "ctx.model.module"),
    ("a misspelt hook", lambda: train(Misspelt()), ConfigError, "Misspelt.on_before_sending", "never called",
        "did you mean on_before_send?"),
    ("FedBN+ without normalisation", lambda: FedBNPlus().configure_model(Scorer()), ConfigError, "Scorer"),
    ("MOON without features", lambda: train(MOON(), Quadratic()), ConfigError, "Quadratic"),
    ("MOON with a frozen body", lambda: train(MOON(), Frozen(), rounds=2), ConfigError, "MOON"),
    ("a median of two", lambda: train(CoordinateMedian(), Untrained()), ConfigError, "CoordinateMedian: ",
        "2 clients", "found 0 cut"),
    ("a trimmed mean of nobody", lambda: train(TrimmedMean(0.4), Untrained(), ToyData(4)), ConfigError,
        "TrimmedMean: ", "4 clients", "found 2 cut"),
    ("a median of two replies", two_replies_of_three, TrainingError, "of 2", "found 0", "set federation.quorum"),
    ("single replies on several ranks", two_processes, ConfigError, "NormBound", "but 2"),
    ("a count in the optimizer's groups", lambda: train(ServerOptimizer(CountsInGroups)), ConfigError, "Count",
        "'count'"),
    ("a count in the optimizer's state", lambda: train(ServerOptimizer(lambda p: CountsInState(p, lr=1.0))),
        ConfigError, "Count", "'count'"),
]  # fmt: skip


@table([*VALUES, *TOGETHER, *TRAINING])
def test_it_is_refused(provoke, kind, names):
    with refused(kind, *names):
        provoke()
