"""Runs with private steps: what is refused beside them, what they cost, and that it adds up over rounds and resumes."""

import json
import math
from pathlib import Path

import pytest
import torch
from private_toys import EqualClients, PlainNet
from refusals import refused, table
from simulation import federated, simulate
from toys import ToyNet

import fedlit
from fedlit.aggregators import (
    CODA,
    CODASCA,
    DPSGD,
    MOON,
    Ditto,
    GradientDissimilarity,
    LocalSGDAM,
    LocalSGDM,
    Scaffold,
    accounting,
)
from fedlit.core.batches import PoissonStream
from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import CheckpointError, ConfigError
from fedlit.core.fabric import make_fabric
from fedlit.core.schedule import Schedule
from fedlit.data.sampler import Sampler
from fedlit.experiment.experiment import Experiment
from fedlit.federation.assembly import assemble
from fedlit.federation.participation import Cohorts, HighestLoss, Share
from fedlit.federation.privacy import COVERED, SIMULATED, Account
from fedlit.objectives import AUCSaddle, FedLC, FedRS, RatioLoss
from fedlit.reports.compare.card import model_card
from fedlit.schedules import ConstantSchedule, Stage, StageSchedule
from fedlit.tracking.base import MetricsFile, Tracker
from fedlit.tracking.run import Run

PRIVATE = DPSGD(1.0, 1.0, delta=1e-3)


def play(
    *others, module=None, data=None, precision: str = "64-true", private=PRIVATE, schedule=None, **options
) -> None:
    """Play rounds beside DPSGD."""
    federation = federated([*others, private], **options)
    federation.schedule = schedule or federation.schedule
    simulate(module or PlainNet(), data or EqualClients(), federation, precision)


def trained_on(objective) -> PlainNet:
    module = PlainNet()
    module.objective = objective
    objective.build(len(module.classes))
    return module


def sampled() -> EqualClients:
    data = EqualClients()
    data.setup()
    for client in data.clients.values():
        client.train.sampler = Sampler(0.5)
    return data


def staged() -> Schedule:
    return StageSchedule([Stage(2, 1, "steps"), Stage(1, 1, "steps")])


ROWS = [
    ("CODA measures", lambda: play(CODA(0.1), schedule=staged()), ConfigError, "CODA", "measuring"),
    ("an averaged output measures", lambda: play(CODASCA(0.1, output="average"), schedule=staged()), ConfigError,
     "CODASCA", "measuring"),
    ("two gradients", lambda: play(LocalSGDM()), ConfigError, "LocalSGDM", "DPSGD"),
    ("moving averages", lambda: play(LocalSGDAM()), ConfigError, "LocalSGDAM", "DPSGD"),
    ("twice", lambda: play(PRIVATE), ConfigError, "DPSGD and DPSGD"),
    ("an extra loss", lambda: play(MOON()), ConfigError, "MOON", "extra_loss"),
    ("a second model", lambda: play(Ditto()), ConfigError, "Ditto", "second model"),
    ("more batches", lambda: play(GradientDissimilarity()), ConfigError, "GradientDissimilarity", "images"),
    ("control variates of batches", lambda: play(Scaffold(extra_batches=1)), ConfigError, "Scaffold", "images"),
    ("BatchNorm", lambda: play(module=ToyNet()), ConfigError, "body.1", "model.norm"),
    ("FedLC", lambda: play(module=trained_on(FedLC())), ConfigError, "FedLC", "labels"),
    ("FedRS", lambda: play(module=trained_on(FedRS())), ConfigError, "FedRS", "labels"),
    ("RatioLoss", lambda: play(module=trained_on(RatioLoss())), ConfigError, "RatioLoss", "prior"),
    ("a measured start", lambda: play(module=trained_on(AUCSaddle(prior=0.3))), ConfigError, "AUCSaddle",
     "start: zeros"),
    ("a measured share", lambda: play(module=trained_on(AUCSaddle(start="zeros"))), ConfigError, "AUCSaddle", "prior"),
    ("gradient_clip", lambda: play(gradient_clip=1.0), ConfigError, "federation.gradient_clip"),
    ("gradient_clamp", lambda: play(gradient_clamp=1.0), ConfigError, "gradient_clamp"),
    ("compile", lambda: play(compile=True), ConfigError, "federation.compile"),
    ("bf16", lambda: play(precision="bf16-mixed"), ConfigError, "fabric.precision", "bf16"),
    ("losses choose", lambda: play(participation=HighestLoss(1)), ConfigError, "federation.participation",
     "HighestLoss"),
    ("a sampler", lambda: play(data=sampled()), ConfigError, "data.sampler", "'site-0'"),
    ("few patients", lambda: play(data=EqualClients(size=19, batch_size=8)), ConfigError, "'site-0'", "20", "19"),
    ("a large batch", lambda: play(data=EqualClients(batch_size=25)), ConfigError, "data.batch_size", "24", "25"),
]  # fmt: skip


@table(ROWS)
def test_what_would_see_images_without_noise_is_refused(provoke, kind, names):
    with refused(kind, *names):
        provoke()


def test_phases_are_refused():
    private = federated([PRIVATE])

    class Two(Experiment):
        def __init__(self):
            self.phases, self.federation = [type("Phase", (), {"name": "one"})()], private

        def _phase(self, number):
            return self

    with refused(ConfigError, "phases", "epsilon"):
        _ = Two().runs


