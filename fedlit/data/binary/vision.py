"""Public sets of images with one category each: CIFAR-10, CIFAR-100, STL-10, Fashion-MNIST, ImageNet, Parquet files.

They are read in the layouts of torchvision, of the download of ImageNet, and of the Hugging Face hub.
"""

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import track
from torchvision import datasets
from torchvision.transforms.v2 import functional

from fedlit.core.errors import DataError
from fedlit.data.binary.categories import CategorisedImages, CategoryImages
from fedlit.data.pictures.images import ImageStore, decode_images, read_image
from fedlit.data.records import contents, listed

CIFAR10_CATEGORIES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("fine_label", "label")
_PARQUET = (
    "train-*.parquet and test-*.parquet with a column img or image (a struct with bytes) and a column fine_label or "
    "label (integers)"
)
_Part = Callable[[bool], datasets.VisionDataset]
_VERSION = "1"  # part of the cache key: raise it when pixels change


class ParquetImages(CategoryImages):
    """Images of one category each in Parquet files, as on the Hugging Face hub.

    The folder holds ``train-*.parquet`` and ``test-*.parquet``. Each file has a column ``img`` or ``image``, a struct
    whose ``bytes`` are an image file, and a column ``fine_label`` or ``label`` of integers. The names of categories are
    those in the metadata of the files, or else the integers.
    """

    layout = f"expected {_PARQUET}"

    def read(self) -> CategorisedImages:
        """Read the labels and decode the images into the cache as RGB."""
        return _read_parquet(self)


class CIFAR10(CategoryImages):
    """CIFAR-10: 60,000 photographs of 32 x 32 pixels in ten categories, 10,000 of them for the test.

    Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. The folder has torchvision's
    layout, ``cifar-10-batches-py/``, or else the Parquet files of ``ParquetImages``.
    """

    layout = f"expected the folder cifar-10-batches-py (torchvision's layout), or {_PARQUET}"

    def read(self) -> CategorisedImages:
        """Read the labels and decode the images into the cache as RGB."""
        folder = self.root / "cifar-10-batches-py"
        if not folder.is_dir():
            return _read_parquet(self, CIFAR10_CATEGORIES)
        return _read_torchvision(self, folder, lambda train: datasets.CIFAR10(self.root, train))


class CIFAR100(CategoryImages):
    """CIFAR-100: 60,000 photographs of 32 x 32 pixels in a hundred fine categories, 10,000 of them for the test.

    Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. The folder has torchvision's
    layout, ``cifar-100-python/``, or else the Parquet files of ``ParquetImages``.
    """

    layout = f"expected the folder cifar-100-python (torchvision's layout), or {_PARQUET}"

    def read(self) -> CategorisedImages:
        """Read the labels and decode the images into the cache as RGB."""
        folder = self.root / "cifar-100-python"
        if not folder.is_dir():
            return _read_parquet(self)
        return _read_torchvision(self, folder, lambda train: datasets.CIFAR100(self.root, train))


class STL10(CategoryImages):
    """STL-10: 13,000 labelled photographs of 96 x 96 pixels in ten categories, 8,000 of them for the test.

    Coates, Lee, Ng, "An Analysis of Single Layer Networks in Unsupervised Feature Learning", AISTATS 2011. The
    folder has torchvision's layout, ``stl10_binary/``. The unlabelled images must be in it but are not used.

    Args:
        root: The folder of the data. There is no default, and nothing is downloaded.
        image_size: Height and width of the images in pixels, at least 8.
        **kwargs: Further arguments of CategoryImages.
    """

    layout = "expected the folder stl10_binary with all its files (torchvision's layout)"

    def __init__(self, root: Path | None = None, image_size: int = 96, **kwargs):
        super().__init__(root, image_size=image_size, **kwargs)

    def read(self) -> CategorisedImages:
        """Read the labels and decode the images into the cache as RGB."""
        folder = self.root / "stl10_binary"
        if folder.is_dir() and not (folder / "class_names.txt").is_file():
            raise self.missing("no stl10_binary/class_names.txt")
        parts = ("test", "train")
        return _read_torchvision(self, folder, lambda train: datasets.STL10(self.root, parts[train]), labels="labels")


