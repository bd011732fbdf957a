"""Phases: pretraining on one client, then a federation, as one run that is killed, resumed and evaluated."""

import copy
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
import yaml
from hostile import spread
from refusals import refused
from runs import Kept, Place, assert_same_run, assert_same_tensors

from fedlit.aggregators import FedProx
from fedlit.core.checkpoints import checkpoint
from fedlit.experiment.phases import Phase
from fedlit.federation.federation import Federation
from fedlit.reports.reproductions.report import measured
from fedlit.tracking.run import Result, metric_of

PHASE, MAIN = 3, 3
STEPS = {"class_path": "ConstantSchedule", "init_args": {"window": 2, "unit": "steps"}}
PRETRAIN = {
    "name": "pretrain",
    "clients": ["site-1"],
    "rounds": PHASE,
    "schedule": STEPS,
    "objective": {"class_path": "BCE"},
    "optimizer": {"class_path": "Adam", "init_args": {"lr": 1e-3}},
}
CONFIG = {
    "phases": [PRETRAIN],
    "data": {"class_path": "toys.ToyData"},
    "model": {
        "class_path": "ImageClassifier",
        "init_args": {
            "backbone": "small_cnn",
            "objective": {"class_path": "AUCSaddle"},
            "optimizer": {"class_path": "SGD", "init_args": {"lr": 0.002}},
        },
    },
    "federation": {
        "aggregators": [{"class_path": "CODASCA", "init_args": {"eta_g": 0.9}}],
        "rounds": MAIN,
        "schedule": STEPS,
    },
}


def changed(**keys) -> dict:
    """The configuration with other values at dotted keys, dots written as ``__``."""
    config = copy.deepcopy(CONFIG)
    for key, value in keys.items():
        *parents, last = key.split("__")
        place = config
        for parent in parents:
            place = place[parent]
        place[last] = value
    return config


def phase(**keys) -> dict:
    return PRETRAIN | keys


HEAD = phase(name="head", clients=None, trainable="head", keep="all")
"""A phase that trains only the head on the body of the one before it, and keeps both."""


def place(path: Path, config: dict) -> Place:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    return Place(path / "runs", f"--config {path / 'config.yaml'} --name run")


def finished(path: Path, config: dict, options: str = "") -> tuple[Kept, str]:
    """A successful run, and its output."""
    here = place(path, config)
    return here.run("run"), here.fit(options).succeeded()


def less_totals(rows: list) -> list:
    """Totals are of the whole run, its phases too."""
    return [row for row in rows if not row[1].startswith("total/")]


def of_main(kept: Kept) -> list[tuple[int, str, str]]:
    """Metrics of the main part, counted from its own start."""
    return [(step - PHASE, key, value) for step, key, value in kept.metrics() if step > PHASE]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Kept, str]:
    return finished(tmp_path_factory.mktemp("whole"), CONFIG)


def test_the_metric_of_the_best_model_is_that_of_the_main_part(whole):
    """Rounds of the main part count from 1, and metrics.csv counts the rounds of phases too."""
    directory = whole[0].path
    best = checkpoint.best(checkpoint.find(directory / "checkpoints", "best"))
    assert Result.read(directory).best_round == best.round <= MAIN
    assert metric_of(directory, "val/auroc_macro") == measured(directory)["val/auroc_macro"] == best.value


def copied(whole: tuple[Kept, str], path: Path, config: dict = CONFIG) -> Place:
    here = place(path, config)
    shutil.copytree(whole[0].path, here.path / "default/run")
    return here


