"""Files of the cache that were damaged are made again, and drafts of dead processes go."""

import importlib
import os
import shutil
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from hospital_source import ready
from shades import Shades, cached, fabric, model
from torch import nn

from fedlit.data.pictures import cache
from fedlit.data.pictures.cache import append_checksum, damage, intact, sweep
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
    "a flipped sum": lambda file: flip(file, file.stat().st_size - 1, 1),
    "cut off": lambda file: os.truncate(file, 1000),
    "cut in its sum": lambda file: os.truncate(file, file.stat().st_size - 3),
    "its head alone": lambda file: os.truncate(file, 128),
    "empty": lambda file: os.truncate(file, 0),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"\0" * 10),
    "a text": lambda file: file.write_text("not an array"),
    "other numbers": lambda file: np.save(file, PIXELS.astype(np.float32)),
    "another shape": lambda file: np.save(file, PIXELS[1:]),
}


@pytest.mark.parametrize("how", HURT)
def test_damaged_pictures_are_made_again_with_a_warning(how: str, tmp_path: Path):
    file = stored(tmp_path).path
    whole = file.read_bytes()
    HURT[how](file)
    with pytest.warns(UserWarning, match=r"pictures.npy: this cache file is damaged \(.*it is recreated"):
        again = stored(tmp_path)
    assert file.read_bytes() == whole
    assert (again[list(range(40))].numpy() == PIXELS).all()


@pytest.mark.parametrize("how", ["64 flipped bytes", "cut off", "empty", "other numbers"])
def test_damaged_features_are_made_again_with_a_warning(how: str, tmp_path: Path):
    data = ready(Shades(cache_dir=str(tmp_path)))
    with_fixed_features(model(), data, fabric())
    (file,) = cached(tmp_path)
    whole = file.read_bytes()
    HURT[how](file)
    with pytest.warns(UserWarning, match=r"features-\w+.npy: this cache file is damaged"):
        with_fixed_features(model(), data, fabric())
    assert file.read_bytes() == whole


def test_what_is_sound_is_opened_in_silence(tmp_path: Path):
    stored(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stored(tmp_path)


def test_a_file_of_an_earlier_version_has_no_sum_and_is_taken(tmp_path: Path):
    np.save(tmp_path / "old.npy", PIXELS)
    assert damage(tmp_path / "old.npy", SHAPE, np.uint8) == ""
    os.truncate(tmp_path / "old.npy", 2000)
    assert "expected 2,688 bytes, found 2,000" in damage(tmp_path / "old.npy", SHAPE, np.uint8)


def test_a_large_file_is_summed_in_blocks_all_over_it(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(cache, "WHOLE", 2**12)
    monkeypatch.setattr(cache, "BLOCKS", 16)
    file = tmp_path / "large.npy"
    np.save(file, np.zeros((2**16,), dtype=np.uint8))
    append_checksum(file)
    assert intact(file, (2**16,), np.uint8)
    read = []
    methods = {"update": lambda _, block: read.append(len(block)), "digest": lambda _: b""}
    monkeypatch.setattr(cache.hashlib, "sha256", lambda start: type("Sum", (), methods)())
    damage(file, (2**16,), np.uint8)
    assert sum(read) == 2**12
    monkeypatch.undo()
    monkeypatch.setattr(cache, "WHOLE", 2**12)
    monkeypatch.setattr(cache, "BLOCKS", 16)
    flip(file, 30_000, 5_000)  # a block lies in any stretch of an eighth
    assert "checksum does not match" in damage(file, (2**16,), np.uint8)


def test_drafts_of_dead_processes_are_swept(tmp_path: Path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = socket.gethostname()
    left = tmp_path / f".features-0123.npy.{host}.{dead.pid}.tmp"
    ours = tmp_path / f".features-0123.npy.{host}.{os.getpid()}.tmp"
    young, old = (tmp_path / f".features-0123.npy.elsewhere.{n}.tmp" for n in (1, 2))
    for draft in (left, ours, young, old):
        draft.write_bytes(b"half")
    os.utime(old, (1, 1))
    sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([ours, young])


def test_features_sweep_the_drafts_of_a_killed_run(tmp_path: Path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    data = ready(Shades(cache_dir=str(tmp_path)))
    left = tmp_path / f".features-0123.npy.{socket.gethostname()}.{dead.pid}.tmp"
    left.write_bytes(b"half")
    with_fixed_features(model(), data, fabric())
    assert not left.exists()


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

    def key(code: str = BODY, **options) -> str:
        (tmp_path / "own_body.py").write_text(code)
        sys.modules.pop("own_body", None)
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)  # written in the same second
        importlib.invalidate_caches()
        body: nn.Module = importlib.import_module("own_body").Body(**options)
        return _key(body, images)

    yield key
    sys.modules.pop("own_body", None)


def test_the_key_of_features_knows_the_bodys_code(key_of):
    assert key_of() == key_of()
    assert key_of(BODY.replace("* self.weight", "* self.weight * 2")) != key_of()
    assert key_of(BODY.replace("x.mean(", "x.sum(")) != key_of()  # a function beside the class
    assert key_of(power=2) != key_of()


def test_the_key_of_features_knows_weights_and_versions(key_of, monkeypatch):
    before = key_of()
    for place, other in (
        ("torch.__version__", "0.0"),
        ("fedlit.data.pictures.features.version", lambda package: "0.0"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, other)
            assert key_of() != before
