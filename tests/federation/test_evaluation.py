"""From scores to metrics: pooled and mean kept apart, personal models, many clients."""

import csv
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_rounds import opened
from rich.filesize import decimal
from runs import Kept
from sklearn.metrics import roc_auc_score
from toys import CLASSES, ToyData, ToyNet

import fedlit
from fedlit.aggregators import FedBN, LocalOnly, PersonalHeads, Scaffold, SurgicalHeads
from fedlit.core.fabric import make_fabric
from fedlit.core.messages import ClientData, ClientReport, ServerState
from fedlit.data.schemes import by_sharing
from fedlit.experiment.run import test_metrics as metrics_of
from fedlit.federation.assembly import assemble
from fedlit.federation.engines.scores import Scores, View
from fedlit.federation.evaluation import client_metrics, evaluate_sets, pooled_metrics, training_metrics
from fedlit.federation.federation import Federation
from fedlit.federation.session import Session
from fedlit.metrics.tally import Tally
from fedlit.schedules import ConstantSchedule
from fedlit.tracking.base import MetricsFile, Tracker
from fedlit.tracking.run import Run


def scores(client: str, seed: int, shift: float = 0.0, size: int = 40) -> Scores:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (size, 3), generator=g).float()
    values = labels + torch.randn(size, 3, generator=g) + shift
    return Scores(View(client, client, "val"), size, values, labels, {"loss": float(seed)})


def test_pooled_and_client_mean_are_different_numbers_with_different_names():
    """Two sites whose scores differ by a constant: each ranks its own images well, together they do not."""
    one, two = scores("a", 1), scores("b", 2, shift=5.0)
    metrics = pooled_metrics([one, two], CLASSES, "val")
    together = torch.cat([one.scores, two.scores]), torch.cat([one.labels, two.labels])
    for i, name in enumerate(CLASSES):
        assert metrics[f"val/auroc/{name}"] == pytest.approx(
            roc_auc_score(together[1][:, i], together[0][:, i]), abs=1e-12
        )
    own = [roc_auc_score(s.labels, s.scores) for s in (one, two)]
    assert metrics["val/auroc_client_mean_macro"] == pytest.approx(sum(own) / 2, abs=1e-12)
    assert metrics["val/auroc_client_mean_macro"] > metrics["val/auroc_macro"] + 0.1
    assert metrics["val/loss"] == 1.5


def test_logged_values_of_clients_stand_apart_if_asked_for():
    several = [scores("a", 1), scores("b/c", 4)]
    for each, dice in zip(several, (0.25, 0.75), strict=True):
        each.logged["val_dice"] = dice
    metrics = pooled_metrics(several, CLASSES, "test/federation", apart=True)
    by_client = {key: value for key, value in metrics.items() if "_by_client/" in key and "dice" in key}
    assert by_client == {
        "test/federation/dice_by_client/a": 0.25, "test/federation/dice_by_client/b_c": 0.75
    }  # fmt: skip
    assert metrics["test/federation/dice_client_mean"] == 0.5
    assert not any("by_client" in key for key in pooled_metrics(several, CLASSES, "val"))


def test_a_logged_value_never_takes_the_place_of_an_auroc():
    one = scores("a", 1)
    expected = pooled_metrics([one], CLASSES, "val")
    one.logged |= {"val_auroc_macro": 7.0, "val_f1": 0.5}
    metrics = pooled_metrics([one], CLASSES, "val")
    assert metrics["val/auroc_macro"] == expected["val/auroc_macro"]
    assert (metrics["val/val_auroc_macro"], metrics["val/f1"]) == (7.0, 0.5)
    assert client_metrics([one], (), CLASSES)["client/a/val_auroc_macro"] == 7.0


def test_a_class_without_both_kinds_is_nan_with_its_support_and_left_out_of_the_mean():
    one = scores("a", 1)
    one.labels[:, 1] = 0
    metrics = pooled_metrics([one], CLASSES, "val")
    assert math.isnan(metrics["val/auroc/Effusion"])
    assert (metrics["val/n_pos/Effusion"], metrics["val/n_neg/Effusion"]) == (0, 40)
    defined = [metrics[f"val/auroc/{n}"] for n in ("Edema", "Nodule")]
    assert metrics["val/auroc_macro"] == pytest.approx(sum(defined) / 2)


