"""Errors of clients and of worker processes: the message names the client, and no state is kept."""

import os
import signal

import pytest
import torch
from awkward import Stumbling
from engine_rounds import opened, play_round, run
from refusals import refused
from toys import ToyData, ToyNet

from fedlit.aggregators import Aggregator, Scaffold
from fedlit.core.errors import TrainingError, WorkerError
from fedlit.federation.engines import base
from fedlit.federation.federation import Federation


class Exploding(Aggregator):
    """Makes one client's update infinite."""

    def on_client_round_end(self, ctx):
        return {"boom": torch.full((3,), torch.inf if ctx.client.name == "site-2" else 1.0)}


IN_A_WORKER = "training client 'site-1' failed in a worker process(.|\\n)*awkward.py(.|\\n)*this client has had enough"
FAILURES = {
    # site-1 has 14 images in batches of 4: its fourth batch holds 2
    "a NaN loss": (lambda: Stumbling(what="nan"), Scaffold, (TrainingError, "'site-1', round 2", "step 4", "nan")),
    "an infinite update": (ToyNet, Exploding,
                           (TrainingError, "'site-2', round 2: 'boom' of Exploding")),
}  # fmt: skip


@pytest.mark.parametrize(("failure", "workers"), [("a NaN loss", 1), ("a NaN loss", 2), ("an infinite update", 1)])
def test_a_value_that_is_not_finite_names_client_and_round(failure, workers):
    make_module, aggregator, message = FAILURES[failure]
    with opened(Federation([aggregator()], rounds=2), make_module(), ToyData(), workers) as (session, server):
        with refused(*message):
            run(session, server, 1)
        assert session.engine.client_states() == {}


@pytest.mark.parametrize(
    ("workers", "jobs", "message"), [(1, 1, "has had enough"), (2, 1, IN_A_WORKER), (2, 64, IN_A_WORKER)]
)
def test_an_exception_names_the_client_and_no_state_is_kept(workers, jobs, message, monkeypatch):
    monkeypatch.setattr(base, "JOBS", jobs)
    with opened(Federation([], rounds=1), Stumbling(what="raise"), ToyData(), workers) as (session, server):
        with pytest.raises((RuntimeError, ArithmeticError), match=message):
            run(session, server)
        assert session.engine.client_states() == {}


def test_a_killed_worker_is_an_error():
    with (
        opened(Federation([], rounds=1), Stumbling(what="kill"), ToyData(), 2) as (session, server),
        refused(WorkerError, "code -9", "federation.workers"),
    ):
        run(session, server)


@pytest.mark.slow
def test_a_worker_killed_while_idle_is_an_error_at_the_next_round():
    with opened(Federation([], rounds=2), ToyNet(), ToyData(), 2) as (session, server):
        play_round(session, server)
        process = session.engine._pool._workers[1][0]
        os.kill(process.pid, signal.SIGKILL)
        process.join(10)
        with refused(WorkerError, "worker process 1"):
            play_round(session, server, 1)
