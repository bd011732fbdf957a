"""Schedulers of torch that a module returns: followed exactly, or refused before training."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from foreigners import Digits
from refusals import refused
from strangers import fit, fit_in_each_way, having, seeded, settings
from torch import nn
from torch.optim import lr_scheduler as of_torch

import fedlit
from fedlit.aggregators import Scaffold
from fedlit.core.batches import BatchStream
from fedlit.core.errors import ConfigError
from fedlit.core.module import step_of
from fedlit.federation.scheduler import following_scheduler
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


FOLLOWED = {
    "one each epoch": (returning(lambda o: of_torch.StepLR(o, 1, 0.5)), EPOCH),
    "one each second epoch": (returning(lambda o: of_torch.StepLR(o, 2, 0.5)), EPOCH),
    "a frequency": (returning(lambda o: of_torch.ExponentialLR(o, 0.5), frequency=3), EPOCH),
    "a cosine to 0": (returning(lambda o: of_torch.CosineAnnealingLR(o, 3)), EPOCH),
    "a cosine of Adam": (returning(lambda o: of_torch.CosineAnnealingLR(o, ROUNDS), adam=True), EPOCH),
    "a warm-up": (returning(warm_up), EPOCH),
    "a warm-up from 0": (returning(lambda o: of_torch.LambdaLR(o, lambda count: count / 2)), EPOCH),
    "one cycle without momentum": (
        returning(lambda o: of_torch.OneCycleLR(o, 1.0, ROUNDS, cycle_momentum=False)),
        EPOCH,
    ),
    "a rate in a tensor": (having(configure_optimizers=rate_in_a_tensor), EPOCH),
    "two lists": (having(configure_optimizers=in_two_lists), EPOCH),
    "steps of a window": (returning(each_two_steps, interval="step"), STEPS),
    "windows of several epochs": (returning(each_two_steps), {"schedule": ConstantSchedule(2, "epochs"), "rounds": 2}),
    "windows that grow": (
        returning(lambda o: of_torch.LambdaLR(o, lambda count: 1.0 if count < 2 else 0.5), interval="step"),
        {"schedule": StageSchedule([Stage(1, 2, "steps"), Stage(2, 3, "steps")]), "rounds": 3},
    ),
}


def by_hand(module: nn.Module, schedule: Any, rounds: int, scheduled: bool = True) -> torch.Tensor:
    """Federated averaging as with Lightning on each client: a new optimizer per round, and a continued scheduler."""
    data = Digits()
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
                over = plan.unit == "epochs" and steps[name] % epoch == 0
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
def test_each_client_trains_as_with_a_scheduler_of_its_own(what: str, tmp_path: Path):
    make, given = FOLLOWED[what]
    w, _ = fit(seeded(make), tmp_path / "run", **given)
    rounds = given["schedule"], given["rounds"]
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


class Random(of_torch.LRScheduler):
    """Draws its rates."""

    def get_lr(self):
        return [rate * (0.5 + float(torch.rand(()))) for rate in self.base_lrs]


class OfWeights(of_torch.LRScheduler):
    """Divides the rate by the norm of the weights."""

    def get_lr(self):
        return [rate / float(self.optimizer.param_groups[0]["params"][0].norm()) for rate in self.base_lrs]


def two_schedulers(self: nn.Module) -> tuple[list, list]:
    optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
    return [optimizer], [of_torch.StepLR(optimizer, 1), of_torch.ExponentialLR(optimizer, 0.5)]


HALVING = returning(lambda o: of_torch.ExponentialLR(o, 0.5))
REFUSED = {
    "a plateau": (returning(lambda o: of_torch.ReduceLROnPlateau(o)), EPOCH, "its rate depends on a metric"),
    "two of them": (having(configure_optimizers=two_schedulers), EPOCH,
        "returned 2 learning-rate schedulers; expected one"),
    "an object": (returning(lambda o: object()), EPOCH, "it is not an LRScheduler of torch"),
    "a dict without one": (returning(lambda o: None), EPOCH, "it is not an LRScheduler of torch"),
    "another optimizer's": (returning(of_another), EPOCH, "the scheduler of another optimizer"),
    "an interval of rounds": (returning(lambda o: of_torch.StepLR(o, 1), interval="round"), EPOCH, "'epoch' or 'step'"),
    "a misspelt key": (returning(lambda o: of_torch.StepLR(o, 1), freqency=2), EPOCH, "also has freqency"),
    "a frequency of steps": (
        returning(each_two_steps, interval="step", frequency=2), STEPS, "counts steps by a frequency other than 1",
    ),
    "each step of a window": (
        returning(lambda o: of_torch.ExponentialLR(o, 0.5), interval="step"), STEPS,
        "changes within a round of 2 steps",
    ),
    "epochs, and a window of steps": (HALVING, STEPS, "its interval is one epoch, but the window"),
    "steps, and a window of epochs": (returning(each_two_steps, interval="step"), EPOCH, "counts epochs"),
    "part of the clients": (HALVING, EPOCH | {"participation": 0.5}, "participation below 1"),
    "a schedule beside it": (HALVING, {"schedule": CosineSchedule(4), "rounds": 4},
        "CosineSchedule also changes the learning"),
    "momentum": (returning(lambda o: of_torch.OneCycleLR(o, 1.0, 9), adam=True), EPOCH, "it also changes 'betas'"),
    "groups that differ": (
        returning(lambda o: of_torch.CosineAnnealingLR(o, 4, eta_min=0.01)), EPOCH, "different factors for the "
            "parameter groups",
    ),
    "its end": (
        returning(lambda o: of_torch.OneCycleLR(o, 1.0, 2, cycle_momentum=False)), EPOCH,
        "The specified number of total",
    ),
    "chance": (returning(Random), EPOCH, "its rate depends on the weights, or on chance"),
    "the weights": (returning(OfWeights), EPOCH, "its rate depends on the weights, or on chance"),
    "an infinite rate": (returning(lambda o: of_torch.LambdaLR(o, lambda n: 1.0 if n < 2 else float("inf"))), EPOCH,
        "its rate becomes inf times"),
    "a rate that is not a number": (returning(lambda o: of_torch.LambdaLR(o, lambda n: 1.0 if n < 2 else float("nan"))),
        EPOCH, "its rate becomes nan times"),
    "a negative rate": (returning(lambda o: of_torch.LambdaLR(o, lambda n: 1 - n)), EPOCH,
        "becomes negative, -1 times"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_in_words(what: str, tmp_path: Path):
    make, given, words = REFUSED[what]
    with pytest.raises(ConfigError) as caught:
        fit(seeded(make), tmp_path / "run", **given)
    assert words in str(caught.value)
    assert not (tmp_path / "run").exists()
    if what == "a plateau":
        with refused("scheduler-not-followed"):
            fedlit.fit(seeded(make), Digits(), rounds=2, run_dir=tmp_path / "run", logger=False)


@pytest.mark.filterwarnings("ignore")
def test_a_resume_with_another_scheduler_is_refused(tmp_path: Path):
    given = {"run_dir": tmp_path / "run", "logger": False, "workers": 1}
    fedlit.fit(seeded(HALVING), Digits(), rounds=1, **given)
    other = seeded(returning(lambda o: of_torch.StepLR(o, 1, 0.5)))
    with refused("run-fingerprint-differs", "with ExponentialLR", "with StepLR"):
        fedlit.fit(other, Digits(), rounds=2, ckpt_path="last", **given)
    quarter = seeded(returning(lambda o: of_torch.ExponentialLR(o, 0.25)))
    with refused("run-fingerprint-differs"):
        fedlit.fit(quarter, Digits(), rounds=2, ckpt_path="last", **given)
    fedlit.fit(seeded(HALVING), Digits(), rounds=2, ckpt_path="last", **given)


def test_the_rate_that_is_logged_is_the_schedulers(tmp_path: Path):
    fitted = fedlit.fit(seeded(HALVING), Digits(), rounds=3, run_dir=tmp_path / "run", logger=False, workers=1)
    assert fitted.metrics["round/lr"].tolist() == pytest.approx([0.1, 0.05, 0.025])
    assert fitted.metrics["round/lr/pg2"].tolist() == pytest.approx([0.02, 0.01, 0.005])


def test_with_sites_the_configuration_has_to_say_it():
    with refused("scheduler-not-followed"):
        following_scheduler(settings(**EPOCH), seeded(HALVING), away=True)


def test_control_variates_form_where_the_first_rate_is_zero(tmp_path: Path):
    make, given = FOLLOWED["a warm-up from 0"]
    start = torch.cat([p.detach().flatten() for p in seeded(make).parameters()])
    w, states = fit(seeded(make), tmp_path / "one", aggregators=[Scaffold()], **given | {"rounds": 1})
    assert torch.equal(w, start)
    assert all(state.aggregators[0]["c"].norm() > 0 for state in states.values())
