"""The flat vector: order, groups, views; and steps of an optimizer along it, fused or not."""

import copy

import pytest
import torch
from torch import nn
from toys import CLASSES, ToyNet

from fedlit.core import optimizer
from fedlit.core.flat import FlatModel, Layout
from fedlit.core.messages import Mask
from fedlit.core.optimizer import LocalOptimizer
from fedlit.models import ImageClassifier


@pytest.fixture(scope="module")
def densenet() -> FlatModel:
    return FlatModel(ImageClassifier(CLASSES, backbone="densenet121"))


def test_norm_layers_are_found_by_type(densenet):
    """timm's DenseNet121 has 121 BatchNorm layers and no name with "bn"."""
    layout = densenet.layout
    norm = [e.name for e in layout.parameters if e.offset in range(*layout.slices["norm"].indices(layout.size))]
    assert len(norm) == 2 * 121
    assert not any("bn" in name for name in norm)
    assert len(layout.buffers) == 2 * 121


def test_slices_are_contiguous_and_in_order(densenet):
    slices = densenet.layout.slices
    assert slices["body"].start == 0
    assert slices["body"].stop == slices["norm"].start
    assert slices["norm"].stop == slices["head"].start
    assert slices["head"].stop == slices["dual"].start == slices["dual"].stop == densenet.layout.size
    assert slices["head"].stop - slices["head"].start == 3 * 1024 + 3


def test_gradients_take_memory_from_when_they_are_asked_for():
    torch.manual_seed(0)
    model = FlatModel(ToyNet())
    optimizer = LocalOptimizer(model.module, model.w.device)
    optimizer.begin({}, 1.0)
    assert "grad" not in vars(model)
    assert all(p.grad is None for p in model.parameters)
    model.module.training_step((torch.randn(4, 1, 8, 8), torch.ones(4, 3)), 0).backward()
    beside = torch.cat([p.grad.reshape(-1) for p in model.parameters])
    model.gather_gradients()
    assert torch.equal(model.grad, beside)
    before = model.w.clone()
    optimizer.optimizer.step()
    torch.testing.assert_close(model.w, before - optimizer.rates[0] * beside)


def test_rows_of_a_class_are_one_group():
    model = FlatModel(ToyNet())
    layout = model.layout
    marked = layout.zeros()
    mask = Mask.everything(layout).lacking(layout.groups(("head", "dual"), ("Effusion",)))
    for segment in mask.unshared(layout):
        marked[segment] = 1
    model.w.copy_(marked)
    assert model.module.head.weight[1].eq(1).all()
    assert model.module.head.bias[1] == 1
    assert marked.sum() == model.module.head.weight.shape[1] + 1


def test_parameters_gradients_and_statistics_are_views():
    torch.manual_seed(0)
    model = FlatModel(ToyNet())
    batch = torch.randn(4, 1, 8, 8), torch.ones(4, 3)
    model.module.train()
    model.module.training_step(batch, 0).backward()
    model.gather_gradients()
    entry = next(e for e in model.layout.parameters if e.name == "head.weight")
    assert torch.equal(entry.view(model.grad), model.module.head.weight.grad)
    assert model.grad.norm() > 0
    assert torch.equal(model.stats[:4], model.module.body[1].running_mean)
    model.stats[:4] = 7
    assert model.module.body[1].running_mean.eq(7).all()


def test_fingerprint_tells_layouts_apart():
    prints = {
        Layout.of(module).fingerprint
        for module in (
            ToyNet(),
            ToyNet(classes=("Edema", "Nodule", "Effusion")),
            ToyNet().double(),
            ToyNet(CLASSES[:2]),
        )
    }
    assert len(prints) == 4
    assert Layout.of(ToyNet()).fingerprint in prints


def test_per_class_and_dual_parameters_are_declared_by_a_submodule():
    class Objective(nn.Module):
        dual_parameters = ("alpha",)
        per_class_parameters = ("a", "alpha")

        def __init__(self):
            super().__init__()
            self.a, self.alpha = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))

    module = ToyNet()
    module.objective = Objective()
    layout = Layout.of(module)
    assert layout.slices["dual"].stop - layout.slices["dual"].start == 3
    mask = Mask.everything(layout).lacking(layout.groups(("head", "dual"), ("Nodule",)))
    lost = sum(s.stop - s.start for s in mask.unshared(layout))
    assert lost == module.head.weight.shape[1] + 1 + 2


