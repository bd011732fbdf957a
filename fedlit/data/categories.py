"""Sources of images with one category each, turned into one imbalanced binary class.

Yuan, Guo, Xu, Ying, Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication
Complexity", ICML 2021, arXiv:2102.04635, section 6: the imbalanced and heterogeneous (IH) benchmark data sets. With
`positives: first_half` and the partition `IID`, those of Zhang et al., "Federated Compositional Deep AUC
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
from torch import nn

from fedlit.data.augmentation import FlipCropAugmentation
from fedlit.data.federated import FederatedDataModule
from fedlit.data.images import ImageStore
from fedlit.data.partition import ByCategory, Partition, split_by_patient
from fedlit.data.records import Records, listed
from fedlit.randomness import derive_seed


@dataclass
class CategorisedImages:
    """Images with one category each, as a source reads them.

    Attributes:
        store: The decoded pictures, N of them.
        names: Unique image ids, [N] str.
        categories: Names of the categories, all different.
        category: Index into `categories` of each image, [N] int.
        splits: The official split of each image, [N] "train_val" or "test".
    """

    store: ImageStore
    names: np.ndarray
    categories: tuple[str, ...]
    category: np.ndarray
    splits: np.ndarray


class CategoryImages(FederatedDataModule, ABC):
    """Images of one category each as one class "positive": that of the images whose category is a positive one.

    The official test set stays the test set. `split` cuts validation out of each category's official training
    images; only then `imratio` drops positives of the training parts, so validation and test keep the balance
    of their categories. Each image counts as a patient of its own.

    A source of your own implements `read()` and says in `layout` what it expects in its folder.

    Args:
        root: The folder of the data. There is no default, and nothing is downloaded.
        positives: Names of the positive categories, or `first_half` of the source's order, which is that of its labels;
            by default half of the categories, drawn from the seed.
        imratio: Share of positives that each client's training part has at most: positives beyond it are
            dropped, drawn from the seed. By default none are.
        partition: Which client a record belongs to; by default five clients of categories of their own.
        image_size: Height and width of the images in pixels.
        in_chans: Channels of the images: 3 is RGB, 1 is grey.
        split: Fractions of train and validation; the third is not used, as the test set is official.
        **kwargs: Further arguments of FederatedDataModule.

    Attributes:
        layout: What the folder must hold, for errors.
    """

    layout = ""

    def __init__(
        self,
        root: Path | None = None,
        positives: list[str] | Literal["first_half"] | None = None,
        imratio: float | None = None,
        partition: Partition | None = None,
        image_size: int = 32,
        in_chans: int = 3,
        split: tuple[float, float, float] = (0.9, 0.1, 0.0),
        **kwargs,
    ):
        super().__init__(
            ByCategory(5) if partition is None else partition,
            image_size=image_size,
            in_chans=in_chans,
            split=split,
            **kwargs,
        )
        if root is None:
            raise ValueError(f"data.root is missing: {self.layout}")
        if imratio is not None and not 0 < imratio < 1:
            raise ValueError(f"data.imratio: expected a share of positives between 0 and 1, found {imratio}")
        if positives not in (None, "first_half") and (not positives or len(set(positives)) < len(positives)):
            raise ValueError(f"data.positives: expected one or more different categories, found {list(positives)}")
        self.root = Path(root).expanduser()
        self.positives = positives
        self.imratio = imratio

    @abstractmethod
    def read(self) -> CategorisedImages:
        """Reads the folder `root`, which exists, and decodes its images into the cache."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The one class."""
        return ("positive",)

    def records(self) -> Records:
        """Reads the source and tells positive from negative categories.

        Raises:
            FileNotFoundError: The folder, or something that it must hold, is missing.
            ValueError: A positive category is unknown, or all categories are positive.
        """
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
            site_classes={},
            splits=images.splits,
            table=pd.DataFrame({"image": images.names, "category": category}),
        )
        # Sites are divided one by one, so with categories in their place every category has its share of validation.
        splits = split_by_patient(records, self.split, self.seed)
        return replace(records, splits=splits, sites=np.full(len(category), type(self).__name__))

    def keep(self, records: Records, owners: np.ndarray) -> np.ndarray:
        """All but the training positives beyond `imratio`, [N] bool.

        Raises:
            ValueError: A client has no negative training image, so that no number of positives gives `imratio`.
        """
        kept = np.ones(len(owners), dtype=bool)
        if self.imratio is None:
            return kept
        positive, training = records.labels[:, 0] == 1, records.splits == "train"
        for client in np.unique(owners[training]):
            mine = training & (owners == client)
            negatives = int((mine & ~positive).sum())
            if not negatives:
                raise ValueError(
                    f"data.imratio: expected negative training images at every client, found none at {str(client)!r}. "
                    "Leave imratio out, or choose a partition that gives it some."
                )
            positives = np.flatnonzero(mine & positive)
            positives = positives[np.argsort(records.names[positives])]
            wanted = max(1, round(negatives * self.imratio / (1 - self.imratio)))
            kept[self._generator("imratio", client).permutation(positives)[wanted:]] = False
        return kept

    def default_augmentation(self) -> nn.Module:
        """Horizontal flip and padded crop."""
        return FlipCropAugmentation()

    def missing(self, found: str) -> FileNotFoundError:
        """The error of a folder that does not hold what it must."""
        return FileNotFoundError(f"{self.root}: {found}; {self.layout}. fedlit does not download it.")

    def _positive_categories(self, categories: Sequence[str]) -> list[str]:
        if self.positives is None:
            positives = self._generator("positives").permutation(sorted(categories))[: len(categories) // 2].tolist()
        elif self.positives == "first_half":
            positives = categories[: len(categories) // 2]
        else:
            positives = self.positives
        for name in positives:
            if name not in categories:
                near = get_close_matches(name, categories, n=3)
                known = f"near names are {listed(near)}" if near else f"categories are {listed(categories, 20)}"
                raise ValueError(f"data.positives: unknown category {name!r}; {known}")
        if not 0 < len(positives) < len(categories):
            raise ValueError(
                "data.positives: expected some positive and some negative categories, "
                f"found {len(positives)} positive ones of {len(categories)}: {listed(categories)}"
            )
        return positives

    def _generator(self, *purpose: str) -> np.random.Generator:
        return np.random.default_rng(derive_seed(self.seed, *purpose))
