"""Public image sets: small copies in their layouts, and the real CIFAR-10 where it is there."""

import io
import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import refusals
from PIL import Image
from small_vision import TEST, TRAIN, pictures, write_fashion_mnist, write_stl
from torchvision import datasets

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data import CIFAR10, CIFAR100, STL10, ByCategory, CategoryImages, FashionMNIST, ImageNet, ParquetImages
from fedlit.data.binary import vision
from fedlit.data.binary.vision import CIFAR10_CATEGORIES

FINE = [f"fine {index}" for index in range(20)]
REAL = Path(__file__).parents[4] / "shared" / "data" / "cifar10"


def as_png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def opened(kind: type[CategoryImages], root: Path, **kwargs) -> CategoryImages:
    """With half of the training images for validation, as there are few of them."""
    return kind(root, cache_dir=str(root / "cache"), split=(0.5, 0.5, 0.0), **kwargs)


def check(data: CategoryImages, images: list[np.ndarray], categories, labels: list[int], channels: int = 3) -> None:
    """The records of `data` are these [N, H, W, C] pictures in the order training, test."""
    records = data.records()
    np.testing.assert_array_equal(records.store[range(len(labels))].numpy(), np.moveaxis(np.stack(images), -1, 1))
    assert records.store.shape[1] == channels
    assert records.table["category"].tolist() == [categories[label] for label in labels]
    assert records.classes == ("positive",)
    assert set(records.splits[:TRAIN]) == {"train", "val"}
    assert set(records.splits[TRAIN:]) == {"test"}
    assert len(set(records.names)) == len(labels)


# torchvision's layouts


@pytest.fixture
def any_checksum(monkeypatch):
    """torchvision takes small copies for damaged ones."""
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5=None: Path(path).is_file())
    monkeypatch.setattr("torchvision.datasets.stl10.check_integrity", lambda path, md5=None: Path(path).is_file())


def write_cifar(root: Path, kind: type, labels: str, names: list[str], key: str) -> tuple[np.ndarray, list[int]]:
    folder = root / kind.base_folder
    folder.mkdir(parents=True)
    pixels = pictures(TRAIN + TEST, 0)
    numbers = [row % len(names) for row in range(TRAIN + TEST)]
    batches = [*np.array_split(np.arange(TRAIN), len(kind.train_list)), np.arange(TRAIN, TRAIN + TEST)]
    for (name, _), rows in zip(kind.train_list + kind.test_list, batches, strict=True):
        flat = np.moveaxis(pixels[rows], -1, 1).reshape(len(rows), -1)
        (folder / name).write_bytes(pickle.dumps({"data": flat, labels: [numbers[row] for row in rows]}))
    (folder / kind.meta["filename"]).write_bytes(pickle.dumps({key: names}))
    return pixels, numbers


CIFAR = [
    (datasets.CIFAR10, CIFAR10, "labels", list(CIFAR10_CATEGORIES), "label_names"),
    (datasets.CIFAR100, CIFAR100, "fine_labels", FINE, "fine_label_names"),
]


@pytest.mark.parametrize(("kind", "source", "labels", "names", "key"), CIFAR)
def test_cifar_in_torchvisions_layout(tmp_path, any_checksum, kind, source, labels, names, key):
    pixels, numbers = write_cifar(tmp_path, kind, labels, names, key)
    data = opened(source, tmp_path)
    check(data, list(pixels), names, numbers)
    data.setup()
    assert len(data.clients) == 5
    assert data.clients["client-01"].train[0][0].shape == (3, 32, 32)


