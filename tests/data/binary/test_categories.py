"""Categories as one imbalanced class: what is positive, what is dropped, and what stays as it is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused, table

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data.binary.categories import CategorisedImages, CategoryImages
from fedlit.data.federated import FederatedDataModule
from fedlit.data.partition import IID, ByCategory, ByColumn
from fedlit.data.pictures.augmentation import FlipCropAugmentation, XrayAugmentation
from fedlit.data.pictures.images import ImageStore

CATEGORIES = ("apple", "bear", "chair", "dolphin", "eagle", "fox", "globe", "house")
PER_CATEGORY = {"train_val": 40, "test": 10}


class Photographs(CategoryImages):
    """Eight categories of 40 training and 10 test images, in the order of `order`.

    Args:
        order: Seed of the order of rows; None for none.
    """

    layout = "expected nothing in particular"

    def __init__(self, root, order: int | None = None, **kwargs):
        super().__init__(root, image_size=8, cache_dir=root, **kwargs)
        self.order = order

    def read(self) -> CategorisedImages:
        category = np.concatenate([np.repeat(np.arange(8), count) for count in PER_CATEGORY.values()])
        splits = np.repeat(list(PER_CATEGORY), [8 * count for count in PER_CATEGORY.values()])
        names = np.array([f"{index:04d}" for index in range(len(category))])
        rows = np.arange(len(names))
        if self.order is not None:
            rows = np.random.default_rng(self.order).permutation(rows)
        pixels = np.broadcast_to((rows % 256).astype(np.uint8)[:, None, None, None], (len(rows), 3, 8, 8))
        store = ImageStore.from_array(pixels, self.cache_dir)
        return CategorisedImages(store, names[rows], CATEGORIES, category[rows], splits[rows])


def ready(root, kind: type[CategoryImages] = Photographs, **kwargs) -> Photographs:
    data = kind(str(root), **{"partition": IID(2)} | kwargs)
    data.prepare_data()
    data.setup()
    return data


def part(data: FederatedDataModule, split: str):
    return data.counts().query("split == @split").set_index("client")[["positives", "negatives"]]


def category_of(data: Photographs) -> dict[str, str]:
    table = data.records().table
    return dict(zip(table["image"], table["category"], strict=True))


def positives_of(root, **kwargs) -> set[str]:
    records = Photographs(root, **kwargs).records()
    return set(records.table["category"][records.labels[:, 0] == 1])


def test_categories_become_one_class_of_which_a_random_half_is_positive_unless_named(tmp_path):
    records = Photographs(tmp_path).records()
    assert (records.classes, records.labels.shape, set(records.sites)) == (("positive",), (400, 1), {"Photographs"})
    assert (records.table.groupby("category")["image"].count() == 50).all()
    assert len(positives_of(tmp_path)) == 4
    assert positives_of(tmp_path, seed=3) == positives_of(tmp_path, seed=3, order=1)
    assert len({frozenset(positives_of(tmp_path, seed=seed)) for seed in range(5)}) > 1
    assert positives_of(tmp_path, positives=["fox", "bear", "apple"]) == {"fox", "bear", "apple"}


class Backwards(Photographs):
    """Labels 0 to 7 are house to apple."""

    def read(self):
        return replace(super().read(), categories=CATEGORIES[::-1])


def test_the_first_half_follows_the_labels_and_no_alphabet(tmp_path):
    records = Backwards(tmp_path, positives="first_half").records()
    assert set(records.table["category"][records.labels[:, 0] == 1]) == set(CATEGORIES[4:])
    assert positives_of(tmp_path, positives="first_half", seed=3, order=1) == set(CATEGORIES[:4])


def test_every_category_has_its_share_of_validation_and_its_whole_test_set(tmp_path):
    data = ready(tmp_path, split=(0.75, 0.25, 0.0))
    category, splits = category_of(data), data.assignment.set_index("image")["split"]
    sizes = splits.groupby([splits.index.map(category), splits]).size().unstack()
    assert sizes[["train", "val", "test"]].drop_duplicates().values.tolist() == [[30, 10, 10]]
    for name in data.assignment["image"][data.assignment["split"] == "test"]:
        assert int(name) >= 320


PARTITIONS = {"ByCategory": ByCategory(2), "ByCategory odd": ByCategory(3)}
seeds = st.integers(0, 2**31)


@pytest.mark.parametrize("name", PARTITIONS)
@settings(max_examples=3, deadline=None, derandomize=True)
@given(seed=seeds, imratio=st.floats(0.01, 0.99))
def test_imratio_is_the_share_of_positives_of_every_client_in_training_alone(tmp_path_factory, name, seed, imratio):
    root = tmp_path_factory.getbasetemp()
    whole = ready(root, partition=PARTITIONS[name], seed=seed)
    data = ready(root, partition=PARTITIONS[name], seed=seed, imratio=imratio)
    before, after = part(whole, "train"), part(data, "train")
    assert (after["negatives"] == before["negatives"]).all()
    images = after.sum(axis=1)
    share = after["positives"] / images
    fewer = before["positives"] / before.sum(axis=1) < imratio
    assert (after[fewer] == before[fewer]).all().all()
    assert ((share - imratio).abs()[~fewer] <= 1 / images[~fewer]).all()
    for split in ("val", "test"):
        assert part(data, split).equals(part(whole, split))
    if name == "ByCategory":
        assert (part(data, "test")["positives"] == part(data, "test")["negatives"]).all()
        assert (part(data, "val")["positives"] == part(data, "val")["negatives"]).all()


def images_of(data: FederatedDataModule) -> set[tuple[str, str, str]]:
    return set(data.assignment[["image", "client", "split"]].itertuples(index=False, name=None))


def test_what_is_dropped_depends_on_the_seed_and_not_on_the_order_of_rows(tmp_path):
    chosen = {"partition": IID(2), "imratio": 0.2, "positives": list(CATEGORIES[:4])}
    first, again, reordered = (ready(tmp_path, **chosen, order=order) for order in (None, None, 5))
    assert images_of(first) == images_of(again) == images_of(reordered)
    assert first.partition_hash == reordered.partition_hash
    records = first._read()
    owners = np.repeat("one", len(records.names))
    final = first.assignment.set_index("image")["split"].reindex(records.names).fillna("train").to_numpy(str)
    records.splits = final
    other = Photographs(tmp_path, **chosen, seed=1)
    kept, kept_by_other = first.keep(records, owners), other.keep(records, owners)
    assert kept.sum() == kept_by_other.sum() < len(kept)
    assert (kept != kept_by_other).any()


def test_a_larger_imratio_keeps_what_a_smaller_one_keeps(tmp_path):
    small, large = (images_of(ready(tmp_path, partition=IID(2), imratio=imratio)) for imratio in (0.1, 0.3))
    assert small < large


def test_what_is_dropped_is_nowhere(tmp_path):
    data, whole = ready(tmp_path, partition=ByCategory(2), imratio=0.1), ready(tmp_path, partition=ByCategory(2))
    parts = (part for client in data.clients.values() for part in (client.train, client.val, client.test))
    seen = {name for part in parts for name in part.names}
    assert seen == set(data.assignment["image"])
    assert len(seen) == len(data.assignment) < len(whole.assignment) == 400
    assert data.partition_hash != whole.partition_hash
    data.save_partition(tmp_path / "partition.csv")
    assert len((tmp_path / "partition.csv").read_text().splitlines()) == 1 + len(seen)


def test_pictures_and_labels_stay_together_when_others_are_dropped(tmp_path):
    options = {"order": 2, "positives": list(CATEGORIES[:4]), "augment": False, "mean": 0.0, "std": 1.0}
    data = ready(tmp_path, partition=ByCategory(2), imratio=0.1, **options)
    for client in data.clients.values():
        for images in (client.train, client.val, client.test):
            pixels, labels = images.batch(range(len(images)))
            rows = np.array([int(name) for name in images.names])
            np.testing.assert_array_equal((pixels[:, 0, 0, 0] * 255).round().numpy(), rows % 256)
            category = np.where(rows < 320, rows // 40, (rows - 320) // 10)
            np.testing.assert_array_equal(labels[:, 0].numpy(), category < 4)


# Augmentation


def test_true_means_flip_and_padded_crop_for_photographs(tmp_path):
    assert isinstance(ready(tmp_path).clients["client-01"].train.augment, FlipCropAugmentation)
    assert isinstance(FederatedDataModule(IID(2)).default_augmentation(), XrayAugmentation)
    assert ready(tmp_path, augment=False).clients["client-01"].train.augment is None
    assert ready(tmp_path).clients["client-01"].val.augment is None


# What is refused


class One(Photographs):
    def read(self):
        images = super().read()
        images.category[:] = 0
        return images


class Dropping(Photographs):
    """Drops the whole training part of a client."""

    def keep(self, records, owners):
        return (owners != "client-02") | (records.splits != "train")


def photographs(kind: type[CategoryImages] = Photographs, **options):
    return lambda folder: ready(folder, kind, **options)


@table([
    *((f"an imratio of {share}", photographs(imratio=share), DataError, f"found {share}") for share in (0.0, 1.0, 10)),
    ("no positives", photographs(positives=[]), DataError),
    ("a positive twice", photographs(positives=["fox", "fox"]), DataError, "['fox', 'fox']"),
    ("a misspelled positive", photographs(positives=["fox", "dolfin"]), DataError, "'dolfin'", "'dolphin'"),
    ("an unknown positive", photographs(positives=["zzz"]), DataError, "'zzz'", "'apple', 'bear'", "'house'"),
    ("no negative", photographs(positives=list(CATEGORIES)), DataError, "found 8", "of 8"),
    ("a single category", photographs(One), DataError, "found 0", "1: 'apple'"),
    ("a category without images", photographs(One, positives=["fox"]), DataError, "'fox'", "categories are 'apple'"),
    ("a client whose images are all dropped", photographs(Dropping), DataError, "'client-02'", "found 0"),
    ("clients of one kind", photographs(partition=ByColumn("category"), imratio=0.1), DataError, "data.imratio"),
    ("no root", lambda _: Photographs(None), DataError, "data.root is missing"),
    ("no such folder", lambda folder: CategoryImages.records(Photographs(folder / "gone")), MissingFileError, "gone",
        "no such folder", "expected nothing"),
])  # fmt: skip
def test_it_is_refused(provoke, kind, names, tmp_path):
    with refused(kind, *names):
        provoke(tmp_path)