class TestOneConfig:
    def test_rounds_count_on_and_each_is_logged_once(self, whole):
        rows = whole[0].metrics()
        assert len({row[:2] for row in rows}) == len(rows)
        assert {step for step, key, _ in rows if key == "train/loss"} == set(range(1, PHASE + MAIN + 1))
        assert {step for step, key, _ in rows if key.startswith("test/")} == {PHASE + MAIN}

    def test_the_phase_has_its_own_client_objective_and_algorithm(self, whole):
        rows = whole[0].metrics()
        own = {step for step, key, _ in rows if key.startswith("client/site-1/")}
        assert own == set(range(1, PHASE + MAIN + 1))
        others = {step for step, key, _ in rows if key.startswith(("client/site-0/", "client/site-2/"))}
        assert others == set(range(PHASE + 1, PHASE + MAIN + 1))
        assert {step for step, key, _ in rows if key.startswith("drift/c_norm")} == others
        assert {step for step, key, _ in rows if key.startswith("objective/alpha")} == others
        rates = {step: float(value) for step, key, value in rows if key == "round/lr"}
        assert rates == pytest.approx({1: 1e-3, 2: 1e-3, 3: 1e-3, 4: 0.002, 5: 0.002, 6: 0.002})
        assert "phase 'pretrain'" in whole[1]
        assert "FedAvg over 1 client" in whole[1]
        assert "CODASCA over 3 clients" in whole[1]


@pytest.mark.parametrize("step", [PHASE + 1, pytest.param(PHASE, marks=pytest.mark.slow)])
def test_killed_and_resumed(whole, tmp_path, step):
    """Kills at the end of the phase, and in the main part."""
    here = place(tmp_path, CONFIG)
    command = here.fit(f"--federation.checkpoint_every 1 --logger awkward.Killer --logger.step {step}")
    assert command.wait() == -signal.SIGKILL, command.output
    assert "resuming" in here.fit("--ckpt_path last").succeeded()
    assert_same_run(here.run("run"), whole[0])


@pytest.mark.slow
@pytest.mark.parametrize("finished", [True, False])
def test_resumed_at_the_end_of_a_part(whole, tmp_path, finished):
    """A finished run adds and loses nothing; one without a checkpoint of the main part repeats its logged rounds."""
    here = copied(whole, tmp_path)
    if not finished:
        shutil.rmtree(here.path / "default/run/checkpoints")
    here.fit("--ckpt_path last").succeeded()
    assert_same_run(here.run("run"), whole[0])


@pytest.fixture(scope="module")
def head_only(tmp_path_factory) -> tuple[Kept, str]:
    """A run whose main part trains the head on the phase's body."""
    warm_up = phase(trainable="all")
    return finished(tmp_path_factory.mktemp("head"), changed(phases=[warm_up], model__init_args__trainable="head"))


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["whole", "head_only"])
def test_test_and_predict(fixture, request, tmp_path):
    """``fedlit test`` of the best checkpoint prints the table at the end of the run, and writes the same scores."""
    run = request.getfixturevalue(fixture)
    trained = yaml.safe_load((run[0].path / "config.yaml").read_text())
    here = copied(run, tmp_path, {k: trained[k] for k in ("phases", "data", "model", "federation")})
    table = re.findall(r"│.*│", here.fit("--ckpt_path best", "test").succeeded())
    assert len(table) >= 4
    assert table == re.findall(r"│.*│", run[1])
    assert "images: " in here.fit("--ckpt_path best", "predict").succeeded()


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["whole", "head_only"])
def test_it_equals_two_configs(fixture, request, tmp_path):
    """The second starts from the first's best body with a new head: the same rounds, bit for bit."""
    run, _ = request.getfixturevalue(fixture)
    second = changed(phases=[], model__init_args__weights=str(run.path / "phases/pretrain"))
    if fixture == "head_only":
        second["model"]["init_args"]["trainable"] = "head"
        assert not [n for n in checkpoint.tensors(run.path) if n.startswith("body.") and "running" not in n]
    kept, _ = finished(tmp_path, second)
    assert less_totals(kept.metrics()) == less_totals(of_main(run))
    assert_same_tensors(kept.tensors(), run.tensors())


def start_of_main(path: Path, config: dict) -> dict[str, torch.Tensor]:
    """The model that the main part starts from, to within 1e-20: its steps are that small."""
    config["model"]["init_args"]["optimizer"] = {"class_path": "SGD", "init_args": {"lr": 1e-30}}
    config["model"]["init_args"]["objective"] = {"class_path": "BCE"}
    config["federation"] |= {"aggregators": [], "rounds": 1}
    return checkpoint.tensors(finished(path, config)[0].last)


