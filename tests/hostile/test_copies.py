"""Modules of which a copy is another one: each process trains a copy, and its weights lie in one vector."""

import weakref
from pathlib import Path

import pytest
import torch
from strangers import fit, having, seeded
from torch import nn

from fedlit.core.errors import ConfigError


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


REFUSED = {
    "a function in an attribute": (lambda m: setattr(m, "f", lambda x: m.net(x)), r"Strange\.f has .* \(its variable "
        r"m\)"),
    "a list of functions": (lambda m: setattr(m, "f", [lambda x: m.net(x)]), r"Strange\.f has .* \(its variable m\)"),
    "a default of a function": (lambda m: setattr(m, "f", lambda x, net=m.net: net(x)), r"Strange\.f has .* \(a "
        r"default\)"),
    "a hook of a layer": (with_hook, r"Strange\.net\.forward_hooks has .* \(its variable module\); .* make it a "
                                     r"method"),
    "a hook that collects": (collecting, r"Strange\.net\.forward_hooks has .* \(its variable features\)"),
    "a replaced forward": (patched, r"Strange\.net\.forward has .* \(its variable forward\)"),
    "a weak reference": (lambda m: object.__setattr__(m, "me", weakref.ref(m)), r"Strange\.me has .* \(a weak "
        r"reference\)"),
    "a frozen layer of the same memory": (with_frozen_twin, r"its parameters net\.weight and twin\.weight share "
        r"memory"),
    "a buffer of a parameter's memory": (
        lambda m: m.register_buffer("alias", m.net.weight.data), r"its parameter net\.weight and buffer alias share "
            r"memory",
    ),
    "an attribute of a parameter's memory": (
        lambda m: setattr(m, "row", m.net.weight[0].detach()), r"its parameter net\.weight and attribute row share "
            r"memory",
    ),
    "parameters that overlap": (overlapping, "its parameters one and two share memory"),
    "buffers that overlap": (two_views, "its buffers one and two share memory"),
    "an expanded buffer": (
        lambda m: m.register_buffer("ones", torch.ones(1).expand(5)),
        r"elements of its buffer ones .* after expand\(\)",
    ),
    "a sparse buffer": (
        lambda m: m.register_buffer("graph", torch.eye(4).to_sparse()),
        r"expected a dense tensor for the buffer graph, found torch.sparse_coo, .* use a dense buffer",
    ),
    "sparse indices": (
        lambda m: m.register_buffer("graph", torch.eye(4, dtype=torch.long).to_sparse()),
        "expected a dense tensor for the buffer graph",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_in_words(what: str, tmp_path: Path):
    start, said = REFUSED[what]
    with pytest.raises(ConfigError, match=said):
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
