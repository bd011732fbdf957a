"""State of a module between its steps: a client's buffers, and detached gradients and statistics."""

from pathlib import Path

import pytest
import torch
from foreigners import Named, Unvalidated
from runs import assert_same_tensors
from strangers import fit, having, seeded, stepping
from toys import ToyNet

from fedlit.aggregators import Scaffold
from fedlit.core.buffers import OwnBuffers
from fedlit.core.flat import FlatModel
from fedlit.core.messages import ClientState


class Counter(Unvalidated):
    """Weighs its loss by the number of its steps, which integer, bool and late buffers count."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("odd", torch.tensor(False), persistent=False)
        self.register_buffer("late", None)
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("table", torch.arange(3))

    def training_step(self, batch, batch_idx):
        self.steps += 1
        self.odd = ~self.odd
        self.late = self.steps * 2.0
        self.mean = 0.5 * self.mean + 0.5 * batch[0].mean()  # a statistic: a new tensor in the place of the old one
        scale = 1 / (self.steps + self.odd + self.late)
        return super().training_step(batch, batch_idx) * scale * (1 + self.mean)


def everything(w: torch.Tensor, states: dict[str, ClientState]) -> dict[str, torch.Tensor]:
    return {"w": w} | {f"{name}/{key}": t for name, state in states.items() for key, t in state.tensors().items()}


def test_buffers_of_a_client_give_the_same_weights_with_workers_and_after_a_resume(tmp_path: Path):
    whole = everything(*fit(seeded(Counter), tmp_path / "whole"))
    assert int(whole["site-2/buffers/steps"]) == 4
    assert float(whole["site-2/buffers/late"]) == 8
    assert not any(name.endswith("buffers/table") for name in whole)  # as at the start: nobody keeps it
    assert_same_tensors(everything(*fit(seeded(Counter), tmp_path / "two", workers=2)), whole)
    fit(seeded(Counter), tmp_path / "part", rounds=1)
    resumed = fit(seeded(Counter), tmp_path / "part", tmp_path / "part/checkpoints/round-000001")
    assert_same_tensors(everything(*resumed), whole)


def test_a_client_without_buffers_of_its_own_keeps_what_it_kept_before():
    model = FlatModel(ToyNet())
    model.module.body[1].num_batches_tracked += 5
    assert model.own.state() == {}
    state = ClientState(1, torch.zeros(0), torch.zeros(0), {}, [{}])
    assert list(state.tensors()) == ["batches", "w", "stats"]
    assert ClientState.from_tensors(state.tensors(), 1).buffers == {}


def test_a_buffer_in_two_places_stays_one():
    module = having(lambda m: (m.register_buffer("one", torch.tensor(0)), m.register_buffer("two", m.one)))()
    own = OwnBuffers(module, set(), torch.device("cpu"))
    own.load({"one": torch.tensor(3)})
    assert module.one is module.two
    assert own.state() == {"one": torch.tensor(3)}


def test_statistics_in_two_places_stay_one():
    module = having(lambda m: (m.register_buffer("one", torch.zeros(2)), m.register_buffer("two", m.one)))()
    model = FlatModel(module)
    model.stats += 1
    assert module.two.tolist() == [1, 1]


def test_zero_grad_in_a_step_changes_nothing(tmp_path: Path):
    """The Trainer sets gradients to zero after the step, and so does a federation, including its correction."""
    clearing = stepping(lambda module, loss, batch: module.zero_grad(set_to_none=False) or loss)
    given = {"aggregators": [Scaffold()], "rounds": 2, "gradient_clip": 0.1}
    plain = fit(seeded(having()), tmp_path / "plain", **given)
    assert_same_tensors(everything(*fit(seeded(clearing), tmp_path / "clearing", **given)), everything(*plain))


def test_a_step_knows_how_many_its_client_has_taken(tmp_path: Path):
    seen = []

    def note(module, loss, batch):
        seen.append((module.global_step, module.current_epoch, module.trainer.global_step))
        return loss

    fit(seeded(stepping(note)), tmp_path / "run", rounds=3)  # 3 clients, 2 steps a round, 2 batches of images each
    rounds = [(step, step // 2, step) for start in (0, 2, 4) for _ in range(3) for step in (start, start + 1)]
    assert seen[-len(rounds) :] == rounds  # after the steps of the probe
    seen.clear()
    fit(seeded(stepping(note)), tmp_path / "run", tmp_path / "run/checkpoints/round-000003", rounds=4)
    assert seen[-6:] == [(6, 3, 6), (7, 3, 7)] * 3


SILENT = type(
    "Silent", (Named,), {"validation_step": lambda module, batch, batch_idx: {"logits": module.net(batch[0])}}
)


@pytest.mark.filterwarnings("error::UserWarning")
def test_classes_without_scores_are_named_in_a_warning(tmp_path: Path):
    with pytest.raises(UserWarning, match=r"Silent.validation_step: expected scores of shape \(examples, 4\)"):
        fit(seeded(SILENT), tmp_path / "run")
