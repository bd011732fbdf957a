"""NIH ChestX-ray14: both label files and image layouts, official lists, and the real images if there."""

import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest
from edits import replace_in
from hospital_source import ready
from PIL import Image
from refusals import refused
from small_nih import V2020, write_folder

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data.partition import ByPatient
from fedlit.data.pictures import pixels
from fedlit.data.xrays.nih import NIHChestXray14
from fedlit.testing import check_data_module

CLASSES = NIHChestXray14.labels
PARTITION = {"class_path": "fedlit.data.partition.ByPatient", "init_args": {"clients": 3}}


def open_folder(root: Path, **kwargs) -> NIHChestXray14:
    kwargs.setdefault("partition", ByPatient(2))
    return NIHChestXray14(root, image_size=16, cache_dir=str(root / "cache"), **kwargs)


# Reading


def test_it_keeps_the_contract_of_data_modules(tmp_path):
    root = write_folder(tmp_path / "nih", lists=True, patients=12)
    check_data_module(NIHChestXray14, root=root, image_size=16, partition=PARTITION, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    ("version", "layout"), [("v2020", "one"), ("v1", "twelve"), ("ragged", "one"), ("sex", "twelve")]
)
def test_versions_and_layouts_read_the_same(tmp_path, version, layout):
    data = open_folder(write_folder(tmp_path, version, layout, patients=4))
    records = data.records()
    assert data.classes == records.classes == CLASSES
    assert records.names[:2].tolist() == ["00000001_000.png", "00000001_001.png"]
    assert records.patients[:4].tolist() == ["1", "1", "1", "2"]
    assert records.table.columns.tolist() == [
        *V2020.split(",")[:5],
        "Patient Gender",
        "View Position",
        "OriginalImage[Width]",
        "OriginalImage[Height]",
        "OriginalImagePixelSpacing[x]",
        "OriginalImagePixelSpacing[y]",
    ]
    assert records.table["Patient Age"].iloc[[0, 3]].tolist() == [30, 31]
    assert records.table["OriginalImagePixelSpacing[y]"].unique().tolist() == [0.168]
    positive = [{CLASSES[column] for column in np.flatnonzero(row)} for row in records.labels[:6]]
    assert positive == [set(), {"Effusion", "Mass"}, {"Hernia"}, {"Pleural_Thickening"}, set(), {"Cardiomegaly"}]
    assert records.labels.shape == (12, 14)
    assert set(np.unique(records.labels)) == {0, 1}
    assert records.splits is None
    first = Image.open(next(tmp_path.glob("images*/**/00000001_000.png")))
    assert first.mode == "RGBA"
    expected = first.convert("L").resize((16, 16), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(records.store[0].numpy()[0], np.asarray(expected))


def test_official_lists_are_kept_where_they_are(tmp_path):
    data = ready(open_folder(write_folder(tmp_path, lists=True)))
    table = data.assignment.set_index("image")
    official = (tmp_path / "test_list.txt").read_text().split()
    assert sorted(table.index[table["split"] == "test"]) == official
    assert len(official) == 15
    assert table.groupby("patient")["split"].nunique().max() == 1
    # 10 of 80 parts of the other 15 patients is two of them.
    assert table[table["split"] == "val"]["patient"].nunique() == 2
    assert (ready(open_folder(tmp_path, official_split=False)).assignment["split"] == "test").sum() == 12
    for name in ("test_list.txt", "train_val_list.txt"):
        (tmp_path / name).unlink()
    data = ready(NIHChestXray14(tmp_path, image_size=16, cache_dir=str(tmp_path / "cache")))
    assert list(data.clients) == ["client-01", "client-02", "client-03", "client-04"]
    assert data.assignment.groupby("patient")["split"].nunique().max() == 1
    assert data.assignment["split"].value_counts().to_dict() == {"train": 42, "test": 12, "val": 6}


def test_two_files_of_one_name_in_two_folders(tmp_path):
    root = write_folder(tmp_path, layout="twelve")
    (root / "images_002" / "images").mkdir(exist_ok=True)
    shutil.copy(root / "images_001/images/00000001_000.png", root / "images_002/images/00000001_000.png")
    (note,) = NIHChestXray14(root).read().notes
    assert note == "1 images have several files, the first are '00000001_000': one file of each is read"


def test_two_label_files(tmp_path):
    """Which is read counts only where they disagree: in how many rows, and where first."""
    root = write_folder(tmp_path)
    old, new = root / "Data_Entry_2017.csv", root / "Data_Entry_2017_v2020.csv"
    said = "Data_Entry_2017.csv is next to Data_Entry_2017_v2020.csv, and was not read: "
    lines = new.read_text(encoding="utf-8-sig").splitlines()
    old.write_text("\n".join([lines[0], *(line.replace("Effusion|Mass", "Mass|Effusion") for line in lines[:0:-1])]))
    (note,) = NIHChestXray14(root).read_within().notes
    assert note == f"{said}both have the same content"
    lines[3] = lines[3].replace("Hernia,2,1,", "Edema,2,1,")
    lines[4] = lines[4].replace(",0,2,", ",0,7,")
    old.write_text("\n".join(lines[:-1]))
    (note,) = NIHChestXray14(root).read_within().notes
    assert note == (
        f"{said}1 images are in only one of them; 2 of 59 images have other findings or patients there, the first is "
        "'00000001_002.png' (Hernia of patient 1 here, Edema of patient 1 there)"
    )
    old.unlink()
    new.with_suffix(".csv.gz").write_bytes(gzip.compress(new.read_bytes()))
    assert NIHChestXray14(root).read_within().notes == [
        f"{new.name}.gz is next to {new.name}: only one of them was read"
    ]


# What bad input gets


def test_label_files_and_folders_that_do_not_fit_are_refused(tmp_path):
    with refused(DataError, "Data_Entry_2017"):
        NIHChestXray14()
    root = write_folder(tmp_path, layout="twelve")
    path = root / "Data_Entry_2017_v2020.csv"
    replace_in(path, "\n", "\n\n")  # blank lines do not shift the numbers of lines
    assert len(open_folder(root).read().names) == 60
    for image in (root / "images_002" / "images").iterdir():
        image.unlink()
    names = "'00000001_001.png', '00000005_001.png', '00000009_001.png', ... (5 in all)"
    with refused(MissingFileError, "5 of 60 images in", names, "images_001/images"):
        open_folder(root).records()
    replace_in(path, "Effusion|Mass", "Efusion")
    with refused(DataError, "line 4", "'Efusion'"):
        open_folder(root).records()
    for folder in root.glob("images_*"):
        folder.rename(root / f"pictures{folder.name[-4:]}")
    with refused(MissingFileError, "found no folder of images"):
        open_folder(root).records()


def test_lists_that_do_not_fit_are_refused(tmp_path):
    write_folder(tmp_path, lists=True)
    tests, others = tmp_path / "test_list.txt", tmp_path / "train_val_list.txt"
    good = tests.read_text()
    tests.write_text(good + "99999999_000.png\n")
    with refused(DataError, "test_list.txt, line 16: '99999999_000.png'", "Data_Entry_2017_v2020"):
        open_folder(tmp_path).records()
    tests.write_text(good + "00000001_000.png\n")
    with refused(DataError, "test_list.txt: 1", "'00000001_000.png'"):
        open_folder(tmp_path).records()
    tests.write_text("\n".join(good.split()[1:]))
    with refused(DataError, "1 images", "train_val_list.txt nor in test_list.txt"):
        open_folder(tmp_path).records()
    first = good.split()[0]
    tests.write_text("\n".join(good.split()[1:]))
    others.write_text(others.read_text() + f"\n{first}\n")
    with refused(DataError, "'16'"):
        open_folder(tmp_path).setup()
    for empty in (tests, others):
        text = empty.read_text()
        empty.write_text("\n\n")
        with refused(DataError, empty.name):
            open_folder(tmp_path).read()
        empty.write_text(text)
    tests.unlink()
    with refused(MissingFileError, "test_list.txt"):
        open_folder(tmp_path).records()


# The real images

REAL = Path(__file__).parents[3] / ".." / "shared" / "data" / "nih-cxr14-mini"


@pytest.mark.slow
@pytest.mark.skipif(not (REAL / "images").is_dir(), reason="needs ../shared/data/nih-cxr14-mini")
def test_real_images(tmp_path, monkeypatch):
    # Labels and partition are of all the images; decoding them takes seconds, so only a fiftieth is decoded.
    some = [pixels.read_image(file, 64) for file in sorted(REAL.glob("images/*.png"))[::50]]
    monkeypatch.setattr(pixels, "read_image", lambda file, *_: some[int(Path(file).name[:8]) % len(some)])
    real_data = NIHChestXray14(REAL, image_size=64, cache_dir=str(tmp_path))
    real_data.prepare_data()
    real_data.setup()
    counts = real_data.counts()
    positives = counts.groupby("class")["positives"].sum()
    assert positives["Pneumonia"] == 500
    assert positives["Infiltration"] == 187
    assert positives["Hernia"] == 3
    assert len(real_data.assignment) == 1000
    assert real_data.assignment["patient"].nunique() == 682
    assert real_data.assignment.groupby("patient")[["split", "client"]].nunique().max().tolist() == [1, 1]
    for client in real_data.clients.values():
        sizes = [len(part) for part in (client.train, client.val, client.test)]
        np.testing.assert_allclose(sizes, [175, 25, 50], atol=3)
        images, labels = client.train.batch(range(32))
        assert images.shape == (32, 1, 64, 64)
        assert labels.shape == (32, 14)
        assert abs(images.mean()) < 1
        assert 0.5 < images.std() < 2
