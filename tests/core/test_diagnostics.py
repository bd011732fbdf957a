"""Drift of a round, computed from sums, against the formulas over the clients' updates."""

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import Simulation, simulate
from toys import CLASSES, ToyData, ToyNet

from fedlit.aggregators import CODASCA, Aggregator, FedAvg, FedBN, FedProx, Scaffold
from fedlit.core.diagnostics import squares
from fedlit.core.fabric import make_fabric
from fedlit.core.flat import Layout
from fedlit.core.messages import Mask, Payload
from fedlit.federation.assembly import assemble
from fedlit.federation.federation import Federation
from fedlit.federation.server import drift_metrics
from fedlit.objectives import AUCSaddle
from fedlit.schedules import ConstantSchedule
from fedlit.testing import OwnRows

LAYOUT = Layout.of(ToyNet().double())


def expected(changes: np.ndarray, weights: np.ndarray, owned: np.ndarray) -> dict[str, float]:
    """The diagnostics of updates [K, P] with weights [K], each element's mean over its owners (bool [K, P])."""
    pi = weights[:, None] * owned
    total = pi.sum(0)
    pi_of_mean = np.divide(pi, total, out=np.zeros_like(pi), where=total > 0)
    mean = (pi_of_mean * changes).sum(0)
    spread = (pi_of_mean * changes**2).sum() - (mean**2).sum()
    found = {"drift/client_drift": spread, "drift/update_norm": np.sqrt((mean**2).sum())}
    parts = pi * changes
    clients, own = len(changes), (parts**2).sum()
    if clients > 1 and own > 0:
        pairs = sum(parts[j] @ parts[k] for j in range(clients) for k in range(clients) if j != k)
        found["drift/alignment"] = pairs / ((clients - 1) * own)
    return found


def from_sums(changes: np.ndarray, weights: np.ndarray, masks: list[Mask] | None = None) -> dict[str, float]:
    """The diagnostics as a server computes them: from the sum of the clients' payloads."""
    masks = masks or [Mask.everything(LAYOUT)] * len(changes)
    total = None
    for change, weight, mask in zip(torch.from_numpy(changes), weights.tolist(), masks, strict=True):
        vectors = {"w": weight * change, "squares": weight * squares(LAYOUT, change, weight)}
        payload = Payload(vectors, weight, weight * mask.owned.double())
        total = payload if total is None else (total.add_(payload), total)[1]
    share = torch.where(total.mask_weight > 0, 1 / total.mask_weight, 0.0)
    mean = total.vectors["w"] * LAYOUT.expand(share)
    return drift_metrics(LAYOUT, total, total.vectors["squares"], mean, len(changes))


def updates(clients: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(clients, LAYOUT.size))


def uniform(clients: int) -> np.ndarray:
    return np.full(clients, 1 / clients)


@pytest.mark.parametrize("clients", [2, 3, 8])
def test_with_equal_weights_it_is_the_papers_formula(clients):
    """mean |delta_k|^2 - |mean delta|^2, and (K^2 |mean delta|^2 - sum |delta_k|^2) / ((K - 1) sum |delta_k|^2)."""
    delta = updates(clients) + 0.5
    each, mean = (delta**2).sum(1), (delta.mean(0) ** 2).sum()
    assert from_sums(delta, uniform(clients)) == pytest.approx({
        "drift/client_drift": each.mean() - mean,
        "drift/update_norm": np.sqrt(mean),
        "drift/alignment": (clients**2 * mean - each.sum()) / ((clients - 1) * each.sum()),
    })  # fmt: skip


def test_alignment_is_the_mean_cosine_of_updates_of_equal_length():
    delta = updates(4)
    delta /= np.linalg.norm(delta, axis=1, keepdims=True)
    cosines = delta @ delta.T
    mean = (cosines.sum() - 4) / 12
    assert from_sums(delta, uniform(4))["drift/alignment"] == pytest.approx(mean)


class TestExtremes:
    def test_identical_updates(self):
        found = from_sums(np.repeat(updates(1), 5, axis=0), uniform(5))
        assert found["drift/alignment"] == pytest.approx(1)
        assert found["drift/client_drift"] == pytest.approx(0, abs=1e-9)

    def test_orthogonal_updates(self):
        delta = np.eye(6, LAYOUT.size) * np.arange(1, 7)[:, None]
        found = from_sums(delta, uniform(6))
        assert found["drift/alignment"] == pytest.approx(0, abs=1e-12)
        assert found["drift/client_drift"] == pytest.approx((delta**2).sum() / 6 * 5 / 6)

    def test_opposite_updates(self):
        delta = updates(1)
        found = from_sums(np.concatenate([delta, -delta]), uniform(2))
        assert found["drift/alignment"] == pytest.approx(-1)
        assert found["drift/update_norm"] == pytest.approx(0, abs=1e-12)
        assert found["drift/client_drift"] == pytest.approx((delta**2).sum())

    def test_one_client_has_nobody_to_be_aligned_with(self):
        delta = updates(1)
        assert from_sums(delta, np.ones(1)) == pytest.approx(
            {"drift/client_drift": 0.0, "drift/update_norm": np.linalg.norm(delta)}, abs=1e-9
        )

    def test_clients_that_stand_still_have_no_alignment(self):
        assert from_sums(np.zeros((3, LAYOUT.size)), uniform(3)) == {
            "drift/client_drift": 0.0, "drift/update_norm": 0.0
        }  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shares=st.lists(st.floats(0.01, 1), min_size=1, max_size=6),
    lacking=st.lists(st.integers(0, LAYOUT.num_groups - 1), max_size=20),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_any_updates_weights_and_owners(seed, shares, lacking, scale):
    weights = np.array(shares) / sum(shares)
    masks = [Mask.everything(LAYOUT).lacking(lacking[k :: len(shares)]) for k in range(len(shares))]
    owned = np.stack([LAYOUT.expand(m.owned.double()).expand(LAYOUT.size).numpy() > 0 for m in masks])
    changes = scale * updates(len(shares), seed) * owned
    found, wanted = from_sums(changes, weights, masks), expected(changes, weights, owned)
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-9 * scale**2)
    assert found.get("drift/alignment", 0.0) <= 1 + 1e-9


