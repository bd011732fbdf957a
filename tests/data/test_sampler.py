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
from fedlit.data.schemes import HideClasses

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


def several(seed: int = 0, n: int = 211) -> torch.Tensor:
    """Labels of four classes: a common one, two rare ones of which some images have both, and one without labels."""
    draw = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, 4, generator=draw) < torch.tensor([0.4, 0.04, 0.02, 0.3])).float()
    labels[:2, 1:3] = 1
    labels[:, 3] = float("nan")
    labels[5::7, 0] = float("nan")
    return labels


@pytest.mark.parametrize("batch_size", [2, 4, 10, 16, 64])
def test_every_batch_has_images_of_each_labelled_class_in_equal_shares(batch_size):
    # The definition: of a batch of B images, each of the G groups (the images that are positive for a labelled class,
    # and those that are positive for none) has at least floor(B / G); and over a pass, equally many up to one.
    labels = several()
    positive = labels == 1
    groups = [*(set(positive[:, c].nonzero()[:, 0].tolist()) for c in range(3)), set()]
    groups[3] = set(range(len(labels))) - set.union(*groups)
    balanced = Sampler(balance="classes")
    stream, plain = (BatchStream(Rows(labels, s), batch_size, 0, "a") for s in (balanced, None))
    assert stream.steps_per_epoch == plain.steps_per_epoch
    batches = [stream[i].tolist() for i in range(2 * stream.steps_per_epoch)]
    assert [len(batch) for batch in batches] == [len(plain[i]) for i in range(len(batches))]
    for batch in batches:
        assert all(sum(row in group for row in batch) >= len(batch) // 4 for group in groups)
        nothing = sum(row in groups[3] for row in batch)
        assert len(batch) // 4 <= nothing <= -(-len(batch) // 4)
    one_pass = Counter(row for batch in batches[: stream.steps_per_epoch] for row in batch)
    drawn = sum(one_pass.values())
    rare = [sum(one_pass[row] for row in group) for group in groups[1:3]]
    assert min(rare) >= drawn // 4
    repeats = [one_pass[row] for row in groups[3]]
    assert max(repeats) - min(repeats) <= 1  # permutations, one after the other


@pytest.mark.parametrize("sampler", [Sampler(0.2), Sampler(balance="classes")])
def test_a_batch_depends_only_on_seed_client_and_position_so_that_a_resumed_run_has_the_same(sampler):
    labels = LABELS if sampler.positives else several()
    straight = BatchStream(Rows(labels, sampler), 8, 3, "a")
    batches = [straight[i] for i in range(60)]
    for position in (0, 25, 26, 59):
        assert torch.equal(BatchStream(Rows(labels, sampler), 8, 3, "a")[position], batches[position])
        assert not torch.equal(BatchStream(Rows(labels, sampler), 8, 3, "b")[position], batches[position])
    assert not torch.equal(batches[0], batches[straight.steps_per_epoch])
    measured = (BatchStream(Rows(labels, s), 10, 0, "a", "measure")[3] for s in (sampler, None))
    assert torch.equal(*measured)


@pytest.mark.parametrize("sampler", [Sampler(0.2), Sampler(balance="classes")])
def test_a_client_of_one_kind_draws_as_without(sampler):
    for value in (0.0, float("nan")) if sampler.balance else (0.0, 1.0):
        order = sampler.order(torch.full((12, 1), value), 4, generator(0, "x"))
        assert torch.equal(order, torch.randperm(12, generator=generator(0, "x")))


def test_a_client_balances_the_classes_that_it_labels(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = {"classes": ["Edema", "Effusion", "Cardiomegaly"], "images": 240, "image_size": 32, "augment": False}
    data = PhantomCXR(scheme=HideClasses(0), sampler=Sampler(balance="classes"), batch_size=12, **options)
    data.setup()
    for name, client in data.clients.items():
        column = data.classes.index(client.classes[0])
        for position in range(2):
            rows = BatchStream(client.train, 12, 0, name).indices(position)
            assert len(rows) == 12
            assert (client.train.labels[rows, column] == 1).sum() == 6


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
