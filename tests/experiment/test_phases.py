"""Phases: pretraining on one client, then a federation, each a run of its own, that are killed and resumed."""

import re
import shutil
import signal
from pathlib import Path

import pytest
import scripted
import torch
import yaml
from phased import CONFIG, HEAD, MAIN, PHASE, PRETRAIN, changed, ended, finished, phase, place, printed
from refusals import refused
from runs import Kept, Place, assert_same_run, assert_same_tensors
from toys import CLASSES

from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import CheckpointError, TrainingError
from fedlit.core.seeds import derive_seed
from fedlit.experiment.phases import Phase, started
from fedlit.federation.callbacks import Callback
from fedlit.models import ImageClassifier
from fedlit.reports.reproductions.report import measured
from fedlit.tracking.run import Result, metric_of


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Kept, str]:
    return finished(tmp_path_factory.mktemp("whole"), CONFIG)


def phase_of(run: Kept, name: str = "pretrain") -> Kept:
    return Kept(run.path / "phases" / name)


def assert_same(one: Kept, other: Kept, *phases: str) -> None:
    """Compare two runs and their phases bit for bit."""
    assert_same_run(one, other)
    for name in phases or ("pretrain",):
        assert_same_run(phase_of(one, name), phase_of(other, name))


def copied(whole: tuple[Kept, str], path: Path, config: dict = CONFIG) -> Place:
    here = place(path, config)
    shutil.copytree(whole[0].path, here.path / "default/run")
    return here


def steps(kept: Kept, prefix: str) -> set[int]:
    return {step for step, key, _ in kept.metrics() if key.startswith(prefix)}


class TestRuns:
    def test_each_has_its_own_rounds_and_its_own_result(self, whole):
        for kept, rounds in ((phase_of(whole[0]), PHASE), (whole[0], MAIN)):
            rows = kept.metrics()
            assert len({row[:2] for row in rows}) == len(rows)
            assert steps(kept, "train/loss") == set(range(1, rounds + 1))
            assert steps(kept, "test/") == steps(kept, "total/") == {rounds}
            result = Result.read(kept.path)
            assert result.rounds == rounds
            best = checkpoint.best(checkpoint.find(kept.path / "checkpoints", "best"))
            assert result.best_round == best.round <= rounds
            assert metric_of(kept.path, "val/auroc_macro") == measured(kept.path)["val/auroc_macro"] == best.value
            for file in ("config.yaml", "metrics.csv", "predictions"):
                assert (kept.path / file).exists()

    def test_the_phase_has_its_own_client_objective_and_algorithm(self, whole):
        phase, run = phase_of(whole[0]), whole[0]
        for name in ("site-0", "site-1", "site-2"):
            assert bool(steps(phase, f"client/{name}/")) == (name == "site-1")
            assert steps(run, f"client/{name}/") == {1, 2}
        for key in ("drift/c_norm", "objective/alpha"):
            assert not steps(phase, key)
            assert steps(run, key) == {1, 2}
        for kept, rate in ((phase, 1e-3), (run, 0.002)):
            rates = {float(value) for _, key, value in kept.metrics() if key == "round/lr"}
            assert [*rates] == pytest.approx([rate])
        assert "phase 'pretrain'" in whole[1]
        assert "FedAvg over 1 client" in whole[1]
        assert "CODASCA over 3 clients" in whole[1]

    def test_its_configuration_is_that_of_a_run(self, whole):
        config = yaml.safe_load((phase_of(whole[0]).path / "config.yaml").read_text())
        assert (config["phase"], config["phases"], config["seed"]) == ("pretrain", [], 0)
        assert config["model"]["init_args"]["objective"]["class_path"].endswith("BCE")
        assert (config["federation"]["clients"], config["federation"]["aggregators"]) == (["site-1"], [])

    @pytest.mark.slow
    def test_its_configuration_repeats_it(self, tmp_path):
        """Alone, with the phases before it, which inherit from the whole run and not from it."""
        run, _ = finished(tmp_path, changed(phases=[phase(objective=None), HEAD], federation__weights="uniform"))
        config = yaml.safe_load((phase_of(run, "head").path / "config.yaml").read_text())
        alone, _ = finished(tmp_path / "again", {k: v for k, v in config.items() if k not in OF_A_PLACE})
        assert_same_run(alone, phase_of(run, "head"))
        assert_same_run(phase_of(alone), phase_of(run))

    def test_its_rounds_draw_from_a_stream_of_their_own(self, folder):
        seeds = []

        class Seeds(Callback):
            def on_fit_start(self, state):
                seeds.append(state.session.seed)

        phases = [Phase("first", rounds=1, keep="all")]
        scripted.fit(seed=5, phases=phases, callbacks=[Seeds()], fast_dev_run=True)
        assert seeds == [derive_seed(5, "phase", "first"), 5]


