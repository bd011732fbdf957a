"""Stages, windows and rates of rounds, and schedules that the AUC algorithms refuse."""

import warnings
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from refusals import refused

from fedlit.aggregators import CODA, CODASCA, NPA, CODAPlus
from fedlit.core.errors import ConfigError
from fedlit.federation.federation import Federation
from fedlit.schedules import ConstantSchedule, CosineSchedule, PracticeSchedule, Stage, StageSchedule, TheorySchedule


def plans(schedule, rounds=None):
    return [schedule.plan(i) for i in range(rounds or schedule.rounds)]


def test_stage_list():
    schedule = StageSchedule([Stage(2, 4, "steps"), Stage(window=3, unit="steps", lr_factor=0.5, iterations=9)])
    found = [(p.stage, p.window, p.lr_factor, p.first_of_stage, p.last_of_stage) for p in plans(schedule, 6)]
    assert schedule.rounds == 5
    assert found == [
        (0, 4, 1.0, True, False),
        (0, 4, 1.0, False, True),
        (1, 3, 0.5, True, False),
        (1, 3, 0.5, False, False),
        (1, 3, 0.5, False, True),
        (1, 3, 0.5, False, False),
    ]
    assert all(p.restarts and p.unit == "steps" for p in plans(schedule))


@pytest.mark.parametrize(
    ("make", "mistake"),
    [
        (lambda: Stage(window=4, unit="steps", iterations=10), (ConfigError, "10 iterations", "window 4", "8 or 12")),
        (lambda: Stage(window=4, unit="steps", iterations=3), (ConfigError, "use 4")),
        (lambda: Stage(window=4, iterations=8), (ConfigError,)),
        (lambda: Stage(2, 4, "steps", iterations=8), (ConfigError,)),
        (lambda: Stage(window=4), (ConfigError,)),
        (lambda: Stage(0), (ConfigError,)),
        (lambda: Stage(1, 0), (ConfigError,)),
        (lambda: ConstantSchedule(-4, "steps"), (ConfigError, "-4")),
        (lambda: Stage(1, lr_factor=0.0), (ConfigError,)),
        (lambda: StageSchedule([]), (ConfigError,)),
        (lambda: PracticeSchedule(window=0), (ConfigError, "window", "found 0")),
        (lambda: PracticeSchedule(iterations=0), (ConfigError, "iterations")),
        (lambda: PracticeSchedule(decay_every=0), (ConfigError, "decay_every")),
        (lambda: PracticeSchedule(decay=0.5), (ConfigError,)),
        (lambda: PracticeSchedule(decay=float("inf")), (ConfigError, "finite")),
        (lambda: TheorySchedule(growth=0.5), (ConfigError,)),
        (lambda: TheorySchedule(growth=float("inf")), (ConfigError, "finite")),
        (lambda: TheorySchedule(window=8, iterations=81), (ConfigError, "81 iterations", "window 8")),
        (
            lambda: TheorySchedule(stages=2, window=8, iterations=80, growth=2.0, window_growth="sqrt"),
            (ConfigError, "160 iterations", "window 11"),
        ),
        (lambda: TheorySchedule(stages=0), (ConfigError,)),
        (lambda: CosineSchedule(3, 3), (ConfigError, "CosineSchedule.warm_up", "0 to 2")),
        (lambda: CosineSchedule(3, 0, 1.5), (ConfigError, "CosineSchedule.final", "1.5")),
    ],
)
def test_bad_schedules_are_refused(make, mistake):
    with refused(*mistake):
        make()


def test_practice_changes_at_the_first_communication_at_or_after_each_multiple():
    found = plans(PracticeSchedule(window=32, iterations=320, decay_every=100))
    # 100 lies in the fourth window (96 to 128): the change is at 128; 200 at 224; 300 at 320, after the last round
    assert [p.stage for p in found] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [i for i, p in enumerate(found) if p.first_of_stage] == [0, 4, 7]
    assert [i for i, p in enumerate(found) if p.last_of_stage] == [3, 6, 9]
    assert [p.lr_factor for p in found[3:5]] == pytest.approx([1, 1 / 3])
    assert not any(p.restarts for p in found)


@pytest.mark.parametrize("warm_up", [0, 3])
def test_cosine_is_torchs_scheduler_stepped_once_a_round(warm_up):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10 - warm_up, eta_min=0.1)
    torchs = []
    for _ in range(10 - warm_up):
        torchs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        falling.step()
    found = plans(CosineSchedule(10, warm_up, 0.1, window=2, unit="steps"))
    assert [p.lr_factor for p in found] == pytest.approx([0.25, 0.5, 0.75][:warm_up] + torchs)
    assert {(p.window, p.unit) for p in found} == {(2, "steps")}
    assert [p.first_of_stage for p in found] == [True] + [False] * 9


