"""A server of MLflow that fails in the middle of a run and comes back: nothing is lost, nothing is there twice."""

import json
import math

import pytest
from mlflow_server import Server
from runs import Place, free_port, wait_until

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


def same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9) or (math.isnan(one) and math.isnan(other))


def last_round(place: Place) -> int:
    return max((step for step, _, _ in logged(place)), default=0)
