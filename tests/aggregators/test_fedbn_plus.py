"""FedBN+: normalisation does not change by a bit over a whole run, in one process or several."""

import copy
import warnings

import pytest
import torch
from fdam_toys import FINDINGS, ROUNDS, SITES, WINDOW, Classifier, Sites, classifier, federation
from simulation import Simulation, federated, simulate
from torch import Tensor, nn
from toys import ToyData

from fedlit.aggregators import Aggregator, FedBNPlus, Scaffold, SurgicalHeads
from fedlit.core.flat import FlatModel
from fedlit.testing import ToyNet


class Witness(Aggregator):
    """A module that calls ``module.train()`` often, and counts the steps after which BatchNorm has changed."""

    def __init__(self, module: Classifier) -> None:
        self.expected = {n: t.clone() for n, t in module.body[1].state_dict().items()}

    def client_state(self, layout):
        return {"steps": torch.tensor(0), "broken": torch.tensor(0)}

    def on_client_round_start(self, ctx) -> None:
        ctx.model.module.train()

    def on_after_optimizer_step(self, ctx, batches) -> None:
        ctx.model.module.train()
        norm = ctx.model.module.body[1]
        same = all(torch.equal(t, self.expected[n]) for n, t in norm.state_dict().items())
        ctx.state["steps"] = ctx.state["steps"] + 1
        ctx.state["broken"] = ctx.state["broken"] + int(norm.training or not same or not ctx.model.module.training)


def run(module: Classifier, aggregators: list[Aggregator], workers: int = 1, precision: str = "32-true") -> Simulation:
    fed = federation([*aggregators, Witness(module)], optimizer_state="keep")
    return simulate(module, Sites(SITES, FINDINGS), fed, precision, workers=workers)


def broken(done: Simulation) -> list[int]:
    """The number of such steps per site."""
    states = [s.aggregators[-1] for s in done.states.values()]
    assert [int(s["steps"]) for s in states] == [ROUNDS * WINDOW] * len(SITES)
    return [int(s["broken"]) for s in states]


def statistics(module: Classifier) -> Tensor:
    return torch.cat([module.body[1].running_mean, module.body[1].running_var])


HYPER = {"momentum": 0.9, "weight_decay": 0.1}


def test_fedbn_plus_does_not_move_by_a_bit():
    module = classifier(optimizer=torch.optim.AdamW, weight_decay=0.1).float()
    done = run(module, [SurgicalHeads(), FedBNPlus(), Scaffold()])
    assert broken(done) == [0, 0, 0]
    assert torch.equal(done.server.stats, statistics(module))
    assert not [name for name in done.parameters() if "body.1" in name]
    for name in ("body.0.weight", "head.weight"):
        assert (done.tensor(name) - module.get_parameter(name)).abs().max() > 1e-2


def test_fedbn_plus_does_not_move_by_a_bit_in_worker_processes():
    """The number of processes does not change the weights either."""
    module = classifier(**HYPER).float()
    spread, alone = (run(module, [SurgicalHeads(), FedBNPlus()], workers) for workers in (2, 1))
    assert spread.session.engine.where == "2 workers"
    assert broken(spread) == broken(alone) == [0, 0, 0]
    assert torch.equal(spread.server.w, alone.server.w)
    assert torch.equal(spread.server.stats, statistics(module))


def test_without_fedbn_plus_it_would_have_moved():
    """Check that the two tests above can fail."""
    module = classifier(**HYPER).float()
    done = run(module, [SurgicalHeads()])
    assert broken(done) == [ROUNDS * WINDOW] * len(SITES)
    assert (done.server.stats - statistics(module)).abs().max() > 1e-2


def test_fedbn_plus_freezes_group_norm_too():
    def module() -> Classifier:
        made = classifier()
        made.body[1] = nn.GroupNorm(2, 6, dtype=torch.float64)
        return made

    assert broken(run(module(), [FedBNPlus()], precision="64-true")) == [0, 0, 0]
    assert broken(run(module(), [], precision="64-true")) == [ROUNDS * WINDOW] * len(SITES)


@pytest.mark.parametrize("copied", [False, True])
def test_fedbn_plus_keeps_normalisation_in_evaluation_mode(copied):
    module = classifier()
    FedBNPlus().configure_model(module)
    module = copy.deepcopy(module) if copied else module
    for switch in (module.train, module.eval, module.train, module.body.train):
        assert switch() is not None
        assert not module.body[1].training
    assert module.body[0].training
    assert module.head.training
    assert [e.name for e in FlatModel(module).layout.parameters] == [
        "body.0.weight",
        "body.0.bias",
        "head.weight",
        "head.bias",
    ]


def test_fedbn_plus_warns_of_normalisation_that_was_never_trained():
    torch.manual_seed(0)
    module, data = ToyNet(), ToyData()
    with pytest.warns(UserWarning, match=r"never trained.*model\.pretrained") as warned:
        simulate(module, data, federated([FedBNPlus()]), precision="32-true")
    assert len([w for w in warned if "never trained" in str(w.message)]) == 1
    module.body[1].running_mean.fill_(0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate(module, data, federated([FedBNPlus()]), precision="32-true")