@given(some.integers(1, 60), some.integers(1, 500), some.integers(1, 90), some.sampled_from([2.0, 3.0]))
def test_practice_by_its_definition(window, iterations, every, decay):
    schedule = PracticeSchedule(window, iterations, every, decay)
    found = plans(schedule)
    assert bool(schedule.notice) == (iterations % window > 0)
    assert (schedule.rounds - 1) * window < iterations <= schedule.rounds * window
    passed = [len(range(every, index * window + 1, every)) for index in range(len(found))]  # multiples before a round
    assert [plan.stage for plan in found] == passed
    assert [plan.lr_factor for plan in found] == pytest.approx([decay**-stage for stage in passed])
    for before, after in pairwise(found):
        assert before.last_of_stage == after.first_of_stage == (before.stage != after.stage)


@pytest.mark.parametrize(
    ("growth", "windows", "lengths"),
    [("linear", [8, 32, 128], [10, 10, 10]), ("sqrt", [8, 16, 32], [10, 20, 40]), ("none", [8, 8, 8], [10, 40, 160])],
)
def test_theory_grows_geometrically(growth, windows, lengths):
    schedule = TheorySchedule(stages=3, window=8, iterations=80, growth=4.0, window_growth=growth)
    assert [s.window for s in schedule.stages] == windows
    assert [s.rounds for s in schedule.stages] == lengths
    assert [s.lr_factor for s in schedule.stages] == [1, 1 / 4, 1 / 16]
    assert schedule.rounds == sum(lengths)
    assert all(p.restarts for p in plans(schedule))


def test_rounds_of_a_federation_come_from_its_schedule():
    assert Federation([CODAPlus()], schedule=PracticeSchedule(32, 320, 100)).rounds == 10
    assert Federation([CODAPlus()], schedule=StageSchedule([Stage(3), Stage(4)])).rounds == 7
    assert Federation([CODAPlus()], rounds=2, schedule=StageSchedule([Stage(3), Stage(4)])).rounds == 2
    assert Federation([], schedule=ConstantSchedule()).rounds == 10


def test_npa_wants_a_window_of_one_step():
    Federation([NPA()], schedule=StageSchedule([Stage(3, 1, "steps")]))
    for schedule, found in (
        (StageSchedule([Stage(3, 1, "steps"), Stage(3, 2, "steps")]), "2 steps"),
        (ConstantSchedule(1, "epochs"), "1 epochs"),
        (PracticeSchedule(32, 320, 100), "32 steps"),
    ):
        with refused(ConfigError, found):
            Federation([NPA()], schedule=schedule)


@pytest.mark.parametrize("reset", ["auto", "always"])
def test_codasca_refuses_a_stage_of_one_round_with_reset(reset):
    schedule = StageSchedule([Stage(6), Stage(1), Stage(6)])
    with refused(ConfigError, "the schedule has a stage of one round, but control variates"):
        Federation([CODASCA(reset=reset)], schedule=schedule)


@pytest.mark.parametrize(
    ("schedule", "rounds"), [(StageSchedule([Stage(9), Stage(4), Stage(5)]), 4), (PracticeSchedule(32, 320, 100), 3)]
)
def test_codasca_warns_of_short_stages_with_reset(schedule, rounds):
    with pytest.warns(UserWarning, match=f"a stage of {rounds} rounds"):
        Federation([CODASCA(reset="always")], schedule=schedule)


def test_codasca_is_silent_where_control_variates_live_on_or_have_time():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Federation([CODASCA(reset="never")], schedule=StageSchedule([Stage(1), Stage(1)]))
        Federation([CODASCA()], schedule=PracticeSchedule(100, 400, 100))
        Federation([CODASCA()], schedule=TheorySchedule(stages=2))
        Federation([CODASCA()], rounds=6, schedule=StageSchedule([Stage(5), Stage(9)]))  # cut short by the user
        Federation([CODAPlus()], schedule=StageSchedule([Stage(1), Stage(1)]))


@pytest.mark.parametrize("algorithm", [NPA, CODA, CODAPlus, CODASCA])
def test_gamma_that_looks_like_its_inverse_is_refused(algorithm):
    with refused(ConfigError, "found 500", "mean 0.002"):
        algorithm(gamma=500)
    with refused(ConfigError, "found -1"):
        algorithm(gamma=-1)
    algorithm(gamma=10)
