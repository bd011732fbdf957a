"""Early stopping: the same rule for every run, whatever ended it in between."""

import pytest
from runs import Place, assert_same_tensors

from fedlit.core import checkpoint
from fedlit.core.errors import ConfigError
from fedlit.core.manifest import Best
from fedlit.federation.federation import Federation
from fedlit.federation.monitor import Monitor

# The validation loss of the toys falls at first and rises when this rate makes them overfit: round 2 is best.
OPTIONS = (
    "--name one --data toys.ToyData --model toys.ToyNet --model.lr 2 --federation.schedule ConstantSchedule "
    "--federation.schedule.window 4 --federation.schedule.unit steps "
    "--federation.monitor val/loss --federation.monitor_mode min --federation.patience 3"
)


def rounds_run(kept) -> int:
    return max(step for step, key, _ in kept.metrics() if key == "train/loss")


def test_a_run_stops_after_so_many_rounds_without_a_better_model_and_says_so(tmp_path):
    place = Place(tmp_path, OPTIONS)
    command = place.fit("--federation.rounds 40")
    assert command.wait() == 0, command.output
    kept = place.run("one")
    best = checkpoint.best(checkpoint.find(kept.path / "checkpoints", "last"))
    values = {step: float(value) for step, key, value in kept.metrics() if key == "val/loss"}
    assert rounds_run(kept) == best.round + 3 < 40
    assert best.value == min(values.values()) == values[best.round]
    assert f"stopped after {best.round + 3} rounds: none better than {best.round} for 3 rounds" in command.output


@pytest.mark.slow
def test_a_resumed_run_stops_at_the_same_round(tmp_path):
    place = Place(tmp_path, OPTIONS)
    assert place.fit("--federation.rounds 40").wait() == 0
    kept = place.run("one")
    best = checkpoint.best(checkpoint.find(kept.path / "checkpoints", "last"))

    part = Place(tmp_path / "part", OPTIONS)
    assert part.fit(f"--federation.rounds {best.round + 1}").wait() == 0
    resumed = part.fit("--federation.rounds 40 --ckpt_path last")
    assert resumed.wait() == 0, resumed.output
    assert_same_tensors(part.run("one").tensors(), kept.tensors())

    again = place.fit("--federation.rounds 40 --ckpt_path last")
    assert again.wait() == 0
    assert rounds_run(kept) == best.round + 3  # resumed when it was over: nothing more is trained


def test_over_is_a_function_of_rounds_and_best_model():
    federation = Federation(rounds=10, patience=3)
    assert [federation.over(done, Best(0.5, 4)) for done in (4, 6, 7, 9)] == [False, False, True, True]
    assert not Federation(rounds=10).over(9, Best(0.5, 1))
    assert Federation(rounds=10).over(10, Best(0.5, 10))


def test_patience_shorter_than_an_evaluation_is_refused():
    with pytest.raises(ConfigError, match=r"federation\.patience: expected at least one evaluation, 5 rounds, found 4"):
        Federation(eval_every=5, patience=4)
    with pytest.raises(ConfigError, match=r"no validation metric that could become better"):
        Monitor.chosen(Federation(patience=4), {})