OF_A_PLACE = ("run_dir", "name", "experiment", "ckpt_path", "logger")
"""Keys that say where a run is."""

KILLS = {
    "in the phase": (2, "pretrain"),
    "before the phase is tested": (PHASE, "pretrain"),
    "between the two": (0, ""),
    "in the last run": (1, ""),
}
"""Step and phase of a kill."""


@pytest.mark.parametrize(
    "case", [c if c == "between the two" else pytest.param(c, marks=pytest.mark.slow) for c in KILLS]
)
def test_killed_and_resumed(whole, tmp_path, case):
    step, name = KILLS[case]
    here = place(tmp_path, CONFIG)
    killer = f"--logger awkward.Killer --logger.step {step} --logger.phase '{name}'"
    command = here.fit(f"--federation.checkpoint_every 1 {killer}")
    assert command.wait() == -signal.SIGKILL, command.output
    run = here.run("run")
    assert (Result.read(phase_of(run).path) is None) == (name != "")
    said = ended(here, "--ckpt_path last")
    assert "resuming" in said
    assert ("phase 'pretrain' is finished" in said) == (name == "")
    assert_same(run, whole[0])


@pytest.mark.slow
@pytest.mark.parametrize("finished", [True, False])
def test_resumed_at_the_end_of_a_run(whole, tmp_path, finished):
    """A finished run adds and loses nothing; one without a checkpoint of the last run repeats its logged rounds."""
    here = copied(whole, tmp_path)
    if not finished:
        shutil.rmtree(here.path / "default/run/checkpoints")
    ended(here, "--ckpt_path last")
    assert_same(here.run("run"), whole[0])


@pytest.mark.slow
def test_wherever_its_clients_train(tmp_path):
    """Two processes and two sites give the bits of one process, two ranks its numbers to rounding."""
    config = changed(phases=[phase(clients=["site-0", "site-1"], rounds=2), HEAD | {"rounds": 1}])
    one, workers, ranks, sites = (place(tmp_path / name, config) for name in ("one", "workers", "ranks", "sites"))
    ended(one)
    workers.ended("--federation.workers 2")
    for command in ranks.ranks():
        command.succeeded()
    sites.ended("--sites loopback:2")
    whole = one.run("run")
    assert_same(workers.run("run"), whole, "pretrain", "head")
    for name, tensor in ranks.run("run").tensors().items():  # a sum over ranks has another order
        torch.testing.assert_close(tensor, whole.tensors()[name], rtol=1e-4, atol=1e-5)
    for name in ("", "phases/pretrain", "phases/head"):
        kept, alone = (Kept(here.run("run").path / name) for here in (sites, one))
        server, wanted = (torch.load(each.last / "server.pt", weights_only=True) for each in (kept, alone))
        assert_same_tensors(server, wanted)
        found, expected = kept.metrics(), alone.metrics()
        assert [row[:2] for row in found] == [row[:2] for row in expected]
        values = [float(value) for *_, value in expected]  # client drift is a difference of sums in another order
        assert [float(value) for *_, value in found] == pytest.approx(values, rel=1e-4, abs=1e-5, nan_ok=True)


def test_a_failed_phase_leaves_the_one_before_it(tmp_path, folder, capsys):
    """The same command goes on at the phase that has failed."""

    class Fails(Callback):
        healed = False

        def on_round_end(self, state):
            if state.run.directory.name == "second" and not self.healed:
                raise TrainingError("the disk is gone")

    def train(**options) -> Kept:
        phases = [Phase("first", rounds=1, keep="all"), Phase("second", rounds=2, keep="all")]
        options = {"phases": phases, "name": "run", "rounds": 1, "figures": False, "callbacks": [failing], **options}
        return Kept(scripted.fit(run_dir=tmp_path / "runs", ckpt_path="last", **options).directory)

    failing = Fails()
    with refused(TrainingError, "the disk is gone"):
        train()
    run = Kept(tmp_path / "runs/default/run")
    assert Result.read(phase_of(run, "first").path).rounds == 1
    assert Result.read(phase_of(run, "second").path) is None
    assert not run.rounds
    failing.healed = True
    capsys.readouterr()
    train()
    assert "phase 'first' is finished" in capsys.readouterr().out
    whole = train(experiment="whole")
    assert_same(run, whole, "first", "second")


