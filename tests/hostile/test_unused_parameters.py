"""Parameters that a step's loss does not use: the optimizer passes over them, as in PyTorch."""

from pathlib import Path

import pytest
import torch
from hostile import spread
from strangers import by_hand, fit, having, seeded, stepping
from torch import nn
from torch.nn import functional as F

from fedlit.aggregators import FedProx, Scaffold

pytestmark = pytest.mark.filterwarnings("ignore")


def extra(module) -> None:
    module.extra = nn.Linear(16, 4)


def also_extra(module, loss, batch):
    return loss + F.cross_entropy(module.extra(batch[0].flatten(1)), batch[1])


def now_and_then(module, loss, batch):
    return also_extra(module, loss, batch) if module.global_step % 2 else loss


def of_some_clients(module, loss, batch):
    return also_extra(module, loss, batch) if batch[0].mean() > 1.5 else loss


def until_the_second_round(module, loss, batch):
    return also_extra(module, loss, batch) if module.global_step < 2 else loss


def with_zero(module, loss, batch):
    return loss + 0 * sum(p.sum() for p in module.extra.parameters())


def flattened(layer: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in layer.parameters()])


def of_torch(name: str, **options):
    return lambda m: getattr(torch.optim, name)(m.parameters(), **options)


OPTIMIZERS = {
    "SGD": of_torch("SGD", lr=0.1),
    "weight decay": of_torch("SGD", lr=0.1, weight_decay=0.1),
    "momentum": of_torch("SGD", lr=0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": of_torch("AdamW", lr=0.01, weight_decay=0.1),
}
USED = {
    "never": lambda module, loss, batch: loss,
    "now and then": now_and_then,
    "by some clients": of_some_clients,
    "until the second round": until_the_second_round,
    "with a factor of 0": with_zero,
}
CASES = {f"{used}, {name}": (step, made) for used, step in USED.items() for name, made in OPTIMIZERS.items()}


@pytest.mark.parametrize("case", spread(CASES))
def test_it_is_the_plain_loop(case: tuple, tmp_path: Path):
    step, configure = case
    make = stepping(step, extra, configure_optimizers=configure)
    w, _ = fit(seeded(make), tmp_path / "run")
    torch.testing.assert_close(w, by_hand(seeded(make)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("algorithm", [FedProx(0.5), Scaffold()], ids=["FedProx", "Scaffold"])
def test_a_correction_of_zero_does_not_move_it(algorithm, tmp_path: Path):
    make = having(extra, configure_optimizers=OPTIMIZERS["AdamW"])
    w, _ = fit(seeded(make), tmp_path / "run", aggregators=[algorithm])
    start = flattened(seeded(make).extra)
    assert torch.equal(w[-len(start) :], start)


def test_a_correction_of_other_clients_reaches_it(tmp_path: Path):
    make = stepping(of_some_clients, extra, configure_optimizers=OPTIMIZERS["SGD"])
    corrected, states = fit(seeded(make), tmp_path / "corrected", aggregators=[Scaffold()])
    plain, _ = fit(seeded(make), tmp_path / "plain")
    of_extra = slice(len(plain) // 2, None)
    assert [bool(state.aggregators[0]["c"][of_extra].any()) for state in states.values()] == [True, False, True]
    assert not torch.allclose(corrected[of_extra], plain[of_extra], atol=1e-6)
