"""What tests of reports share."""

import pytest
import timm
import torch
from reproduced import planning_with_one_parser

from fedlit.models import backbones
from fedlit.reports.compare import page


@pytest.fixture
def no_pretrained(monkeypatch):
    """Bodies that a plan makes are random, because pretrained weights come by network, and small ones for DenseNets."""
    create = timm.create_model

    def created(name: str, **options) -> torch.nn.Module:
        return create("resnet10t" if name.startswith("densenet") else name, **options | {"pretrained": False})

    monkeypatch.setattr(timm, "create_model", created)
    monkeypatch.setattr(backbones, "_silence", lambda ask: "")


@pytest.fixture(scope="module", autouse=True)
def _empty_pdfs():
    """Charts are drawn as SVG alone, in half the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "save", lambda _, file: file.touch())
        yield


@pytest.fixture
def blank_charts(monkeypatch):
    """Charts of a page are empty, because drawing takes most of the time of a report."""
    monkeypatch.setattr(page, "svg", lambda _: '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>')


@pytest.fixture(scope="module", autouse=True)
def _one_parser():
    with planning_with_one_parser():
        yield
