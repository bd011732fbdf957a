"""Histograms of logits: the pooled AUROC is within its bound of the exact one for any scores."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlit.metrics.auroc import class_auroc
from fedlit.metrics.tally import BINS, LARGEST, Tally, bin_of, pooled_auroc

CLASSES = ("Edema", "Mass")


def drawn(seed: int, n: int, shift: float, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, 2, generator=g) < 0.3).float()
    scores = scale * (torch.randn(n, 2, generator=g) + labels) + shift
    labels[torch.rand(n, 2, generator=g) < 0.1] = math.nan
    return scores, labels


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6), shift=st.floats(-40, 40), scale=st.floats(1e-3, 30),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5), below=st.integers(0, 20),
)  # fmt: skip
def test_the_exact_value_is_within_the_bound_whatever_is_hidden(seed, shift, scale, sizes, below):
    parts = [drawn(seed + i, n, shift + 2.0 * i, scale) for i, n in enumerate(sizes)]
    tallies = [Tally.of(*part, CLASSES, below) for part in parts]
    counted = torch.stack([(t.positives.sum(1) + t.negatives.sum(1)) > 0 for t in tallies])
    hidden = [sum(n for n, has in zip(sizes, told, strict=True) if not has) for told in counted.T.tolist()]
    pooled, within = pooled_auroc(tallies, CLASSES, hidden)
    exact = class_auroc(*(torch.cat(each) for each in zip(*parts, strict=True)), CLASSES)
    for value, bound, true in zip(pooled.auroc.tolist(), within.tolist(), exact.auroc.tolist(), strict=True):
        assert math.isnan(value) == math.isnan(true) or (below and math.isnan(value))
        assert math.isnan(value) or abs(value - true) <= bound + 1e-12


def test_the_bound_is_the_worst_case_of_hidden_images():
    # Three of four pairs that are counted are won; one more image is positive or negative, above all others or below.
    scores, labels = torch.tensor([[1.0, 3.0, 0.0, 2.0]]).T, torch.tensor([[1.0, 1.0, 0.0, 0.0]]).T
    tally = Tally.of(scores, labels, ("Mass",))
    values = []
    for label in (0.0, 1.0):
        for score in (-9.0, 9.0):
            more = torch.cat([scores, torch.tensor([[score]])]), torch.cat([labels, torch.tensor([[label]])])
            values.append(float(class_auroc(*more, ("Mass",)).auroc))
    pooled, within = pooled_auroc([tally], ("Mass",), [1])
    assert float(pooled.auroc) == 0.75
    assert float(within) == pytest.approx(max(abs(value - 0.75) for value in values))


def test_scores_in_bins_of_their_own_are_exact():
    scores, labels = torch.linspace(-9, 9, 60)[:, None].repeat(1, 2), drawn(3, 60, 0, 1)[1]
    pooled, within = pooled_auroc([Tally.of(scores, labels, CLASSES)], CLASSES)
    assert torch.equal(pooled.auroc, class_auroc(scores, labels, CLASSES).auroc)
    assert within.tolist() == [0, 0]


def test_equal_scores_count_half():
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    pooled, within = pooled_auroc([Tally.of(torch.zeros(2, 2), labels, CLASSES)], CLASSES)
    assert pooled.auroc.tolist() == within.tolist() == [0.5, 0.5]


def test_bins_are_those_of_everybody_and_in_order():
    logits = torch.tensor([-math.inf, -1e9, -LARGEST, -1e-9, 0.0, 1e-9, LARGEST, 1e9])
    bins = bin_of(logits).tolist()
    assert bins == sorted(bins)
    assert (bins[0], bins[4], bins[-1]) == (0, BINS // 2, BINS - 1)
    widths = [(bin_of(torch.linspace(x, x + 1, 4001)).unique().numel()) for x in (0, 3, 10)]
    assert widths == [165, 33, 12]  # of 1,000, in one unit of the logit


@pytest.mark.parametrize("below", [0, 4, 5])
def test_a_class_with_few_images_is_not_told(below):
    labels = torch.tensor([[1.0, 1.0]] * 4 + [[0.0, 1.0]] * 6 + [[0.0, 0.0]] * 6)
    tally = Tally.of(drawn(0, 16, 0, 1)[0], labels, CLASSES, below)
    told = [below <= 4, True]
    assert [not math.isnan(value) for value in tally.auroc.tolist()] == told
    assert tally.positives.sum(1).tolist() == [4 * told[0], 10]
    assert tally.negatives.sum(1).tolist() == [12 * told[0], 6]
