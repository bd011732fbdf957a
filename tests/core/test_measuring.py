"""The measuring round: the prior, the start of the objective's variables, BatchNorm's statistics."""

import copy
import warnings

import numpy as np
import pytest
import torch
from awkward import Wrapped
from engine_rounds import everything, played
from refusals import refused
from runs import assert_same_tensors
from simulation import simulate
from torch.utils.data import Subset, TensorDataset
from toys import CLASSES, ToyData, ToyNet

from fedlit.aggregators import CODA, CODASCA, CODAPlus, FedAvg
from fedlit.core.batches import BatchStream
from fedlit.core.errors import ConfigError
from fedlit.core.fabric import make_fabric
from fedlit.core.labels import check_batch
from fedlit.core.objective import Objective
from fedlit.federation.assembly import assemble
from fedlit.federation.evaluation import objective_metrics
from fedlit.federation.examinations.data import Labels, TrainingData
from fedlit.federation.federation import Federation
from fedlit.federation.session import Session
from fedlit.objectives import BCE, AUCSaddle
from fedlit.schedules import ConstantSchedule, Stage, StageSchedule

NAN = float("nan")


class Relabelled(ToyData):
    """Toy data with changed labels, (client, class) -> value; ``wrap`` makes other data sets of them."""

    def __init__(self, changed=None, wrap=lambda whole: whole, **options) -> None:
        super().__init__(**options)
        self.changed, self.wrap = changed or {}, wrap

    def setup(self, stage=None):
        if self.clients:
            return
        super().setup(stage)
        for (client, column), value in self.changed.items():
            self.clients[client].train.tensors[1][:, column] = value
        for client in self.clients.values():
            client.train = self.wrap(client.train)


def net(**objective) -> ToyNet:
    torch.manual_seed(0)
    module = ToyNet(drop=0.0).double()
    module.objective = AUCSaddle(**objective)
    module.objective.build(len(CLASSES))
    return module.double()


def session(module, data, weights="uniform", workers=1, **options) -> Session:
    federation = Federation(
        [CODAPlus()], schedule=ConstantSchedule(2, "steps"), weights=weights, workers=workers, **options
    )
    return assemble(federation, module, copy.deepcopy(data), make_fabric("cpu", precision="64-true"))


def settled(module, data, **options):
    """The session, its server's state before and after the first measuring round."""
    ready = session(module, data, **options)
    server, _, _ = ready.restore(None)
    before = copy.deepcopy(server)
    ready.initialise_objective(server)
    return ready, before, server


def entry(ready: Session, name: str, vector: torch.Tensor) -> torch.Tensor:
    entries = (*ready.layout.parameters, *ready.layout.buffers)
    return next(e for e in entries if e.name == name).view(vector)


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_p_is_the_weighted_prior_of_the_clients_that_label_the_class(weights):
    data = Relabelled({("site-1", 0): NAN, ("site-2", 1): 0.0}, clients=3, size=12)
    ready, _, server = settled(net(), data, weights=weights, measure_batches=1)
    expected = []
    for c in range(3):
        above = below = 0.0
        for client in ready.data.clients.values():
            known = [y for y in client.train.tensors[1][:, c].tolist() if y == y]
            pi = 1.0 if weights == "uniform" else len(client.train)
            if known:
                above += pi * sum(known) / len(known)
                below += pi
        expected.append(above / below)
    found = entry(ready, "objective.p", server.stats)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)