def test_stl10(tmp_path, any_checksum):
    pixels, numbers = write_stl(tmp_path)
    check(opened(STL10, tmp_path), list(pixels), CIFAR10_CATEGORIES, numbers)
    small = opened(STL10, tmp_path, image_size=32).records()
    assert small.store.shape == (60, 3, 32, 32)
    expected = np.asarray(Image.fromarray(pixels[7]).resize((32, 32), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(small.store[7].numpy(), np.moveaxis(expected, -1, 0))


def test_fashion_mnist(tmp_path):
    pixels, numbers = write_fashion_mnist(tmp_path)
    data = opened(FashionMNIST, tmp_path)
    check(data, list(pixels[..., None]), datasets.FashionMNIST.classes, numbers, channels=1)
    data.setup()
    assert data.clients["client-01"].train[0][0].shape == (1, 28, 28)
    rgb = opened(FashionMNIST, tmp_path, in_chans=3)
    rgb.setup()
    assert rgb.clients["client-01"].train[0][0].shape == (3, 28, 28)


# ImageNet's layout


def write_imagenet(root: Path) -> list[np.ndarray]:
    pixels = pictures(TRAIN + TEST, 3, (9, 9, 3))
    for folder, rows in (("train", range(TRAIN)), ("val", range(TRAIN, TRAIN + TEST))):
        for row in rows:
            category = root / folder / f"n{row % 10:08d}"
            category.mkdir(parents=True, exist_ok=True)
            (category / f"{folder}_{row:04d}.JPEG").write_bytes(as_png(pixels[row]))
        (category / "notes.txt").write_text("not an image")
    # Folder by folder, as the source lists them.
    return [
        pixels[row]
        for rows in (range(TRAIN), range(TRAIN, TRAIN + TEST))
        for row in sorted(rows, key=lambda r: (r % 10, r))
    ]


def test_imagenet(tmp_path):
    images = write_imagenet(tmp_path)
    data = opened(ImageNet, tmp_path, image_size=9)
    labels = [*np.repeat(range(10), TRAIN // 10), *np.repeat(range(10), TEST // 10)]
    check(data, images, [f"n{index:08d}" for index in range(10)], labels)
    assert data.records().names[0] == "train/n00000000/train_0000.JPEG"


# Parquet


def write_parquet(
    file: Path,
    pixels: np.ndarray,
    labels: list[int | None],
    image: str = "img",
    label: str = "label",
    names: list[str] | None = None,
    contents: list[bytes | None] | None = None,
    kind: str = "int64",
) -> None:
    contents = [as_png(picture) for picture in pixels] if contents is None else contents
    images = [{"bytes": content, "path": "x.png"} for content in contents]
    table = pa.table({image: images, label: pa.array(labels, pa.type_for_alias(kind))})
    if names is not None:
        features = {label: {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, file)


def write_parquet_set(root: Path, categories: int = 10, first: int = 0, **kwargs) -> tuple[np.ndarray, list[int]]:
    """Two training files and one test file; labels from `first` on."""
    root.mkdir(exist_ok=True)
    pixels = pictures(TRAIN + TEST, 4)
    labels = [first + row % categories for row in range(TRAIN + TEST)]
    cut = TRAIN - 15
    for name, rows in (
        ("train-00000-of-00002", slice(0, cut)),
        ("train-00001-of-00002", slice(cut, TRAIN)),
        ("test-00000-of-00001", slice(TRAIN, None)),
    ):
        write_parquet(root / f"{name}.parquet", pixels[rows], labels[rows], **kwargs)
    return pixels, labels


def test_parquet_files_have_the_official_names_or_those_that_they_tell_or_numbers(tmp_path):
    pixels, labels = write_parquet_set(tmp_path / "ten")
    check(opened(CIFAR10, tmp_path / "ten"), list(pixels), CIFAR10_CATEGORIES, labels)
    pixels, labels = write_parquet_set(tmp_path / "fine", 20, label="fine_label", names=FINE)
    check(opened(CIFAR100, tmp_path / "fine"), list(pixels), FINE, labels)
    pixels, labels = write_parquet_set(tmp_path / "numbers", 4, first=7, image="image")
    numbers = {7: "7", 8: "8", 9: "9", 10: "10"}
    check(opened(ParquetImages, tmp_path / "numbers"), list(pixels), numbers, labels)
    names = [f"name {index}" for index in range(12)]
    write_parquet_set(tmp_path / "names", 4, first=7, image="image", names=names, kind="uint8")
    check(opened(ParquetImages, tmp_path / "names"), list(pixels), names, labels)


def test_images_are_decoded_once(tmp_path, monkeypatch):
    write_parquet_set(tmp_path)
    first = opened(CIFAR10, tmp_path).records()
    monkeypatch.setattr("fedlit.data.binary.vision.read_image", None)
    again = opened(CIFAR10, tmp_path).records()
    assert again.store.path == first.store.path
    with refusals.refused(DataError, "train-00000-of-00002.parquet, row 0: 'img'"):
        opened(CIFAR10, tmp_path, image_size=16).records()


# What is refused


def imagenet(change):
    """Read ImageNet's layout after a change of its folder."""

    def read(folder: Path) -> None:
        write_imagenet(folder)
        change(folder)
        opened(ImageNet, folder, image_size=9).records()

    return read


def parquet(*labels, **given):
    """Read CIFAR-10 with another second training file."""

    def read(folder: Path) -> None:
        write_parquet_set(folder)
        write_parquet(folder / "train-00001-of-00002.parquet", pictures(3, 0), list(labels), **given)
        opened(CIFAR10, folder).records()

    return read


def stl_without_names(folder: Path) -> None:
    write_stl(folder)
    (folder / "stl10_binary" / "class_names.txt").unlink()
    opened(STL10, folder).records()


def unofficial(folder: Path) -> None:
    write_cifar(folder, datasets.CIFAR10, "labels", list(CIFAR10_CATEGORIES), "label_names")
    CIFAR10(folder).records()


PNG, FILE = as_png(pictures(1, 0)[0]), "train-00001-of-00002.parquet"
ELSEWHERE = (
    (CIFAR10, "cifar-10-batches-py"), (CIFAR100, "cifar-100-python"), (STL10, "stl10_binary"),
    (FashionMNIST, "FashionMNIST/raw"), (ParquetImages, "test-*.parquet"),
)  # fmt: skip


@refusals.table([
    *((f"{kind.__name__} elsewhere", lambda folder, kind=kind: [(folder / "other").mkdir(), kind(folder).records()],
        MissingFileError, "found 'other'", needs) for kind, needs in ELSEWHERE),
    ("STL-10 without names", stl_without_names, MissingFileError, "no stl10_binary/class_names.txt"),
    ("pictures that are not official", unofficial, DataError, "cifar-10-batches-py"),
    ("a category without training images", imagenet(lambda root: (root / "train/n00000003").rename(root / "x")),
        DataError, "has 1", "'n00000003'"),
    ("no validation images", imagenet(lambda root: (root / "val").rename(root / "x")), MissingFileError),
    ("unknown numbers", parquet(0, 10, 12), DataError, FILE, "row 1", "0 to 9", "'label', found 10", "2 such rows"),
    ("no number", parquet(0, 1, None), DataError, FILE, "row 2", "found -1", "1 such"),
    ("a damaged image", parquet(0, 1, 2, contents=[PNG, b"no image", None]), DataError, FILE, "row 1: 'img'"),
    ("another column", parquet(0, 1, 2, label="coarse"), DataError, FILE, "'img', 'coarse'"),
    ("labels of text", parquet("cat", "dog", "cat", kind="string"), DataError, FILE, "'label', found string"),
    ("a negative number without names", lambda folder: [write_parquet_set(folder, first=-1),
        ParquetImages(folder).records()], DataError, "row 0", "'label'", "found -1"),
])  # fmt: skip
def test_it_is_refused(provoke, kind, names, tmp_path, request):
    if provoke is stl_without_names:
        request.getfixturevalue("any_checksum")
    with refusals.refused(kind, *names):
        provoke(tmp_path)


# The real images


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason=f"needs CIFAR-10 as Parquet files in {REAL}")
def test_cifar10_ih_with_five_clients(tmp_path, monkeypatch):
    # Labels and partition are of all the images; decoding 60,000 takes ten seconds, so only a hundredth is decoded.
    blank = np.zeros((3, 8, 8), dtype=np.uint8)
    real, calls = vision.read_image, []

    def sampled(file, image_size, channels):
        calls.append(file)
        return real(file, image_size, channels) if len(calls) % 100 == 1 else blank

    monkeypatch.setattr(vision, "read_image", sampled)
    data = CIFAR10(REAL, imratio=0.1, partition=ByCategory(5), image_size=8, cache_dir=str(tmp_path))
    data.prepare_data()
    data.setup()
    assert len(calls) == 60_000
    counts = data.counts().pivot(index="client", columns="split", values=["positives", "negatives"])
    assert counts["positives"].drop_duplicates()[["train", "val", "test"]].values.tolist() == [[500, 500, 1000]]
    assert counts["negatives"].drop_duplicates()[["train", "val", "test"]].values.tolist() == [[4500, 500, 1000]]
    assert len(counts) == 5
    category = data._read().table.set_index("image")["category"]
    groups = data.assignment.assign(category=data.assignment["image"].map(category)).groupby("client")["category"]
    assert set(groups.nunique()) == {2}
    assert sorted(name for pair in groups.unique() for name in pair) == list(CIFAR10_CATEGORIES)
    first = data._read().store[0].float()
    assert 10 < first.std() < 120
