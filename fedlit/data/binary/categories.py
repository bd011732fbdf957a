"""Sources of images with one category each, turned into one imbalanced binary class.

These are the imbalanced and heterogeneous (IH) data sets of Yuan, Guo, Xu, Ying, Yang, "Federated Deep AUC Maximization
for Heterogeneous Data with a Constant Communication Complexity", ICML 2021, arXiv:2102.04635, section 6. With
``positives: first_half`` and the partition ``IID`` they are those of Zhang et al., "Federated Compositional Deep AUC
Maximization", NeurIPS 2023, arXiv:2304.10101, section 6.1.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from fedlit.core.errors import DataError, MissingFileError
from fedlit.core.ranges import Fraction
from fedlit.core.seeds import derive_seed
from fedlit.data.federated import FederatedDataModule
from fedlit.data.partition import ByCategory, Partition
from fedlit.data.pictures.images import ImageStore
from fedlit.data.records import Records, listed
from fedlit.data.splits import split_by_patient


@dataclass
class CategorisedImages:
    """Images with one category each, as a source reads them.

    Attributes:
        store: The N decoded images.
        names: Unique image ids, [N] str.
        categories: Names of the categories, all different.
        category: Position of the category of each image in ``categories``, [N] int.
        splits: The official split of each image, [N] "train_val" or "test".
    """

    store: ImageStore
    names: np.ndarray
    categories: tuple[str, ...]
    category: np.ndarray
    splits: np.ndarray


class CategoryImages(FederatedDataModule, ABC):
    """Images of one category each, with one class "positive" for the images of some categories.

    The official test set is kept. ``split`` takes validation images from the official training images of each category.
    Afterwards ``imratio`` drops positive training images, so the balance of validation and test does not change. Each
    image counts as a patient.

    A new source implements ``read()`` and describes the expected folder in ``layout``.

    Args:
        root: The folder of the data. There is no default, and nothing is downloaded.
        positives: Names of the positive categories, or ``first_half`` for the first half in the order of the source's
            labels. By default half of the categories are drawn from the seed.
        imratio: Largest share of positive images in the training part of each client, between 0 and 1. Further positive
            images are dropped at random, by the seed. By default all are kept.
        partition: The rule that gives each record to a client; by default ``ByCategory`` with five clients.
        image_size: Height and width of the images in pixels, at least 8.
        in_chans: Number of channels of the images: 3 is RGB, 1 is grey.
        split: Fractions of training and validation images. The third number is not used, as the test set is official.
        **kwargs: Further arguments of FederatedDataModule.

    Attributes:
        layout: A description of the expected folder, for error messages.
    """

    classes = ("positive",)
    layout = ""
    photographs = True

    def __init__(
        self,
        root: Path | None = None,
        positives: list[str] | Literal["first_half"] | None = None,
        imratio: Fraction | None = None,
        partition: Partition | None = None,
        image_size: int = 32,
        in_chans: int = 3,
        split: tuple[float, float, float] = (0.9, 0.1, 0.0),
        **kwargs,
    ):
        partition = ByCategory(5) if partition is None else partition
        super().__init__(partition, image_size=image_size, in_chans=in_chans, split=split, **kwargs)
        if root is None:
            raise DataError(f"data.root is missing: {self.layout}")
        if positives not in (None, "first_half") and (not positives or len(set(positives)) < len(positives)):
            raise DataError(f"data.positives: expected one or more different categories, found {list(positives)}")
        self.root, self.positives, self.imratio = Path(root).expanduser(), positives, imratio

    @abstractmethod
    def read(self) -> CategorisedImages:
        """Read the folder ``root``, which exists, and decode its images into the cache.

        Raises:
            FileNotFoundError: A file or folder is missing.
            ValueError: A file has an unexpected name or content, or a category lacks images.
        """

    def records(self) -> Records:
        """Read the source, and label its images by the positive categories."""
        if not self.root.is_dir():
            raise self.missing("no such folder")
        images = self.read()
        category = np.array(images.categories)[images.category]
        present = [name for name in images.categories if name in set(category.tolist())]
        positive = np.isin(category, self._positive_categories(present))
        records = Records(
            store=images.store,
            names=images.names,
            labels=positive[:, None].astype(np.float32),
            classes=self.classes,
            patients=images.names,
            sites=category,
            splits=images.splits,
            table=pd.DataFrame({"image": images.names, "category": category}),
        )
        # Sites are divided separately, so with categories as sites every category has its share of validation.
        splits = split_by_patient(records, self.split, self.seed)
        # An imbalance ratio removes training images alone, so chance does not decide who is one.
        drawn = np.isin(images.names, list(records.drawn_names())) & (self.imratio is None)
        return replace(records, splits=splits, drawn=drawn, sites=np.full(len(category), type(self).__name__))

    def keep(self, records: Records, owners: np.ndarray) -> np.ndarray:
        """Return a mask of all records except the positive training images beyond ``imratio``, [N] bool.

        Raises:
            DataError: A client has no negative training image, so that no number of positives gives ``imratio``.
        """
        kept = np.ones(len(owners), dtype=bool)
        if self.imratio is None:
            return kept
        positive, training = records.labels[:, 0] == 1, records.splits == "train"
        for client in np.unique(owners[training]):
            mine = training & (owners == client)
            negatives = int((mine & ~positive).sum())
            if not negatives:
                raise DataError(
                    f"data.imratio: expected negative training images at every client, found none at {str(client)!r}. "
                    "Remove imratio, or choose a partition that gives this client some."
                )
            positives = np.flatnonzero(mine & positive)
            positives = positives[np.argsort(records.names[positives])]
            wanted = max(1, round(negatives * self.imratio / (1 - self.imratio)))
            kept[self._generator("imratio", client).permutation(positives)[wanted:]] = False
        return kept

    def missing(self, reason: str) -> MissingFileError:
        """Return the error for a folder with missing content."""
        return MissingFileError(f"{self.root}: {reason}; {self.layout}. fedlit does not download it.")

    def _positive_categories(self, categories: Sequence[str]) -> list[str]:
        if self.positives is None:
            positives = self._generator("positives").permutation(sorted(categories))[: len(categories) // 2].tolist()
        elif self.positives == "first_half":
            positives = categories[: len(categories) // 2]
        else:
            positives = self.positives
        for name in positives:
            if name not in categories:
                similar = get_close_matches(name, categories, n=3)
                hint = f"similar names are {listed(similar)}" if similar else f"categories are {listed(categories, 20)}"
                raise DataError(f"data.positives: unknown category {name!r}; {hint}")
        if not 0 < len(positives) < len(categories):
            raise DataError(
                "data.positives: expected some positive and some negative categories, "
                f"found {len(positives)} positive ones of {len(categories)}: {listed(categories)}"
            )
        return positives

    def _generator(self, *purpose: str) -> np.random.Generator:
        return np.random.default_rng(derive_seed(self.seed, *purpose))
