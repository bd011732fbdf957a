"""The list of the cache: what, how large, used when and by which runs; and what is removed."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from own_tables import write_pictures
from refusals import refused

import fedlit
from fedlit.core.errors import DataError
from fedlit.data import PhantomCXR
from fedlit.data.pictures.cache import entries, note_use, remove, select
from fedlit.data.pictures.decoding import decode_images
from fedlit.data.pictures.store import ImageStore
from fedlit.models import ImageClassifier


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of eight pictures, an unfinished one, and one that was used long ago."""
    files = write_pictures(tmp_path / "png", 8)
    decode_images(files, 64, cache_dir=tmp_path / "cache")
    files[3].write_bytes(b"no image")
    with refused(DataError, "1 of 5"):
        decode_images(files[:5], 32, cache_dir=tmp_path / "cache")
    store = ImageStore.from_array(np.zeros((1, 1, 16, 16), np.uint8), tmp_path / "cache")
    for file in store.path.iterdir():
        os.utime(file, (0, time.time() - 40 * 86400))
    (tmp_path / "cache" / "notes.txt").write_text("of somebody else")
    return tmp_path / "cache"


def test_what_is_there(folder: Path):
    found = entries(folder)
    assert [entry.what for entry in found] == [
        "decoded image files", "decoded image files, unfinished", "images of an array",
    ]  # fmt: skip
    for entry in found:
        names = [path for path in folder.iterdir() if path.name.startswith(entry.name)]
        assert sorted(entry.paths) == sorted(names)
        assert entry.size == sum(file.stat().st_blocks * 512 for path in names for file in path.iterdir())
    assert time.time() - found[0].used < 60
    assert time.time() - found[2].used > 39 * 86400
    assert entries(folder / "nowhere") == []


def test_runs_that_used_it(folder: Path, tmp_path: Path):
    (store,) = folder.glob("array-*")
    for run in ("one", "two", "one"):
        note_use([store, store], tmp_path / run)
    entry = next(entry for entry in entries(folder) if entry.name == store.name)
    assert entry.runs == (str(tmp_path / "one"), str(tmp_path / "two"))
    assert time.time() - entry.used < 60
    assert len((store / "used.jsonl").read_text().splitlines()) == 3
    note_use([tmp_path / "gone"], tmp_path)
    with (store / "used.jsonl").open("a") as used:
        used.write('{"when": "2026-0')  # the disk was full
    note_use([store], tmp_path / "one")
    assert next(entry for entry in entries(folder) if entry.name == store.name).runs == entry.runs


def test_entries_are_described_by_the_first_word_of_their_names(tmp_path: Path):
    data = PhantomCXR(hospitals=2, images=40, image_size=16, cache_dir=str(tmp_path))
    data.setup()
    assert [path.parent for path in data.cached()] == [tmp_path]
    for name in ("medmnist", "ours"):
        ImageStore.cached(f"{name}-28-1", (1, 1, 4, 4), lambda out: None, tmp_path)
    described = {"decoded data sets", "images of a custom source", "synthetic images"}
    assert {entry.what for entry in entries(tmp_path)} == described


def test_what_names_stand_for(folder: Path):
    found = entries(folder)
    assert select(found, ["all"]) == found
    assert select(found, ["unfinished"]) == [found[1]]
    assert select(found, ["array"]) == [found[2]]
    assert select(found, ["all"], older=30) == [found[2]]
    with refused(DataError, "imag3s", "'imag3s'"):
        select(found, ["imag3s"])


def test_removed_with_all_that_belongs_to_it_unless_somebody_is_at_work(folder: Path):
    first, unfinished, _ = entries(folder)
    with FileLock(folder / f".{unfinished.name}.lock"):
        assert not remove(unfinished)
    assert remove(first)
    assert not list(folder.glob(f"*{first.name}*"))
    assert len(list(folder.glob(f"{unfinished.name}*"))) == 1


def test_an_entry_that_another_process_finishes_meanwhile_is_left_out(folder: Path, monkeypatch):
    whole = entries(folder)
    (partial,), real = folder.glob("*.partial"), Path.iterdir

    def renamed(path: Path):
        if path == partial:
            partial.rename(path.with_suffix(""))
        return real(path)

    monkeypatch.setattr(Path, "iterdir", renamed)
    assert entries(folder) == [entry for entry in whole if entry.finished]


def test_the_command(folder: Path, fedlit_cli):
    code, out, err = fedlit_cli(f"data cache --cache_dir {folder}")
    assert (code, err) == (0, "")
    assert f"{folder}: " in out
    assert "in 3 entries" in out
    assert "decoded image files, unfinished" in out
    out = fedlit_cli(f"data cache --cache_dir {folder} --remove all --older 30").succeeded()
    assert "removed 1 of 3" in out
    assert [entry.what for entry in entries(folder)] == ["decoded image files", "decoded image files, unfinished"]
    fedlit_cli(f"data cache --cache_dir {folder} --remove imag3s").refused("'imag3s'", code=2)


def test_a_run_is_written_down(tmp_path: Path):
    data = PhantomCXR(hospitals=2, images=40, image_size=16, cache_dir=str(tmp_path / "cache"))
    run = fedlit.fit(ImageClassifier(data.classes, "small_cnn"), data, rounds=1, run_dir=tmp_path / "run", workers=1)
    (entry,) = entries(tmp_path / "cache")
    assert entry.runs == (str(run.directory),)
