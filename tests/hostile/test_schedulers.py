"""Schedulers of torch that a module returns: each client steps its own, as Lightning does."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from foreigners import Digits, Two
from refusals import refused
from strangers import fit, fit_in_each_way, having, play, seeded
from torch import nn
from torch.optim import lr_scheduler as of_torch

import fedlit
from fedlit.aggregators import Ditto, FedNova, Scaffold
from fedlit.core.batches import BatchStream
from fedlit.core.errors import CheckpointError, ConfigError, TrainingError
from fedlit.core.module import step_of
from fedlit.schedules import ConstantSchedule, CosineSchedule, Stage, StageSchedule

ROUNDS = 4
EPOCH = {"schedule": ConstantSchedule(1, "epochs"), "rounds": ROUNDS}
STEPS = {"schedule": ConstantSchedule(2, "steps"), "rounds": ROUNDS}


def returning(make: Callable, adam: bool = False, **config: Any) -> type:
    """Return a module with the scheduler that ``make`` makes from its optimizer."""

    def configure_optimizers(self: nn.Module) -> dict:
        groups = [{"params": [self.net.weight], "lr": 0.1}, {"params": [self.net.bias], "lr": 0.02}]
        optimizer = torch.optim.Adam(groups, eps=0.01) if adam else torch.optim.SGD(groups)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer), **config}}

    return having(configure_optimizers=configure_optimizers)


def warm_up(optimizer: torch.optim.Optimizer) -> of_torch.LRScheduler:
    rising = of_torch.LinearLR(optimizer, 0.25, total_iters=2)
    return of_torch.SequentialLR(optimizer, [rising, of_torch.ExponentialLR(optimizer, 0.5)], [2])


def rate_in_a_tensor(self: nn.Module) -> dict:
    optimizer = torch.optim.Adam(self.parameters(), lr=torch.tensor(0.02), eps=0.01, foreach=False)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": of_torch.ExponentialLR(optimizer, 0.5)}}


def in_two_lists(self: nn.Module) -> tuple[list, list]:
    optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
    return [optimizer], [of_torch.ExponentialLR(optimizer, 0.5)]


def each_two_steps(optimizer: torch.optim.Optimizer) -> of_torch.LRScheduler:
    return of_torch.LambdaLR(optimizer, lambda count: 1 / (1 + count // 2))


HALVING = returning(lambda o: of_torch.ExponentialLR(o, 0.5))
FOLLOWED = {
    "a frequency": (returning(lambda o: of_torch.ExponentialLR(o, 0.5), frequency=3), EPOCH),
    "a warm-up": (returning(warm_up), EPOCH),
    "a warm-up from 0": (returning(lambda o: of_torch.LambdaLR(o, lambda count: count / 2)), EPOCH),
    "a rate in a tensor": (having(configure_optimizers=rate_in_a_tensor), EPOCH),
    "two lists": (having(configure_optimizers=in_two_lists), EPOCH),
    "steps of a window": (returning(each_two_steps, interval="step"), STEPS),
    "windows of several epochs": (returning(each_two_steps), {"schedule": ConstantSchedule(2, "epochs"), "rounds": 2}),
    "epochs, and a window of steps": (HALVING, {"schedule": ConstantSchedule(3, "steps"), "rounds": 3}),
    "steps, and a window of epochs": (returning(each_two_steps, interval="step"), EPOCH),
    "momentum": (returning(lambda o: of_torch.OneCycleLR(o, 0.1, 9), adam=True), EPOCH),
    "groups that differ": (returning(lambda o: of_torch.CosineAnnealingLR(o, 4, eta_min=0.01)), EPOCH),
    "its end after the last step": (
        returning(lambda o: of_torch.OneCycleLR(o, 1.0, ROUNDS * 2, cycle_momentum=False), interval="step"),
        EPOCH,
    ),
    "windows that grow": (
        returning(lambda o: of_torch.LambdaLR(o, lambda count: 1.0 if count < 2 else 0.5), interval="step"),
        {"schedule": StageSchedule([Stage(1, 2, "steps"), Stage(2, 3, "steps")]), "rounds": 3},
    ),
}


def by_hand(module: nn.Module, schedule: Any, rounds: int, scheduled: bool = True) -> torch.Tensor:
    """Federated averaging as with Lightning on each client: a new optimizer per round, and a continued scheduler."""
    data = Two()
    data.setup()
    server = {name: value.detach().clone() for name, value in module.state_dict().items()}
    streams = {name: BatchStream(client.train, 8, 0, name) for name, client in data.clients.items()}
    models = {name: copy.deepcopy(module) for name in streams}
    configured = {name: lightning_form(model.configure_optimizers()) for name, model in models.items()}
    steps, passes = dict.fromkeys(streams, 0), dict.fromkeys(streams, 0)
    for number in range(rounds):
        plan, replies = schedule.plan(number), []
        for name, stream in streams.items():
            local, (optimizer, config) = models[name], configured[name]
            local.load_state_dict(server)
            optimizer.state.clear()
            epoch = -(-len(data.clients[name].train) // 8)
            for _ in range(plan.window * epoch if plan.unit == "epochs" else plan.window):
                optimizer.zero_grad()
                step_of(local, "training_step")(stream[steps[name]], 0).backward()
                optimizer.step()
                steps[name] += 1
                over = steps[name] % epoch == 0
                passes[name] += over
                due = over and passes[name] % config.get("frequency", 1) == 0
                if scheduled and (due if config.get("interval", "epoch") == "epoch" else True):
                    config["scheduler"].step()
            replies.append(copy.deepcopy(local.state_dict()))
        server = {key: torch.stack([reply[key] for reply in replies]).mean(0) for key in server}
    module.load_state_dict(server)
    return torch.cat([value.detach().flatten() for value in module.parameters()])


def lightning_form(given: Any) -> tuple[torch.optim.Optimizer, dict]:
    """Return the module's result as an optimizer and the dict of its scheduler."""
    if isinstance(given, dict):
        return given["optimizer"], given["lr_scheduler"]
    return given[0][0], {"scheduler": given[1][0]}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", FOLLOWED)