def test_expand_is_a_scalar_where_all_weights_agree(densenet):
    layout = densenet.layout
    assert layout.expand(torch.ones(layout.num_groups)).shape == ()
    values = torch.ones(layout.num_groups, dtype=torch.float64)
    values[layout.groups(("norm",))] = 0.25
    expanded = layout.expand(values)
    norm = layout.slices["norm"]
    assert expanded[norm].eq(0.25).all()
    assert expanded.sum() == layout.size - 0.75 * (norm.stop - norm.start)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    ],
    ids=["sgd", "adam", "rmsprop"],
)
def test_with_its_state_kept_it_does_what_one_optimizer_does(make):
    torch.manual_seed(0)
    plain, flat = ToyNet(drop=0.0).double(), ToyNet(drop=0.0).double()
    flat.load_state_dict(plain.state_dict())
    plain.configure_optimizers = lambda: make(plain.parameters())
    flat.configure_optimizers = lambda: make(flat.parameters())
    model = FlatModel(flat)
    ours, theirs = LocalOptimizer(flat, model.w.device), plain.configure_optimizers()
    state = {}
    for _ in range(2):  # rounds, with the state kept between them
        ours.begin(state, 1.0)
        for _ in range(3):
            batch = torch.randn(4, 1, 8, 8).double(), torch.ones(4, 3).double()
            theirs.zero_grad()
            plain.training_step(batch, 0).backward()
            theirs.step()
            model.drop_gradients()
            model.grad.zero_()
            flat.training_step(batch, 0).backward()
            model.gather_gradients()
            ours.optimizer.step()
        state = ours.state()
    for one, other in zip(plain.parameters(), flat.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_groups_and_frozen_parameters_of_the_optimizer_are_kept():
    module = ToyNet(drop=0.0)
    module.body[0].requires_grad_(False)
    module.configure_optimizers = lambda: torch.optim.SGD(
        [{"params": module.body.parameters(), "lr": 0.5}, {"params": module.head.parameters(), "lr": 0.25}]
    )
    model = FlatModel(module)
    optimizer = LocalOptimizer(module, model.w.device)
    optimizer.begin({}, 2.0)
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    model.grad.fill_(1.0)
    model.use_gradients()
    optimizer.optimizer.step()
    moved = {n: float((before[n] - p.detach()).max()) for n, p in module.named_parameters()}
    assert moved == {
        "body.0.weight": 0,
        "body.0.bias": 0,
        "body.1.weight": 1.0,
        "body.1.bias": 1.0,
        "head.weight": 0.5,
        "head.bias": 0.5,
    }


MAKE = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}
FUSIBLE = ("SGD", "Adam")


def begun(make, device: str = "cpu") -> tuple[FlatModel, LocalOptimizer]:
    torch.manual_seed(1)
    module = ToyNet().to(device)
    module.configure_optimizers = lambda: make(module.parameters())
    model, local = FlatModel(module), LocalOptimizer(module, torch.device(device))
    local.begin({}, 0.5)
    return model, local


def steps(model: FlatModel, local: LocalOptimizer, rounds: int) -> torch.Tensor:
    """Rounds of two steps with the state kept, as from a checkpoint."""
    state = {}
    draw = torch.Generator().manual_seed(2)
    model.use_gradients()
    for _ in range(rounds):
        local.begin(state, 0.5)
        for _ in range(2):
            model.grad.copy_(torch.randn(model.grad.shape, generator=draw))
            local.optimizer.step()
        state = copy.deepcopy(local.state())
        assert all(tensor.device.type == "cpu" for tensor in state.values())
    return model.w.clone()


def fused(local: LocalOptimizer) -> bool:
    return all(group.get("fused") for group in local.optimizer.param_groups)


@pytest.mark.parametrize("name", MAKE)
def test_on_a_cpu_the_step_is_that_of_torchs_default(name):
    assert not fused(begun(MAKE[name])[1])


@pytest.mark.parametrize("name", MAKE)
def test_the_fused_step_agrees_to_rounding(name, monkeypatch):
    wanted = steps(*begun(MAKE[name]), 3)
    monkeypatch.setattr(optimizer, "FUSED", {"cpu"})
    model, local = begun(MAKE[name])
    assert fused(local) == (name in FUSIBLE)
    torch.testing.assert_close(steps(model, local, 3), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("choice", [{"foreach": True}, {"differentiable": True}])
def test_who_has_chosen_how_a_step_is_computed_gets_it(choice, monkeypatch):
    monkeypatch.setattr(optimizer, "FUSED", {"cpu"})
    assert not fused(begun(lambda p: torch.optim.SGD(p, lr=0.1, **choice))[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", MAKE)
def test_on_a_gpu_the_state_comes_back_to_it(name):
    model, local = begun(MAKE[name], "cuda")
    assert fused(local) == (name in FUSIBLE)
    wanted = steps(*begun(MAKE[name]), 3)
    torch.testing.assert_close(steps(model, local, 3).cpu(), wanted, rtol=1e-4, atol=1e-5)
