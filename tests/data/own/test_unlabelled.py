"""A hospital without one of the federation's classes: proposed, read, trained, and refused where a step is left out."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from own_tables import encoded

import fedlit
from fedlit.core.errors import ConfigError
from fedlit.data import ImageTable, Organisations
from fedlit.data.clients import parts_of
from fedlit.data.own.proposal import propose
from fedlit.data.schemes import DeclaredClasses
from fedlit.models import ImageClassifier

CLASSES = ["Edema", "Mass", "Hernia"]
TABLES = {
    "no column": ("Edema,Mass", lambda n: f"{n % 2},{int(n % 3 == 0)}"),
    "an empty column": ("Edema,Mass,Hernia", lambda n: f"{n % 2},{int(n % 3 == 0)},"),
    "no list": ("Findings", lambda n: ("Mass", "Edema|Fibrosis", "No Finding")[n % 3]),
}
"""Tables of images of one hospital that does not report Hernia."""


def write(folder: Path, columns: str, cells: Callable[[int], str], images: int = 24, first: int = 0) -> Path:
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for n in range(images):
        (folder / "images" / f"{n}.png").write_bytes(encoded(first + n, 16))
    rows = [f"{n}.png,p{n},North,{cells(n)}" for n in range(images)]
    (folder / "ours.csv").write_text("\n".join([f"file,pid,Hospital,{columns}", *rows]) + "\n")
    return folder / "ours.csv"


def opened(table: Path, **arguments) -> ImageTable:
    given = {"table": table, "root": table.parent / "images", "image": "file", "patient": "pid", "site": "Hospital"}
    return ImageTable(**given | arguments, image_size=16, batch_size=8, cache_dir=str(table.parent / "cache"))


@pytest.mark.parametrize("case", TABLES)
def test_what_is_proposed_for_the_leads_classes_is_what_the_hospital_labels(tmp_path, case):
    arguments = propose(write(tmp_path, *TABLES[case]), tmp_path / "images", {"classes": CLASSES}).arguments
    assert arguments["classes"] == CLASSES
    assert arguments["unlabelled"] == ["Hernia"]
    assert arguments["site"] == "Hospital"
    data = ImageTable(**arguments, image_size=16, cache_dir=str(tmp_path / "cache"))
    data.setup("fit")
    assert data.classes == tuple(CLASSES)
    assert {name: client.classes for name, client in data.clients.items()} == {"North": ("Edema", "Mass")}


def test_data_check_proposes_it(tmp_path, fedlit_cli):
    table = write(tmp_path, *TABLES["no column"])
    out = fedlit_cli(f"data check {table} --root {tmp_path / 'images'} --classes {' '.join(CLASSES)}").succeeded()
    arguments = yaml.safe_load(out[: out.index("\n\n")])["data"]["init_args"]
    assert (arguments["classes"], arguments["unlabelled"]) == (CLASSES, ["Hernia"])
    assert "Hernia'; their AUROC" not in out


def test_a_class_that_was_looked_for_and_never_found_is_labelled(tmp_path):
    table = write(tmp_path, "Edema,Mass,Hernia", lambda n: f"{n % 2},{int(n % 3 == 0)},0")
    found = propose(table, tmp_path / "images", {"classes": CLASSES})
    assert found.arguments["labels"] == CLASSES
    assert "unlabelled" not in found.arguments
    without = propose(table, tmp_path / "images")
    assert without.arguments["labels"] == ["Edema", "Mass"]
    assert without.reasons["labels"].startswith("left out, because no image is positive: 'Hernia'; --classes sets")


def test_classes_that_are_spelled_otherwise_get_names(tmp_path):
    found = propose(write(tmp_path, *TABLES["no list"]), tmp_path / "images", {"classes": ["edema", "Mass"]})
    assert found.arguments["names"] == {"edema": "Edema", "Mass": "Mass"}
    data = ImageTable(**found.arguments, image_size=16, cache_dir=str(tmp_path / "cache"))
    assert data.classes == ("edema", "Mass")
    assert data.records().labels[:3].tolist() == [[0, 1], [1, 0], [0, 0]]


def test_it_trains_as_with_a_label_scheme_that_leaves_the_class_out(tmp_path):
    empty = write(tmp_path, *TABLES["an empty column"])
    scheme = DeclaredClasses({"North": ["Edema", "Mass"]})
    declared = opened(empty, labels=CLASSES, scheme=scheme)
    unlabelled = opened(empty, labels=["Edema", "Mass"], classes=CLASSES, unlabelled=["Hernia"])
    one, other = (_loss(data, tmp_path / f"run-{number}") for number, data in enumerate((declared, unlabelled)))
    assert one == other
    both = opened(empty, labels=CLASSES, unlabelled=["Hernia"])
    both.setup("fit")
    assert both.clients["North"].classes == unlabelled.clients["North"].classes
    for mine, theirs in zip(parts_of(both.clients["North"]), parts_of(unlabelled.clients["North"]), strict=True):
        torch.testing.assert_close(mine[1].labels, theirs[1].labels, equal_nan=True, rtol=0, atol=0)


def _loss(data: ImageTable, run_dir: Path) -> list[float]:
    torch.manual_seed(0)
    model = ImageClassifier(CLASSES, "small_cnn", in_chans=1)
    fitted = fedlit.fit(model, data, rounds=1, run_dir=run_dir, workers=1)
    return fitted.metrics["train/loss"].tolist()


def test_of_several_organisations_one_may_have_unlabelled_classes(tmp_path):
    north = opened(write(tmp_path / "north", *TABLES["an empty column"]), labels=CLASSES, unlabelled=["Hernia"])
    labels = "Edema,Mass,Hernia", lambda n: f"{n % 3 % 2},{int(n % 5 == 0)},{int(n % 7 == 0)}"
    south = opened(write(tmp_path / "south", *labels, 20, first=100), labels=CLASSES)
    data = Organisations({"north": north, "south": south}, classes="union", cache_dir=str(tmp_path))
    data.setup("fit")
    assert data.schemes == {"north": ("Edema", "Mass"), "south": ("Edema", "Hernia", "Mass")}


REFUSED = {
    "a label without a column": ({"labels": CLASSES}, "goes into data.unlabelled, not data.labels"),
    "a class that is not labelled": ({"classes": CLASSES}, "goes into data.unlabelled too"),
    "a class that is none": ({"unlabelled": ["Hrnia"], "classes": CLASSES}, "unknown class 'Hernia'"),
    "one that is not among the classes": (
        {"unlabelled": ["Hernia"], "classes": ["Edema", "Mass"]}, "data.unlabelled: unknown class 'Hernia'",
    ),
    "all of them": ({"classes": ["Mass"], "unlabelled": ["Mass"]}, "expected some of the classes, found all"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_in_words(tmp_path, case):
    given, words = REFUSED[case]
    with pytest.raises((ValueError, ConfigError)) as caught:
        opened(write(tmp_path, *TABLES["no column"]), **{"labels": ["Edema", "Mass"]} | given).records()
    assert words in str(caught.value)


def site(tmp_path: Path, case: str, **given) -> Path:
    table = write(tmp_path, *TABLES[case], 48)
    arguments = {"table": str(table), "root": str(table.parent / "images"), "image": "file", "patient": "pid"}
    arguments |= {"site": "Hospital", "image_size": 16, "batch_size": 8, "cache_dir": str(tmp_path / "cache")} | given
    file = tmp_path / "fedlit-site.yaml"
    data = {"class_path": "ImageTable", "init_args": arguments}
    file.write_text(yaml.safe_dump({"name": "north", "data": data, "state": str(tmp_path / "state")}))
    return file


def test_site_check_says_what_to_write(tmp_path, fedlit_cli):
    code, _, err = fedlit_cli(f"site check {site(tmp_path, 'an empty column', labels=CLASSES)}")
    assert code == 1
    assert err.endswith(
        "fedlit: error: client 'North': expected labels of 'Hernia', found none in its 48 images; remove the class "
        "from the client's label scheme, or add it to data.unlabelled\n"
    )
    code, _, err = fedlit_cli(f"site check {site(tmp_path, 'no column', labels=CLASSES)}")
    assert code == 1
    assert "expected a column 'Hernia'" in err
    assert "goes into data.unlabelled" in err
    assert "--sites" not in err
    whole = tmp_path / "whole.yaml"
    lead = {"class_path": "ImageTable", "init_args": {"table": "none.csv", "image": "File", "labels": CLASSES}}
    model = {"class_path": "ImageClassifier", "init_args": {"backbone": "small_cnn"}}
    whole.write_text(yaml.safe_dump({"data": lead, "model": model, "federation": {}}))
    out = fedlit_cli(f"site check {site(tmp_path, 'no column', labels=['Edema', 'Mass'])} --config {whole}").succeeded()
    assert "Edema 17/17, Mass 12/22" in out  # the server knows a class that this site does not label
    assert out.endswith("ready to join\n")


def test_a_site_without_the_class_is_ready_to_join(tmp_path, fedlit_cli):
    file = site(tmp_path, "no column", labels=["Edema", "Mass"], classes=CLASSES, unlabelled=["Hernia"])
    out = fedlit_cli(f"site check {file}").succeeded()
    (told,) = [line for line in out.splitlines() if line.startswith("client 'North'")]
    assert [word for word in CLASSES if f" {word} " in told] == ["Edema", "Mass"]
    assert out.rstrip().endswith("ready to join")
