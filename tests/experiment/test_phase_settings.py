"""Phases as settings: what is refused before training, and what a phase takes over from the main part."""

from pathlib import Path

import pytest
import torch
from phased import changed, phase, place
from refusals import refused, table
from toys import CLASSES, ToyData, ToyNet

import fedlit
from fedlit.aggregators import CODASCA, FedAvg, FedBN, FedProx, PersonalHeads
from fedlit.core.errors import ConfigError
from fedlit.experiment.phases import Phase
from fedlit.federation.federation import Federation
from fedlit.models import ImageClassifier
from fedlit.objectives import BCE, AUCSaddle
from fedlit.schedules import ConstantSchedule, Stage, StageSchedule

STEPS = ConstantSchedule(2, "steps")


def pretraining(name: str = "pretrain", **options) -> Phase:
    """A phase on one client."""
    return Phase(name, **{"clients": ["site-1"], "rounds": 3, "schedule": STEPS, "objective": BCE(), **options})


def head(**options) -> Phase:
    """A phase that trains only the head."""
    return Phase("head", rounds=3, schedule=STEPS, trainable="head", keep="all", **options)


def start(*phases: Phase, model: object = None, **options) -> None:
    """Start a run with phases, which has a mistake."""
    model = model or ImageClassifier(CLASSES, "small_cnn", objective=AUCSaddle())
    main = {"aggregators": [CODASCA(eta_g=0.9)], "rounds": 3, "schedule": STEPS, "workers": 1}
    fedlit.fit(model, ToyData(), phases=list(phases) or [pretraining()], **main | options)


@table(
    [
        ("no client", lambda: start(pretraining(clients=[])), ConfigError, "an empty list"),
        ("aggregators of the main part", lambda: start(aggregators=[CODASCA(), FedAvg(weights="examples")]),
         ConfigError, "need different client weights"),
        ("schedule of the main part", lambda: start(schedule=StageSchedule([Stage(1, 2, "steps")] * 2)), ConfigError,
         "a stage of one round"),
        ("model of a phase", lambda: start(pretraining(optimizer=torch.optim.Adam), model=ToyNet(CLASSES)),
         ConfigError, "phases, 'pretrain': expected a model with 'optimizer'"),
        ("name that leads elsewhere", lambda: start(pretraining("..")), ConfigError, "name"),
        ("two of a name", lambda: start(pretraining(), pretraining()), ConfigError, "name"),
        ("monitor of a phase", lambda: start(pretraining(monitor="val/auroc/Nothing", monitor_mode="max")),
         ConfigError, "Nothing"),
        ("client of the second phase", lambda: start(pretraining(), head(clients=["site-8"])), ConfigError,
         "found 'site-8'"),
        ("heads that nobody trains", lambda: start(head(aggregators=[PersonalHeads()])), ConfigError,
         "phases, 'head': expected a model that the clients share, found the head that each keeps to itself"),
        ("norms that nobody trains", lambda: start(pretraining(aggregators=[FedBN()])), ConfigError,
         "found a part of the body that each keeps to itself (FedBN)"),
    ]
)  # fmt: skip
def test_mistakes_are_refused_before_anything_is_trained(provoke, kind, names, folder, capsys):
    with refused(kind, *names):
        provoke()
    assert "phase '" not in capsys.readouterr().out
    assert not list(Path().glob("runs/default/*"))


@pytest.mark.parametrize(
    ("change", "said", "code"),
    [
        ({"phases": [phase(epochs=3)]}, "epochs", 2),
        pytest.param({"federation__clients": ["site-7"]}, "found 'site-7'", 1, marks=pytest.mark.slow),
    ],
    ids=["unknown key", "client of the main part"],
)
def test_the_command_refuses_a_mistake_in_a_configuration(change, said, code, tmp_path, fedlit_cli):
    here = place(tmp_path, changed(**change))
    line = f"fit --run_dir {here.path} --logger false --federation.workers 1 {here.options}"
    fedlit_cli(line).refused(said, code=code)
    assert not list(here.path.glob("default/*"))


class TestTakenOver:
    """A phase inherits settings of the main part that it leaves out."""

    MAIN = {"participation": 0.4, "weights": "uniform", "gradient_clip": 0.5, "eval_every": 2, "checkpoint_every": 7}

    def test_a_phase_takes_over_what_it_does_not_say(self):
        phase = Phase("warm-up").federation(Federation(**self.MAIN))
        assert {name: getattr(phase, name) for name in self.MAIN} == self.MAIN
        assert phase.client_weights == "uniform"
        assert phase.training.gradient_clip == 0.5

    def test_what_a_phase_says_itself_counts(self):
        own = dict(participation=1.0, weights="examples", gradient_clip=2.0, eval_every=1, checkpoint_every=1)
        phase = Phase("warm-up", **own).federation(Federation(**self.MAIN))
        assert {name: getattr(phase, name) for name in own} == own

    def test_what_belongs_to_the_main_part_alone_is_not_taken_over(self):
        main = Federation(aggregators=[FedProx()], rounds=7, clients=["a"], patience=9, monitor="val/loss", **self.MAIN)
        phase = Phase("warm-up").federation(main)
        assert (phase.aggregators, phase.rounds, phase.clients, phase.patience) == ([], 10, None, None)
        assert (phase.monitor, phase.optimizer_state) == ("auto", "keep")

    def test_settings_that_do_not_fit_name_the_phase(self):
        with refused(ConfigError, "phases, 'warm-up': federation.patience"):
            Phase("warm-up", patience=1).federation(Federation(eval_every=2))
