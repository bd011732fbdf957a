"""A server of MLflow that fails in the middle of a run and comes back: nothing is lost, nothing is there twice."""

import json
import math

import pytest
from cutting_proxy import CuttingProxy
from mlflow_server import Server
from runs import Place, free_port, wait_until
from tracked_sessions import Session, history, warnings_in

from fedlit.tracking.base import MetricsFile
from fedlit.tracking.names import is_count, shown_name
from fedlit.tracking.store import connect

ROUNDS = 80
WORDS = (
    f"--data toys.ToyData --model awkward.Slow --model.seconds 0.02 --federation.rounds {ROUNDS} "
    "--federation.workers 1 --name run --logger MLflowTracker --logger.flush_seconds 0.2 --logger.finish_seconds 90"
)


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path, free_port()) as running:
        yield running


def logged(place: Place) -> list[tuple[int, str, float]]:
    file = place.run("run").path / "metrics.csv"
    return MetricsFile(file).rows() if file.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dead", "500", "hang"])
def test_everything_arrives_once(server, tmp_path, how):
    place = Place(tmp_path / "runs")
    command = place.start(f"fit --run_dir {place.path} {WORDS} --logger.tracking_uri {server.uri}",
                          {"MLFLOW_HTTP_REQUEST_TIMEOUT": "3"})  # fmt: skip
    noted = place.run("run").path / "mlflow_run.json"
    assert wait_until(lambda: noted.exists() and last_round(place) > 5, command, 0.02, 120), command.output
    server.break_down(how)
    broken_after = last_round(place)
    assert wait_until(lambda: last_round(place) > broken_after + 20, command, 0.02, 120), command.output
    server.mend()
    assert "did not reach" not in command.succeeded(180)

    client = connect(server.store)
    run = client.get_run(json.loads(noted.read_text())["run_id"])
    assert run.info.status == "FINISHED"
    expected: dict[str, list[tuple[int, float]]] = {}
    for step, key, value in logged(place):
        if not is_count(key):
            expected.setdefault(shown_name(key), []).append((step, value))
    assert max(step for rows in expected.values() for step, _ in rows) == ROUNDS
    assert expected.keys() == run.data.metrics.keys()
    for key, rows in expected.items():
        stored = sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key))
        assert [step for step, _ in stored] == [step for step, _ in rows], key
        assert all(same(one, other) for (_, one), (_, other) in zip(stored, rows, strict=True)), key
    names = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    assert {"config.yaml", "metrics.csv", "best", "predictions"} <= names


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "swallow"])
def test_a_proxy_that_cuts_mlflow_off_for_rounds_2_to_4(server, tmp_path, caplog, impatient, how):
    with CuttingProxy(server.port) as proxy:
        session = Session(tmp_path, proxy.uri, finish_seconds=120)
        for step in range(1, 7):
            if step in (2, 5):
                proxy.mode = how if step == 2 else "pass"
            cuts = proxy.cuts
            session.log({"val/auroc_macro": step / 8, "val/auroc/Mass": math.nan, "val/loss": 1.0}, step)
            arrived = (lambda cuts=cuts: proxy.cuts > cuts + 2) if step in (2, 3, 4) else session.all_arrived
            assert wait_until(arrived, pause=0.02)
        session.tracker.finish("FINISHED")
    expected = {
        "val/auroc_macro": [(step, step / 8) for step in range(1, 7)],
        "val/loss": [(s, 1.0) for s in range(1, 7)],
    }
    found = history(server.store, session.run_id)
    assert [step for step, _ in found.pop("val/auroc/Mass")] == list(range(1, 7))
    assert found == expected
    assert connect(server.store).get_run(session.run_id).info.status == "FINISHED"
    (warning,) = warnings_in(caplog)
    assert "does not accept data" in warning


@pytest.mark.slow
def test_what_a_server_lost_in_an_outage_is_logged_again_at_the_end(server, tmp_path, impatient):
    """A server that comes back with an older copy of its database."""
    session = Session(tmp_path, server.uri, finish_seconds=120)
    session.log({"val/loss": 1.0}, 1)
    assert wait_until(session.all_arrived, pause=0.02)
    database = tmp_path / "mlflow.db"
    before = database.read_bytes()
    session.log({"val/loss": 2.0}, 2)
    assert wait_until(session.all_arrived, pause=0.02)
    server.break_down("dead")
    database.write_bytes(before)
    session.log({"val/loss": 3.0}, 3)
    assert wait_until(lambda: session.tracker._sender._has_failed, pause=0.02)
    server.mend()
    session.tracker.finish("FINISHED")
    assert history(server.store, session.run_id) == {"val/loss": [(1, 1.0), (2, 2.0), (3, 3.0)]}


def same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9) or (math.isnan(one) and math.isnan(other))


def last_round(place: Place) -> int:
    return max((step for step, _, _ in logged(place)), default=0)
