"""Phases as settings: what is refused before training, and what a phase takes over from the main part."""

import pytest
from hostile import spread
from phased import HEAD, PRETRAIN, changed, phase, place
from refusals import refused

from fedlit.aggregators import FedProx
from fedlit.core.errors import ConfigError
from fedlit.experiment.phases import Phase
from fedlit.federation.federation import Federation

MISTAKES = {
    "no client": (changed(phases=[phase(clients=[])]), "an empty list"),
    "aggregators of the main part": (
        changed(federation__aggregators=["CODASCA", {"class_path": "FedAvg", "init_args": {"weights": "examples"}}]),
        "need different client weights",
    ),
    "schedule of the main part": (
        changed(
            federation__schedule={
                "class_path": "StageSchedule",
                "init_args": {"stages": [{"rounds": 1, "window": 2, "unit": "steps"}] * 2},
            }
        ),
        "a stage of one round",
    ),
    "client of the main part": (changed(federation__clients=["site-7"]), "found 'site-7'"),
    "model of a phase": (
        changed(model={"class_path": "toys.ToyNet"}),
        "phases, 'pretrain': expected a model with 'optimizer'",
    ),
    "name that leads elsewhere": (changed(phases=[phase(name="..")]), "name"),
    "two of a name": (changed(phases=[PRETRAIN, PRETRAIN]), "name"),
    "monitor of a phase": (changed(phases=[phase(monitor="val/auroc/Nothing", monitor_mode="max")]), "Nothing"),
    "client of the second phase": (changed(phases=[PRETRAIN, HEAD | {"clients": ["site-8"]}]), "found 'site-8'"),
    "unknown key": (changed(phases=[phase(epochs=3)]), "epochs"),
    "heads that nobody trains": (
        changed(phases=[HEAD | {"aggregators": ["PersonalHeads"]}]),
        "phases, 'head': expected a model that the clients share, found the head that each keeps to itself",
    ),
    "norms that nobody trains": (
        changed(phases=[phase(aggregators=["FedBN"])]),
        "found a part of the body that each keeps to itself (FedBN)",
    ),
}


@pytest.mark.parametrize("case", spread(MISTAKES, 2))
def test_mistakes_are_refused_before_anything_is_trained(case, tmp_path, fedlit_cli):
    config, words = case
    here = place(tmp_path, config)
    code, out, err = fedlit_cli(f"fit --run_dir {here.path} --logger false --federation.workers 1 {here.options}")
    assert code in (1, 2), err
    assert words in err
    assert "Traceback" not in err
    assert "phase '" not in out + err
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
