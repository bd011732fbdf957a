"""Runs that differ only in their seed, below a run in MLflow with their means."""

import math

import pytest
from refusals import raising
from tracked_sessions import Session, client_of, history, runs_of, warnings_in

from fedlit.tracking import parents
from fedlit.tracking.base import RunGroup
from fedlit.tracking.mlflow import MLflowTracker

pytestmark = pytest.mark.usefixtures("impatient")

AUROC = {0: (0.5, 0.7), 1: (0.6, 0.6), 2: (0.7, 0.8)}


def trained(folder, uri, seed, **tags):
    """A finished run of a seed, with two rounds."""
    tags = {"fedlit.method": "fedavg", "fedlit.group": "FedAvg-1", "fedlit.seed": str(seed), **tags}
    session = Session(folder, uri, params={"lr": "0.1", "seed": str(seed)}, tags=tags, name=f"fedavg,seed={seed}")
    for step, value in enumerate(AUROC[seed], 1):
        of_class = math.nan if seed == step == 1 else value / 2
        session.log({"val/auroc_macro": value, "val/auroc/Edema": of_class, "client/north/loss": 1.0}, step)
    session.log({"test/federation/n_pos/Edema": 3.0, "test/federation/auroc_macro": seed / 4}, 2)
    session.tracker.finish("FINISHED")
    return session.directory


def grouped(uri, averaged, others=()):
    MLflowTracker(uri).log_groups([RunGroup("fedavg", [*averaged.values(), *others], averaged)])
    found = {run.info.run_name: run for run in runs_of(uri)}
    above = {run.data.tags.get("mlflow.parentRunId") for name, run in found.items() if name != "fedavg"}
    return found["fedavg"], above


def test_a_parent_has_the_means_over_seeds(uri, tmp_path, caplog):
    parent, above = grouped(uri, {seed: trained(tmp_path, uri, seed) for seed in AUROC})
    assert above == {parent.info.run_id}
    assert history(uri, parent.info.run_id) == {
        "val/auroc_macro": [(1, pytest.approx(0.6)), (2, pytest.approx(0.7))],
        "val/auroc/Edema": [(2, pytest.approx(0.35))],  # a seed has none in the first round
        "test/federation/auroc_macro": [(2, 0.25)],
    }
    assert parent.data.params == {"lr": "0.1"}
    assert parent.info.status == "FINISHED"
    tags = {key: parent.data.tags[key] for key in ("fedlit.method", "mlflow.note.content")}
    assert tags == {"fedlit.method": "fedavg", "mlflow.note.content": "mean over seeds 0, 1, 2"}
    assert not {"fedlit.group", "fedlit.seed"} & parent.data.tags.keys()
    assert warnings_in(caplog) == []


def test_a_parent_is_replaced_if_a_group_has_grown_and_kept_otherwise(uri, tmp_path):
    averaged = {seed: trained(tmp_path, uri, seed) for seed in (0, 1)}
    first, again = grouped(uri, averaged)[0].info.run_id, grouped(uri, averaged)[0].info.run_id
    assert first == again
    parent, above = grouped(uri, averaged | {2: trained(tmp_path, uri, 2)})
    assert above == {parent.info.run_id}
    assert client_of(uri).get_run(first).info.lifecycle_stage == "deleted"
    assert parent.data.metrics["1-val/auroc_macro"] == pytest.approx(0.7)


def test_runs_with_other_settings_are_below_it_and_do_not_count(uri, tmp_path):
    parent, above = grouped(uri, {0: trained(tmp_path, uri, 0)}, [trained(tmp_path, uri, 1), tmp_path / "unlogged"])
    assert above == {parent.info.run_id}
    assert parent.data.metrics["1-val/auroc_macro"] == 0.7
    assert parent.data.tags["mlflow.note.content"] == "mean over seed 0"


def test_a_parent_of_the_user_and_deleted_runs_stay(uri, tmp_path):
    deleted, experiment = trained(tmp_path, uri, 0), client_of(uri).get_experiment_by_name("nih").experiment_id
    (run,) = runs_of(uri)
    client_of(uri).delete_run(run.info.run_id)
    own = client_of(uri).create_run(experiment, run_name="fedavg").info.run_id
    averaged = {0: deleted, 1: trained(tmp_path, uri, 1, **{"mlflow.parentRunId": own})}
    parent, above = grouped(uri, averaged)
    assert above == {own}
    assert (parent.info.run_id, parent.data.metrics) == (own, {})


def test_a_store_that_does_not_answer_stops_nothing(uri, tmp_path, monkeypatch, caplog):
    averaged = {0: trained(tmp_path, uri, 0)}
    monkeypatch.setattr(parents, "connect", raising(ConnectionError("refused")))
    MLflowTracker(uri).log_groups([RunGroup("fedavg", list(averaged.values()), averaged)])
    assert ["means over seeds" in text and "refused" in text for text in warnings_in(caplog)] == [True]