class Counted(Objective):
    """BCE with constants of several shapes, made of counts over the whole federation."""

    SHAPES = {"counts": (2, 3), "sides": (2,), "images": (), "prior": (3,)}

    def build(self, num_classes):
        for name, shape in self.SHAPES.items():
            self.register_buffer(name, torch.zeros(shape))

    def measure(self, logits, labels, all_labels):
        counts = torch.stack([(all_labels == 1).sum(0), (all_labels == 0).sum(0)]).to(logits.dtype)
        return {"total/counts": counts.reshape(-1), "share": counts[0] / len(all_labels)}

    @torch.no_grad()
    def settle(self, means):
        self.counts.copy_(means["total/counts"].view(2, 3))
        self.sides.copy_(self.counts.sum(1))
        self.images.copy_(self.counts[:, 0].sum())
        self.prior.copy_(means["share"])

    def forward(self, logits, labels):
        return BCE()(logits, labels)


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_totals_are_sums_over_the_federation_whatever_the_weights_and_constants_have_any_shape(weights):
    module, data = ToyNet(drop=0.0), ToyData(clients=3, size=12)
    module.objective = Counted()
    module.objective.build(len(CLASSES))
    federation = Federation([FedAvg(weights)], rounds=2, schedule=ConstantSchedule(2, "steps"))
    done = simulate(module.double(), data, federation)
    labels = torch.cat([client.train.tensors[1] for client in done.session.data.clients.values()]).double()
    counts = torch.stack([(labels == 1).sum(0), (labels == 0).sum(0)]).double()
    assert torch.equal(done.buffer("objective.counts"), counts)
    assert torch.equal(done.buffer("objective.sides"), counts.sum(1))
    assert done.buffer("objective.images") == len(labels)
    logged = objective_metrics(done.session, done.server, rounds=1)
    assert set(logged) == {f"objective/prior/{name}" for name in CLASSES}


def test_a_class_without_positives_anywhere_has_p_zero_and_keeps_its_start():
    nobody = {(f"site-{k}", 2): 0.0 for k in range(3)}
    ready, _, server = settled(net(), Relabelled(nobody))
    assert entry(ready, "objective.p", server.stats)[2] == 0
    for name in ("a", "b", "alpha"):
        value = entry(ready, f"objective.{name}", server.w)
        assert value[2] == 0
        assert value[:2].ne(0).all()
    assert server.w.isfinite().all()


def test_the_start_is_the_class_means_of_the_initial_scores_weighted_by_client():
    # batches of 4 of 12, 14 and 16 images: the whole of each client's data, in the order of the measuring round
    ready, _, server = settled(net(), ToyData(clients=3))
    above, below = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)
    module = net().train()
    for name, client in ready.data.clients.items():
        stream = BatchStream(client.train, 4, 0, name, "measure")
        drawn = [stream[i] for i in range(stream.steps_per_epoch)]
        with torch.no_grad():
            h = torch.cat([module(images.double()).sigmoid() for images, _ in drawn])
        labels = torch.cat([labels for _, labels in drawn]).double()
        assert len(h) == len(client.train)
        for y in (0, 1):
            above[y] += (h * (labels == y)).sum(0) / len(h)
            below[y] += (labels == y).double().mean(0)
    b, a = above / below
    for name, value in (("a", a), ("b", b), ("alpha", 1 + b - a)):
        torch.testing.assert_close(entry(ready, f"objective.{name}", server.w), value, rtol=1e-9, atol=1e-9)


def test_measuring_between_rounds_leaves_server_and_clients_as_they_are():
    data = ToyData(clients=3)

    def measure_too(server, reports) -> None:
        held = everything(ready, server)
        ready.measure(server, ready.round(1))
        assert_same_tensors(everything(ready, server), held)

    ready = session(net(), data)
    measured = everything(ready, played(ready, after=measure_too))
    ready = session(net(), data)
    assert_same_tensors(everything(ready, played(ready)), measured)
    assert int(measured["site-0/batches"]) == 6


def test_normalisation_is_that_of_all_sampled_activations_together():
    # whole clients of equal weight in one batch each: mean, and mean of the variances with the variance of the means
    ready = session(net(), Relabelled(clients=3, batch_size=1000))
    server, _, _ = ready.restore(None)
    found = ready.measure(server, ready.round(0))
    body, parts = net().body, []
    for client in ready.data.clients.values():
        with torch.no_grad():
            parts.append(body[0](client.train.tensors[0].double()).transpose(0, 1).flatten(1))
    mean = sum(x.mean(1) for x in parts) / 3
    total = sum(((x - mean[:, None]) ** 2).mean(1) for x in parts) / 3
    assert (mean - parts[0].mean(1)).abs().max() > 1e-2
    torch.testing.assert_close(entry(ready, "body.1.running_mean", found.normalisation), mean, rtol=1e-9, atol=1e-12)
    # within a batch torch counts n - 1 of n = 432 and more activations
    torch.testing.assert_close(entry(ready, "body.1.running_var", found.normalisation), total, rtol=3e-3, atol=0)
    exact = sum(x.var(1) + (x.mean(1) - mean) ** 2 for x in parts) / 3
    torch.testing.assert_close(entry(ready, "body.1.running_var", found.normalisation), exact, rtol=1e-9, atol=0)
    for name in ("mean", "var"):
        assert torch.equal(*(entry(ready, f"body.1.running_{name}", v) for v in (found.stats, server.stats)))