@dataclass
class Witness(Aggregator):
    """Keeps each client's values at the end of its round, in this process."""

    seen = {}

    def on_client_round_end(self, ctx):
        self.seen[ctx.client.name] = ctx.w.clone()
        return {}


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("weights", ["uniform", "examples"])
@pytest.mark.parametrize(
    "aggregators", [[], [FedBN()], [OwnRows()], [FedBN(), OwnRows(), FedProx(0.3)]], ids=["all", "norm", "rows", "both"]
)
def test_in_rounds(aggregators, weights, participation):
    """With a fully shared model, without its normalisation layers, or with the rows of each client's classes."""
    federation = Federation(
        [Witness(), *aggregators],
        rounds=3,
        schedule=ConstantSchedule(3, "steps"),
        weights=weights,
        participation=participation,
        workers=1,
    )
    torch.manual_seed(0)
    session = assemble(federation, ToyNet(), ToyData(4, labelled=2), make_fabric("cpu", precision="64-true"))
    server, _, _ = session.restore(None)
    for index in range(3):
        rnd = session.round(index)
        before = server.w.clone()
        total, _ = session.engine.run(rnd.cohort, federation.open_round(server, rnd, session), rnd)
        found = federation.close_round(server, total, rnd, session)
        size = session.layout.size
        owned = [session.layout.expand(session.masks[name].owned.double()).expand(size) for name in rnd.cohort]
        changes = [mask * (Witness.seen[name] - before) for name, mask in zip(rnd.cohort, owned, strict=True)]
        own = np.array([session.weights[name] for name in rnd.cohort])
        wanted = expected(torch.stack(changes).numpy(), own, torch.stack(owned).numpy() > 0)
        assert {k: v for k, v in found.items() if k.startswith("drift/")} == pytest.approx(wanted, rel=1e-9)
        assert wanted["drift/client_drift"] > 0


def test_the_norm_is_before_a_server_learning_rate():
    """In the first round, without control variates, it is the same for every rate."""
    torch.manual_seed(0)
    module = ToyNet()
    full, half = (_diagnostics([Scaffold(eta_g)], module, ToyData(2))[0][0] for eta_g in (1.0, 0.5))
    assert full == half
    assert full["drift/update_norm"] > 0


@pytest.mark.parametrize("aggregator", [Scaffold(), CODASCA(eta_g=0.9)], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_norms_of_control_variates(aggregator, participation):
    """The server's norm, and the root mean square over the cohort's clients; primal and dual."""
    torch.manual_seed(0)
    module = ToyNet()
    module.objective = AUCSaddle()
    module.objective.build(len(CLASSES))
    rounds, simulation = _diagnostics([aggregator, FedAvg("uniform")], module, ToyData(4), participation)
    layout, state = simulation.session.layout, simulation.server.aggregators[0]
    kept = {name: s.aggregators[0]["c"] for name, s in dict(simulation.session.engine.client_states()).items()}
    parts = {"": slice(0, layout.slices["dual"].start), "_dual": layout.slices["dual"]}
    for suffix, part in parts.items():
        cohort = [kept[name][part].square().sum() for name in simulation.cohorts[-1]]
        assert rounds[-1][f"drift/c_norm{suffix}"] == pytest.approx(float(state["c"][part].norm()), rel=1e-9)
        assert rounds[-1][f"drift/c_k_norm{suffix}"] == pytest.approx(float(sum(cohort) / len(cohort)) ** 0.5, rel=1e-9)
        assert rounds[-1][f"drift/c_k_norm{suffix}"] > 0


def _diagnostics(aggregators, module, data, participation=1.0) -> tuple[list[dict[str, float]], Simulation]:
    """The logged values and the end of a federation of four rounds with three steps."""

    class Heard(Federation):
        def close_round(self, *args) -> dict[str, float]:
            heard.append(super().close_round(*args))
            return heard[-1]

    heard: list[dict[str, float]] = []
    federation = Heard(aggregators, rounds=4, schedule=ConstantSchedule(3, "steps"), participation=participation)
    return heard, simulate(copy.deepcopy(module), data, federation)