def test_callbacks_start_afresh_in_each_run(tmp_path, folder):
    class Counting(Callback):
        counted = 0

        def on_round_end(self, state):
            self.counted += 1

        def on_fit_end(self, state):
            counts.append(self.counted)

        def state_dict(self):
            return {"counted": self.counted}

        def load_state_dict(self, state):
            self.counted = state["counted"]

    counts, phases = [], [Phase("first", rounds=2, keep="all")]
    scripted.fit(phases=phases, callbacks=[Counting()], rounds=1, figures=False, run_dir=tmp_path)
    assert counts == [2, 1]


def test_a_run_in_its_phases_has_nothing_to_test(whole, tmp_path):
    """Its finished phase has, with the phase's own configuration."""
    here = copied(whole, tmp_path)
    run = here.path / "default/run"
    shutil.rmtree(run / "checkpoints")
    assert "expected a checkpoint, found only those of its phases" in ended(here, "--ckpt_path last", "test", code=1)
    phase = run / "phases/pretrain"
    said = printed(f"test --config {phase / 'config.yaml'} --ckpt_path {phase}")
    assert "mean over defined classes" in said


@pytest.fixture(scope="module")
def head_only(tmp_path_factory) -> tuple[Kept, str]:
    """A run that trains the head on the phase's body."""
    warm_up = phase(trainable="all")
    return finished(tmp_path_factory.mktemp("head"), changed(phases=[warm_up], model__init_args__trainable="head"))


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["whole", "head_only"])
def test_test_and_predict(fixture, request, tmp_path):
    """``fedlit test`` of the best checkpoint prints the table at the end of the run, and writes the same scores."""
    run = request.getfixturevalue(fixture)
    trained = yaml.safe_load((run[0].path / "config.yaml").read_text())
    here = copied(run, tmp_path, {k: trained[k] for k in ("phases", "data", "model", "federation")})
    table = re.findall(r"│.*│", ended(here, "--ckpt_path best", "test"))
    assert len(table) >= 4
    assert table == re.findall(r"│.*│", run[1])
    assert "images: " in ended(here, "--ckpt_path best", "predict")
    assert "model after" in ended(here, "--ckpt_path best", "export")


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
    assert_same_run(kept, run)


def start_of_main(path: Path, config: dict) -> dict[str, torch.Tensor]:
    """The model that the main part starts from, to within 1e-6: its steps are smaller."""
    config["model"]["init_args"]["optimizer"] = {"class_path": "SGD", "init_args": {"lr": 1e-8}}
    config["model"]["init_args"]["objective"] = {"class_path": "BCE"}
    config["federation"] |= {"aggregators": [], "rounds": 1}
    return checkpoint.tensors(finished(path, config)[0].last)


def parts(tensors: dict[str, torch.Tensor]) -> tuple[dict, dict]:
    """Body (less BatchNorm's statistics, which move even where weights do not) and head."""
    weights = {n: t for n, t in tensors.items() if "running" not in n}
    return tuple({n: t for n, t in weights.items() if n.startswith(part)} for part in ("body.", "head."))


def assert_start(model: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(model, expected, atol=1e-6, rtol=0)


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


def test_a_run_of_other_phases_is_not_resumed(whole, tmp_path):
    here = copied(whole, tmp_path, changed(phases=[phase(rounds=2)]))
    said = ended(here, f"--ckpt_path {here.path / 'default/run'}", code=1)
    assert "was started with another configuration" in said
    assert "phases.0.rounds: 3 there, 2 now" in said


def test_a_phase_of_another_model_is_refused(whole):
    """As after a folder was copied from elsewhere."""
    model, phases = ImageClassifier(CLASSES[:1], "small_cnn"), [Phase("pretrain", keep="all")]
    with refused(CheckpointError, "phases/pretrain", "head.weight"):
        started(model, phases, whole[0].path)


@pytest.mark.slow
def test_rounds_of_a_phase_are_the_main_parts_in_cohort_and_evaluation(tmp_path):
    config = changed(
        federation__participation=0.4, federation__eval_every=3, phases=[phase(clients=None, objective=None)]
    )
    kept, _ = finished(tmp_path, config)
    for each, rounds in ((phase_of(kept), PHASE), (kept, MAIN)):
        cohorts = [(step, float(value)) for step, key, value in each.metrics() if key == "round/clients"]
        assert cohorts == [(step, 1.0) for step in range(1, rounds + 1)]
        assert steps(each, "val/auroc_macro") == {rounds}
