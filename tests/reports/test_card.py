"""The model card of a run: every number from its files, and a blank for whatever they do not hold."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard
from past_runs import config, predictions, write_run
from refusals import Cli
from sklearn.metrics import roc_auc_score

from fedlit.core.checkpoints.manifest import Best, Manifest
from fedlit.reports.compare.card import model_card


def write_trained(directory: Path, **groups: np.ndarray) -> Path:
    """A run with the files of one that was trained by `fedlit fit`."""
    found = replace(predictions(1.5, images=400), groups=groups)
    data = {"class_path": "fedlit.data.ImageTable", "init_args": {"missing_classes": "ignore", "table": "a|b.csv"}}
    settings = config() | {"data": data, "fabric": {"precision": "32-true"}}
    write_run(directory, found, settings, {"total/bytes_up": (2e6,), "total/bytes_down": (1e6,), "total/steps": (40,)})
    folder = directory / "checkpoints" / "round-000003"
    folder.mkdir(parents=True)
    (folder / "server.pt").write_bytes(b"weights")
    hashes = {"server.pt": hashlib.sha256(b"weights").hexdigest()}
    Manifest(3, ["north"], [], [*hashes], {}, Best(0.8125, 3), fedlit="0.9.9", sha256=hashes).write(folder)
    rows = "a,p1,north,train\nb,p1,north,train\nc,p2,north,test\n"
    (directory / "partition.csv").write_text("image,patient,client,split\n" + rows)
    (directory / "classes.csv").write_text("client,class,label\nnorth,Mass,Mass\nnorth,Nodule,Nodules\n")
    labels = "north,train,Mass,2,1,1,True\nnorth,train,Nodule,2,,,False\n"
    (directory / "labels.csv").write_text("client,split,class,images,positives,negatives,labelled\n" + labels)
    (directory / "counts.csv").write_text("set,class,positives,negatives\ntest/federation,Mass,120,280\n")
    (directory / "left_out.csv").write_text("image,file,reason\nd,d.png,damaged\ne,e.png,damaged\n")
    (directory / "leaves_a_site.txt").write_text("each round a site sends 2.0 MB: w [10]\n")
    return directory


def card_of(run: Path) -> str:
    return model_card(run, 0.95, 100)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return card_of(write_trained(tmp_path_factory.mktemp("card") / "run"))


def test_every_number_is_that_of_a_file(text: str):
    found = predictions(1.5, images=400)
    for i, name in enumerate(found.classes):
        assert f"| {name} | {roc_auc_score(found.labels[:, i], found.scores[:, i]):.3f} | 0." in text
    for line in (
        "| client | split | images | patients | Mass | Nodule |",
        "| north | train | 2 | 1 | 1 of 2 | - |",
        "| north | test | 1 | 1 | - | - |",
        "| north | Mass, Nodule (from Nodules) |",
        "| test/federation | Mass | 120 | 280 |",
        "| damaged | 2 |",
        "| missing_classes | ignore |",
        r"| table | a\|b.csv |",
        "| aggregators.0 | fedlit.aggregators.FedAvg |",
        "- Selection: the model with the lowest `val/loss` was tested: 0.8125, after round 3.",
        "The sites were simulated: one run had the data of all.",
        "- each round a site sends 2.0 MB: w [10]",
        "2 MB sent by clients, 1 MB received",
        "Local steps of all clients, in all rounds: 40",
        "fedlit 0.9.9; precision 32-true",
        f"| checkpoints/round-000003/server.pt | {hashlib.sha256(b'weights').hexdigest()} |",
    ):
        assert line in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    heads = [i for i, line in enumerate(tables) if set(line) <= set("|-")]
    assert len(heads) > 6
    for start, end in zip(heads, [*heads[1:], None], strict=True):
        rows = [tables[start - 1], *tables[start + 1 : None if end is None else end - 1]]
        assert len({row.replace(r"\|", "").count("|") for row in rows}) == 1


def test_model_hubs_read_its_front_matter(text: str):
    found = predictions(1.5, images=400)
    data = ModelCard(text).data
    assert (data.library_name, data.tags, data.license) == (
        "fedlit",
        ["federated-learning", "image-classification"],
        None,
    )
    results = {each.metric_name: each for each in data.eval_results}
    for i, name in enumerate(found.classes):
        expected = roc_auc_score(found.labels[:, i], found.scores[:, i])
        assert results[f"AUROC, {name}"].metric_value == pytest.approx(expected, abs=5e-4)
    assert {each.metric_type for each in results.values()} == {"roc_auc"}
    assert {each.dataset_name for each in results.values()} == {"ImageTable, test set federation"}
    assert text.partition("\n---\n\n")[2].startswith("# Model card")


def test_groups_of_the_test_set_are_counted_and_small_ones_are_not(tmp_path: Path):
    text = card_of(write_trained(tmp_path / "run", sex=np.array(["F"] * 300 + ["M"] * 95 + ["X"] * 5)))
    assert "| client | group | value | test set federation |" in text
    assert "| all | sex | F | 300 (300) |" in text
    assert "| all | sex | X | few (fewer than 10) |" in text


def test_groups_of_each_site_and_split_are_those_of_the_run(tmp_path: Path):
    directory = write_trained(tmp_path / "run")
    rows = ("north,train,sex,F,60,50", "north,train,sex,,9,9", "north,test,sex,F,30,", "south,test,sex,F,20,12")
    (directory / "groups.csv").write_text("\n".join(("client,split,group,value,images,patients", *rows)) + "\n")
    text = card_of(directory)
    assert "| client | group | value | train | test |" in text
    assert "| north | sex | F | 60 (50) | 30 (unknown) |" in text
    assert "| north | sex | unknown | few (fewer than 10) | - |" in text
    assert "| south | sex | F | - | 20 (12) |" in text


def test_what_the_run_cannot_know_is_a_blank(text: str):
    blanks = [blank.partition("]**")[0] for blank in text.split("**[to fill in: ")[1:]]
    assert len(blanks) > 10
    for word in ("clinical question", "ethics approval", "set the labels", "demographic"):
        assert any(word in blank for blank in blanks)


def test_a_run_across_sites_without_these_files_has_a_card_that_says_so(tmp_path: Path, fedlit_cli: Cli):
    directory = write_trained(tmp_path / "run")
    (directory / "sites.json").write_text('{"run": "1", "sites": ["east", "west"], "clients": {}}')
    for name in ("partition.csv", "classes.csv", "counts.csv", "left_out.csv", "leaves_a_site.txt"):
        (directory / name).unlink()
    out = fedlit_cli(f"card {directory} --draws 100 --output {tmp_path / 'card.md'}").succeeded()
    assert "blanks to fill in" in out
    text = (tmp_path / "card.md").read_text()
    assert "The run trained across 2 sites: east, west." in text
    assert "simulated" not in text
    assert "The run recorded no table of its images." in text
    assert "What a site sends in a round is not recorded" in text


def test_what_has_no_card_is_refused(tmp_path: Path, fedlit_cli: Cli):
    unfinished = write_run(tmp_path / "unfinished", None, config(), finished=False)
    untrained = write_run(tmp_path / "untrained", None, config())
    (tmp_path / "empty").mkdir()
    fedlit_cli(f"card {unfinished}").refused("resume it with --ckpt_path")
    fedlit_cli(f"card {untrained}").refused("expected checkpoints of the tested model, found none")
    fedlit_cli(f"card {tmp_path / 'empty'}").refused("expected a run directory (runs/EXPERIMENT/RUN), a folder of")


def test_the_name_of_a_class_is_shown_and_neither_obeyed_nor_taken_for_a_column(tmp_path: Path):
    labels = write_trained(tmp_path / "run") / "labels.csv"
    labels.write_text(labels.read_text().replace("Mass", "<img src=x>").replace("Nodule", "patients"))
    text = card_of(tmp_path / "run")
    assert "&lt;img src=x&gt;" in text
    assert "<img" not in text
    assert "| north | train | 2 | 1 | 1 of 2 | - |" in text