def test_each_client_trains_as_with_a_scheduler_of_its_own(what: str):
    make, given = FOLLOWED[what]
    w, rounds = play(make, Two(), **given), (given["schedule"], given["rounds"])
    torch.testing.assert_close(w, by_hand(seeded(make), *rounds), rtol=0, atol=1e-6)
    assert not torch.allclose(w, by_hand(seeded(make), *rounds, scheduled=False), atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ["a warm-up", "steps of a window"])
def test_two_processes_and_two_halves_are_equal(what: str, tmp_path: Path):
    make, given = FOLLOWED[what]
    fit_in_each_way(make, tmp_path, **given)


def of_another(optimizer: torch.optim.Optimizer) -> of_torch.LRScheduler:
    return of_torch.StepLR(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1), 1)


def two_schedulers(self: nn.Module) -> tuple[list, list]:
    optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
    return [optimizer], [of_torch.StepLR(optimizer, 1), of_torch.ExponentialLR(optimizer, 0.5)]


REFUSED = {
    "a plateau": (returning(lambda o: of_torch.ReduceLROnPlateau(o)), EPOCH, "its rate depends on a metric"),
    "two of them": (having(configure_optimizers=two_schedulers), EPOCH,
        "returned 2 learning-rate schedulers; expected one"),
    "an object": (returning(lambda o: object()), EPOCH, "it is not an LRScheduler of torch"),
    "another optimizer's": (returning(of_another), EPOCH, "the scheduler of another optimizer"),
    "an interval of rounds": (returning(lambda o: of_torch.StepLR(o, 1), interval="round"), EPOCH, "'epoch' or 'step'"),
    "a misspelt key": (returning(lambda o: of_torch.StepLR(o, 1), freqency=2), EPOCH, "also has freqency"),
    "a frequency of steps": (
        returning(each_two_steps, interval="step", frequency=2), STEPS, "counts steps by a frequency other than 1",
    ),
}  # fmt: skip
LAMBDA = TrainingError, "LambdaLR"
IN_TRAINING = {
    "an infinite rate": (lambda o: of_torch.LambdaLR(o, lambda n: 1.0 if n < 2 else float("inf")), (*LAMBDA, "inf")),
    "a rate that is not a number": (
        lambda o: of_torch.LambdaLR(o, lambda n: [1.0, 0.5, float("nan")][n]),
        (*LAMBDA, "nan"),
    ),
    "its end": (lambda o: of_torch.OneCycleLR(o, 1.0, 2, cycle_momentum=False), (TrainingError, "OneCycleLR")),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", IN_TRAINING)
def test_a_rate_that_no_step_can_take_ends_the_run(what: str, tmp_path: Path):
    make, mistake = IN_TRAINING[what]
    with refused(*mistake):
        fit(seeded(returning(make)), tmp_path / "run", **EPOCH)


@pytest.mark.parametrize("algorithm", [FedNova(), Ditto()], ids=["FedNova", "Ditto"])
def test_who_computes_with_the_rate_of_a_round_needs_one(algorithm, tmp_path: Path):
    one_group = having(configure_optimizers=in_two_lists)
    fit(seeded(one_group), tmp_path / "one", aggregators=[algorithm], **EPOCH | {"rounds": 2})
    with refused(TrainingError, "SGD", "0.1 to 0.05"):
        fit(seeded(one_group), tmp_path / "two", aggregators=[algorithm], schedule=ConstantSchedule(2, "epochs"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", REFUSED)
def test_a_scheduler_that_no_client_can_follow_is_refused(what: str, tmp_path: Path):
    make, given, words = REFUSED[what]
    with refused(ConfigError, words):
        fit(seeded(make), tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_resume_with_another_scheduler_is_refused(tmp_path: Path):
    given = {"run_dir": tmp_path / "run", "logger": False, "workers": 1}
    fedlit.fit(seeded(HALVING), Digits(), rounds=1, **given)
    other = seeded(returning(lambda o: of_torch.StepLR(o, 1, 0.5)))
    with refused(CheckpointError, "with ExponentialLR", "with StepLR"):
        fedlit.fit(other, Digits(), rounds=2, ckpt_path="last", **given)
    quarter = seeded(returning(lambda o: of_torch.ExponentialLR(o, 0.25)))
    with refused(CheckpointError, "pass the former, or start a new run"):
        fedlit.fit(quarter, Digits(), rounds=2, ckpt_path="last", **given)
    fedlit.fit(seeded(HALVING), Digits(), rounds=2, ckpt_path="last", **given)


def test_the_rate_that_is_logged_is_the_schedulers(tmp_path: Path):
    fitted = fedlit.fit(seeded(HALVING), Digits(), rounds=3, run_dir=tmp_path / "run", logger=False, workers=1)
    assert fitted.metrics["round/lr"].tolist() == pytest.approx([0.1, 0.05, 0.025])
    assert fitted.metrics["round/lr/pg2"].tolist() == pytest.approx([0.02, 0.01, 0.005])


def test_a_schedule_multiplies_it(tmp_path: Path):
    options = {"rounds": 3, "run_dir": tmp_path / "run", "logger": False, "workers": 1, "lr_factors": {"site-1": 0.5}}
    fitted = fedlit.fit(seeded(HALVING), Digits(), schedule=CosineSchedule(3), **options)
    factors = [CosineSchedule(3).plan(index).lr_factor for index in range(3)]
    assert fitted.metrics["round/lr"].tolist() == pytest.approx([0.1 * 0.5**n * f for n, f in enumerate(factors)])


def test_a_schedule_multiplies_each_rate_of_a_round_once():
    w = play(HALVING, Two(), schedule=StageSchedule([Stage(1, 6, "steps", 0.5)]), rounds=1)
    halved = seeded(returning(lambda o: of_torch.LambdaLR(o, lambda count: 0.5 ** (count + 1))))
    torch.testing.assert_close(w, by_hand(halved, ConstantSchedule(6, "steps"), 1), rtol=0, atol=1e-6)


def test_control_variates_form_where_the_first_rate_is_zero(tmp_path: Path):
    make, given = FOLLOWED["a warm-up from 0"]
    start = torch.cat([p.detach().flatten() for p in seeded(make).parameters()])
    w, states = fit(seeded(make), tmp_path / "one", aggregators=[Scaffold()], **given | {"rounds": 1})
    assert torch.equal(w, start)
    assert all(state.aggregators[0]["c"].norm() > 0 for state in states.values())
