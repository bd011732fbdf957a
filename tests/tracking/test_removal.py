"""Runs that are removed together with their runs in MLflow."""

from pathlib import Path

import pytest
from refusals import refused
from tracked_sessions import Session, client_of, history, runs_of

from fedlit.core.errors import ConfigError
from fedlit.experiment.past_runs import remove_run
from fedlit.reports.compare.mlflow_runs import MLflowRuns
from fedlit.tracking.base import RunGroup
from fedlit.tracking.mlflow import MLflowTracker
from fedlit.tracking.run import Run

pytestmark = pytest.mark.usefixtures("impatient")


def test_a_run_its_artifacts_and_an_empty_parent_are_removed(uri, tmp_path):
    sessions = [Session(tmp_path, uri, name=f"seed={seed}") for seed in (0, 1)]
    for session in sessions:
        (session.directory / "config.yaml").write_text("seed: 0\n")
        session.tracker.log_artifact(session.directory / "config.yaml")
        session.tracker.finish("FINISHED")
    averaged = {seed: session.directory for seed, session in enumerate(sessions)}
    sessions[0].tracker.log_groups([RunGroup("group", list(averaged.values()), averaged)])
    ids = [session.run_id for session in sessions]
    artifacts = Path(client_of(uri).get_run(ids[0]).info.artifact_uri.removeprefix("file://"))
    assert (artifacts / "config.yaml").exists()
    assert remove_run(sessions[0].directory).endswith(" and its run in MLflow with its artifacts")
    assert not sessions[0].directory.exists()
    assert not artifacts.exists()
    assert sorted(run.info.run_name for run in runs_of(uri)) == ["group", "seed=1"]
    remove_run(sessions[1].directory)
    assert runs_of(uri) == []


def test_a_run_is_kept_if_its_store_is_not_there(uri, tmp_path, monkeypatch):
    session = Session(tmp_path, uri)
    session.tracker.finish("FINISHED")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    with refused(ConfigError, "mlflow.db", "--tracking_uri"):
        remove_run(session.directory)
    assert session.directory.exists()
    assert "no longer" not in remove_run(session.directory, f"sqlite:///{tmp_path}/mlflow.db")
    assert not session.directory.exists()


def test_a_run_that_mlflow_no_longer_has_is_removed(uri, tmp_path):
    session = Session(tmp_path, uri)
    session.tracker.finish("FINISHED")
    note = session.directory / "mlflow_run.json"
    note.write_text(note.read_text().replace(session.run_id, "0" * 32))
    assert remove_run(session.directory).endswith("; MLflow no longer had it")


def test_phases_are_shown_below_their_run_and_removed_with_it(uri, tmp_path):
    tracker, path = MLflowTracker(uri, flush_seconds=0.02), tmp_path / "runs" / "nih" / "one"
    whole = Run(path, tracker, resumed=True, config="seed: 0\n")
    whole.announce()
    for name, status in (("source", "KILLED"), ("source", "FINISHED"), ("warm-up", "FINISHED")):
        run = Run(path / "phases" / name, tracker.of_phase(), (path / "phases" / name).exists(), config="seed: 0\n")
        run.start({"fedlit.phase": name}, 0)
        run.log({"val/auroc_macro": 0.5}, 1)
        run.finish(status)
        if status == "KILLED":
            statuses = {run.info.run_name: run.info.status for run in runs_of(uri)}
            assert statuses == {"one": "KILLED", "one/source": "KILLED"}
    whole.start({}, 0)
    whole.log({"val/auroc_macro": 0.7}, 1)
    whole.finish("FINISHED")
    tracker.log_groups([RunGroup("group", [path], {0: path})])
    by_name = {run.info.run_name: run for run in runs_of(uri)}
    above = {name: run.data.tags.get("mlflow.parentRunId") for name, run in by_name.items()}
    ids = {name: run.info.run_id for name, run in by_name.items()}
    phases = {"one/source": ids["one"], "one/warm-up": ids["one"]}
    assert above == {"group": None, "one": ids["group"], **phases}
    assert {run.info.status for run in by_name.values()} == {"FINISHED"}
    assert history(uri, ids["one"]) == {"val/auroc_macro": [(1, 0.7)]}
    compared, _ = MLflowRuns(uri, tmp_path / "downloaded").search("nih", {})
    assert [run.name for run in compared] == ["one"]
    remove_run(path)
    assert runs_of(uri) == []
