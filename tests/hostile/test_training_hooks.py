"""Training hooks: a federation calls them as Lightning's Trainer does, or refuses them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rounds import played
from foreigners import Digits, Unvalidated
from lightning.pytorch import LightningModule, Trainer
from refusals import refused
from strangers import fit_in_each_way, having, seeded, settings
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import fedlit
from fedlit.aggregators import FedNova, LocalSCGDAM, Scaffold
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.fabric import make_fabric
from fedlit.core.module import CALLED
from fedlit.data.in_memory import GivenClients
from fedlit.federation.assembly import assemble
from fedlit.federation.examinations.modules import REFUSED as REFUSED_HOOKS
from fedlit.schedules import ConstantSchedule

MANUAL = Path(fedlit.__file__).parent / "models" / "README.md"

pytestmark = pytest.mark.filterwarnings("ignore")


def examples(number: int = 0, size: int = 16) -> TensorDataset:
    drawn = torch.Generator().manual_seed(number)
    return TensorDataset(torch.randn(size, 16, generator=drawn), torch.randint(4, (size,), generator=drawn))


def here(make: Callable[[], LightningModule], clients: Any = None, **given: Any) -> dict[str, Tensor]:
    """Two rounds of two steps on all images of one client, without files."""
    data = GivenClients(clients or {"only": examples()}, batch_size=16)
    session = assemble(settings(**given), seeded(make), data, make_fabric("cpu"))
    return session.model(played(session, session.federation.rounds)).state_dict()


def by_lightning(make: Callable[[], LightningModule], folder: Path, clip: float | None = None) -> dict[str, Tensor]:
    """Four epochs of one step."""
    module = seeded(make)
    trainer = Trainer(
        accelerator="cpu", max_epochs=4, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, gradient_clip_val=clip, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(module, DataLoader(examples(), batch_size=16))
    return module.state_dict()


def halved(module) -> None:
    for parameter in module.parameters():
        parameter.grad = 0.5 * parameter.grad


def forgotten(module) -> None:
    module.net.bias.grad = None


def summed(value: Callable[..., Any]) -> Callable[..., None]:
    """Make a hook that adds its argument, as a number, to a buffer."""

    def hook(module, *given: Any) -> None:
        module.kept += value(module, *given)

    return hook


def averaged(module, outputs, batch, batch_idx) -> None:
    module.average.lerp_(module.net.weight.detach(), 0.1)


def noted(module, batch, batch_idx) -> None:
    module.kept.fill_(batch[0].mean())


def reads_what_it_notes(module, batch, batch_idx):
    return Unvalidated.training_step(module, batch, batch_idx) * (1 + module.kept)


def told(module, batch, batch_idx):
    return {"loss": Unvalidated.training_step(module, batch, batch_idx), "rows": len(batch[0])}


def hooked(**body: Any) -> Callable[[], LightningModule]:
    def start(module) -> None:
        module.register_buffer("kept", torch.zeros(()))
        module.register_buffer("average", module.net.weight.detach().clone())

    return having(start, **body)


def normed(module, optimizer) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad.div_(1 + parameter.grad.norm())


def of_the_bias(module, optimizer) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        if parameter is module.net.bias:
            parameter.grad.mul_(0.1)


def slowed(module, optimizer) -> None:
    state = optimizer.state[module.net.weight]
    if "momentum_buffer" in state:
        state["momentum_buffer"].mul_(0.5)


def faster(module, batch, batch_idx) -> None:
    module.optimizers().param_groups[0]["lr"] = 0.5


def with_momentum(module):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


HONOURED = {
    "gradients of the optimizer, by norms": hooked(on_before_optimizer_step=normed),
    "a parameter of the optimizer": hooked(on_before_optimizer_step=of_the_bias),
    "an average of the weights": hooked(on_train_batch_end=averaged),
    "what a step returns": hooked(
        training_step=told, on_train_batch_end=summed(lambda m, outputs, batch, i: outputs["rows"])
    ),
    "a batch before its step": hooked(on_train_batch_start=noted, training_step=reads_what_it_notes),
    "gradients that are clamped": hooked(on_after_backward=lambda m: m.net.weight.grad.clamp_(-0.01, 0.01)),
    "gradients that are replaced": hooked(on_after_backward=halved),
    "a gradient that is none": hooked(on_before_optimizer_step=lambda m, optimizer: forgotten(m)),
    "a rate that it sets": hooked(on_train_batch_start=faster),
    "epochs": hooked(on_train_epoch_start=summed(lambda m: 1.0 + m.current_epoch)),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """What a module without hooks ends with."""
    return by_lightning(hooked(), tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("what", HONOURED)
def test_it_is_what_lightning_makes_of_it(what: str, plain: dict[str, Tensor], tmp_path: Path):
    ours, theirs = here(HONOURED[what]), by_lightning(HONOURED[what], tmp_path)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert any(not torch.equal(theirs[name], value) for name, value in plain.items())


def test_the_state_of_a_parameter_is_the_optimizers(tmp_path: Path):
    make = hooked(on_before_optimizer_step=slowed, configure_optimizers=with_momentum)
    options = {"rounds": 1, "schedule": ConstantSchedule(4, "steps")}
    ours, theirs = here(make, **options), by_lightning(make, tmp_path)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_gradients_are_clipped_after_the_modules_hooks(tmp_path: Path):
    ours = here(HONOURED["gradients that are clamped"], gradient_clip=0.02)
    theirs = by_lightning(HONOURED["gradients that are clamped"], tmp_path, clip=0.02)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_a_gradient_that_is_none_stays_none_beside_an_algorithm():
    make = HONOURED["a gradient that is none"]
    alone, beside = (here(make, rounds=1, aggregators=given) for given in ([], [Scaffold()]))
    torch.testing.assert_close(beside, alone, rtol=0, atol=1e-6)


def test_one_process_two_and_a_resumed_run_are_equal(tmp_path: Path):
    epochs = summed(lambda m: 1.0 + m.current_epoch)
    make = hooked(on_train_batch_start=faster, on_train_batch_end=averaged, on_train_epoch_start=epochs)
    fit_in_each_way(make, tmp_path, data=Flat())


class Flat(Digits):
    """Three clients with images as vectors."""

    def _part(self, seed: int) -> TensorDataset:
        return examples(seed)


def test_a_correction_is_added_behind_hooks_that_look_at_gradients():
    seen: list[float] = []

    def compared(module) -> None:
        loss = Unvalidated.training_step(module, module.batch, 0)
        (own,) = torch.autograd.grad(loss, module.net.bias)
        seen.append(float((own - module.net.bias.grad).abs().max()))

    looking = hooked(on_train_batch_start=lambda m, batch, i: setattr(m, "batch", batch), on_after_backward=compared)
    clients = {name: examples(number) for number, name in enumerate("abc")}
    plain, looked = (here(m, clients, aggregators=[Scaffold()]) for m in (hooked(), looking))
    torch.testing.assert_close(looked, plain, rtol=0, atol=1e-6)
    assert len(seen) >= 3 * 2 * 2  # and the steps of the probe
    assert max(seen) < 1e-6


REFUSED = {
    "setup": (hooked(setup=lambda m, stage: None), {}, (ConfigError, "the layers")),
    "fit start": (hooked(on_fit_start=lambda m: None), {}, (ConfigError, "overrides on_fit_start", "__init__")),
    "zero grad": (
        hooked(on_before_zero_grad=lambda m, o: None),
        {},
        (ConfigError, "overrides on_before_zero_grad", "on_after_backward"),
    ),
    "the rest of an epoch": (hooked(on_train_batch_start=lambda m, b, i: -1), {}, (TrainingError,)),
    "a rate": (hooked(on_train_batch_start=faster), {"aggregators": [FedNova()]}, (TrainingError, "SGD", "0.1 to 0.5")),
    "a counter that the step reads": (
        hooked(
            on_train_batch_start=lambda m, batch, i: setattr(m, "n", getattr(m, "n", 0) + 1),
            training_step=lambda m, batch, i: Unvalidated.training_step(m, batch, i) / m.n,
        ),
        {},
        (ConfigError, "Strange.n"),
    ),
    "two batches a step": (
        hooked(on_train_batch_end=averaged),
        {"aggregators": [LocalSCGDAM()]},
        (ConfigError, "LocalSCGDAM", "Strange.on_train_batch_end"),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_mean_something_else_is_refused(what: str):
    make, given, said = REFUSED[what]
    with refused(*said):
        here(make, **given)


def two_groups(module):
    groups = [{"params": [module.net.weight], "lr": 0.1}, {"params": [module.net.bias], "lr": 0.02}]
    return torch.optim.SGD(groups, lr=0.3)


def test_the_rates_of_all_groups_are_logged(tmp_path: Path):
    options = {"rounds": 2, "batch_size": 16, "run_dir": tmp_path, "logger": False, "workers": 1}
    fitted = fedlit.fit(seeded(having(configure_optimizers=two_groups)), {"only": examples()}, **options)
    assert fitted.metrics[["round/lr", "round/lr/pg2"]].to_numpy().tolist() == [[0.1, 0.02]] * 2


def test_the_manual_lists_every_hook_as_it_is_treated():
    rows = [line.split("|")[1:3] for line in MANUAL.read_text().splitlines() if line.startswith("| `")]
    said = {name: text.split()[0] for names, text in rows for name in re.findall(r"`(\w+)`", names)}
    assert {name for name, word in said.items() if word == "called"} - {"validation_step", "predict_step"} == set(
        CALLED
    )
    assert set(REFUSED_HOOKS) <= {name for name, word in said.items() if word.startswith("refused")}