def parts(tensors: dict[str, torch.Tensor]) -> tuple[dict, dict]:
    """Body (less BatchNorm's statistics, which move even where weights do not) and head."""
    weights = {n: t for n, t in tensors.items() if "running" not in n}
    return tuple({n: t for n, t in weights.items() if n.startswith(part)} for part in ("body.", "head."))


def assert_start(model: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(model, expected, atol=1e-20, rtol=0)


class TestHandOver:
    @pytest.fixture(scope="class")
    def fresh(self, tmp_path_factory) -> tuple[dict, dict]:
        return parts(start_of_main(tmp_path_factory.mktemp("fresh"), changed(phases=[])))

    def best(self, path: Path, name: str) -> tuple[dict, dict]:
        return parts(checkpoint.tensors(path / f"runs/default/run/phases/{name}"))

    @pytest.mark.parametrize(
        ("phases", "body_of", "head_of"),
        [
            ([PRETRAIN], "pretrain", None),
            pytest.param([phase(keep="all")], "pretrain", "pretrain", marks=pytest.mark.slow),
            pytest.param([PRETRAIN, HEAD], "pretrain", "head", marks=pytest.mark.slow),
            pytest.param([phase(keep="all"), phase(name="second")], "second", None, marks=pytest.mark.slow),
        ],
        ids=["body", "all", "the head in a phase of its own", "body, whatever earlier phases kept"],
    )
    def test_the_main_part_starts_from(self, fresh, tmp_path, phases, body_of, head_of):
        body, head = parts(start_of_main(tmp_path, changed(phases=phases)))
        assert_start(body, self.best(tmp_path, body_of)[0])
        assert_start(head, self.best(tmp_path, head_of)[1] if head_of else fresh[1])
        assert not torch.equal(body["body.conv1.weight"], fresh[0]["body.conv1.weight"])
        assert not head_of or not torch.equal(head["head.weight"], fresh[1]["head.weight"])
        steps = [s for s, key, _ in place(tmp_path, CONFIG).run("run").metrics() if key == "train/loss"]
        assert steps == list(range(1, len(phases) * PHASE + 2))


MISTAKES = {
    "client": (
        changed(phases=[phase(clients=["site-9"])]),
        "expected names among site-0, site-1, site-2, found 'site-9'",
    ),
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
    "name that is a path": (changed(phases=[phase(name="a/b")]), "name"),
    "name that leads elsewhere": (changed(phases=[phase(name="..")]), "name"),
    "no name": (changed(phases=[phase(name="")]), "name"),
    "two of a name": (changed(phases=[PRETRAIN, PRETRAIN]), "name"),
    "monitor of the main part": (changed(federation__monitor="val/auroc/Nothing"), "val/auroc/Nothing"),
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


@pytest.mark.slow
def test_fast_dev_run(tmp_path):
    """One round of one step of each part, and nothing is kept."""
    here = place(tmp_path, CONFIG)
    assert "phase 'pretrain'" in here.fit("--fast_dev_run true").succeeded()
    assert not list(here.path.glob("default/*"))


@pytest.mark.slow
def test_printed_config_is_the_same_run(whole, tmp_path):
    printed = place(tmp_path, CONFIG).fit("--print_config").succeeded()
    config = {k: v for k, v in yaml.safe_load(printed).items() if k not in ("run_dir", "name")}
    kept, _ = finished(tmp_path / "again", config)
    assert_same_run(kept, whole[0])


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
        with refused("patience-below-eval-every", "phases, 'warm-up': federation.patience"):
            Phase("warm-up", patience=1).federation(Federation(eval_every=2))

    @pytest.mark.slow
    def test_rounds_of_a_phase_are_the_main_parts_in_cohort_and_evaluation(self, tmp_path):
        config = changed(
            federation__participation=0.4, federation__eval_every=3, phases=[phase(clients=None, objective=None)]
        )
        kept, _ = finished(tmp_path, config)
        rows = kept.metrics()
        cohorts = [(step, float(value)) for step, key, value in rows if key == "round/clients"]
        assert cohorts == [(step, 1.0) for step in range(1, PHASE + MAIN + 1)]
        assert {step for step, key, _ in rows if key == "val/auroc_macro"} == {PHASE, PHASE + MAIN}