class FashionMNIST(CategoryImages):
    """Fashion-MNIST: 70,000 grey pictures of clothes, 28 x 28 pixels, in ten categories, 10,000 of them for the test.

    Xiao, Rasul, Vollgraf, arXiv:1708.07747. The folder has torchvision's layout, ``FashionMNIST/raw/``.

    Args:
        root: The folder of the data. There is no default, and nothing is downloaded.
        image_size: Height and width of the images in pixels, at least 8.
        in_chans: Number of channels of the images: 1 is grey, 3 repeats the grey for weights that expect RGB.
        mean: Mean that is subtracted from the pixels in [0, 1]: one value, or one for each channel.
        std: Standard deviation by which the pixels are divided after that: one value, or one for each channel, above 0.
        **kwargs: Further arguments of CategoryImages.
    """

    layout = "expected the folder FashionMNIST/raw with the four idx files (torchvision's layout)"

    def __init__(
        self,
        root: Path | None = None,
        image_size: int = 28,
        in_chans: int = 1,
        mean: float | list[float] = 0.286,
        std: float | list[float] = 0.353,
        **kwargs,
    ):
        super().__init__(root, image_size=image_size, in_chans=in_chans, mean=mean, std=std, **kwargs)

    def read(self) -> CategorisedImages:
        """Read the labels and decode the images into the cache as grey."""
        folder = self.root / "FashionMNIST" / "raw"
        return _read_torchvision(self, folder, lambda train: datasets.FashionMNIST(self.root, train), channels=1)


class ImageNet(CategoryImages):
    """ImageNet (ILSVRC 2012), or any set with folders train/<category>/ and, for the test, val/<category>/.

    Russakovsky et al., IJCV 2015. The name of a category is that of its folder (``n01440764``). Images are squeezed to
    squares. The cache of all 1.3 million images takes 190 GB at 224 pixels and 16 GB at 64.

    Args:
        root: The folder of the data. There is no default, and nothing is downloaded.
        image_size: Height and width of the images in pixels, at least 8.
        **kwargs: Further arguments of CategoryImages.
    """

    layout = "expected images in train/<category>/ and val/<category>/, such as train/n01440764/n01440764_18.JPEG"

    def __init__(self, root: Path | None = None, image_size: int = 224, **kwargs):
        super().__init__(root, image_size=image_size, **kwargs)

    def read(self) -> CategorisedImages:
        """List the folders and decode the images into the cache as RGB."""
        train, test = (self._files(name) for name in ("train", "val"))
        files = [*train, *test]
        categories, category = np.unique([file.parent.name for file in files], return_inverse=True)
        if unknown := sorted(set(categories.tolist()) - {file.parent.name for file in train}):
            raise DataError(
                f"{self.root}: val/ has {len(unknown)} categories that train/ lacks: {listed(unknown)}. "
                "Add their training images, or remove their folders."
            )
        return CategorisedImages(
            store=decode_images(files, self.image_size, 3, self.cache_dir),
            names=np.array([file.relative_to(self.root).as_posix() for file in files]),
            categories=tuple(categories.tolist()),
            category=category,
            splits=_official(len(train), len(test)),
        )

    def _files(self, folder: str) -> list[Path]:
        files = (self.root / folder).glob("*/*")
        images = sorted(file for file in files if file.suffix.lower() in (".jpeg", ".jpg", ".png"))
        if not images:
            raise self.missing(f"no images in folders of {folder}/")
        return images


def _read_torchvision(
    source: CategoryImages, folder: Path, part: _Part, channels: int = 3, labels: str = "targets"
) -> CategorisedImages:
    """Read a data set of torchvision from ``folder``; part(True) is for training, part(False) for the test."""
    if not folder.is_dir():
        raise source.missing(f"found {contents(source.root)}")
    try:
        train, test = part(True), part(False)
    except RuntimeError as error:
        advice = "fedlit does not download them: extract the original archive again."
        raise DataError(f"{folder}: torchvision reports missing or bad files ({error}). {advice}") from error
    size = [source.image_size, source.image_size]
    pixels = (functional.pil_to_tensor(functional.resize(image, size)).numpy() for image, _ in chain(train, test))
    files = sorted(file for file in folder.iterdir() if file.is_file())
    category = np.concatenate([np.asarray(getattr(each, labels), dtype=np.int64) for each in (train, test)])
    return _categorised(
        source, files, channels, pixels=pixels, categories=tuple(train.classes), category=category, training=len(train)
    )


