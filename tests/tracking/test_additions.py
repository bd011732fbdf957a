"""Files that are added to a run in MLflow after its end."""

import pytest
from tracked_sessions import Session, client_of

from fedlit.tracking.mlflow import add_files
from fedlit.tracking.store import noted_run

pytestmark = pytest.mark.usefixtures("impatient")


def test_files_reach_a_run_that_has_ended(uri, tmp_path):
    session = Session(tmp_path, uri)
    session.tracker.finish("FINISHED")
    (file := tmp_path / "roc.png").write_bytes(b"figure")
    store, run_id = noted_run(session.directory)
    assert (store, run_id) == (uri, session.run_id)
    assert add_files(store, run_id, [file], "evaluation") is None
    assert [each.path for each in client_of(uri).list_artifacts(run_id, "evaluation")] == ["evaluation/roc.png"]
    assert client_of(uri).get_run(run_id).info.status == "FINISHED"
    assert "no file" in add_files(f"sqlite:///{tmp_path}/absent.db", run_id, [file], "evaluation")


def test_only_the_user_knows_the_credentials_of_a_store(tmp_path, monkeypatch):
    (tmp_path / "mlflow_run.json").write_text('{"run_id": "1", "tracking_uri": "http://HOST"}')
    assert noted_run(tmp_path, "http://me:secret@HOST") == ("http://me:secret@HOST", "1")
    assert noted_run(tmp_path, "sqlite:///mlflow.db") == ("http://HOST", "1")
    assert noted_run(tmp_path / "another") is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@HOST")
    assert noted_run(tmp_path) == ("http://me:secret@HOST", "1")
