"""Drift of a round, computed from sums, against the formulas over the clients' updates."""

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from engine_rounds import opened, run
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import Simulation, simulate
from toys import CLASSES, ToyData, ToyNet

from fedlit.aggregators import CODASCA, Aggregator, FedAvg, FedBN, FedProx, Scaffold
from fedlit.core.flat import Layout
from fedlit.core.messages import Mask, Payload
from fedlit.core.rounds import squares
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


ONE, APART = updates(1), np.eye(6, LAYOUT.size) * np.arange(1, 7)[:, None]
LENGTH, SQUARES = np.linalg.norm(ONE), (APART**2).sum()


@pytest.mark.parametrize(
    ("changes", "drift", "norm", "alignment"),
    [
        (np.repeat(ONE, 5, axis=0), 0, LENGTH, 1),
        (APART, SQUARES / 6 * 5 / 6, SQUARES**0.5 / 6, 0),
        (np.concatenate([ONE, -ONE]), LENGTH**2, 0, -1),
        (ONE, 0, LENGTH, None),
        (np.zeros((3, LAYOUT.size)), 0, 0, None),
    ],
    ids=["identical", "orthogonal", "opposite", "a single client", "standing still"],
)
def test_extremes(changes, drift, norm, alignment):
    """A single client has nobody to be aligned with, nor have clients that stand still."""
    wanted = {"drift/client_drift": drift, "drift/update_norm": norm}
    wanted |= {} if alignment is None else {"drift/alignment": alignment}
    assert from_sums(changes, uniform(len(changes))) == pytest.approx(wanted, abs=1e-9)


@settings(max_examples=30, deadline=None)
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


@pytest.mark.parametrize(
    ("aggregators", "weights", "participation"),
    [([], "uniform", 1.0), ([FedBN(), OwnRows(), FedProx(0.3)], "examples", 0.5)],
    ids=["all", "norm and rows"],
)
def test_in_rounds(aggregators, weights, participation):
    """With a fully shared model, or without its normalisation layers and with the rows of each client's classes."""
    options = {"schedule": ConstantSchedule(3, "steps"), "weights": weights, "participation": participation}
    federation, data = Federation([Witness(), *aggregators], rounds=3, **options), ToyData(4, labelled=2)
    torch.manual_seed(0)
    with opened(federation, ToyNet(), data, precision="64-true") as (session, server):
        for index in range(3):
            before, size = server.w.clone(), session.layout.size
            rnd, total, _ = run(session, server, index)
            found = federation.close_round(server, total, rnd, session)
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


def test_norms_of_control_variates():
    """The server's norm, and the root mean square over the cohort's clients; primal and dual."""
    torch.manual_seed(0)
    module = ToyNet()
    module.objective = AUCSaddle()
    module.objective.build(len(CLASSES))
    rounds, simulation = _diagnostics([CODASCA(eta_g=0.9), FedAvg("uniform")], module, ToyData(4), 0.5)
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
