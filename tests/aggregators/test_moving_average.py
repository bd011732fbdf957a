"""The moving average of the server's model: what is scored, saved and exported, and that it trains nothing."""

from pathlib import Path

import pytest
import torch
from canon_oracle import state
from simulation import federated, simulate
from toys import ToyData, ToyNet

from fedlit.aggregators import Aggregator, FedAvgM, FedBN, MovingAverage, Scaffold
from fedlit.core.checkpoints import checkpoint
from fedlit.core.fabric import make_fabric
from fedlit.federation.assembly import assemble
from fedlit.federation.evaluation import client_views, evaluate_sets
from fedlit.federation.session import Session
from fedlit.testing import OwnRows
from fedlit.tracking.base import MetricsFile, Tracker
from fedlit.tracking.run import Run


def models(aggregators: list[Aggregator], rounds: int = 3) -> list[dict[str, torch.Tensor]]:
    """The server's weights and statistics after each round, and what is scored."""
    kept = []

    def keep(done):
        kept.append({"w": done.server.w.clone(), "stats": done.server.stats.clone(), "scored": done.server.scored})

    torch.manual_seed(0)
    simulate(ToyNet(), ToyData(3, labelled=2), federated([*aggregators, OwnRows()], rounds), after_round=keep)
    return kept


def test_the_average_is_that_of_the_rounds_and_training_goes_on_without_it():
    others = [Scaffold(), FedAvgM()]
    plain, before, after = models(others), models([MovingAverage(0.8), *others]), models([*others, MovingAverage(0.8)])
    average = {}
    for without, one, other in zip(plain, before, after, strict=True):
        for name in ("w", "stats"):
            assert torch.equal(without[name], one[name])
            assert torch.equal(without[name], other[name])
            average[name] = 0.8 * average.get(name, without[name]) + 0.2 * without[name]
            torch.testing.assert_close(one["scored"][name], average[name], rtol=0, atol=1e-12)
            assert torch.equal(one["scored"][name], other["scored"][name])
        assert without["scored"] == {}


def fit(path: Path, rounds: int, resume: Path | None = None, others: tuple[Aggregator, ...] = ()) -> Session:
    """A federation that keeps everything in ``path``."""
    torch.manual_seed(0)
    federation = federated([MovingAverage(0.7), *others], rounds, checkpoint_every=1, workers=1)
    session = assemble(federation, ToyNet(), ToyData(3), make_fabric("cpu"))
    run = Run(path, Tracker(), resume is not None)
    assert federation.fit(session, run, resume) == 0
    run.finish("FINISHED")
    return session


def last(path: Path) -> Path:
    return checkpoint.find(path / "checkpoints", "last")


def test_a_resumed_run_continues_the_average_bit_for_bit(tmp_path):
    fit(tmp_path / "whole", 3)
    fit(tmp_path / "parts", 1)
    fit(tmp_path / "parts", 3, last(tmp_path / "parts"))
    whole, parts = (torch.load(last(tmp_path / p) / "server.pt", weights_only=True) for p in ("whole", "parts"))
    assert whole.keys() == parts.keys() == {"w", "stats", "scored/w", "scored/stats"}
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert not torch.equal(whole["w"], whole["scored/w"])


def test_what_is_scored_is_what_is_tested_exported_and_started_from(tmp_path):
    session = fit(tmp_path, 3)
    server, _, _ = session.restore(last(tmp_path))
    module = ToyNet()
    module.load_state_dict(checkpoint.tensors(last(tmp_path)), strict=False)
    module.eval()
    exported = state(session.model(server))
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            assert torch.equal(tensor, exported[name])
    for part in ("val", "test"):
        for scored in evaluate_sets(session, server, part)["federation"]:
            images = getattr(session.data.clients[scored.view.client], part).tensors[0]
            torch.testing.assert_close(scored.scores, module(images).detach(), rtol=0, atol=1e-6)
    logged = {key: value for step, key, value in MetricsFile(tmp_path / "metrics.csv").rows() if step == 3}
    parts = [client.val.tensors for client in session.data.clients.values()]
    losses = [module.objective(module(images), labels).item() for images, labels in parts]
    assert logged["val/loss_client_mean"] == pytest.approx(sum(losses) / len(losses), abs=1e-5)


def test_parts_that_clients_keep_are_scored_as_they_are(tmp_path):
    session = fit(tmp_path, 3, others=(FedBN(),))
    server, _, _ = session.restore(last(tmp_path))
    states, norm = dict(session.engine.client_states()), session.layout.slices["norm"]
    for scored in session.engine.evaluate(
        client_views(session.data, "val"), session.to_score(server, session.round(0))
    ):
        client = scored.view.client
        model = session.model(server, client, states[client]).eval()
        assert torch.equal(session.server_model.w[norm], states[client].w)
        assert torch.equal(session.server_model.w[: norm.start], server.scored["w"][: norm.start])
        images = session.data.clients[client].val.tensors[0]
        torch.testing.assert_close(scored.scores, model(images).detach(), rtol=0, atol=1e-6)