class Attribute(Wrapped):
    """Examples with their labels as a NumPy array of whole numbers, as some readers have them."""

    @property
    def labels(self) -> np.ndarray:
        return self.dataset.tensors[1].nan_to_num(255).long().numpy()


KINDS = {
    "tensors": lambda data: data,
    "labels": Attribute,
    "a part of tensors": lambda data: Subset(data, range(1, len(data))),
}


@pytest.mark.parametrize(
    ("kind", "value", "objective"),
    [("tensors", -1.0, BCE), ("labels", 255.0, AUCSaddle), ("a part of tensors", -1.0, AUCSaddle)],
)
def test_labels_outside_0_1_nan_are_refused_before_any_round(kind, value, objective):
    module, data = net(), Relabelled({("site-1", 2): value}, KINDS[kind])
    module.objective = objective()
    count = 14 - (kind == "a part of tensors")
    said = f"client 'site-1': expected training labels 0, 1 or NaN, found {value:g} for class {CLASSES[2]!r}"
    with refused(ConfigError, said, count):
        session(module, data)


@pytest.mark.parametrize("value", [0.5, float("inf")])
def test_labels_that_are_fetched_first_are_refused_where_they_are_measured(value):
    data = Relabelled({("site-1", 2): value}, Wrapped)
    with refused(ConfigError, "'site-1'", "0, 1 or NaN, found", f"{value:g}"):
        settled(net(), data)


def test_a_batch_of_other_things_than_images_and_labels_stays():
    for batch in (
        (torch.zeros(2), torch.tensor([3, 4])),
        (torch.zeros(2), torch.full((2, 2), 7.0)),
        {"x": 1},
        torch.ones(2),
    ):
        check_batch("site-0", batch, ("a", "b", "c"))


def test_indices_of_classes_and_targets_of_a_model_without_classes_stay():
    images = torch.randn(8, 3)
    for labels, classes in ((torch.tensor([0, 1, 2, -100] * 2), ("a", "b", "c")), (torch.randn(8, 2), ())):
        assert not Labels().problem(TrainingData("site-0", TensorDataset(images, labels), classes))
    assert not Labels().problem(TrainingData("site-0", TensorDataset(images), ("a",)))


@pytest.mark.parametrize(
    ("aggregator", "moments"),
    [(CODA(0.1, "average"), {1: ["mean", "square"], 3: ["mean", "square"]}), (CODASCA(0.1), {})],
    ids=["CODA, average", "CODASCA"],
)
def test_moments_travel_where_somebody_needs_them(aggregator, moments):
    schedule = StageSchedule([Stage(2, 2, "steps"), Stage(2, 2, "steps")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        federation = Federation([aggregator], schedule=schedule, workers=1)
    ready = assemble(federation, net(), ToyData(), make_fabric("cpu", precision="64-true"))
    measured, run = [], ready.engine.run

    def listening(cohort, down, rnd, *on_reply):
        total, reports = run(cohort, down, rnd, *on_reply)
        if rnd.window == 0:
            measured.append((rnd.index, sorted(name for name in total.vectors if "/" not in name)))
        return total, reports

    ready.engine.run = listening
    server = played(ready, rounds=4)
    before = [(0, [])] + ([(2, [])] if isinstance(aggregator, CODA) else [])
    assert sorted(measured) == sorted([*before, *moments.items()])
    assert ready.measure(server, ready.round(3), moments=False).normalisation is None


def test_worker_processes_give_the_same_bits():
    found = []
    for workers in (1, 2):
        ready, _, server = settled(net(), ToyData(clients=3), workers=workers)
        try:
            measured = ready.measure(server, ready.round(1))
        finally:
            ready.engine.close()
        found.append(torch.cat([server.w, server.stats, measured.w, measured.stats, measured.normalisation]))
    assert torch.equal(*found)
