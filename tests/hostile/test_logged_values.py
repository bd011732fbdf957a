"""Logging with ``self.log``: metrics of torchmetrics over the whole round, and supported or refused options."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rounds import unprobed
from foreigners import Digits, Unvalidated
from refusals import refused
from strangers import fit, seeded
from torchmetrics import MaxMetric, MeanMetric, MetricCollection
from torchmetrics.aggregation import RunningMean
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy, MulticlassConfusionMatrix
from torchmetrics.functional.classification import binary_auroc, multiclass_accuracy

from fedlit.core.errors import TrainingError
from fedlit.core.fabric import make_fabric
from fedlit.core.flat import FlatModel
from fedlit.core.module import collect_logs
from fedlit.federation.assembly import assemble
from fedlit.federation.evaluation import pooled_metrics, training_metrics, validate
from fedlit.federation.federation import Federation
from fedlit.federation.session import Session
from fedlit.schedules import ConstantSchedule


class Sized(Digits):
    """Clients of different sizes, in batches of different sizes."""

    def _part(self, seed: int):
        whole = super()._part(seed)
        return torch.utils.data.Subset(whole, range(9 + seed // 10 * 3))


class Logging(Unvalidated):
    """Has metrics, and logs them in training and in validation."""

    def __init__(self) -> None:
        super().__init__()
        self.auroc, self.most, self.means = BinaryAUROC(), MaxMetric(), MeanMetric()
        self.running = RunningMean(10)
        self.both = MetricCollection({"right": MulticlassAccuracy(4, average="micro"), "recall": MulticlassAccuracy(4)})

    def _log(self, batch, part: str) -> None:
        scores = self.net(batch[0].flatten(1))
        positive = (batch[1] > 1).int()
        self.auroc.update((scores[:, 2] - scores[:, 0]).sigmoid(), positive)
        self.most.update(scores.max())
        self.means.update(scores.mean(), weight=len(scores))
        self.running.update(scores.mean())
        self.both.update(scores, batch[1])
        self.log(f"{part}auroc", self.auroc)
        self.log(f"{part}most", self.most, on_step=False, on_epoch=True)
        self.log(f"{part}running", self.running)
        self.log_dict({f"{part}mean": self.means})
        self.log_dict(self.both)

    def training_step(self, batch, batch_idx):
        self._log(batch, "")
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self._log(batch, "")


def evaluated(workers: int = 1) -> tuple[Session, dict[str, float], list]:
    federation, module = Federation(workers=workers, rounds=2, schedule=ConstantSchedule(3, "steps")), seeded(Logging)
    data = Sized()
    data.batch_size, data.eval_batch_size = 4, 4
    with unprobed():
        session = assemble(federation, module, data, make_fabric("cpu"))
    server, _, _ = session.restore(None)
    metrics: dict[str, float] = {}
    validate(session, session.broadcast(server, session.round(0)), metrics)
    again: dict[str, float] = {}
    scores = validate(session, session.broadcast(server, session.round(0)), again)
    assert {k: v for k, v in again.items() if "time" not in k} == {k: v for k, v in metrics.items() if "time" not in k}
    return session, metrics, scores


@pytest.fixture(scope="module")
def alone() -> tuple[Session, dict[str, float], list]:
    """Evaluated in one process."""
    return evaluated()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_metric_is_of_all_examples_and_not_a_mean_over_batches(workers: int, alone):
    session, metrics, _ = alone if workers == 1 else evaluated(workers)
    if workers > 1:
        session.engine.close()
    images, labels = zip(*(c.val[:] for c in session.data.clients.values()), strict=True)
    scores, labels = seeded(Logging).net(torch.cat(images).flatten(1)).detach(), torch.cat(labels)
    by_hand = binary_auroc((scores[:, 2] - scores[:, 0]).sigmoid(), (labels > 1).int())
    assert metrics["val/auroc"] == pytest.approx(float(by_hand), abs=1e-6)
    assert metrics["val/mean"] == pytest.approx(float(scores.mean()), abs=1e-6)
    assert metrics["val/right"] == pytest.approx(float((scores.argmax(1) == labels).float().mean()), abs=1e-6)
    assert metrics["val/recall"] == pytest.approx(float(multiclass_accuracy(scores, labels, 4)), abs=1e-6)


def test_a_metric_that_does_not_merge_is_averaged_by_examples(alone):
    _, metrics, scores = alone
    mean = sum(s.examples * s.logged["running"] for s in scores) / sum(s.examples for s in scores)
    assert metrics["val/running"] == mean


def test_across_sites_there_are_means_over_whole_views(alone):
    """A site sends only numbers."""
    scores = [replace(scored, metrics={}) for scored in alone[2]]
    metrics = pooled_metrics(scores, (), "val")
    mean = sum(s.examples * s.logged["auroc"] for s in scores) / sum(s.examples for s in scores)
    assert metrics["val/auroc"] == mean


def test_a_round_of_training_has_metrics_over_all_its_steps(alone):
    session, _, _ = alone
    server, _, _ = session.restore(None)
    rnd = session.round(0)
    down = session.broadcast(server, rnd)
    for _ in range(2):
        _, reports = session.engine.run(rnd.cohort, down, rnd)
    seen = {r.client: len(r.metrics["auroc"].preds) for r in reports}
    assert seen == dict.fromkeys(seen, 3), "three batches each, and none of an earlier client or round"
    scores, labels = (
        torch.cat([x for r in reports for x in getattr(r.metrics["auroc"], a)]) for a in ("preds", "target")
    )
    found = training_metrics(reports, {c.name: c.weight for c in session.clients.values()})
    assert found["train/auroc"] == pytest.approx(float(binary_auroc(scores, labels)), abs=1e-6)
    for report in reports:
        mine = [torch.cat(list(getattr(report.metrics["auroc"], a))) for a in ("preds", "target")]
        assert report.logged["auroc"] == pytest.approx(float(binary_auroc(*mine)), abs=1e-6)


def logging(step: Callable[[Any, Any], Any]) -> type:
    class Logs(Unvalidated):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = MulticlassConfusionMatrix(4)

        def training_step(self, batch, batch_idx):
            step(self, batch)
            return super().training_step(batch, batch_idx)

    return Logs


REFUSED = {
    "a sum": (lambda m, b: m.log("x", 1.0, reduce_fx="sum"), "reduce_fx='sum'"),
    "a maximum": (lambda m, b: m.log("x", 1.0, reduce_fx=torch.max), "reduce_fx='max'"),
    "a step alone": (lambda m, b: m.log("x", 1.0, on_step=True), "on_epoch=True"),
    "no epoch": (lambda m, b: m.log("x", 1.0, on_epoch=False), "on_epoch=True"),
    "a matrix": (lambda m, b: m.matrix.update(b[1], b[1]) or m.log("x", m.matrix), "(4, 4)"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_option_that_a_round_cannot_honour_is_refused(what, tmp_path: Path):
    step, found = REFUSED[what]
    with refused(TrainingError, "'x'", found):
        fit(logging(step)(), tmp_path / "run")


HONOURED = [
    ("sizes", lambda m: [m.log("x", value, batch_size=n) for value, n in ((1.0, 3), (5.0, 1))], {"x": 2.0}),
    ("a mean", lambda m: [m.log("x", value, reduce_fx=torch.mean) for value in (1.0, 5.0)], {"x": 3.0}),
    ("both", lambda m: m.log("x", 2.0, on_step=True, on_epoch=True), {"x": 2.0}),
    ("neither", lambda m: m.log("x", 2.0, on_step=False, on_epoch=False), {}),
    ("by position", lambda m: m.log("x", 2.0, False, None, False, True, "mean"), {"x": 2.0}),
]


@pytest.mark.parametrize(("what", "log", "found"), HONOURED, ids=[row[0] for row in HONOURED])
def test_an_option_that_means_something_is_honoured(what, log, found):
    module, fabric = Unvalidated(), make_fabric("cpu")
    collect_logs(module, fabric)
    FlatModel(module)
    log(module)
    assert fabric.means() == found
