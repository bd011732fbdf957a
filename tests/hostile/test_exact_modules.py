"""Modules that once were accepted and trained differently: each equals an explicit loop, or torch's own."""

from pathlib import Path

import pytest
import torch
from foreigners import One
from strangers import by_hand, fit, having, seeded
from torch import nn


def normalised(module) -> None:
    module.net = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    module.net[1].running_mean.fill_(0.3)
    module.net[1].eval()


def flat(w: torch.Tensor, module) -> torch.Tensor:
    """The weights in the order of the module's parameters; in the vector normalisation follows the rest."""
    names = [name for name, _ in module.named_parameters()]
    sizes = {name: p.numel() for name, p in module.named_parameters()}
    order = sorted(names, key=lambda name: name.startswith("net.1.") and len(names) > 2)
    parts = dict(zip(order, w.split([sizes[name] for name in order]), strict=True))
    return torch.cat([parts[name] for name in names])


@pytest.mark.filterwarnings("ignore")
def test_a_batchnorm_in_evaluation_mode_stays_so(tmp_path: Path):
    module = seeded(having(normalised))
    w, _ = fit(module, tmp_path / "run", data=One())
    torch.testing.assert_close(flat(w, module), by_hand(module, One()), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_clipping_counts_the_gradients_that_are_optimized(tmp_path: Path):
    module = seeded(having(configure_optimizers=lambda m: torch.optim.SGD([m.net.bias], lr=0.5)))
    w, _ = fit(module, tmp_path / "run", data=One(), gradient_clip=0.05)
    torch.testing.assert_close(w, by_hand(module, One(), clip=0.05), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_a_causal_mask_is_no_divergence(tmp_path: Path):
    mask = torch.full((4, 4), -torch.inf).triu(1)
    module = seeded(having(lambda m: m.register_buffer("mask", mask.clone())))
    w, _ = fit(module, tmp_path / "run", data=One())
    torch.testing.assert_close(w, by_hand(module, One()), rtol=0, atol=1e-6)
