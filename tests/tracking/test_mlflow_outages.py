"""A server of MLflow that fails in the middle of a run and comes back: nothing is lost, nothing is there twice."""

import json
import math
from pathlib import Path

import pytest
from mlflow_server import Server
from proxies import CuttingProxy
from runs import Place, free_port, preload, wait_until
from tracked_sessions import Session, history, warnings_in

from fedlit.tracking.base import MetricsFile
from fedlit.tracking.names import is_count, shown_name
from fedlit.tracking.store import connect

ROUNDS = 60
WORDS = (
    f"--data toys.ToyData --model awkward.Slow --model.seconds 0.035 --federation.rounds {ROUNDS} "
    "--federation.workers 1 --name run --logger MLflowTracker --logger.flush_seconds 0.2 --logger.finish_seconds 90"
)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    preload("fedlit.tracking.imported_mlflow")
    folder = tmp_path_factory.mktemp("server")
    connect(f"sqlite:///{folder}/mlflow.db")
    with Server(folder, free_port()) as server:
        yield server


@pytest.fixture
def server(running):
    """One server for all tests, which answers when each begins."""
    running.mend()
    return running


def logged(place: Place) -> list[tuple[int, str, float]]:
    file = place.run("run").path / "metrics.csv"
    return MetricsFile(file).rows() if file.exists() else []


@pytest.mark.slow
def test_everything_arrives_once(server, tmp_path):
    """A server that answers 500, does not answer, and dies, in a run that goes on meanwhile."""
    place = Place(tmp_path / "runs")
    command = place.start(f"fit --run_dir {place.path} {WORDS} --logger.tracking_uri {server.uri}",
                          {"MLFLOW_HTTP_REQUEST_TIMEOUT": "3"})  # fmt: skip
    noted = place.run("run").path / "mlflow_run.json"
    assert wait_until(lambda: noted.exists() and last_round(place) > 3, command, 0.02, 120), command.output
    client, run_id = connect(server.store), json.loads(noted.read_text())["run_id"]

    def stored_round() -> int:
        return max((metric.step for metric in client.get_metric_history(run_id, shown_name("train/loss"))), default=0)

    broken_after = 0
    for how in ("500", "hang", "dead"):
        assert wait_until(lambda after=broken_after: stored_round() > after, command, 0.2, 120), command.output
        server.break_down(how)
        broken_after = last_round(place)
        assert wait_until(lambda after=broken_after: last_round(place) > after + 4, command, 0.02, 120), command.output
        server.mend()
    printed = command.succeeded(180)
    assert "did not reach" not in printed
    assert f"{server.uri}/#/experiments/" in printed

    run = client.get_run(run_id)
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
def test_a_proxy_that_cuts_mlflow_off_for_some_rounds(server, tmp_path, caplog, impatient):
    modes = {1: "pass", 2: "cut", 3: "cut", 4: "pass", 5: "swallow", 6: "swallow", 7: "pass"}
    with CuttingProxy(server.port) as proxy:
        session = Session(tmp_path, proxy.uri, finish_seconds=120)
        for step, proxy.mode in modes.items():
            cuts = proxy.cuts
            session.log({"val/auroc_macro": step / 8, "val/auroc/Mass": math.nan, "val/loss": 1.0}, step)
            arrived = session.all_arrived if proxy.mode == "pass" else lambda cuts=cuts: proxy.cuts > cuts + 2
            assert wait_until(arrived, pause=0.02)
        session.tracker.finish("FINISHED")
    expected = {"val/auroc_macro": [(step, step / 8) for step in modes], "val/loss": [(step, 1.0) for step in modes]}
    found = history(server.store, session.run_id)
    assert [step for step, _ in found.pop("val/auroc/Mass")] == list(modes)
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
    database = Path(server.store.removeprefix("sqlite:///"))
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
