"""Modules of which a copy is another one: each process trains a copy, and its weights lie in one vector."""

import weakref
from pathlib import Path

import pytest
import torch
from refusals import refused
from strangers import fit, having, seeded
from torch import nn


def scaled(module) -> None:
    module.scale = nn.Parameter(torch.full((4,), 0.5))


def with_hook(module) -> None:
    scaled(module)
    module.net.register_forward_hook(lambda layer, images, out: out * module.scale)


def collecting(module) -> None:
    features: dict = {}
    module.features = features
    module.net.register_forward_hook(lambda layer, images, out: features.update(out=out))


def patched(module) -> None:
    forward = module.net.forward
    module.net.forward = lambda images: 0.5 * forward(images)


def with_frozen_twin(module) -> None:
    module.twin = nn.Linear(16, 4).requires_grad_(False)
    module.twin.weight.data = module.net.weight.data


def overlapping(module) -> None:
    values = torch.randn(10)
    module.one, module.two = nn.Parameter(values[:6]), nn.Parameter(values[4:])


def two_views(module) -> None:
    values = torch.randn(10)
    module.register_buffer("one", values)
    module.register_buffer("two", values[:5])


CLOSURES = {
    "a function in an attribute": (lambda m: setattr(m, "f", lambda x: m.net(x)), "f", "its variable m"),
    "a list of functions": (lambda m: setattr(m, "f", [lambda x: m.net(x)]), "f", "its variable m"),
    "a default of a function": (lambda m: setattr(m, "f", lambda x, net=m.net: net(x)), "f", "a default"),
    "a hook of a layer": (with_hook, "net.forward_hooks", "its variable module"),
    "a hook that collects": (collecting, "net.forward_hooks", "its variable features"),
    "a replaced forward": (patched, "net.forward", "its variable forward"),
    "a weak reference": (lambda m: object.__setattr__(m, "me", weakref.ref(m)), "me", "a weak reference"),
}
SHARED = {
    "a frozen layer of the same memory": (with_frozen_twin, "parameters net.weight and twin.weight"),
    "a buffer of a parameter's memory": (
        lambda m: m.register_buffer("alias", m.net.weight.data), "parameter net.weight and buffer alias",
    ),
    "an attribute of a parameter's memory": (
        lambda m: setattr(m, "row", m.net.weight[0].detach()), "parameter net.weight and attribute row",
    ),
    "parameters that overlap": (overlapping, "parameters one and two"),
    "buffers that overlap": (two_views, "buffers one and two"),
    "an expanded buffer": (lambda m: m.register_buffer("ones", torch.ones(1).expand(5)), "buffer ones"),
}  # fmt: skip
SPARSE = {
    "a sparse buffer": lambda m: m.register_buffer("graph", torch.eye(4).to_sparse()),
    "sparse indices": lambda m: m.register_buffer("graph", torch.eye(4, dtype=torch.long).to_sparse()),
}
REFUSED = {
    **{what: (start, ("check-closures", f"Strange.{at} has", f"({of})")) for what, (start, at, of) in CLOSURES.items()},
    **{what: (start, ("check-shared-memory", both)) for what, (start, both) in SHARED.items()},
    **{what: (start, ("buffer-not-dense", "buffer graph", "torch.sparse_coo")) for what, start in SPARSE.items()},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_by_name(what: str, tmp_path: Path):
    start, mistake = REFUSED[what]
    with refused(*mistake):
        fit(seeded(having(start)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def halving(layer, images, out):
    return 0.5 * out


ACCEPTED = {
    "a function of its arguments": lambda m: setattr(m, "f", lambda x: 2 * x),
    "a hook that is a function": lambda m: m.net.register_forward_hook(halving),
    "a hook that is a method": lambda m: m.net.register_forward_hook(m.halved),
    "a bound method": lambda m: setattr(m, "f", m.net.forward),
    "a tensor of its own": lambda m: setattr(m, "start", m.net.weight.detach().clone()),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ACCEPTED)
def test_what_a_copy_has_too_is_accepted(what: str, tmp_path: Path):
    make = having(ACCEPTED[what], halved=lambda m, layer, images, out: halving(layer, images, out))
    one, _ = fit(seeded(make), tmp_path / "one")
    two, _ = fit(seeded(make), tmp_path / "two", workers=2)
    assert torch.equal(one, two)
