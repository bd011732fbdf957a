"""Folders of data that `fedlit reproduce --root` finds by what they hold."""

from pathlib import Path

import pytest
from refusals import refused

from fedlit.reports.reproductions import announcement, sources
from fedlit.reports.reproductions.reproduction import Reproduction

CIFAR = {"data": {"class_path": "CIFAR10"}}
XRAYS = {"data": {"class_path": "Organisations", "init_args": {"sources": {"NIH": {"class_path": "NIHChestXray14"}}}}}


def holder(folder: Path, file: str) -> Path:
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_text("x")
    return folder


def test_the_named_folder_is_used_if_it_holds_the_data(tmp_path: Path):
    holder(tmp_path, "cifar-10-batches-py/data_batch_1")
    holder(tmp_path / "copy", "train-00000.parquet")
    assert sources.found_below(tmp_path, ".", CIFAR, "root") == tmp_path


def test_the_only_folder_below_that_holds_them_is_used(tmp_path: Path):
    expected = holder(tmp_path / "pictures", "train-00000-of-00001.parquet")
    nih = holder(tmp_path / "nih-mini", "Data_Entry_2017_v2020.csv")
    assert sources.found_below(tmp_path, ".", CIFAR, "root") == expected
    assert sources.found_below(tmp_path, "NIH", XRAYS, "sources.NIH.root") == nih
    assert sources.found_below(nih, "NIH", XRAYS, "sources.NIH.root") == nih


def test_several_folders_or_none_are_not_guessed_at(tmp_path: Path):
    assert sources.found_below(tmp_path, "NIH", XRAYS, "sources.NIH.root") == tmp_path / "NIH"
    assert sources.found_below(Path("ROOT"), ".", CIFAR, "root") == Path("ROOT")
    for name in ("a", "b"):
        holder(tmp_path / name, "cifar-10-batches-py/data_batch_1")
    with refused("root-ambiguous", f"--root {tmp_path}", "CIFAR10", tmp_path / "a", tmp_path / "b"):
        sources.found_below(tmp_path, ".", CIFAR, "root")


def test_a_reproduction_gets_the_folder_above_its_data(tmp_path: Path):
    cifar = holder(tmp_path / "pictures", "train-00000-of-00001.parquet")
    made = Reproduction("fdam-fig1", root=tmp_path)
    part = made.chosen.parts["fdam-fig1-cifar10-ih"]
    assert made.sweep(part).set["data.root"] == str(cifar)


def test_every_class_of_the_list_exists():
    assert [name for name in sources.HOLDS if not hasattr(sources.data, name)] == []


@pytest.mark.parametrize(("load", "busy"), [(0.5, False), (9.5, True)])
def test_a_dry_run_says_that_the_machine_is_busy(load: float, busy: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(announcement, "cores", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert ("a load of 9.5 on 2 cores" in announcement._busy()) == busy
    assert bool(announcement._busy()) == busy
