"""A round uses all of its batches alike: no optimizer, algorithm or rest of a pass makes it the gradient of one."""

import pytest
import torch
from at_sites import classifier
from attacker import EPOCH, a_plan

from fedlit.core.batches import BatchStream
from fedlit.sites.messages import REPLY, new_run


def trained_by(name: str, **options) -> dict:
    optimizer = {"class_path": f"torch.optim.{name}", "init_args": {"lr": 0.01, **options}}
    return {"class_path": "ImageClassifier", "init_args": {"backbone": "small_cnn", "optimizer": optimizer}}


FIRST = {
    "dampening": ("SGD", {"momentum": 1.0, "dampening": 1.0}),
    "some dampening": ("SGD", {"momentum": 0.9, "dampening": 1.0}),
    "a lasting momentum": ("SGD", {"momentum": 1.0}),
    "a decaying rate": ("Adagrad", {"lr_decay": 1e12}),
    "a large first sum": ("Adagrad", {"initial_accumulator_value": 1e9}),
    "a wide eps": ("Adagrad", {"eps": 1e3}),
    "a mean of the first": ("Adam", {"betas": [1 - 1e-12, 0.999]}),
    "a variance of the last": ("Adam", {"betas": [0.9, 0.0]}),
    "the largest variance": ("Adam", {"amsgrad": True}),
    "ascent": ("SGD", {"maximize": True}),
    "averages": ("ASGD", {"lambd": 1e12}),
    "signs": ("Rprop", {}),
    "a line search": ("LBFGS", {}),
    "a decay of beta": ("Adafactor", {}),
    "of momentum": ("NAdam", {"momentum_decay": 1e9}),
    "a mean square of the first": ("RMSprop", {"alpha": 1 - 1e-12}),
}


@pytest.mark.parametrize("name", FIRST)
def test_an_optimizer_that_makes_a_round_one_batch_is_refused(attacked, name):
    optimizer, options = FIRST[name]
    answer = attacked.prepare(run=new_run(), model=trained_by(optimizer, **options))
    attacked.refuses(answer, "", None)
    assert attacked.train().content["kind"] == "unprepared"
    assert "optimizer" in answer.content["reason"] or optimizer in answer.content["reason"]


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RAdam", "NAdam", "RMSprop", "Adagrad"])
def test_ordinary_optimizers_train(attacked, name):
    steps = {"class_path": "ConstantSchedule", "init_args": {"window": 4, "unit": "steps"}}
    assert attacked.prepare(run=new_run(), model=trained_by(name), schedule=steps).verb == REPLY
    assert attacked.train().verb == REPLY


LAST = {
    "a huge rate": {"model": trained_by("SGD", lr=1e6)},
    "a decay to zero": {"model": trained_by("SGD", lr=0.5, weight_decay=1.0)},
    "a pull to the start": {"aggregators": [{"class_path": "FedProx", "init_args": {"mu": 100.0}}]},
    "two pulls": {"aggregators": [{"class_path": "FedDyn", "init_args": {"alpha": 6.0}},
                                  {"class_path": "FedProx", "init_args": {"mu": 6.0}}]},
    "a factor of one client": {"lr_factors": {"hospital-01": 1e4}},
}  # fmt: skip


@pytest.mark.parametrize("name", LAST)
def test_steps_that_forget_the_other_batches_are_refused(attacked, name):
    answer = attacked.prepare(run=new_run(), **LAST[name])
    if answer.verb == REPLY:
        attacked.refuses(attacked.train(), "the learning rate", "refused")
    else:
        attacked.refuses(answer, "", None)


@pytest.mark.parametrize("beta", [1e-12, 1 - 1e-12])
def test_algorithms_that_send_the_gradient_of_their_last_batches_are_refused(attacked, beta):
    plan = {"model": classifier("AUCSaddle"), "aggregators": [
        {"class_path": "LocalSGDAM", "init_args": {"beta_x": beta, "beta_y": 0.1}}]}  # fmt: skip
    attacked.refuses(attacked.prepare(run=new_run(), **plan), "", None)


def test_the_site_may_allow_an_optimizer_of_its_choice(attack):
    server = attack(allow=["torch.optim.asgd.ASGD"])
    assert server.prepare(model=trained_by("ASGD")).verb == REPLY


def test_no_batch_is_smaller_than_the_floor(attack):
    """Of 210 images in batches of 16 the last two stay out of each pass; the next round does not begin with them."""
    server = attack()
    steps = {"class_path": "ConstantSchedule", "init_args": {"window": 12, "unit": "steps"}}
    assert server.prepare(batch_size=16, schedule=steps).verb == REPLY
    assert server.train(0).verb == REPLY
    assert server.ledger()[-1]["examples"] == 192
    reply = server.train(1, accepted=1)
    assert reply.verb == REPLY
    again = server.prepare(batch_size=16, schedule=EPOCH, run=new_run())
    assert again.verb == REPLY
    assert server.train().content["report"]["steps"] == 13
    assert server.ledger()[-1]["examples"] == 208


def test_the_ledger_counts_the_examples_of_the_answer(attacked):
    steps = {"class_path": "ConstantSchedule", "init_args": {"window": 9, "unit": "steps"}}
    assert attacked.prepare(a_plan(schedule=steps, batch_size=8), run=new_run()).verb == REPLY
    assert attacked.train().verb == REPLY
    assert attacked.ledger()[-1]["examples"] == 72
    assert attacked.ledger()[-1]["steps"] == 9


def test_a_run_at_sites_with_floors_has_the_steps_that_the_server_expects(fit, sites):
    policy = {"allow": ["toys.ToyNet"], "floors": {"batch_size": 4, "examples": 4}, "leaves": {"counts_below": 0}}
    sites.rules = {"site-1": policy, "site-2": policy}
    fit("--federation.rounds 2 --federation.schedule.unit epochs --federation.schedule.window 1", 2)


@pytest.mark.parametrize(("size", "smallest", "steps"), [(22, 2, 6), (22, 3, 5), (21, 1, 5), (3, 8, 1), (24, 8, 6)])
def test_a_rest_below_the_smallest_batch_is_dropped(size, smallest, steps):
    data = torch.utils.data.TensorDataset(torch.zeros(size, 1), torch.zeros(size, 1))
    stream = BatchStream(data, 4, 0, "a", smallest=smallest)
    assert stream.steps_per_epoch == steps
    assert min(len(stream.indices(position)) for position in range(2 * steps)) >= min(smallest, size, 4)
