"""Parameters that a step does without: torch's optimizers pass over them, and the flat vector may not."""

from pathlib import Path

import pytest
import torch
from refusals import refused
from strangers import by_hand, fit, having, seeded, stepping
from torch import nn
from torch.nn import functional as F

pytestmark = pytest.mark.filterwarnings("ignore")


def extra(module) -> None:
    module.extra = nn.Linear(16, 4)


def now_and_then(module, loss, batch):
    return loss + F.cross_entropy(module.extra(batch[0].flatten(1)), batch[1]) if module.global_step % 2 else loss


def with_zero(module, loss, batch):
    return loss + 0 * sum(p.sum() for p in module.extra.parameters())


def of_torch(name: str, **options):
    return lambda m: getattr(torch.optim, name)(m.parameters(), **options)


UNUSED, NOW_AND_THEN = having, lambda start, **body: stepping(now_and_then, start, **body)
REFUSED = {
    "weight decay": (UNUSED, of_torch("SGD", lr=0.1, weight_decay=0.1)),
    "AdamW": (UNUSED, of_torch("AdamW", lr=0.01)),
    "momentum": (NOW_AND_THEN, of_torch("SGD", lr=0.1, momentum=0.9)),
    "Adam": (NOW_AND_THEN, of_torch("Adam", lr=0.01)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_be_moved_is_refused(what: str, tmp_path: Path):
    make, configure = REFUSED[what]
    with refused("parameter-unused-by-loss", "extra"):
        fit(seeded(make(extra, configure_optimizers=configure)), tmp_path / "run")


ACCEPTED = {
    "SGD": having(extra),
    "Adam": having(extra, configure_optimizers=of_torch("Adam", lr=0.01)),
    "decay of what is used": having(
        extra, configure_optimizers=lambda m: torch.optim.SGD(m.net.parameters(), lr=0.1, weight_decay=0.1)
    ),
    "0 times the sum": stepping(with_zero, extra, configure_optimizers=of_torch("AdamW", lr=0.01)),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_what_stays_is_the_loop_written_by_hand(what: str, tmp_path: Path):
    w, _ = fit(seeded(ACCEPTED[what]), tmp_path / "run")
    torch.testing.assert_close(w, by_hand(seeded(ACCEPTED[what])), rtol=0, atol=1e-6)
