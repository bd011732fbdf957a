"""Messages between processes: every kind of tensor arrives unchanged."""

import pickle

import pytest
import torch

from fedlit.federation.engines.pool import packed

TENSORS = (
    torch.tensor(3),
    torch.zeros(0),
    torch.zeros(2, 0, 3),
    torch.arange(12.0).view(3, 4).t(),
    torch.tensor([True, False]),
    torch.randn(5, generator=torch.Generator().manual_seed(0)).bfloat16(),
    torch.tensor([float("nan"), -0.0], dtype=torch.float64),
    torch.arange(100)[10:20],
)


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}-{tuple(t.shape)}")
def test_a_tensor_arrives_with_its_kind_shape_and_bits(tensor):
    arrived = pickle.loads(packed({"state": [tensor]}))["state"][0]
    assert (arrived.dtype, arrived.shape) == (tensor.dtype, tensor.shape)
    assert pickle.dumps(arrived.tolist()) == pickle.dumps(tensor.tolist())
    arrived.zero_()  # it is the receiver's own


def test_a_view_takes_no_more_than_it_shows():
    assert len(packed(torch.zeros(1_000_000)[:4])) < 1_000
