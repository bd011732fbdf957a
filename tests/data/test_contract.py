"""``check_data_module``: modules that ship pass, and each mistake of a custom module is named."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hospital_source import changed, make_records
from own_tables import encoded, people, write_table
from torch.utils.data import TensorDataset

from fedlit.data import ByOrganisation, ClassFolders, ClientData, FederatedDataModule, ImageTable, PhantomCXR
from fedlit.data.records import Records
from fedlit.data.tables import numbers, read_table
from fedlit.data.xrays.base import ChestXrays
from fedlit.data.xrays.reading import Reading
from fedlit.testing import check_data_module

BREAKS = iter(range(10**6))


def others_each_time(r: Records) -> Records:
    """Labels of another type and everything but the patients differ with each reading."""
    r = changed("labels", next(BREAKS), 1 - r.labels[0])(r)
    store = r.take(np.roll(np.arange(240), next(BREAKS))).store
    table, names = r.table.assign(read=next(BREAKS)), np.char.add(r.names, str(next(BREAKS)))
    return replace(r, store=store, table=table, names=names, labels=r.labels.astype(np.float64))


CHANGES = {
    "": lambda r: r,
    "others each time": others_each_time,
    "two": changed("labels", (3, 1), 2),
    "two splits": lambda r: changed("splits", 0, "test")(replace(r, splits=np.resize(["train", "test", "val"], 240))),
}


class Source(FederatedDataModule):
    """A source of records with a mistake of choice.

    Args:
        mistake: Name of the mistake; by default there is none.
    """

    def __init__(self, mistake: str = "", **kwargs):
        super().__init__(ByOrganisation(), image_size=8, **kwargs)
        self.mistake = mistake
        if mistake == "others each time":
            self.classes = ("Effusion", "Mass", "Oedema")

    def records(self) -> Records:
        return CHANGES[self.mistake](make_records(self.cache_dir))


class Made(FederatedDataModule):
    """Clients without records, with a mistake of choice."""

    def __init__(self, mistake: str = "", **kwargs):
        super().__init__(None, **kwargs)
        self.mistake, self.classes = mistake, ("a", "b")

    def setup(self, stage=None):
        if self.clients and self.mistake != "again":
            return
        several = self.mistake == "several"
        draw = torch.Generator().manual_seed(next(BREAKS) if several else 0)
        images, labels = torch.rand(6, 1, 4, 4, generator=draw), torch.ones(6, 1 if several else 2)
        if several:
            images[0, 0, 0, 0], labels[0], self.classes = float("inf"), 7, ("a", "b", "c")
            size = 1 + next(BREAKS) % 6
            self.test_sets["external"] = TensorDataset(images[:size], labels[:size])
        kind = {"state": Counting, "process": Local}.get(self.mistake, TensorDataset)
        name = f"only-{next(BREAKS)}" if self.mistake in ("again", "client") else "only"
        if self.mistake != "none":
            self.clients[name] = ClientData(name, ("a", "b"), kind(images, labels), None, None)


class Counting(TensorDataset):
    """A data set that remembers how often it was read."""

    reads = 0

    def __getitem__(self, index):
        self.reads += 1
        image, labels = super().__getitem__(index)
        return image + self.reads, labels


class Local(TensorDataset):
    """A data set that gives other images once it was pickled."""

    def __setstate__(self, state):
        vars(self).update(state)
        self.tensors = (self.tensors[0] + 1, self.tensors[1])


class Reader(ChestXrays):
    """A reader of a table without a mistake."""

    source, labels, layout, needs = "Reader", ("Mass",), "expected labels.csv", ("labels.csv",)

    def read(self):
        table = read_table(self.root / "labels.csv", ("image", "Mass"), ("image",))
        names = table.rows["image"].to_numpy(dtype=str)
        files = [self.root / name for name in names]
        labels = numbers(table, self.labels, (0, 1))
        return Reading(files, names, names, labels, self.root / "labels.csv", None, table.rows)


class Blind(Reader):
    """A reader that does not recognise its own folder."""

    needs = ("data.csv",)


class Careless(Reader):
    """A reader that recognises any folder, ignores the wanted classes, and names nothing that fails or is dropped."""

    def __init__(self, root: Path | None = None, classes: list[str] | None = None, **kwargs):
        super().__init__(root, **kwargs)

    @classmethod
    def recognises(cls, root):
        return True

    def records(self):
        try:
            return super().records()
        except (ValueError, OSError):
            raise ValueError("it failed") from None
        finally:
            self.left_out = []


@pytest.fixture(scope="module")
def labelled(tmp_path_factory) -> Path:
    """Twelve images of noise and their labels."""
    columns = {"image": [f"{n}.png" for n in range(12)], "Mass": ["0", "1"] * 6}
    return write_table(tmp_path_factory.mktemp("labelled") / "ours", columns, name="labels.csv", file="image").parent


@pytest.mark.parametrize("kind", [Source, Made])
def test_custom_modules_without_a_mistake_pass(kind, tmp_path):
    check_data_module(kind, cache_dir=str(tmp_path))


def test_a_synthetic_module_passes(tmp_path):
    hospitals = [
        {"name": "north", "images": 50, "prevalence": {"Mass": 0.3}, "marker": "R"},
        {"name": "south", "images": 30, "classes": ["Mass", "Edema"], "contrast": 0.8},
    ]
    declared = {"class_path": "fedlit.data.schemes.DeclaredClasses", "init_args": {"clients": {"north": ["Mass"]}}}
    options = {"image_size": 16, "scheme": declared, "missing_classes": "negative", "cache_dir": tmp_path}
    check_data_module(PhantomCXR, hospitals=hospitals, **options)


def test_images_of_ones_own_pass(tmp_path):
    columns = people(12)
    table, options = write_table(tmp_path / "ours", columns), {"image_size": 16, "cache_dir": tmp_path / "c"}
    described = {"image": "file", "patient": "patient", "labels": ["Edema"]}
    check_data_module(ImageTable, table=table, root=tmp_path / "ours", **described, **options)
    for name in columns["file"]:
        folder = tmp_path / "classes" / ("even" if int(name[:-4]) % 2 == 0 else "odd")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encoded(int(name[:-4])))
    check_data_module(ClassFolders, root=tmp_path / "classes", **options)


@pytest.mark.parametrize(
    ("kind", "mistake", "messages"),
    [
        (Source, "others each time", (
            r"records\(\): has the classes .*'Edema'\), the module has .*'Oedema'\)",
            "expected labels of float32, found float64",
            "names differ when the data are read again",
            "labels differ when the data are read again",
            "table differs when the data are read again",
            "the images differ when the data are read again",
        )),
        (Source, "two", ("expected labels 0, 1 or NaN, found 2",)),
        (Source, "two splits", ("patients are in more than one official split",)),
        (Made, "several", (
            r"classes: \('a', 'b'\) before setup\(\), \('a', 'b', 'c'\) after it",
            "client 'only', train: a batch has values that are not finite",
            "expected labels 0, 1 or NaN, found others",
            r"expected labels \[B, 2\], found \[4, 1\]",
            "client 'only', train: example 0 differs in a second copy",
            r"test set 'external': has \d examples, and \d in a second copy",
        )),
        (Made, "state", ("example 0 differs when it is read again",)),
        (Made, "process", ("example 0 differs in a pickled copy",)),
        (Made, "again", ("a second call changed the clients",)),
        (Made, "client", ("a second copy has other clients or splits",)),
        (Made, "none", ("expected clients, found none",)),
    ],
)  # fmt: skip
def test_mistakes_are_named(kind, mistake, messages, tmp_path):
    with pytest.raises(AssertionError) as caught:
        check_data_module(kind, mistake=mistake, cache_dir=str(tmp_path))
    for message in messages:
        assert re.match(rf"{kind.__name__}:\n(.*\n)*- .*{message}", str(caught.value))


RECOGNISES = "recognises(): expected True for the data set, False for an empty folder"
CARELESS = (
    "the nowhere folder: expected an error that names it, found it failed",
    "the empty folder: expected an error that names it, found it failed",
    RECOGNISES,
    "an unknown class: expected an error that names it, found no error",
    "a truncated image: expected an error that names 0.png, found it failed",
    "a truncated image with damaged: drop: expected it in left_out",
    "a missing image: expected an error that names 0.png, found it failed",
    "a missing image with missing: drop: expected it in left_out",
)


@pytest.mark.parametrize(("kind", "messages"), [(Blind, (RECOGNISES,)), (Careless, CARELESS)])
def test_mistakes_of_a_reader_are_named(labelled, tmp_path, kind, messages):
    with pytest.raises(AssertionError) as caught:
        check_data_module(kind, root=labelled, image_size=16, cache_dir=tmp_path / "cache")
    assert len(list((tmp_path / "cache").glob("images-*"))) == 1  # none of the damaged copy
    for line, message in zip(str(caught.value).splitlines()[1:], messages, strict=True):
        assert line.startswith(f"- {message}")