def test_training_loss_is_the_weighted_mean_over_the_cohort():
    reports = [ClientReport("a", 3, 10, 1.0, 0.1, 8, {"x": 4.0}), ClientReport("b", 3, 30, 2.0, 0.1, 8)]
    metrics = training_metrics(reports, {"a": 0.25, "b": 0.75, "c": 5.0})
    assert metrics == {"train/loss": pytest.approx(1.75), "train/x": 4.0}


Fitted = tuple[Session, Run, ServerState]


def fit(data, aggregators, tmp_path, module=ToyNet, clients=None) -> Fitted:
    """A federation after two rounds, its run, and the state of its server."""
    federation = Federation(aggregators, rounds=2, clients=clients, schedule=ConstantSchedule(2, "steps"), workers=1)
    session = assemble(federation, module(), data, make_fabric("cpu"))
    run = Run(tmp_path / "run", Tracker())
    assert federation.fit(session, run) == 0
    run.finish("FINISHED")
    return session, run, session.restore(run.checkpoints / "round-000002")[0]


class Strict(ToyNet):
    def validation_step(self, batch, batch_idx):
        assert not self.training
        return super().validation_step(batch, batch_idx)


def test_with_many_clients_their_curves_are_quartiles_and_a_table(tmp_path):
    _, run, _ = fit(ToyData(clients=33, size=4), [], tmp_path)
    keys = {key for _, key, _ in run.metrics.rows()}
    assert "client/q50/auroc_macro" in keys
    assert not any(key.startswith("client/site") for key in keys)
    with (run.directory / "client_metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {r["key"].split("/")[1] for r in rows} == {f"site-{k}" for k in range(33)}
    losses = [float(r["value"]) for r in rows if r["key"].endswith("/train_loss") and r["step"] == "2"]
    logged = {key: value for step, key, value in run.metrics.rows() if step == 2}
    for share in (25, 50, 75):
        assert logged[f"client/q{share}/train_loss"] == pytest.approx(np.percentile(losses, share))
    assert (run.directory / "client_metrics.parquet").exists()


class WithServerTest(ToyData):
    """Toy data with a test set that no client owns."""

    def setup(self, stage=None) -> None:
        super().setup(stage)
        self.test_sets = {"external": self._part(999, 30, range(3))}


def test_a_global_model_is_scored_in_evaluation_mode_on_the_servers_test_sets_too(tmp_path):
    session, _, server = fit(WithServerTest(), [], tmp_path, Strict)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sets = evaluate_sets(session, server, "test")
    assert {name: sum(s.examples for s in group) for name, group in sets.items()} == {
        "federation": 12 + 14 + 16,
        "external": 30,
    }


def test_personal_models_are_scored_by_their_own_and_have_no_global_model(tmp_path):
    session, _, server = fit(WithServerTest(), [FedBN()], tmp_path)
    sets = evaluate_sets(session, server, "test")
    assert set(sets) == {"federation", *(f"external by site-{k}" for k in range(3))}
    one, two = (sets[f"external by site-{k}"][0] for k in range(2))
    assert one.examples == two.examples == 30
    assert not torch.equal(one.scores, two.scores)
    by_client = {s.view.client: s for s in sets["federation"]}
    # the same images through another client's model score differently
    data = session.data.clients
    swapped = ClientData("site-0", CLASSES, data["site-0"].train, None, data["site-1"].test)
    session.engine._pool.worker.program.data["site-0"] = swapped
    other = evaluate_sets(session, server, "test")["federation"][0]
    assert not torch.equal(other.scores, by_client["site-1"].scores)


@pytest.fixture(scope="module")
def heads(tmp_path_factory) -> Fitted:
    """Two classes are labelled at each of three clients, which keep their own heads."""
    return fit(WithServerTest(labelled=2), [PersonalHeads()], tmp_path_factory.mktemp("heads"))


@pytest.fixture(scope="module")
def surgical(tmp_path_factory) -> Fitted:
    """The same clients with one head."""
    return fit(WithServerTest(labelled=2), [SurgicalHeads()], tmp_path_factory.mktemp("surgical"))


def test_a_class_counts_only_where_a_personal_head_has_learned_it(heads):
    session, _, server = heads
    sets = evaluate_sets(session, server, "test")
    for name, client in session.clients.items():
        lacking = [c not in client.classes for c in CLASSES]
        (own,) = (s for s in sets["federation"] if s.view.client == name)
        for scored in (own, *sets[f"external by {name}"]):
            assert scored.labels.isnan().all(0).tolist() == lacking
    assert session.learned("site-0") == set(session.clients["site-0"].classes)


def test_means_of_personal_heads_have_keys_of_their_own_where_they_are_of_other_images(heads, surgical):
    """The same key would mix a mean over each client's classes with a mean over all classes and images."""
    own, one = (
        metrics_of(session, evaluate_sets(session, server, "test"), None) for session, _, server in (heads, surgical)
    )
    assert not [key for key in own if key.endswith("/auroc_macro")]
    assert own["test/federation/auroc_own_macro"] == own["test/federation/auroc_own_macro"]
    assert "test/external by site-0/auroc_own_macro" in own
    ranked = [own[f"test/federation/n_pos/{c}"] + own[f"test/federation/n_neg/{c}"] for c in CLASSES]
    assert own["test/federation/auroc_images"] == sum(ranked) / len(ranked)
    assert "test/federation/auroc_macro" in one
    assert not [key for key in one if "own" in key]
    assert one["test/federation/auroc_images"] > own["test/federation/auroc_images"]


def test_surgical_heads_give_one_model_that_knows_every_class(surgical):
    session, _, server = surgical
    sets = evaluate_sets(session, server, "test")
    assert set(sets) == {"federation", "external"}
    assert session.learned("site-0") == session.learned(None) == set(CLASSES)
    assert not torch.cat([s.labels for s in sets["federation"]]).isnan().any()


def test_what_the_only_client_does_not_label_is_unknown_and_others_data_is_tested_too(tmp_path):
    session, _, server = fit(WithServerTest(labelled=2), [SurgicalHeads()], tmp_path, clients=["site-1"])
    sets = evaluate_sets(session, server, "test")
    assert set(sets) == {"federation", "site-0", "site-2", "external"}
    lacking = [c not in session.clients["site-1"].classes for c in CLASSES]
    assert sum(lacking) == 1
    for scores in sets.values():
        assert scores[0].labels.isnan().all(0).tolist() == lacking


def test_shared_and_unique_classes_have_means_of_their_own():
    schemes = {"a": ("Edema", "Effusion"), "b": ("Effusion", "Nodule"), "c": ("Effusion", "Nodule")}
    assert by_sharing(schemes) == {"shared": ("Effusion",), "partly": ("Nodule",), "unique": ("Edema",)}
    metrics = pooled_metrics([scores("a", 1)], CLASSES, "test/x", schemes)
    assert metrics["test/x/auroc_unique"] == metrics["test/x/auroc/Edema"]
    assert metrics["test/x/auroc_shared"] == metrics["test/x/auroc/Effusion"]
    assert by_sharing({"a": CLASSES, "b": CLASSES}) == {}


def as_told(each: Scores, below: int) -> Scores:
    """The same from a site that sends histograms, and nothing of a class with few images."""
    return replace(each, scores=None, labels=None, tally=Tally.of(each.scores, each.labels, CLASSES, below))


@pytest.mark.parametrize("shift", [-3.0, 0.0, 3.0])
def test_images_that_a_site_does_not_count_are_in_the_bound(shift):
    large, few = scores("a", 1, size=400), scores("b", 2, shift, size=60)
    few.labels[9:, 0] = 0
    few.labels[9:, 1] = math.nan
    exact = pooled_metrics([large, few], CLASSES, "val")
    told = pooled_metrics([as_told(large, 10), as_told(few, 10)], CLASSES, "val")
    for name in CLASSES:
        away = abs(told[f"val/auroc/{name}"] - exact[f"val/auroc/{name}"])
        assert away <= told[f"val/auroc_within/{name}"] + 1e-12
    assert told["val/n_pos/Edema"] == exact["val/n_pos/Edema"] - few.labels[:, 0].sum()
    assert told["val/auroc_within/Edema"] > 0.01
    assert told["val/auroc_within/Nodule"] < 0.01  # enough of both there


def test_a_class_that_a_client_does_not_label_hides_nothing():
    large, other = scores("a", 1, size=400), scores("b", 2, size=60)
    other.labels[:, 2] = math.nan
    told = [as_told(large, 10), as_told(other, 10)]
    schemes = {"a": CLASSES, "b": CLASSES[:2]}
    name = f"val/auroc_within/{CLASSES[2]}"
    assert pooled_metrics(told, CLASSES, "val", schemes)[name] < 0.01
    assert pooled_metrics(told, CLASSES, "val")[name] > 0.01
    for each in told:
        each.mask_classes([False, False, each is told[1]])
    assert pooled_metrics(told, CLASSES, "val")[name] < 0.01


def test_what_leaves_a_site_is_vectors_weights_and_counts(tmp_path):
    """A payload holds vectors of the model's sizes, the client's weight and which groups it shares; nothing else."""
    with opened(Federation([FedBN()], rounds=1), ToyNet(), ToyData()) as (session, server):
        rnd, layout = session.round(0), session.layout
        replies = list(session.engine._pool.train(rnd.cohort, {}, session.broadcast(server, rnd), rnd))
    for payload, [(_, report)] in replies:
        assert set(vars(payload)) == {"vectors", "weight", "mask_weight"}
        sizes = {"w": layout.size, "stats": layout.stats_size, "squares": 2 * layout.num_groups}
        assert {n: v.numel() for n, v in payload.vectors.items()} == sizes
        assert not payload.vectors["w"][layout.slices["norm"]].any()
        assert not payload.vectors["stats"].any()
        assert payload.mask_weight.shape == (layout.num_groups,)
        assert payload.weight == session.weights[report.client]
        kept = layout.stats_size + sum(part.stop - part.start for part in session.masks[report.client].unshared(layout))
        assert report.bytes_up == payload.nbytes - 4 * kept


WHAT_LEAVES = {
    "everything": ([], 3, "w [483], statistics [8], squared norms [34], its weight and which parts it shares"),
    "heads": ([PersonalHeads(), Scaffold()], 3, "w [48 of 483], statistics [8], c of Scaffold [48 of 483], squares of "
              "Scaffold [2], squared norms [34], its weight and which parts it shares; head stays with the client"),
    "nothing": ([LocalOnly()], 3, "squared norms [34], its weight and which parts it shares; body and norm and head "
                "and statistics stay with the client"),
    "rows": ([FedBN(), SurgicalHeads()], 2, "w [330 of 483], squared norms [34], its weight and which parts it shares; "
             "norm and statistics stay with the client; head (Nodule) is not sent"),
}  # fmt: skip


@pytest.mark.parametrize("case", WHAT_LEAVES)
def test_the_list_of_what_leaves_a_site_follows_the_masks(case, tmp_path):
    aggregators, labelled, wanted = WHAT_LEAVES[case]
    _, run, _ = fit(ToyData(4, labelled=labelled), aggregators, tmp_path)
    up = next(value for _, key, value in MetricsFile(run.directory / "metrics.csv").rows() if key == "bytes/up")
    clients = ["a site sends"] if labelled == 3 else ["site-0, site-3 send", "site-1 sends", "site-2 sends"]
    lines = (run.directory / "leaves_a_site.txt").read_text().splitlines()
    starts = [line.partition(": ")[0] for line in lines]
    assert starts == [f"each round {sending} {decimal(int(up / 4))}" for sending in clients]
    assert lines[0].endswith(f": {wanted}")


def test_each_evaluation_scores_the_test_sets_and_nothing_else_changes(tmp_path):
    rows, weights, module = {}, [], ToyNet()
    options = {"rounds": 3, "eval_every": 2, "schedule": ConstantSchedule(2, "steps"), "workers": 1, "name": "one"}
    for name in ("without", "with"):
        fitted = fedlit.fit(module, ToyData(), **options, run_dir=tmp_path / name, test_curves=name == "with")
        kept = Kept(fitted.directory)
        rows[name] = [row for row in kept.metrics() if not row[1].startswith("client/")]
        weights.append(kept.tensors()["server/w"])
    assert (weights[0] == weights[1]).all()
    assert [row for row in rows["with"] if not row[1].startswith("test_curve/")] == rows["without"]

    def values(key: str) -> dict[int, float]:
        return {step: float(value) for step, name, value in rows["with"] if name == key}

    curve, validation = values("test_curve/federation/auroc_macro"), values("val/auroc_macro")
    assert curve.keys() == validation.keys() == {2, 3}
    # the last point is the score of the model that is tested then
    best = max(validation, key=lambda step: (validation[step], -step))
    assert list(values("test/federation/auroc_macro").values()) == [pytest.approx(curve[best])]
