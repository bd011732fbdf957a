"""Attacks on one patient at a site that trains only with differential privacy: answers with less noise than charged."""

import copy
from dataclasses import replace

import pytest
import torch
from at_sites import classifier
from attacker import AttackerHere, write_site
from torch.utils.data import TensorDataset

from fedlit.aggregators.accounting import Steps, epsilon_of
from fedlit.core.examples import fetch
from fedlit.sites.messages import FAILED, REPLY
from fedlit.sites.own_data import OwnData, read_settings

pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'fedlit[privacy]'")

RULE = {"epsilon": 8.0, "delta": 1e-4, "patients": 200}
STEPS = {"class_path": "ConstantSchedule", "init_args": {"window": 5, "unit": "steps"}}
NOISE = {"0/noise": torch.tensor(1.0, dtype=torch.float64)}


@pytest.fixture
def private(attack) -> AttackerHere:
    return attack(privacy=RULE)


def prepare(server: AttackerHere, **options) -> None:
    net = classifier(lr=0.01)
    net = {**net, "init_args": net["init_args"] | {"norm": "group"} | options}
    steps = {"class_path": "DPSGD", "init_args": {"delta": 1e-4, "noise": 1.0}}
    assert server.prepare(model=net, aggregators=[steps], schedule=STEPS).verb == REPLY


def test_the_same_question_has_the_same_answer_with_dropout_too(private):
    """Below the same noise, the difference of two answers would show the images in two dropouts."""
    prepare(private, drop_rate=0.5)
    one, other = (private.train(**NOISE).tensors()["vectors/w"] for _ in range(2))
    assert torch.equal(one, other)


def test_a_round_whose_line_could_not_be_written_is_charged_once_it_can(private):
    prepare(private)
    ledger = private.state / "ledger.jsonl"
    aside = ledger.rename(ledger.with_suffix(".aside"))
    ledger.mkdir()
    assert private.train(**NOISE).verb == FAILED
    ledger.rmdir()
    aside.rename(ledger)
    private.raw(b"nonsense")  # whose line is not that of the round
    assert private.site_info.privacy.spent == epsilon_of([Steps(1.0, 16 / 200, 5)], RULE["delta"])


def test_another_version_is_another_question(private, monkeypatch):
    """It may round or draw differently: below the same noise, the difference of two answers would have none."""
    answers = []
    for version in (torch.__version__, "of tomorrow"):
        monkeypatch.setattr(torch, "__version__", version)
        torch.manual_seed(0)  # for the same model
        prepare(private)
        answers.append(private.train(**NOISE).tensors()["vectors/w"])
    assert (answers[0] - answers[1]).norm() > 0.1 * answers[0].norm()
    assert private.site_info.privacy.spent == epsilon_of([Steps(1.0, 16 / 200, 10)], RULE["delta"])


@pytest.fixture
def data(tmp_path) -> OwnData:
    return OwnData(read_settings(write_site(tmp_path / "north", privacy=RULE)))


def test_other_patients_are_other_data(data):
    """Draws are of patients: below the same noise, a corrected name would show everybody who is drawn anew."""
    (name,) = data.module.clients
    before = data.fingerprint(name)
    train = copy.copy(data.module.clients[name].train)
    train.patients = train.patients.copy()
    train.patients[0] = train.patients[-1]
    data.module.clients[name].train = train
    assert data.fingerprint(name) != before


def test_a_class_that_only_the_run_has_does_not_separate_the_images_of_a_patient(data):
    """Each image would be drawn and clipped by itself: a patient with ten would count ten times."""
    (name,) = data.module.clients
    train = TensorDataset(torch.zeros(4, 1), torch.zeros(4, len(data.module.classes)))
    train.patients = ["a", "a", "a", "b"]
    data.module.clients[name] = replace(data.module.clients[name], train=train, val=None, test=None)
    wide = data.for_run([*data.module.classes, "Of the lead"]).clients[name].train
    assert wide.patients == train.patients
    assert wide.tensors[1].shape[1] == 1 + train.tensors[1].shape[1]
    assert fetch(wide, torch.tensor([3]))[1].isnan().sum() == 1
