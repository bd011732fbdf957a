"""Batches with a share of positives: what a pass has, and that a batch depends on nothing but its position."""

from collections import Counter

import pytest
import torch
from refusals import refused

from fedlit.core.batches import BatchStream
from fedlit.core.errors import DataError
from fedlit.core.randomness import generator
from fedlit.data import PhantomCXR
from fedlit.data.sampler import Sampler

LABELS = torch.zeros(103, 1)
LABELS[[5, 50, 99]] = 1


class Rows(torch.utils.data.Dataset):
    """Row numbers with their labels, with a sampler."""

    def __init__(self, labels: torch.Tensor, sampler: Sampler | None) -> None:
        self.labels, self.sampler = labels, sampler

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: torch.Tensor) -> torch.Tensor:
        return indices


@pytest.mark.parametrize(("share", "positives", "last"), [(0.2, 2, 1), (0.01, 1, 1), (0.99, 9, 2)])
def test_every_batch_has_its_share_and_a_pass_as_many_batches_as_without(share, positives, last):
    stream, plain = (BatchStream(Rows(LABELS, s), 10, 0, "a") for s in (Sampler(share), None))
    assert stream.steps_per_epoch == plain.steps_per_epoch == 11
    batches = [stream[i] for i in range(22)]
    assert [len(batch) for batch in batches] == [len(plain[i]) for i in range(22)] == [*[10] * 10, 3] * 2
    assert [int(LABELS[batch].sum()) for batch in batches] == [*[positives] * 10, last] * 2
    seen = Counter(torch.cat(batches[:11]).tolist())
    repeats = [seen[i] for i in (5, 50, 99)]
    assert max(repeats) - min(repeats) <= 1  # permutations, one after the other
    negatives = [count for row, count in seen.items() if row not in (5, 50, 99)]
    assert max(negatives) == 1
    assert not torch.equal(batches[0], batches[11])


def test_a_batch_depends_on_seed_client_and_position_alone_so_that_a_resumed_run_has_the_same():
    stream = BatchStream(Rows(LABELS, Sampler(0.2)), 10, 3, "a")
    straight = [stream[i] for i in range(30)]
    assert torch.equal(BatchStream(Rows(LABELS, Sampler(0.2)), 10, 3, "a")[17], straight[17])
    assert not torch.equal(BatchStream(Rows(LABELS, Sampler(0.2)), 10, 3, "b")[17], straight[17])


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_client_of_one_kind_and_a_measuring_round_draw_as_without(value):
    labels = torch.full((12, 1), value)
    assert torch.equal(
        Sampler(0.2).order(labels, 4, generator(0, "x")), torch.randperm(12, generator=generator(0, "x"))
    )
    measured = (BatchStream(Rows(LABELS, s), 10, 0, "a", "measure")[3] for s in (Sampler(0.2), None))
    assert torch.equal(*measured)


def test_data_have_it_as_a_setting_in_training_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = {"images": 80, "image_size": 32, "augment": False, "sampler": Sampler(0.5)}
    data = PhantomCXR(classes=["Effusion"], **options)
    data.setup()
    for client in data.clients.values():
        assert client.train.sampler == Sampler(0.5)
        assert client.val is None or client.val.sampler is None
    with refused(DataError, "found 2"):
        PhantomCXR(classes=["Edema", "Effusion"], **options).setup()
    with refused(DataError, "found 1"):
        Sampler(1.0)