class Halves(PoissonStream):
    def __init__(self, rate: float) -> None:
        self.rate, self.steps_per_epoch, self.declared, self.named = rate, math.ceil(1 / rate), 100, True


class Recorded(DPSGD):
    def spent(self, state, taken, closer=False):
        return taken[0] * taken[1]


def account(schedule: Schedule, share: float = 1.0, epsilon: float | None = None) -> Account:
    streams = {"a": Halves(0.5), "b": Halves(0.3)}
    given = {"epsilon": epsilon} if epsilon else {"noise": 1.0}
    cohorts = Cohorts(Share(share), ["a", "b"], 9, 0)
    return Account(Recorded(delta=1e-3, **given), 0, streams, schedule, cohorts)


def test_steps_of_all_rounds_are_counted():
    kept = account(ConstantSchedule(2, "epochs"))
    assert [kept.taken(n) for n in (1, 3, 2)] == [{"a": (0.5, 4 * n), "b": (0.3, 8 * n)} for n in (1, 3, 2)]
    assert account(ConstantSchedule(5, "steps")).taken(2) == {"a": (0.5, 10), "b": (0.3, 10)}
    half = account(ConstantSchedule(1, "steps"), share=0.5)
    assert sum(steps for _, steps in half.taken(9).values()) == 9


def test_a_round_beyond_the_budget_is_named():
    kept = account(ConstantSchedule(1, "steps"), epsilon=2.0)
    assert kept.exceeded([{}], 4) == ""
    assert "round 5" in kept.exceeded([{}], 5)
    assert account(ConstantSchedule(1, "steps")).exceeded([{}], 9) == ""


def fitted(folder: Path, rounds: int, **options):
    torch.manual_seed(0)
    return fedlit.fit(
        PlainNet(), EqualClients(batch_size=8), aggregators=[DPSGD(epsilon=1.0, delta=1e-2)], rounds=rounds,
        schedule=ConstantSchedule(2, "steps"), run_dir=folder, workers=1, seed=0, **options,
    )  # fmt: skip


def test_a_run_says_what_it_costs_and_stops_at_its_budget(tmp_path, capsys, monkeypatch):
    pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'fedlit[privacy]'")
    run = fitted(tmp_path, 3)
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if "epsilon" in line and "delta" in line]
    assert len(lines) == 2
    assert all(SIMULATED in line and "PRV" in line for line in lines)
    assert COVERED in printed
    assert "loss" not in printed.replace("val loss", "")
    record = json.loads((run.directory / "privacy.json").read_text())
    assert record["private"] is False
    assert record["why"] == SIMULATED
    assert {each["steps"] for each in record["clients"].values()} == {6}
    assert all(0.95 < each["epsilon"] <= 1 and each["epsilon_prv"] < 1 for each in record["clients"].values())
    assert "train/loss" not in run.metrics.columns
    assert run.metrics["privacy/epsilon"].dropna().is_monotonic_increasing
    assert SIMULATED in model_card(run.directory, 0.95, 20)
    monkeypatch.setattr(accounting, "_prv", lambda spent, delta: math.nan)  # takes half a second
    more = fitted(tmp_path, 4, ckpt_path="last")
    printed = capsys.readouterr().out
    assert "stopped after round 3: round 4 would bring epsilon to" in printed
    assert json.loads((more.directory / "privacy.json").read_text())["rounds"] == 3


def test_a_delta_above_one_patient_is_a_warning():
    pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'fedlit[privacy]'")
    kept = account(ConstantSchedule(1, "steps"))
    kept.aggregator.delta = 0.5
    assert ["delta" in line and "1 / 100" in line for line in kept.lines([{"noise": torch.tensor(1.0)}], 3)[2:]] == [
        True
    ] * 2


def test_a_model_without_measuring_keeps_its_given_start():
    done = simulate(
        trained_on(AUCSaddle(prior=0.3, start="zeros")), EqualClients(), federated([CODASCA(0.1), PRIVATE], rounds=1)
    )
    assert torch.equal(done.start.w[-3:], torch.zeros(3).double())


def test_a_run_is_not_resumed_with_other_private_steps(tmp_path):
    """Also where nothing else compares the configurations. With so little noise PRV is not asked, which is slow."""
    pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'fedlit[privacy]'")

    def run(rounds: int, clip: float = 1.0, noise: float = 0.1, batch_size: int = 8) -> None:
        resume = checkpoint.find(tmp_path / "checkpoints", "last")
        federation = federated([DPSGD(clip, noise, delta=1e-2)], rounds=rounds)
        session = assemble(federation, PlainNet(), EqualClients(batch_size=batch_size), make_fabric("cpu"))
        made = Run(tmp_path, Tracker(), resume is not None)
        assert federation.fit(session, made, resume) == 0
        made.finish("FINISHED")

    run(1)
    for changed, value in {"clip": 2.0, "noise": 0.5, "batch_size": 12}.items():
        with refused(CheckpointError, f"expected DPSGD with {changed}", f"found {value:g}"):
            run(2, **{changed: value})
    run(2)
    spent = [value for _, key, value in MetricsFile(tmp_path / "metrics.csv").rows() if key == "privacy/epsilon"]
    assert len(spent) == 2
    assert spent == sorted(spent)
