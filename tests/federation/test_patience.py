"""Early stopping: the same rule for every run, even after interruptions."""

from types import SimpleNamespace

import pytest
from refusals import refused
from runs import Place, assert_same_tensors

from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.manifest import Best, CorruptCheckpointError, Manifest
from fedlit.core.errors import ConfigError
from fedlit.federation.callbacks import BestModel
from fedlit.federation.federation import Federation
from fedlit.federation.monitor import Monitor
from fedlit.schedules import ConstantSchedule, Stage, StageSchedule

# The validation loss of the toys falls at first and rises when this rate makes them overfit: round 2 is best.
OPTIONS = (
    "--name one --data toys.ToyData --model toys.ToyNet --model.lr 2 --federation.schedule ConstantSchedule "
    "--federation.schedule.window 4 --federation.schedule.unit steps "
    "--federation.monitor val/loss --federation.monitor_mode min --federation.patience 3"
)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> tuple[Place, str]:
    """A run of at most 40 rounds, and what it printed."""
    place = Place(tmp_path_factory.mktemp("stopped"), OPTIONS)
    return place, place.ended("--federation.rounds 40")


def rounds_run(kept) -> int:
    return max(step for step, key, _ in kept.metrics() if key == "train/loss")


def test_a_run_stops_after_so_many_rounds_without_a_better_model_and_says_so(stopped):
    kept, printed = stopped[0].run("one"), stopped[1]
    best = checkpoint.best(checkpoint.find(kept.path / "checkpoints", "last"))
    values = {step: float(value) for step, key, value in kept.metrics() if key == "val/loss"}
    assert rounds_run(kept) == best.round + 3 < 40
    assert best.value == min(values.values()) == values[best.round]
    assert f"stopped after round {best.round + 3}: no improvement on round {best.round} in 3 rounds" in printed


@pytest.mark.slow
def test_a_resumed_run_stops_at_the_same_round(stopped, tmp_path):
    place, kept = stopped[0], stopped[0].run("one")
    best = checkpoint.best(checkpoint.find(kept.path / "checkpoints", "last"))

    part = Place(tmp_path / "part", OPTIONS)
    part.ended(f"--federation.rounds {best.round + 1}")
    part.ended("--federation.rounds 40 --ckpt_path last")
    assert_same_tensors(part.run("one").tensors(), kept.tensors())

    place.ended("--federation.rounds 40 --ckpt_path last")
    assert rounds_run(kept) == best.round + 3  # resumed when it was over: nothing more is trained


def values_end(values: list[float], **options) -> tuple[int, int]:
    """Rounds after which a run of these validation losses ends, and its best."""
    federation = Federation(rounds=len(values), monitor="val/loss", **options)
    state = SimpleNamespace(session=SimpleNamespace(federation=federation), best=Best(), metrics={}, done=0)
    state.monitor = Monitor("val/loss", "min")
    for state.done, state.metrics["val/loss"] in enumerate(values, start=1):
        BestModel().on_evaluation_end(state, [])
        if federation.over(state.done, state.best):
            break
    return state.done, state.best.round


def linked_code(values: list[float], patience: int, min_delta: float) -> tuple[int, int]:
    """The rule of surgical aggregation's released code.

    A loss of ``best + min_delta`` or more adds to the wait, only a new best resets it, and training ends when the wait
    exceeds the patience.
    """
    best, wait, at = None, 0, 0
    for number, loss in enumerate(values, start=1):
        if best is None or loss < best:
            best, wait, at = loss, 0, number
        if loss >= best + min_delta:
            wait += 1
            if wait > patience:
                return number, at
    return len(values), at


def test_rounds_that_are_nearly_as_good_do_not_count_with_a_margin():
    losses = [0.5, 0.40, 0.405, 0.43, 0.404, 0.41, 0.399, 0.45, 0.3995, 0.44, 0.5, 0.46, 0.5, 0.5]
    for patience in (1, 2, 3, 4):
        ours = values_end(losses, patience=patience + 1, patience_margin=0.01)
        assert ours == linked_code(losses, patience, 0.01)
    assert values_end(losses, patience=3) == (5, 2)
    assert values_end(losses, patience=3, patience_margin=0.01) == (11, 7)
    assert values_end([0.5, 0.4, *[0.405] * 20], patience=2, patience_margin=0.01) == (22, 2)
    assert values_end([0.5, 0.4, *[float("nan")] * 20], patience=2, patience_margin=0.01) == (4, 2)


def test_rounds_without_evaluation_go_with_the_one_after_them():
    federation = Federation(rounds=20, patience=6, patience_margin=0.01, eval_every=2)
    assert [federation.over(done, Best(0.5, 4, near=2)) for done in (10, 12)] == [False, True]


@pytest.mark.parametrize(
    ("windows", "every", "rounds"),
    [
        ([1] * 8, "4 steps", [4, 8]),
        ([2] * 4, "4 steps", [2, 4]),
        ([8] * 3, "4 steps", [1, 2, 3]),  # several multiples in a round are one evaluation
        ([3] * 4, "4 steps", [2, 3, 4]),  # after 6, 9 and 12 steps
        ([1, 1, 4, 4, 4], "5 steps", [3, 4, 5]),
        ([1] * 3, "4 steps", [3]),  # the last round, whatever it is
        ([1] * 5, 2, [2, 4, 5]),
    ],
)
def test_evaluations_count_rounds_or_local_steps(windows, every, rounds):
    schedule = StageSchedule([Stage(1, window, "steps") for window in windows])
    federation = Federation(schedule=schedule, eval_every=every)
    assert [done for done in range(1, len(windows) + 1) if federation.evaluates_after(done)] == rounds


@pytest.mark.parametrize("every", [0, 1.5, "0 steps", "4 epochs", "4", None])
def test_what_is_neither_rounds_nor_local_steps_is_refused(every):
    with refused(ConfigError, "eval_every"):
        Federation(schedule=ConstantSchedule(1, "steps"), eval_every=every)


def test_local_steps_between_evaluations_need_a_schedule_of_steps():
    with refused(ConfigError, "federation.eval_every", "epochs", "'4 steps'"):
        Federation(eval_every="4 steps")


def test_patience_counts_the_rounds_between_evaluations_in_steps():
    schedule = ConstantSchedule(2, "steps")
    with refused(ConfigError, "federation.patience", "4 rounds", "found 3"):
        Federation(rounds=20, schedule=schedule, patience=3, eval_every="8 steps")
    federation = Federation(rounds=19, schedule=schedule, patience=6, patience_margin=0.01, eval_every="6 steps")
    assert [federation.unevaluated_before(done) for done in (3, 6, 19)] == [3, 3, 1]


def test_a_resumed_run_knows_how_many_rounds_were_near(tmp_path):
    written = Manifest(5, ["a"], [], [], {}, Best(0.5, 2, near=2))
    written.write(tmp_path)
    assert Manifest.read(tmp_path).best == Best(0.5, 2, near=2)
    text = (tmp_path / "manifest.json").read_text()
    (tmp_path / "manifest.json").write_text(text.replace('"near": 2', '"near": 1'))
    with refused(CorruptCheckpointError, "its content does not match its hash"):
        Manifest.read(tmp_path)
