"""Files of the cache that were damaged are made again."""

import importlib
import os
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hospital_source import ready
from shades import Shades, cached, fabric, model
from torch import nn

from fedlit.data.pictures import cache
from fedlit.data.pictures.cache import begin, checksum, damage
from fedlit.data.pictures.features import _key, with_fixed_features
from fedlit.data.pictures.images import ImageStore

SHAPE = (40, 1, 8, 8)
PIXELS = np.arange(np.prod(SHAPE), dtype=np.int64).reshape(SHAPE).astype(np.uint8)


def stored(folder: Path) -> ImageStore:
    return ImageStore.cached("pictures", SHAPE, lambda out: np.copyto(out, PIXELS), folder)


def flip(file: Path, at: int, count: int = 64) -> None:
    content = bytearray(file.read_bytes())
    content[at : at + count] = bytes(byte ^ 0xFF for byte in content[at : at + count])
    file.write_bytes(content)


HURT = {
    "64 flipped bytes": lambda file: flip(file, 1000),
    "one flipped byte": lambda file: flip(file, 200, 1),
    "a flipped sum": lambda file: flip(file.with_name("rows.npy"), file.with_name("rows.npy").stat().st_size - 36, 1),
    "cut off": lambda file: os.truncate(file, 1000),
    "cut in its sums": lambda file: os.truncate(file.with_name("rows.npy"), 700),
    "empty": lambda file: os.truncate(file, 0),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"\0" * 10),
    "other numbers": lambda file: np.save(file, PIXELS.astype(np.float32)),
    "no sums": lambda file: file.with_name("rows.npy").unlink(),
    "another shape": lambda file: np.save(file, PIXELS[1:]),
}


@pytest.mark.parametrize("how", HURT)
def test_damaged_pictures_are_made_again_with_a_warning(how: str, tmp_path: Path):
    file = stored(tmp_path).path / "array.npy"
    whole = file.read_bytes()
    HURT[how](file)
    with pytest.warns(UserWarning, match=r"pictures: this cache entry is damaged \(.*it is recreated"):
        again = stored(tmp_path)
    assert file.read_bytes() == whole
    assert (again[list(range(40))].numpy() == PIXELS).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stored(tmp_path)  # what is sound is opened in silence


def test_damaged_features_are_made_again_with_a_warning(tmp_path: Path):
    data = ready(Shades(cache_dir=str(tmp_path)))
    with_fixed_features(model(), data, fabric())
    file = cached(tmp_path)[0] / "array.npy"
    whole = file.read_bytes()
    for how in ("64 flipped bytes", "cut off", "other numbers"):
        HURT[how](file)
        with pytest.warns(UserWarning, match=r"features-\w+: this cache entry is damaged"):
            with_fixed_features(model(), data, fabric())
        assert file.read_bytes() == whole


def test_of_a_large_file_rows_all_over_it_are_checked(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(cache, "CHECKED", 2**12)
    array, rows = begin(tmp_path / "large", (2**10, 64), np.uint8)
    rows["sum"] = [checksum(row) for row in array]
    read, real = [], cache.checksum
    monkeypatch.setattr(cache, "checksum", lambda row: read.append(len(row)) or real(row))
    assert damage(tmp_path / "large", (2**10, 64), np.uint8) == ""
    assert sum(read) == 2**12
    flip(tmp_path / "large" / "array.npy", 30_000, 64 * 17)  # a row is checked in any stretch of sixteen
    assert "checksum does not match" in damage(tmp_path / "large", (2**10, 64), np.uint8)


BODY = """
import torch
from torch import nn


class Body(nn.Module):
    def __init__(self, power=1):
        super().__init__()
        self.power = power
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return bright(x) * self.weight


def bright(x):
    return x.mean((1, 2, 3))[:, None]
"""


@pytest.fixture
def key_of(tmp_path: Path, monkeypatch):
    """The key of the features of a body whose code is in a file, as another process would make it."""
    monkeypatch.syspath_prepend(tmp_path)
    data = ready(Shades(cache_dir=str(tmp_path / "cache")))
    images = data.clients["client-01"].train

    def key(code: str = BODY, kind: type = np.float32, device: str = "cpu", **options) -> str:
        (tmp_path / "own_body.py").write_text(code)
        sys.modules.pop("own_body", None)
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)  # written in the same second
        importlib.invalidate_caches()
        body: nn.Module = importlib.import_module("own_body").Body(**options)
        return _key(body, images, kind, torch.device(device))

    yield key
    sys.modules.pop("own_body", None)


def test_the_key_of_features_knows_the_bodys_code(key_of):
    assert key_of() == key_of()
    assert key_of(BODY.replace("* self.weight", "* self.weight * 2")) != key_of()
    assert key_of(BODY.replace("x.mean(", "x.sum(")) != key_of()  # a function beside the class
    assert key_of(power=2) != key_of()
    assert key_of(kind=np.float64) != key_of()
    assert key_of(device="cuda") != key_of()


def test_the_key_of_features_knows_weights_versions_and_instructions(key_of, monkeypatch):
    before = key_of()
    for place, other in (
        ("torch.__version__", "0.0"),
        ("fedlit.data.pictures.features.version", lambda package: "0.0"),
        ("torch.backends.cpu.get_cpu_capability", lambda: "AVX1024"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, other)
            assert key_of() != before
    monkeypatch.setenv("MKL_CBWR", "SSE2")
    assert key_of() != before