def _read_parquet(source: CategoryImages, categories: Sequence[str] | None = None) -> CategorisedImages:
    """Read Parquet files; ``categories`` are the names of the labels if the files have none."""
    train, test = (sorted(source.root.glob(f"{split}-*.parquet")) for split in ("train", "test"))
    if not train or not test:
        raise source.missing(f"found {contents(source.root)}")
    files = [*train, *test]
    columns = [_columns(file) for file in files]
    categories = _category_names(files[0], columns[0][1]) or categories
    labels = [_labels(file, label, categories) for file, (_, label) in zip(files, columns, strict=True)]
    category = np.concatenate(labels)
    if categories is None:
        numbers, category = np.unique(category, return_inverse=True)
        categories = numbers.astype(str).tolist()

    def pixels() -> Iterator[np.ndarray]:
        for file, (column, _) in zip(files, columns, strict=True):
            for row, content in enumerate(_contents(file, column)):
                try:
                    yield read_image(io.BytesIO(content), source.image_size, 3)
                except Exception as error:  # damage shows as OSError, SyntaxError, ValueError, zlib.error...
                    raise DataError(f"{file}, row {row}: {column!r} cannot be decoded: {error}") from error

    training = sum(map(len, labels[: len(train)]))
    return _categorised(
        source, files, 3, pixels=pixels(), categories=tuple(categories), category=category, training=training
    )


def _columns(file: Path) -> tuple[str, str]:
    """Return the columns of images and of labels."""
    schema = pq.read_schema(file)
    image = next((name for name in IMAGE_COLUMNS if name in schema.names), None)
    label = next((name for name in LABEL_COLUMNS if name in schema.names), None)
    if image is None or label is None:
        raise DataError(f"{file}: expected {_PARQUET}, found columns {listed(schema.names)}")
    kind = schema.field(image).type
    if not pa.types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        raise DataError(f"{file}: expected a struct of bytes as {image!r}, found {kind}")
    if not pa.types.is_integer(schema.field(label).type):
        raise DataError(f"{file}: expected integers as {label!r}, found {schema.field(label).type}")
    return image, label


def _category_names(file: Path, column: str) -> list[str] | None:
    """Return the names of a column's categories that Hugging Face's ``datasets`` wrote into the schema, or None."""
    metadata = (pq.read_schema(file).metadata or {}).get(b"huggingface")
    features = json.loads(metadata).get("info", {}).get("features", {}) if metadata else {}
    return features.get(column, {}).get("names")


def _labels(file: Path, column: str, categories: Sequence[str] | None) -> np.ndarray:
    labels = pq.read_table(file, columns=[column]).column(0).cast(pa.int64()).fill_null(-1).to_numpy()
    wrong = (labels < 0) | (labels >= (np.inf if categories is None else len(categories)))
    if wrong.any():
        row = int(wrong.argmax())
        expected = "at least 0" if categories is None else f"0 to {len(categories) - 1}"
        raise DataError(
            f"{file}, row {row}: expected a label {expected} in column {column!r}, found {labels[row]} "
            f"(-1 where it is empty; {wrong.sum()} such rows). Remove these rows."
        )
    return labels


def _contents(file: Path, column: str) -> Iterator[bytes | None]:
    """Yield the image files in a column, a few at a time, because a Parquet file may be larger than the memory."""
    with pq.ParquetFile(file) as table:
        for batch in table.iter_batches(batch_size=256, columns=[f"{column}.bytes"]):
            yield from batch.column(0).field("bytes").to_pylist()


def _categorised(
    source: CategoryImages,
    files: Sequence[Path],
    channels: int,
    pixels: Iterable[np.ndarray],
    categories: tuple[str, ...],
    category: np.ndarray,
    training: int,
) -> CategorisedImages:
    """Return images, of which the first ``training`` are training images and all others test images.

    The ``pixels`` are only read if these files were not decoded to this shape before.
    """
    shape = (len(category), channels, source.image_size, source.image_size)
    digest = hashlib.sha256(f"{_VERSION} {shape}\n".encode())
    for file in files:
        stat = file.stat()
        digest.update(f"{file.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())

    def write(out: np.memmap) -> None:
        description = f"Decoding {len(out):,} images"
        images = track(pixels, description, len(out), console=Console(stderr=True), transient=True)
        for row, image in enumerate(images):
            out[row] = image

    counts = {"train": training, "test": len(category) - training}
    return CategorisedImages(
        store=ImageStore.cached(f"vision-{shape[-1]}-{digest.hexdigest()[:24]}", shape, write, source.cache_dir),
        names=np.array([f"{split}-{index:06d}" for split, count in counts.items() for index in range(count)]),
        categories=categories,
        category=category,
        splits=_official(*counts.values()),
    )


def _official(train: int, test: int) -> np.ndarray:
    return np.repeat(["train_val", "test"], [train, test])
